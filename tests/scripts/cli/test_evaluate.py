"""`grpo eval` without a run: an adapter, or a model behind an endpoint."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fieldkit.codec import read_trajectories
from fieldkit.errors import Interrupted
from fieldkit.files.atomic import read_json, write_json
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import marked
from fieldkit.training.adapter import adapter_sha
from rollout.arm import PARTIAL
from rollout.engine.replica import ENGINE
from scripts.base.checkout import ROOT
from scripts.phases.context import Context
from tests.chaos.night import SITE
from tests.conftest import SharedEngine
from tests.fieldkit.answering import Endpoint, answering
from tests.rollout.test_policies import Answer, says
from tests.scripts.cli.in_process import Ended, grpo
from tests.tiny_model import make_adapter
from tests.tiny_policy import REPLIES, write_tasks

LISTED = json.dumps({"data": [{"id": "m", "max_model_len": 4096}]})
TINY = [
    *("--set", "engine.dtype=float32", "--set", "engine.kv_cache_gib=0.25"),
    *("--set", "engine.max_model_len=512", "--set", "rollout.max_turns=2"),
    *("--set", "rollout.max_new_tokens=16"),
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where an arm lies that nobody wants to keep."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "evals"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "tasks.jsonl", 4, "held")


@contextmanager
def model(*answers: Answer, listed: str = LISTED, models: int = 200) -> Iterator[Endpoint]:
    with answering(answers or [says(REPLIES[0])] * 4 + [says(REPLIES[1])], models, listed) as one:
        yield one


def ask(endpoint: Endpoint | str, *words: str | Path) -> Ended:
    url = endpoint if isinstance(endpoint, str) else endpoint.base_url
    return grpo("eval", "--endpoint", url, *words)


def test_an_endpoints_arm_is_a_table_with_intervals(tasks: Path, cache: Path) -> None:
    with model() as endpoint:
        ended = ask(endpoint, "--tasks", tasks)
    assert ended.code == 0, ended.error
    for word in ("tasks passed", "4/4", "51.0 to 100.0 %", "mean turns", "TASK_COMPLETE 4"):
        assert word in ended.out
    assert [*cache.iterdir()] == []
    assert endpoint.keys[0] == "Bearer local"


def test_as_json_and_with_the_options_of_a_hand(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    words = ["--limit", "3", "--temperature", "0.7", "--model", "m", "--key-from", "MY_KEY"]
    with model() as endpoint:
        ended = ask(endpoint, "--tasks", tasks, *words, "--json")
    found = json.loads(ended.out)
    assert found["arm"] == f"m at {endpoint.base_url}"
    assert (found["summary"]["n_tasks"], found["summary"]["temperature"]) == (3, 0.7)
    assert found["figures"]["pass_rate"]["interval"]["low"] > 0.4
    assert {a["temperature"] for a in endpoint.asked} == {0.7}
    assert endpoint.keys[0] == "Bearer secret"


def test_a_number_of_tasks_that_is_set_counts_where_no_limit_is_typed(tasks: Path) -> None:
    with model() as endpoint:
        ended = ask(endpoint, "--tasks", tasks, "--set", "eval.tasks=2", "--json")
        other = ask(endpoint, "--tasks", tasks, "--set", "eval.tasks=2", "--limit", "3", "--json")
    assert json.loads(ended.out)["summary"]["n_tasks"] == 2
    assert json.loads(other.out)["summary"]["n_tasks"] == 3


def test_a_kept_arm_is_read_by_the_commands_that_read_runs(tasks: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "one", tmp_path / "two"
    with model() as endpoint:
        assert ask(endpoint, "--tasks", tasks, "--out", out).code == 0
        played = len(endpoint.asked)
        assert ask(endpoint, "--tasks", tasks, "--out", out).code == 0
        assert len(endpoint.asked) == played  # a finished arm is read
    with model(says(REPLIES[1])) as endpoint:
        assert ask(endpoint, "--tasks", tasks, "--out", other).code == 0
    (arm,) = out.glob("evals/*/trajectories.jsonl")
    assert all(not turn.completion_ids for t in read_trajectories(arm) for turn in t.turns)
    assert "held-3" in grpo("show", out).out
    assert "under reward shaped" in grpo("replay", out).out
    compared = json.loads(grpo("compare", out, other, "--json").out)
    assert "−100.0" in json.dumps(compared, ensure_ascii=False) or "-1.0" in json.dumps(compared)


def test_nothing_can_be_trained_in_its_folder(tasks: Path, tmp_path: Path) -> None:
    with model() as endpoint:
        ask(endpoint, "--tasks", tasks, "--out", tmp_path / "one")
    assert grpo("rollout", tmp_path / "one").code == 2


def test_what_was_finished_is_kept_and_the_same_command_goes_on(tasks: Path, cache: Path) -> None:
    words = ["--tasks", str(tasks), "--set", "rollout.concurrency=1"]
    with model(says(REPLIES[0]), says(REPLIES[1]), (500, "broken"), says(REPLIES[1])) as endpoint:
        _interrupt(words, endpoint)
        (partial,) = cache.glob("*/evals/*/trajectories.partial.jsonl")
        assert read_trajectories(partial)
        ended = ask(endpoint, *words, "--json")
    found = json.loads(ended.out)["summary"]
    assert (found["n_trajectories"], found["n_passed"]) == (4, 1)
    assert found["n_kept"] >= 1


def _interrupt(words: list[str], endpoint: Endpoint) -> None:
    """Ctrl-C while a request is sent again."""
    command = [sys.executable, "-P", "-m", "scripts.cli", "eval", "--endpoint", endpoint.base_url]
    program = subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True)
    while len(endpoint.asked) < 3:
        assert program.poll() is None
        time.sleep(0.01)
    program.send_signal(signal.SIGINT)
    _, said = program.communicate()
    assert program.returncode == 130, said
    assert "the same command goes on from here" in said


@pytest.mark.parametrize(
    ("status", "listed", "words", "code", "said"),
    [
        (401, "{}", [], 2, "--key-from"),
        (404, "{}", [], 2, "/v1"),
        (500, "{}", [], 4, "HTTP 500"),
        (200, "[]", [], 4, "not a JSON object"),
        (200, "{}", [], 4, "no list of models"),
        (200, LISTED, ["--model", "other"], 2, "serves m"),
        (200, '{"data": [{"id": "a"}, {"id": "b"}]}', [], 2, "serves a, b"),
        (200, LISTED, ["--set", "engine.max_model_len=8192"], 2, "engine.max_model_len=4096"),
        (200, LISTED, ["--temperature", "50"], 2, "eval.temperature"),
        (200, LISTED, ["--temperature", "nan"], 2, "eval.temperature"),
        (200, LISTED, ["--tasks", "none.jsonl"], 2, "none.jsonl: no such file"),
        (200, LISTED, ["--out", "scripts"], 2, "something else is there"),
        (200, LISTED, ["--step", "1"], 2, "--step: goes only with RUN"),
        (200, LISTED, ["--adapter", "x"], 2, "name one"),
        (200, LISTED, ["a-run"], 2, "--endpoint: goes only"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    status: int, listed: str, words: list[str], code: int, said: str, cache: Path
) -> None:
    with model(listed=listed, models=status) as endpoint:
        ended = ask(endpoint, *words)
    assert (ended.code, ended.error.count("\n")) == (code, 1), ended
    assert said in ended.error
    assert "`" in ended.error
    assert not cache.exists()
    assert endpoint.asked == []


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("http://127.0.0.1:9/v1", 4, "is it up?"),
        ("localhost:8000", 2, "not an address"),
        ("http://", 2, "not an address"),
        ("http://[::1/v1", 2, "not an address"),
        ("http://a b/v1", 2, "not an address"),
    ],
)
def test_an_endpoint_that_is_not_there(url: str, code: int, said: str) -> None:
    ended = ask(url)
    assert (ended.code, ended.error.count("\n")) == (code, 1), ended
    assert said in ended.error


def test_another_evaluation_is_not_mixed_in(tasks: Path, tmp_path: Path) -> None:
    with model() as endpoint:
        ask(endpoint, "--tasks", tasks, "--out", tmp_path / "my arms/one")
        ended = ask(endpoint, "--tasks", tasks, "--out", tmp_path / "my arms/one", "--limit", "2")
    assert ended.code == 2
    assert f"--out '{tmp_path}/my arms/one-2'`" in ended.error


def test_a_kept_arm_stays_as_it_is_where_the_task_file_has_changed(
    tasks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "one"
    with model() as endpoint:
        assert ask(endpoint, "--tasks", tasks, "--out", out).code == 0
        before, played = files(out), len(endpoint.asked)
        write_tasks(tasks, 3, "other")
        ended = ask(endpoint, "--tasks", tasks, "--out", out)
        assert ended.code == 2
        assert f"{out}: {tasks} has changed since the evaluation there began" in ended.error
        assert f"`--out {out}-2`" in ended.error
        assert (files(out), len(endpoint.asked)) == (before, played)
        assert ask(endpoint, "--tasks", tasks, "--out", f"{out}-2").code == 0


def files(folder: Path) -> dict[Path, bytes]:
    """What is in a folder, less who has locked it."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes() for path in found}


@pytest.fixture
def adapter(policy: tuple[Path, Path], tmp_path: Path) -> Path:
    """One that a test may train again."""
    return Path(shutil.copytree(policy[1], tmp_path / "adapter"))


def change(what: Path, base: Path) -> None:
    """Train this adapter again, or edit this task file."""
    if what.is_dir():
        shutil.rmtree(what)
        make_adapter(what, base, seed=2, scale=0.02)
    else:
        write_tasks(what, 3, "other")


def stopped(ctx: Context) -> None:
    """Ctrl-C, as the first episodes are finished."""
    arm = ctx.folder.evals / "0123456789abcdef"
    arm.mkdir(parents=True)
    (arm / PARTIAL).write_text("finished\n")
    raise Interrupted("stopped; the same command goes on from here")


@pytest.mark.parametrize("changed", ["adapter", "tasks.jsonl"])
def test_what_changed_since_an_earlier_start_is_played_as_it_is_now(
    changed: str,
    policy: tuple[Path, Path],
    adapter: Path,
    tasks: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words: list[str | Path] = ["--adapter", adapter, "--model", policy[0], "--tasks", tasks, *TINY]
    with monkeypatch.context() as patch:
        patch.setattr("scripts.phases.single_arm.evaluate", stopped)
        assert grpo("eval", *words, "--json").code == Interrupted.exit_code
    assert [path.name for path in cache.glob(f"*/evals/*/{PARTIAL}")] == [PARTIAL]
    change(adapter.parent / changed, policy[0])
    monkeypatch.setenv("PYTHONPATH", str(SITE))
    ended = grpo("eval", *words, "--json")
    assert ended.code == 0, ended.error
    assert f"{adapter.parent / changed} has changed since an earlier start" in ended.error
    found = json.loads(ended.out)["summary"]
    assert found["adapter_sha"] == adapter_sha(adapter)
    assert (found["n_tasks"], found["n_kept"]) == (4 if changed == "adapter" else 3, 0)
    assert [*cache.iterdir()] == []


def words_of_one_that_stopped(
    adapter: Path, model: Path, tasks: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str | Path]:
    """What an evaluation into `out` was typed with, which Ctrl-C ended."""
    words: list[str | Path] = ["--adapter", adapter, "--model", model, "--tasks", tasks, *TINY]
    words += ["--out", out]
    monkeypatch.setattr("scripts.phases.single_arm.evaluate", stopped)
    assert grpo("eval", *words).code == Interrupted.exit_code
    return words


@pytest.mark.parametrize("changed", ["adapter", "tasks.jsonl"])
def test_nothing_of_a_kept_evaluation_is_dropped(
    changed: str,
    policy: tuple[Path, Path],
    adapter: Path,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "kept"
    words = words_of_one_that_stopped(adapter, policy[0], tasks, out, monkeypatch)
    before = files(out)
    change(tmp_path / changed, policy[0])
    ended = grpo("eval", *words)
    assert ended.code == 2
    assert f"{out}: {tmp_path / changed} has changed since the evaluation there" in ended.error
    assert f"`--out {out}-2`" in ended.error
    assert files(out) == before


def test_an_evaluation_does_not_go_on_with_another_base_model(
    policy: tuple[Path, Path],
    adapter: Path,
    tasks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has played, or finished, is of the weights that were in the folder then."""
    model = Path(shutil.copytree(policy[0], tmp_path / policy[0].name))
    words = words_of_one_that_stopped(adapter, model, tasks, tmp_path / "kept", monkeypatch)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    ended = grpo("eval", *words)
    assert ended.code == 2
    assert f"{weights} has changed since the evaluation there began" in ended.error


def test_a_folder_that_holds_no_adapter_and_one_of_another_base(
    policy: tuple[Path, Path], tasks: Path, tmp_path: Path
) -> None:
    ended = grpo("eval", "--adapter", tmp_path)
    assert ended.code == 2
    assert "adapter_config.json" in ended.error
    other = Path(__file__).parents[3] / "adapters" / "smol-warm"
    words = ["--model", str(policy[0]), "--tasks", str(tasks)]
    ended = grpo("eval", "--adapter", other, *words)
    assert ended.code == 2
    assert str(other) in ended.error.splitlines()[-1]


def test_an_adapter_of_the_hub_or_of_another_kind_is_told_before_its_model_is_looked_for(
    adapter: Path, tmp_path: Path
) -> None:
    ended = grpo("eval", "--adapter", "somebody/their-lora", "--model", "somebody/a-model")
    assert ended.code == 2
    assert "If it is a hub id, `" in ended.error
    own = ROOT / "adapters" / "their-lora"
    assert ended.error.splitlines()[-1].endswith(f"downloads it; then --adapter {own}")
    other = Path(shutil.copytree(adapter, tmp_path / "dora"))
    config = read_json(other / "adapter_config.json")
    write_json(other / "adapter_config.json", config | {"use_dora": True})
    ended = grpo("eval", "--adapter", other, "--model", tmp_path / "no model")
    assert ended.code == 2
    assert "use_dora: the adapter uses DoRA" in ended.error


def start(policy: tuple[Path, Path], tasks: Path, out: Path) -> subprocess.Popen[str]:
    folder, adapter = map(str, policy)
    command = [sys.executable, "-P", "-m", "scripts.cli", "eval", "--adapter", adapter]
    command += ["--model", folder, "--tasks", str(tasks), "--out", str(out), *TINY]
    env = {**os.environ, "PYTHONPATH": str(SITE)}
    return subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left(out: Path) -> list[int]:
    """The processes of this evaluation's ledger that live."""
    return [p.pid for p in marked() if p.ledger == out / LEDGER_FILE]


def test_an_adapter_is_proven_played_and_nothing_is_left(
    policy: tuple[Path, Path], tasks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "arm"
    program = start(policy, tasks, out)
    said, told = program.communicate()
    assert program.returncode == 0, told
    assert "tasks passed" in said
    assert "canary" in told
    assert left(out) == []
    assert Ledger(out / LEDGER_FILE).get(ENGINE) is None
    assert "held-3" in grpo("show", out).out
    refused = grpo("rollout", out)  # its pool is what it was evaluated on
    assert refused.code == 2
    assert "held-0" in refused.error


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_left_after_ctrl_c_and_after_a_kill_and_it_goes_on(
    policy: tuple[Path, Path], tasks: Path, tmp_path: Path
) -> None:
    out = tmp_path / "arm"
    for sent, code in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)):
        program = start(policy, tasks, out)
        while not left(out):
            assert program.poll() is None
            time.sleep(0.05)
        os.killpg(program.pid, sent)
        program.communicate()
        assert program.returncode == code
        deadline = time.monotonic() + 60
        while left(out) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left(out) == []
    program = start(policy, tasks, out)
    _, told = program.communicate()
    assert program.returncode == 0, told


@pytest.mark.engine
def test_the_real_server_is_an_endpoint(
    engine: SharedEngine, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = engine.ensure(None)
    monkeypatch.setenv("OPENAI_API_KEY", served.api_key)
    words = ["--tasks", str(tasks), "--limit", "2", "--set", "rollout.max_turns=2"]
    words += ["--set", f"engine.max_model_len={engine.settings.max_model_len}"]
    ended = ask(f"{served.base_url}/v1", "--model", served.model_name, *words, "--json")
    assert ended.code == 0, ended.error
    found = json.loads(ended.out)
    assert found["summary"]["n_trajectories"] == 2
    assert found["summary"]["stops"] == {"MAX_TURNS": 2}
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    assert ask(f"{served.base_url}/v1", "--model", served.model_name, *words).code == 2
