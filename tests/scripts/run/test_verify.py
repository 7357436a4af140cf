"""What was changed since it was written is noticed, put aside and done again.

One night on the two-layer model and the scripted engine stands before its second training; the
others are that night with something in it changed by hand. Each has to end as if nobody had.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.atomic import sha256_file
from fieldkit.files.journal import Journal
from fieldkit.files.sharded import read_records, sha256_records, shards_of, write_records
from fieldkit.training.adapter import adapter_sha
from rollout.engine.serve import stop_engine
from scripts.base.events import Event
from scripts.base.signals import Wish
from scripts.phases.context import Context, Done
from scripts.phases.rollout import rollout
from scripts.phases.train import train
from scripts.run import verify
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.next_phase import Phase
from scripts.run.state import look
from scripts.run.timings import LOOP_VARIABLE, Stopwatch
from scripts.run.verify import put_aside_changes, require_base
from tests.chaos.night import GRPO_RUN, SITE, alive, require_readable, step_shas
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(600)

ENV = {**os.environ, "PYTHONPATH": str(SITE)}


def grpo(*words: str, exit_code: int = 0) -> str:
    """Run a command of grpo; what it said."""
    command = [*GRPO_RUN[:-1], *words]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == exit_code, said
    return said


@pytest.fixture(scope="module")
def halfway(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The night before its second training."""
    folder = write_run(tmp_path_factory.mktemp("halfway") / "night", *policy)
    grpo("run", str(folder), "--steps", "1", "--keep-engine")
    grpo("rollout", str(folder))
    stop_engine(folder)
    return folder


@pytest.fixture
def night(halfway: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(shutil.copytree(halfway, tmp_path / "night"))


def flip(path: Path, where: Callable[[bytes], int] = lambda b: len(b) // 2) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[where(bytes(content))] ^= 1
    path.write_bytes(content)


def a_digit_of_a_logprob(bundle: bytes) -> int:
    return bundle.index(b'"logprobs":[-') + len('"logprobs":[-0.')


def put_aside(folder: RunFolder) -> list[str]:
    entries = Journal(folder.journal).read()
    return [str(e.data["changed"]) for e in entries if e.event == "put_aside"]


def look_next(folder: RunFolder) -> Phase:
    return look(folder, read_config(folder.config))[0]


@pytest.mark.slow
def test_what_was_changed_is_done_again_and_the_night_ends_as_if_it_had_not(
    night: RunFolder, tmp_path: Path
) -> None:
    calm = shutil.copytree(night.path, tmp_path / "calm" / "night")
    grpo("run", str(calm))
    flip(night.bundle(2), a_digit_of_a_logprob)
    flip(night.adapter(1) / "adapter_model.safetensors")
    played = next(night.evals.glob("*/trajectories.jsonl"))
    flip(played)
    said = grpo("run", str(night.path))
    assert f"{night.relative(night.adapter(1))} is not as it was written" in said
    changed = {night.relative(p) for p in (night.bundle(2), night.adapter(1), played)}
    assert set(put_aside(night)) == changed
    assert step_shas(night.path) == step_shas(calm)
    require_readable(night.path)
    assert alive(night.path) == []


def test_a_changed_optimizer_state_is_trained_again(night: RunFolder) -> None:
    flip(night.trainer_state(1) / "optimizer.safetensors")
    put_aside_changes(night, lambda event: None)
    assert put_aside(night) == ["step-001/trainer_state"]
    assert look_next(night) is Phase.TRAIN


def test_what_is_put_aside_can_be_looked_at(night: RunFolder) -> None:
    flip(night.adapter(1) / "adapter_model.safetensors")
    wrong = (night.adapter(1) / "adapter_model.safetensors").read_bytes()
    put_aside_changes(night, lambda event: None)
    (aside,) = night.changed.glob("step-001-adapter-*")
    assert (aside / "adapter_model.safetensors").read_bytes() == wrong
    assert not night.summary(1).exists()


def test_a_kill_between_two_moves_is_made_good(night: RunFolder) -> None:
    flip(night.adapter(1) / "adapter_model.safetensors")
    night.summary(1).unlink()  # the first move
    put_aside_changes(night, lambda event: None)
    assert not (night.step(1) / "train.json").exists()
    assert not night.adapter(1).exists()


def test_an_adapter_that_is_gone_is_trained_again(night: RunFolder) -> None:
    shutil.rmtree(night.adapter(1))
    put_aside_changes(night, lambda event: None)
    assert put_aside(night) == ["step-001/adapter"]
    assert look_next(night) is Phase.TRAIN


@pytest.mark.parametrize(
    ("error", "times", "ends"),
    [
        (errno.ESTALE, 2, None),
        (errno.EIO, 2, None),
        (errno.ESTALE, 9, Unavailable),
        (errno.EIO, 9, []),
    ],
)
def test_a_moment_without_its_disk_costs_no_finished_step(
    error: int, times: int, ends: Any, night: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [OSError(error, os.strerror(error)) for _ in range(times)]

    def sha(path: Path) -> str:
        if path == night.adapter(1) and left:
            raise left.pop()
        return adapter_sha(path)

    monkeypatch.setattr("scripts.run.verify.adapter_sha", sha)
    monkeypatch.setattr("scripts.run.verify._BETWEEN_READS_SECONDS", 0.0)
    if ends is Unavailable:
        with pytest.raises(Unavailable, match="the same command goes on once it can be read"):
            put_aside_changes(night, lambda event: None)
    else:
        put_aside_changes(night, lambda event: None)
    assert night.summary(1).is_file() == (ends != [])


def test_what_nobody_touched_stays_where_it_is(night: RunFolder) -> None:
    told: list[Event] = []
    put_aside_changes(night, told.append)
    assert told == []
    assert not night.changed.exists()


def test_the_adapter_that_the_run_starts_from_cannot_be_made_again(night: RunFolder) -> None:
    flip(night.adapter(0) / "adapter_model.safetensors")
    with pytest.raises(BadInput, match=r"step-000/adapter.*changed afterwards.*Copy the adapter"):
        put_aside_changes(night, lambda event: None)
    assert night.adapter(0).is_dir()


def test_a_bundle_that_another_adapter_has_sampled_is_sampled_again(night: RunFolder) -> None:
    """On a GPU a step that is trained again does not come to the same bytes."""
    step = json.loads(night.summary(1).read_text())
    retrained = night.adapter(1) / "adapter_model.safetensors"
    flip(retrained)
    sha = adapter_sha(night.adapter(1))
    night.summary(1).write_text(json.dumps({**step, "adapter_sha": sha}))
    put_aside_changes(night, lambda event: None)
    assert put_aside(night) == ["step-002/trajectory_bundle.jsonl"]
    assert look_next(night) is Phase.ROLLOUT


def test_with_a_changed_bundle_goes_what_was_trained_on_it(night: RunFolder) -> None:
    """A kill after the training and before step.json leaves both."""
    night.summary(1).unlink()
    flip(night.bundle(1), a_digit_of_a_logprob)
    put_aside_changes(night, lambda event: None)
    assert put_aside(night) == ["step-001/trajectory_bundle.jsonl"]
    gone = (night.adapter(1), night.trainer_state(1), night.step(1) / "train.json")
    assert not any(path.exists() for path in gone)


def test_what_came_in_the_place_of_something_put_aside_is_not_held_against_it(
    night: RunFolder,
) -> None:
    """An arm that is played again has other bytes; its phase may have been interrupted since."""
    played = next(night.evals.glob("*/trajectories.jsonl"))
    summary = (played.parent / "eval.json").read_text()
    flip(played)
    put_aside_changes(night, lambda event: None)
    assert put_aside(night) == [night.relative(played)]
    played.parent.mkdir()
    (played.parent / "eval.json").write_text(summary)
    played.write_text("played again")
    put_aside_changes(night, lambda event: None)
    assert put_aside(night) == [night.relative(played)], "and nothing since"


def test_every_arm_is_journalled_as_it_ends(night: RunFolder) -> None:
    played = [e for e in Journal(night.journal).read() if e.event == "arm_played"]
    wrote = {path for e in played for path in e.data["wrote"]}
    assert wrote == {night.relative(p) for p in night.evals.rglob("trajectories.jsonl")}


def test_a_bundle_in_shards_is_as_it_was_written_until_one_of_them_is_changed(
    night: RunFolder,
) -> None:
    lines = [line for _, line in read_records(night.bundle(2))]
    write_records(night.bundle(2), lines, most=1000)
    assert not night.bundle(2).exists()
    put_aside_changes(night, lambda event: None)
    assert put_aside(night) == []
    assert look_next(night) is Phase.TRAIN
    flip(next(shards_of(night.bundle(2)).glob("*.zst")))
    put_aside_changes(night, lambda event: None)
    assert put_aside(night) == ["step-002/trajectory_bundle.jsonl"]
    assert look_next(night) is Phase.ROLLOUT
    assert list(night.changed.glob("step-002-trajectory_bundle.jsonl.shards-*"))


# --- in a loop ------------------------------------------------------------------------------------


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The evaluations that are hashed from here on, by one loop."""
    monkeypatch.setenv(LOOP_VARIABLE, "77")
    found: list[str] = []
    real = sha256_records

    def note(path: Path) -> str:
        if path.name == "trajectories.jsonl":
            found.append(path.parent.name)
        return real(path)

    monkeypatch.setattr(verify, "sha256_records", note)
    return found


def look_over(folder: RunFolder) -> list[str]:
    before = put_aside(folder)
    put_aside_changes(folder, lambda event: None)
    return put_aside(folder)[len(before) :]


def test_a_loop_hashes_an_evaluation_once(night: RunFolder, hashed: list[str]) -> None:
    assert look_over(night) == []
    once = sorted(hashed)
    assert once == sorted(p.parent.name for p in night.evals.rglob("trajectories.jsonl"))
    assert look_over(night) == []
    assert sorted(hashed) == once, "and not again"


def test_a_loop_sees_a_change_after_it_has_looked(night: RunFolder, hashed: list[str]) -> None:
    assert look_over(night) == []
    played = next(night.evals.glob("*/trajectories.jsonl"))
    status = played.stat()
    flip(played)
    os.utime(played, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a careless copy may
    flip(night.bundle(2), a_digit_of_a_logprob)
    assert set(look_over(night)) == {night.relative(played), night.relative(night.bundle(2))}
    assert look_over(night) == []


def lose(night: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    night.checked.unlink()


def damage(night: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    night.checked.write_bytes(b"\xff")


def cut_the_journal(night: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = night.journal.read_bytes().splitlines(keepends=True)
    night.journal.write_bytes(b"".join(lines[1:]))


def begin_another_loop(night: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, "78")


def type_a_phase(night: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOOP_VARIABLE)


@pytest.mark.parametrize(
    "change", [lose, damage, cut_the_journal, begin_another_loop, type_a_phase]
)
def test_what_a_loop_has_seen_is_looked_at_again_where_that_is_not_known(
    night: RunFolder,
    hashed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[RunFolder, pytest.MonkeyPatch], None],
) -> None:
    assert look_over(night) == []
    n = len(hashed)
    change(night, monkeypatch)
    assert look_over(night) == []
    assert len(hashed) == 2 * n


# --- the base model -------------------------------------------------------------------------------


@pytest.fixture
def base(night: RunFolder, tmp_path: Path) -> Path:
    """A copy of the model that the night began with."""
    began = json.loads(night.manifest.read_text())["model"]["dir"]
    return Path(shutil.copytree(began, tmp_path / "base"))


def add_a_template(base: Path) -> None:
    (base / "chat_template.jinja").write_text("{{ messages }}")


def change_a_weight(base: Path) -> None:
    flip(base / "model.safetensors")


def lose_the_tokenizer(base: Path) -> None:
    (base / "tokenizer.json").unlink()


@pytest.mark.parametrize("change", [add_a_template, change_a_weight, lose_the_tokenizer])
@pytest.mark.parametrize("phase", [rollout, train])
def test_a_night_goes_on_with_no_other_base_model_than_it_began_with(
    night: RunFolder,
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: Callable[[Context], Done],
    change: Callable[[Path], None],
) -> None:
    monkeypatch.setattr(Context, "model_dir", lambda ctx: base)
    if phase is rollout:
        night.bundle(2).unlink()
    require_base(night, lambda: base)
    change(base)
    ctx = Context(night, read_config(night.config), lambda event: None, Wish(), Stopwatch(0.0))
    with pytest.raises(BadInput, match=r"base/.*: not as it was in the base model that run night"):
        phase(ctx)
    assert not night.step(2).joinpath("train.json").exists()


def test_a_loop_hashes_the_base_model_once(
    night: RunFolder, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, "7")
    read: list[str] = []

    def noted(path: Path) -> str:
        read.append(path.name)
        return sha256_file(path)

    monkeypatch.setattr(verify, "sha256_file", noted)
    require_base(night, lambda: base)
    assert "model.safetensors" in read
    del read[:]
    assert look_over(night) == []
    require_base(night, lambda: base)
    assert read == []
    change_a_weight(base)
    with pytest.raises(BadInput, match=r"model\.safetensors"):
        require_base(night, lambda: base)
    monkeypatch.delenv(LOOP_VARIABLE)  # a phase that is typed
    change_a_weight(base)
    require_base(night, lambda: base)
    assert len(read) > 2
