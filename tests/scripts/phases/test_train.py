"""The settings that the train phase gives the trainer for a step, and whether it stays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import Shortage, Unavailable
from fieldkit.files.atomic import write_json
from fieldkit.gate import nvidia
from rollout.cluster.cluster_settings import ClusterSettings
from rollout.cluster.placed import LOST
from rollout.engine import vllm_server
from rollout.engine.engine_settings import EngineSettings
from scripts.base.events import Event
from scripts.phases import train
from scripts.phases.context import Context
from scripts.phases.train import (
    _ask,
    _Asked,
    _run_alone,
    _run_trainer,
    _stays,
    silence_allowed,
)
from scripts.phases.training.kept_trainer import Answer, KeptTrainer
from tests.scripts.made_night import summary
from tests.scripts.phases.training.conftest import context
from trainer.inputs import StepInputs
from trainer.persistent import Request
from trainer.settings import TrainerSettings


@pytest.mark.parametrize(
    ("engine", "stays"),
    [
        ({"replicas": 0, "urls": ["http://gpu-box"]}, True),
        ({"replicas": 0, "urls": ["http://gpu-box"], "keep_trainer": False}, False),
        ({}, False),
    ],
    ids=["all servers are elsewhere", "it is not wanted", "the own server has ended"],
)
def test_the_trainer_stays_where_no_server_needs_its_room(
    engine: dict[str, object], stays: bool, tmp_path: Path
) -> None:
    ctx = context(tmp_path, 0.0, [])
    ctx.config = replace(ctx.config, engine=EngineSettings(**engine))  # type: ignore[arg-type]
    assert _stays(ctx) == stays


# -- a trainer that was begun ----------------------------------------------------------------------


class Begun(KeptTrainer):
    """One that was begun, and what became of it."""

    ends = 0

    @property
    def is_begun(self) -> bool:
        return not self.ends

    @property
    def held(self) -> int:
        return 0

    def stop(self) -> int:
        Begun.ends += 1
        return 1


@pytest.fixture
def due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A run whose first step is to be trained, beside no engine, and whose trainer was begun."""
    ctx = context(tmp_path / "night", 0.0, [])
    ctx.folder.step(1).mkdir(parents=True)
    ctx.folder.bundle(1).touch()
    monkeypatch.setattr(Begun, "ends", 0)
    monkeypatch.setattr(train, "KeptTrainer", Begun)
    monkeypatch.setattr(train, "next_step", lambda ctx: 1)
    monkeypatch.setattr(train, "_environment", lambda ctx: {})
    monkeypatch.setattr(train, "_finish", lambda ctx, n, trained: summary(1, 1))
    monkeypatch.setattr(Context, "engine", lambda ctx: ctx.config.engine)
    return ctx


@pytest.mark.parametrize(
    ("table", "keys", "is_asked"),
    [
        ("engine", {}, True),
        ("engine", {"keep_trainer": False}, False),
        ("trainer", {"processes": 2}, False),
        ("cluster", {"kind": "ray"}, False),
    ],
)
def test_a_begun_one_takes_the_step_where_one_may_be_kept_and_ends_with_it(
    due: Context,
    table: str,
    keys: dict[str, Any],
    is_asked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = replace(getattr(due.config, table), **keys)
    due.config = replace(due.config, **{table: changed})
    asked: list[bool] = []
    monkeypatch.setattr(train, "_run_trainer", lambda ctx, n, kept: asked.append(kept is not None))
    train.train(due)
    assert asked == [is_asked]
    assert Begun.ends, "its memory is the next engine's"


def test_a_begun_one_ends_with_a_step_that_fails_and_where_no_memory_comes_back(
    due: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise Shortage("no memory")

    monkeypatch.setattr(train, "_run_trainer", fails)
    with pytest.raises(Shortage):
        train.train(due)
    assert Begun.ends == 1
    monkeypatch.setattr(Begun, "ends", 0)
    monkeypatch.setattr(train, "release_memory", fails)
    with pytest.raises(Shortage):
        train.train(due)
    assert Begun.ends == 1


# -- a trainer that hangs --------------------------------------------------------------------------


def trained(folder: Path, *seconds: float) -> Context:
    """A run whose steps from 1 on were trained in so many seconds."""
    ctx = context(folder, 0.0, [])
    for n, total in enumerate(seconds, start=1):
        ctx.folder.step(n).mkdir(parents=True)
        write_json(ctx.folder.step(n) / "train.json", {"train": {}, "seconds": {"total": total}})
    return ctx


def test_a_trainer_may_be_silent_for_as_long_as_four_starts_of_a_server(tmp_path: Path) -> None:
    ctx = trained(tmp_path)
    assert silence_allowed(ctx, 1) == 1200.0
    ctx.config = replace(ctx.config, engine=EngineSettings(start_seconds=900.0))
    assert silence_allowed(ctx, 1) == 3600.0


def test_and_for_three_times_the_longest_of_its_last_trainings(tmp_path: Path) -> None:
    ctx = trained(tmp_path, 5000.0, 20.0, 900.0, 30.0, 30.0, 30.0, 30.0, 30.0, 30.0)
    assert silence_allowed(ctx, 9) == 15000.0
    assert silence_allowed(ctx, 10) == 2700.0
    assert silence_allowed(ctx, 2) == 15000.0


def test_and_on_a_cluster_while_it_waits_for_room(tmp_path: Path) -> None:
    ctx = trained(tmp_path)
    ctx.config = replace(ctx.config, cluster=ClusterSettings(kind="ray", room_seconds=500.0))
    assert silence_allowed(ctx, 1) == 1700.0


HANGS = "import signal; print('one line', flush=True); signal.pause()"


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A run whose trainer says a line and hangs, for which a second of silence is too long."""
    ctx = trained(tmp_path / "night")
    ctx.folder.path.mkdir(exist_ok=True)
    monkeypatch.setattr(train, "silence_allowed", lambda ctx, n: 1.0)
    monkeypatch.setattr(train, "_environment", lambda ctx: None)
    runs(monkeypatch, HANGS)
    return ctx


def runs(monkeypatch: pytest.MonkeyPatch, *codes: str) -> list[str]:
    """Have the trainer be each of these programs in turn, the last one for ever; those that were
    started."""
    started: list[str] = []

    def command(*_: object) -> list[str]:
        started.append(codes[min(len(started), len(codes) - 1)])
        return [sys.executable, "-c", started[-1]]

    monkeypatch.setattr(train, "_command", command)
    return started


def request_in(folder: Path) -> Request:
    paths = [folder / name for name in ("bundle", "adapter", "reference", "model", "out")]
    bundle, adapter, reference, model, out = paths
    inputs = StepInputs(bundle, adapter, reference, model, None, out)
    return Request(inputs, TrainerSettings(), folder / "train.log")


def test_no_step_is_trained_on_the_cpu_where_the_gpu_was_lost_in_the_night(
    hanging: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = runs(monkeypatch, HANGS)
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    monkeypatch.setattr(nvidia, "gpu_fault", lambda: "GPU is lost")
    monkeypatch.setattr(train, "_inputs", lambda ctx, n: None)
    monkeypatch.setattr(train, "settings_of_step", lambda ctx, n: None)
    with pytest.raises(Unavailable, match="GPU is lost"):
        _run_trainer(hanging, 3, None)
    assert started == []


def test_a_trainer_that_hangs_is_ended_and_the_step_is_taken_anew(
    hanging: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Event] = []
    hanging.tell = said.append
    started = runs(monkeypatch, HANGS, "print('well')")
    _run_alone(hanging, 3, request_in(tmp_path), tries=2)
    assert started == [HANGS, "print('well')"]
    told = "the trainer said nothing for 1 s and was ended in the middle of the step"
    assert f"{told}, which is taken anew" in [event.text for event in said]


def test_one_that_hangs_on_a_gpu_is_told_with_what_shows_the_gpu(
    hanging: Context, tmp_path: Path
) -> None:
    cluster = ClusterSettings(kind="ray", trainer_needs={"GPU": 1.0})
    hanging.config = replace(hanging.config, cluster=cluster)
    with pytest.raises(Unavailable, match=r"ended in .* step\. `nvidia-smi` where it ran shows"):
        _run_alone(hanging, 3, request_in(tmp_path), tries=1)


def test_one_that_hangs_again_ends_the_phase_with_what_to_type(
    hanging: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = runs(monkeypatch, HANGS)
    with pytest.raises(Unavailable) as failed:
        _run_alone(hanging, 3, request_in(tmp_path), tries=2)
    assert len(started) == 2
    said = str(failed.value)
    assert said.startswith("step 3: the trainer said nothing for 1 s and was ended")
    assert "The bundle is kept" in said
    assert "nvidia-smi" not in said, "it hung on a CPU"
    assert f"`grpo run {hanging.folder.typed} --set engine.start_seconds=1`" in said
    assert said.endswith(f"Its log: {tmp_path / 'train.log'}")


def ends(code: int, why: str) -> str:
    return f"import sys; print('error: {why}', file=sys.stderr); sys.exit({code})"


def test_a_trainer_whose_node_is_lost_is_begun_once_more(
    hanging: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Event] = []
    hanging.tell = said.append
    lost = ends(LOST, "the node is lost")
    started = runs(monkeypatch, lost, "print('well')")
    _run_alone(hanging, 3, request_in(tmp_path), tries=2)
    assert len(started) == 2
    assert "the node is lost; the step is begun once more" in [event.text for event in said]
    started = runs(monkeypatch, lost)
    with pytest.raises(Unavailable, match="the node is lost"):
        _run_alone(hanging, 3, request_in(tmp_path), tries=2)
    assert len(started) == 2
    started = runs(monkeypatch, ends(4, "no cluster answers"))
    with pytest.raises(Unavailable, match="no cluster answers"):
        _run_alone(hanging, 3, request_in(tmp_path), tries=2)
    assert len(started) == 1, "another try would not find one either"
    runs(monkeypatch, lost, HANGS)
    with pytest.raises(Unavailable) as failed:
        _run_alone(hanging, 3, request_in(tmp_path), tries=2)
    assert "a second time" not in str(failed.value)


class Silent(KeptTrainer):
    """One that stays, and answers nothing."""

    def ask(
        self, request: str, on_line: Callable[[str], None], stop_asked: Callable[[], bool]
    ) -> Answer | None:
        while not stop_asked():
            pass
        return None


def test_one_that_stays_and_hangs_is_followed_by_one_for_this_step(
    hanging: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Event] = []
    hanging.tell = said.append
    monkeypatch.setattr(train, "silence_allowed", lambda ctx, n: 0.05)
    asked = _ask(hanging, 3, Silent(tmp_path, {}), request_in(tmp_path))
    assert asked is _Asked.HUNG
    assert ["said nothing for 0 s and was ended" in event.text for event in said] == [True]


class Gone(KeptTrainer):
    """One that stays, and is killed in the step."""

    def ask(
        self, request: str, on_line: Callable[[str], None], stop_asked: Callable[[], bool]
    ) -> Answer | None:
        return None


@pytest.mark.parametrize(("kept", "again"), [(Silent, True), (Gone, False)])
def test_a_trainer_that_hangs_is_the_second_one_only_where_the_kept_one_hung_before(
    kept: type[KeptTrainer],
    again: bool,
    hanging: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train, "silence_allowed", lambda ctx, n: 0.2)
    monkeypatch.setattr(train, "_inputs", lambda ctx, n: request_in(tmp_path).inputs)
    started = runs(monkeypatch, HANGS)
    with pytest.raises(Unavailable) as failed:
        _run_trainer(hanging, 3, kept(tmp_path, {}))
    assert len(started) == 1
    assert ("was ended in the middle of the step, a second time." in str(failed.value)) is again
