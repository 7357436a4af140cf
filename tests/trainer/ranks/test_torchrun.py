"""Ranks that torchrun starts, with real processes: what they exchange, a whole step of the trainer
against one process's, and what is said and left where one fails."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from fieldkit.errors import BadInput
from fieldkit.training.adapter import adapter_sha
from fieldkit.training.canary_record import read_canary
from tests.trainer.conftest import PROMPT, make_group, write_bundle
from tests.trainer.test_step import follow, step
from trainer.checkpoint import read_result
from trainer.inputs import StepInputs
from trainer.progress import Lines
from trainer.ranks import torchrun
from trainer.settings import TrainerSettings
from trainer.step import train

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120

# `python -c … SCRIPT FOLDER`: SCRIPT as two ranks, with the end of `python -m trainer`.
LAUNCH = """
import sys
from pathlib import Path
from fieldkit.errors import FieldkitError
from trainer.ranks.torchrun import run_ranks
from trainer.settings import TrainerSettings
try:
    run_ranks(["-c", sys.argv[1]], TrainerSettings(processes=2), Path(sys.argv[2]))
except FieldkitError as e:
    print(f"error: {e}", file=sys.stderr)
    sys.exit(e.exit_code)
"""

RANK = """
import os, signal, sys
from fieldkit.errors import FieldkitError
from trainer.ranks.rank import reporting, this_rank
rank = this_rank()
try:
    with reporting(), rank.joined():
        {body}
except FieldkitError as e:
    sys.exit(e.exit_code)
"""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )


def as_two_ranks(body: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return python("-c", LAUNCH, RANK.format(body="\n        ".join(body)), str(folder))


def processes_of(folder: Path) -> list[psutil.Process]:
    """All whose command names this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


# --- what ranks exchange --------------------------------------------------------------------------


def test_ranks_gather_in_their_order_and_sum_their_gradients(tmp_path: Path) -> None:
    done = as_two_ranks(
        [
            "import json, torch",
            "one, two = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))",
            "one.grad = torch.tensor([0.1, 0.2]) * (rank.number + 1)",
            "if rank.number: two.grad = torch.tensor([5.0, 7.0])",  # None on rank 0
            "rank.add_gradients([one, two])",
            "found = rank.gather([rank.number, one.grad.tolist(), two.grad.tolist()])",
            "if rank.is_first: print(json.dumps([found, rank.beside]))",
        ],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    found, beside = json.loads(done.stdout)
    assert [number for number, _, _ in found] == [0, 1]
    assert found[0][1:] == found[1][1:]  # to the last bit
    assert found[0][1] == pytest.approx([0.3, 0.6])
    assert found[0][2] == [5.0, 7.0]
    assert beside == 2
    assert list(tmp_path.iterdir()) == []


# --- a rank that fails ----------------------------------------------------------------------------


def test_the_error_of_a_rank_is_told_once_and_with_its_exit_code(tmp_path: Path) -> None:
    """The other one, which waits for it meanwhile, sees a connection that ends."""
    done = as_two_ranks(
        [
            "from fieldkit.errors import BadInput",
            "if rank.number == 1: raise BadInput('bundle.jsonl:3: a bad line')",
            "rank.gather(None)",
            "raise AssertionError('rank 0 went on without the other')",
        ],
        tmp_path,
    )
    assert done.returncode == BadInput.exit_code, done.stderr
    assert done.stderr.count("error: ") == 1
    assert done.stderr.endswith("error: rank 1 of 2: bundle.jsonl:3: a bad line\n")
    assert list(tmp_path.iterdir()) == []


def failure(tmp_path: Path, exit_code: int, error: Exception | None = None) -> Any:
    """What torch reports of a rank that ended so."""
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, ProcessFailure

    file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
    if error is not None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
            ErrorHandler().record_exception(error)
    return ProcessFailure(local_rank=0, pid=7, exitcode=exit_code, error_file=str(file))


@pytest.mark.parametrize(
    ("exit_code", "error", "code", "says"),
    [
        (-9, None, 137, r"rank 2 of 4 \(pid 7\) was killed, which is how the kernel ends"),
        (-11, None, 139, r"rank 2 of 4 \(pid 7\) was ended by SIGSEGV; nothing was written, and"),
        (3, None, 3, r"rank 2 of 4 \(pid 7\) ended with exit code 3; .* takes the step anew"),
        (1, KeyError("x"), 1, "rank 2 of 4: KeyError: 'x'; its traceback is above"),
        (2, BadInput("a.jsonl:1: no"), 2, "rank 2 of 4: a.jsonl:1: no$"),
    ],
)
def test_the_rank_that_failed_by_itself_is_named_with_how(
    exit_code: int, error: Exception | None, code: int, says: str, tmp_path: Path
) -> None:
    ended = failure(tmp_path, -signal.SIGTERM)
    found = torchrun._told({0: ended, 2: failure(tmp_path, exit_code, error), 3: ended}, 4)
    assert found.exit_code == code
    assert re.match(says, str(found))


def test_a_rank_that_somebody_ended_is_told_too(tmp_path: Path) -> None:
    told = torchrun._told({1: failure(tmp_path, -signal.SIGTERM)}, 2)
    assert "rank 1 of 2 (pid 7) was ended by SIGTERM" in str(told)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ranks_end_with_the_process_that_started_them(
    number: signal.Signals, tmp_path: Path
) -> None:
    # One write a rank: they share the pipe, and `print` may write a line in two pieces.
    body = [r'os.write(1, b"%d\n" % os.getpid())', "signal.pause()"]
    words = ["-c", LAUNCH, RANK.format(body="\n        ".join(body)), str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None
        ranks = [psutil.Process(int(launcher.stdout.readline())) for _ in range(2)]
        launcher.send_signal(number)
        gone, alive = psutil.wait_procs(ranks, SECONDS)
        assert (len(gone), alive) == (2, [])
        code = launcher.wait(SECONDS)
    assert code == (130 if number == signal.SIGTERM else -signal.SIGKILL)


def test_more_processes_than_devices_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchrun, "cuda_devices", lambda: 2)
    with pytest.raises(BadInput, match=r"processes is 4, .* 2 CUDA device"):
        torchrun.run_ranks([], TrainerSettings(processes=4), tmp_path / "step")
    assert not (tmp_path / "step").exists()


# --- a step of the trainer ------------------------------------------------------------------------

SETTINGS = TrainerSettings(
    dtype="fp32", serving_dtype="float32", lr=1e-2, kl_coef=0.1, clip_norm=1e3
)
"""Nothing is clipped, so that AdamW's first moment holds the gradient as it is."""


def words(inputs: StepInputs, file: Path, settings: TrainerSettings = SETTINGS) -> list[str]:
    file.write_text(json.dumps(dataclasses.asdict(settings)), encoding="utf-8")
    given = {
        "--bundle": inputs.bundle,
        "--adapter-init": inputs.adapter,
        "--reference-adapter": inputs.reference,
        "--model": inputs.model_dir,
        "--optimizer-state": inputs.state,
        "--out-dir": inputs.out_dir,
        "--settings-json": file,
    }
    return [f"{flag}={value}" for flag, value in given.items() if value] + ["--processes=2"]


# Runs the trainer; the rank that is number 1 ends itself by SIGKILL when the gradients are summed.
KILLED_IN_THE_GRADIENT = """
import os, signal
from trainer import __main__
__main__._AS_A_RANK = ("-c", '''
import os, runpy, signal
from trainer.ranks.rank import Rank
add_gradients = Rank.add_gradients
def add_or_die(self, parameters):
    if self.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    add_gradients(self, parameters)
Rank.add_gradients = add_or_die
runpy.run_module("trainer", run_name="__main__")
''')
__main__.app()
"""


@dataclasses.dataclass(frozen=True)
class Taken:
    """Step 2, after a step 1 of one process, taken by one process and by two.

    The two took it after a first try, in which one of them was killed. left: what was left of that.
    """

    first: StepInputs
    by_one: StepInputs
    by_two: StepInputs
    said_one: str
    said_two: str
    killed: subprocess.CompletedProcess[str]
    left: list[object]

    def tensors(self, file: str) -> list[dict[str, torch.Tensor]]:
        """Of step 1, and of step 2 by one and by two processes."""
        return [load_file(i.out_dir / file) for i in (self.first, self.by_one, self.by_two)]

    def results(self) -> list[dict[str, Any]]:
        """train.json of step 2, by one and by two processes."""
        found = [read_result(i.out_dir) for i in (self.by_one, self.by_two)]
        return [r for r in found if r is not None]


@pytest.fixture(scope="module")
def taken(
    adapter: Path, reference: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Taken:
    folder = tmp_path_factory.mktemp("ranks")
    rng, sha = random.Random(5), adapter_sha(adapter)
    groups = [make_group(rng, sha, f"t{i}", (0.0, 1.0, 0.5), prompt=PROMPT) for i in range(3)]
    bundle = write_bundle(folder / "bundle.jsonl", groups)
    first = StepInputs(bundle, adapter, reference, tiny_model, None, folder / "step-001")
    step(first, SETTINGS)
    rng, sha = random.Random(78), adapter_sha(first.out_dir / "adapter")
    groups = [make_group(rng, sha, f"n{i}", (0.0, 1.0, 0.5, 0.2)) for i in range(2)]
    second = write_bundle(folder / "eight.jsonl", groups)
    by_one = dataclasses.replace(follow(first, folder), bundle=second)
    by_two = dataclasses.replace(by_one, out_dir=folder / "step-002-by-two")
    said = StringIO()
    train(by_one, SETTINGS, Lines(said))
    command = words(by_two, folder / "settings.json")
    killed = python("-c", KILLED_IN_THE_GRADIENT, *command)
    left = [*processes_of(by_two.out_dir), *by_two.out_dir.iterdir()]
    done = python("-m", "trainer", *command)
    assert done.returncode == 0, done.stderr
    return Taken(first, by_one, by_two, said.getvalue(), done.stdout, killed, left)


def require_equal_gradients(
    before: dict[str, torch.Tensor], one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]
) -> None:
    """Of two optimizer states that came from `before`. AdamW's first moment is 0.9 of the one
    before and 0.1 of the gradient."""
    names = [name for name in before if name.startswith("exp_avg.")]
    assert names
    for name in names:
        gradients = [(after[name] - 0.9 * before[name]) / 0.1 for after in (one, two)]
        assert gradients[0].norm() > 1e-3
        assert (gradients[1] - gradients[0]).norm() <= 1e-5 * gradients[0].norm(), name


def test_the_gradient_of_two_processes_is_that_of_one(taken: Taken) -> None:
    require_equal_gradients(*taken.tensors("trainer_state/optimizer.safetensors"))


def test_the_state_of_one_process_goes_on_in_two_and_theirs_in_one(
    taken: Taken, tmp_path: Path
) -> None:
    _, one, two = taken.tensors("adapter/adapter_model.safetensors")
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6)
    after = dataclasses.replace(
        follow(taken.by_two, tmp_path), state=taken.by_two.out_dir / "trainer_state"
    )
    assert step(after, SETTINGS)["train"]["optimizer_steps"] == 3


def test_the_figures_are_those_of_the_whole_bundle(taken: Taken) -> None:
    one, two = (result["train"] for result in taken.results())
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["rank_imbalance"] == 1.0 <= two["rank_imbalance"] < 1.5
    own = {"processes", "rank_imbalance", "n_micro_batches", "tokens_per_second"}
    assert one.keys() == two.keys()
    for name in one.keys() - own:
        assert two[name] == pytest.approx(one[name], rel=1e-4), name


def test_the_canary_proves_the_adapter_of_two_processes(taken: Taken) -> None:
    adapters = [i.out_dir / "adapter" for i in (taken.by_one, taken.by_two)]
    one, two = (read_canary(adapter / "canary.json") for adapter in adapters)
    assert two.adapter_sha == adapter_sha(adapters[1])
    assert one.previous is not None
    assert two.previous is not None
    for mine, theirs in ((two.base, one.base), (two.previous, one.previous), (two.new, one.new)):
        for row, same in zip(mine, theirs, strict=True):
            assert row == pytest.approx(same, abs=1e-4)


def test_a_task_has_one_line_whatever_rank_scored_it(taken: Taken) -> None:
    lines = [
        sorted(line for line in said.splitlines() if line.startswith("[trainer] task "))
        for said in (taken.said_one, taken.said_two)
    ]
    assert len(lines[0]) == len(lines[1]) == 2
    for one, two in zip(*lines, strict=True):
        figures = [re.findall(r"=([-+\d.]+)", line.replace("..", " =")) for line in (one, two)]
        assert one.split()[2] == two.split()[2]
        assert [float(x) for x in figures[1]] == pytest.approx(
            [float(x) for x in figures[0]], abs=2e-5
        )
    assert taken.said_two.count("[trainer] used ") == 1
    assert "2 processes share the bundle; tokens of each: " in taken.said_two


def test_two_processes_leave_what_one_leaves(taken: Taken) -> None:
    names = [sorted(p.name for p in i.out_dir.rglob("*")) for i in (taken.by_one, taken.by_two)]
    assert names[0] == names[1]


def test_a_step_that_two_processes_did_is_done_for_one(taken: Taken) -> None:
    assert step(taken.by_two, SETTINGS) == taken.results()[1]


def test_a_killed_rank_is_named_and_leaves_nothing_to_the_same_command(taken: Taken) -> None:
    assert taken.killed.returncode == 128 + signal.SIGKILL, taken.killed.stderr
    last = taken.killed.stderr.splitlines()[-1]
    assert re.match(r"error: rank 1 of 2 \(pid \d+\) was killed", last)
    assert last.endswith("nothing was written, and the same command takes the step anew")
    assert taken.left == []


def test_a_base_of_which_each_process_has_a_part_gives_the_same_gradient_and_canary(
    taken: Taken, tmp_path: Path
) -> None:
    """Also where one of them has a micro-batch more, for which the other one has to be there."""
    sharded = dataclasses.replace(taken.by_two, out_dir=tmp_path / "sharded")
    settings = dataclasses.replace(SETTINGS, shard_base=True, tokens_per_microbatch=26)
    done = python("-m", "trainer", *words(sharded, tmp_path / "settings.json", settings))
    assert done.returncode == 0, done.stderr
    before, one, _ = taken.tensors("trainer_state/optimizer.safetensors")
    by_shards = load_file(sharded.out_dir / "trainer_state/optimizer.safetensors")
    require_equal_gradients(before, one, by_shards)
    result = read_result(sharded.out_dir)
    assert result is not None
    figures, plain = result["train"], taken.results()[0]["train"]
    assert figures["n_micro_batches"] % 2 == 1
    assert figures["base_shards"] == 2
    for name in ("loss", "kl", "entropy", "sampler_mean_abs", "delta_l2", "all_parameters"):
        assert figures[name] == pytest.approx(plain[name], rel=1e-4), name
    kept = re.search(r"this process keeps ([\d,]+) of all params", done.stdout)
    assert kept is not None
    assert int(kept[1].replace(",", "")) < 0.7 * figures["all_parameters"]
    canaries = [read_canary(i.out_dir / "adapter/canary.json") for i in (sharded, taken.by_one)]
    for rows, same in zip(canaries[0].new, canaries[1].new, strict=True):
        assert rows == pytest.approx(same, abs=1e-4)


@pytest.mark.slow
def test_two_processes_leave_equal_bytes_from_run_to_run(taken: Taken, tmp_path: Path) -> None:
    again = dataclasses.replace(taken.by_two, out_dir=tmp_path / "again")
    done = python("-m", "trainer", *words(again, tmp_path / "settings.json"))
    assert done.returncode == 0, done.stderr
    result = read_result(again.out_dir)
    assert result is not None
    for key in ("adapter_sha", "optimizer_sha"):
        assert result[key] == taken.results()[1][key]
    canaries = [i.out_dir / "adapter" / "canary.json" for i in (again, taken.by_two)]
    assert canaries[0].read_bytes() == canaries[1].read_bytes()
