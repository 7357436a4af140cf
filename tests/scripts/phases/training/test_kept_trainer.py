"""The train phase's side of the kept trainer: it is started, found again, replaced and ended."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import Shortage
from fieldkit.gate.memory import GIB, Available
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import (
    Owned,
    environment,
    is_running,
    start_time,
    terminate,
    wait_ended,
)
from rollout.engine.forecast import memory_needed
from rollout.engine.leftovers import end_beside
from rollout.engine.preload import SPINS, WAIT_POLICY, waiting
from rollout.engine.replica import ENGINE
from rollout.engine.vllm_server import computing
from scripts.base.events import Event, EventKind
from scripts.base.quiet import Quiet
from scripts.base.signals import Wish
from scripts.phases.context import Context
from scripts.phases.training import kept_trainer
from scripts.phases.training.kept_trainer import (
    TRAINER,
    KeptTrainer,
    as_it_waits,
    begin_trainer,
    begun_for,
    stands_beside,
    stop_trainer,
)
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch
from tests.tiny_policy import write_run
from tests.trainer.conftest import *  # noqa: F403  # the tiny model, its adapters and bundles
from tests.trainer.test_step import SETTINGS, follow
from trainer.inputs import StepInputs
from trainer.persistent import Request


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    run = RunFolder(tmp_path / "night")
    run.path.mkdir()
    yield run
    stop_trainer(run.path)


@pytest.fixture
def inputs(
    bundle: Path, adapter: Path, reference: Path, tiny_model: Path, tmp_path: Path
) -> StepInputs:
    return StepInputs(bundle, adapter, reference, tiny_model, None, tmp_path / "step-001")


@pytest.fixture
def request_line(inputs: StepInputs, tmp_path: Path) -> str:
    return Request(inputs, SETTINGS, tmp_path / "train.log").line()


@pytest.fixture
def quick_line(inputs: StepInputs, silent_bundle: Path, tmp_path: Path) -> str:
    """A step in which nothing is trained, for which no library is imported."""
    return Request(replace(inputs, bundle=silent_bundle), SETTINGS, tmp_path / "train.log").line()


def kept(folder: RunFolder) -> KeptTrainer:
    return KeptTrainer(folder.path, os.environ)


def owned(folder: RunFolder) -> Owned:
    found = Ledger(folder.ledger).get(TRAINER)
    assert found is not None
    return found


def never() -> bool:
    return False


def ignore(line: str) -> None:
    pass


def test_the_next_phase_finds_the_process_of_the_one_before(
    folder: RunFolder, request_line: str, tmp_path: Path
) -> None:
    said: list[str] = []
    answer = kept(folder).ask(request_line, said.append, never)
    assert answer is not None
    assert answer.code == 0
    assert any('"microbatch"' in line for line in said)
    first = owned(folder)
    again = Request.read(request_line)
    second = dataclasses.replace(again, inputs=follow(again.inputs, tmp_path))
    answer = kept(folder).ask(second.line(), ignore, never)
    assert answer is not None
    assert answer.code == 0
    assert owned(folder) == first
    assert kept(folder).held > 2**20


def test_one_that_is_begun_outlives_a_server_until_it_is_asked_for_a_step(
    folder: RunFolder, quick_line: str
) -> None:
    trainer = kept(folder)
    assert not trainer.is_begun
    trainer.begin()
    first = owned(folder)
    assert trainer.is_begun
    server_ends(folder)
    assert kept(folder).ask(quick_line, ignore, never) is not None
    assert owned(folder).pid == first.pid
    assert not trainer.is_begun
    trainer.begin()
    assert owned(folder).pid == first.pid, "one runs"
    server_ends(folder)
    assert Ledger(folder.ledger).get(TRAINER) is None


def server_ends(folder: RunFolder) -> None:
    """What ends beside a server that another will follow."""
    end_beside(Ledger(folder.ledger), ENGINE, 5.0, at_end=False)


def test_a_begun_one_that_was_killed_is_begun_again(folder: RunFolder) -> None:
    kept(folder).begin()
    first = owned(folder)
    os.kill(first.pid or 0, signal.SIGKILL)
    assert wait_ended(first, 10)
    assert not kept(folder).is_begun
    kept(folder).begin()
    assert kept(folder).is_begun
    assert not Path(first.info["scratch"]).exists()


@pytest.fixture
def loading(tmp_path: Path, policy: tuple[Path, Path]) -> Iterator[Context]:
    """A run of which a process that stands for its server has been launched."""
    run = RunFolder(write_run(tmp_path / "loading", *policy))
    ctx = Context(run, read_config(run.config), lambda event: None, Wish(), Stopwatch(0.0))
    ctx.environ = {n: v for n, v in os.environ.items() if n not in (WAIT_POLICY, SPINS)}
    env = {**ctx.environ, WAIT_POLICY: "passive", SPINS: "77"}
    server = Ledger(run.ledger).launch(
        ENGINE, ["sleep", "600"], env=env, cwd=tmp_path, log=tmp_path / "engine.log", info={}
    )
    yield ctx
    stop_trainer(run.path)
    terminate(server, 5.0)


def test_its_threads_wait_as_those_of_the_engine_that_loads(loading: Context) -> None:
    """The cores are in use by that start, which says nothing of the night."""
    begin_trainer(loading)
    assert owned(loading.folder).info["waits"] == {WAIT_POLICY: "passive", SPINS: "77"}
    env = computing(as_it_waits(loading.folder.path, loading.environ), loading.config.engine)
    asked = KeptTrainer(loading.folder.path, env)
    assert asked._usable() is not None, "the step would start another"
    assert asked.is_begun


def test_what_an_environments_module_sets_makes_it_no_other_process(
    loading: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phase that plays imports it, and one that trains does not."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    begin_trainer(loading)
    assert "TOKENIZERS_PARALLELISM" not in environment(owned(loading.folder).pid or 0)
    step = computing(as_it_waits(loading.folder.path, loading.environ), loading.config.engine)
    assert KeptTrainer(loading.folder.path, step)._usable() is not None


def test_none_is_begun_where_no_server_of_the_run_came(loading: Context) -> None:
    ledger = Ledger(loading.folder.ledger)
    server = ledger.get(ENGINE)
    assert server is not None
    terminate(server, 5.0)
    begin_trainer(loading)
    assert ledger.get(TRAINER) is None
    elsewhere = replace(loading.config.engine, replicas=0, urls=["http://box:1"])
    loading.config = replace(loading.config, engine=elsewhere)
    begin_trainer(loading)
    assert KeptTrainer(loading.folder.path, {}).is_begun


@pytest.mark.parametrize("came", [True, False])
def test_one_that_was_begun_for_an_engine_that_did_not_come_ends(
    loading: Context, came: bool
) -> None:
    server = Ledger(loading.folder.ledger).get(ENGINE)
    assert server is not None

    def serve() -> None:
        with begun_for(loading.folder.path):
            begin_trainer(loading)
            if not came:
                terminate(server, 5.0)
            raise Shortage("no memory")

    with pytest.raises(Shortage):
        serve()
    assert KeptTrainer(loading.folder.path, {}).is_begun is came


def test_a_begin_that_fails_is_left_to_the_step(
    loading: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Event] = []
    loading.tell = told.append

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept_trainer, "new_scratch", full)
    begin_trainer(loading)
    assert [event.kind for event in told] == [EventKind.DETAIL]
    assert "No space left" in told[0].text


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_server_that_loads_needs_its_memory_and_one_that_answers_has_it(
    loading: Context, replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = replace(loading.config.engine, replicas=replicas)
    loading.config = replace(loading.config, engine=engine)
    need = replicas * memory_needed(loading.model_dir(), engine)
    monkeypatch.setattr("fieldkit.gate.memory.available", lambda: Available(need + GIB // 4, None))
    begin_trainer(loading)
    ledger = Ledger(loading.folder.ledger)
    assert ledger.get(TRAINER) is None
    server = ledger.get(ENGINE)
    assert server is not None
    ledger.record(replace(server, info={"lifecycle": "hotswap"}))
    begin_trainer(loading)
    assert KeptTrainer(loading.folder.path, {}).is_begun


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ("engine", {"keep_trainer": False}),
        ("run", {"overlap": 1}),
        ("trainer", {"processes": 2}),
    ],
    ids=["it is not wanted", "its step may be under way", "torchrun starts it"],
)
def test_none_is_begun_where_a_step_would_not_ask_it(
    loading: Context, table: str, keys: dict[str, Any]
) -> None:
    changed = replace(getattr(loading.config, table), **keys)
    loading.config = replace(loading.config, **{table: changed})
    begin_trainer(loading)
    assert Ledger(loading.folder.ledger).get(TRAINER) is None


def test_a_process_that_is_killed_in_a_step_gives_no_answer_and_the_next_call_starts_another(
    folder: RunFolder, request_line: str
) -> None:
    def kill(line: str) -> None:
        found = owned(folder)
        assert found.pid is not None
        if is_running(found):
            os.kill(found.pid, signal.SIGKILL)

    assert kept(folder).ask(request_line, kill, never) is None
    assert Ledger(folder.ledger).get(TRAINER) is None
    answer = kept(folder).ask(request_line, ignore, never)
    assert answer is not None
    assert answer.code == 0


def test_a_process_that_was_killed_between_steps_is_replaced(
    folder: RunFolder, quick_line: str
) -> None:
    kept(folder).ask(quick_line, ignore, never)
    first = owned(folder)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    assert wait_ended(first, 10)
    answer = kept(folder).ask(quick_line, ignore, never)
    assert answer is not None
    assert answer.code == 0
    assert owned(folder).pid != first.pid
    assert not Path(first.info["scratch"]).exists()


def test_a_process_of_other_code_is_replaced(
    folder: RunFolder, quick_line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(folder).ask(quick_line, ignore, never)
    first = owned(folder)
    monkeypatch.setattr(kept_trainer, "_SOURCES", ("trainer",))  # as if fieldkit had changed
    kept(folder).ask(quick_line, ignore, never)
    assert not is_running(first)
    assert owned(folder).pid != first.pid


def test_a_trainer_stays_however_busy_the_cores_have_become(
    folder: RunFolder, quick_line: str, tmp_path: Path
) -> None:
    nobody_said = {n: v for n, v in os.environ.items() if n not in (WAIT_POLICY, SPINS)}

    def env(free: bool) -> dict[str, str]:
        asked = as_it_waits(folder.path, nobody_said, lambda: free)
        return waiting(asked, lambda: free)

    begun = env(free=True)
    assert SPINS in begun
    assert KeptTrainer(folder.path, begun).ask(quick_line, ignore, never) is not None
    assert env(free=False) == begun
    said = {**nobody_said, WAIT_POLICY: "active"}
    assert as_it_waits(folder.path, said) == said


def test_one_whose_threads_sleep_is_replaced_where_the_cores_stay_free(folder: RunFolder) -> None:
    asleep = waiting({}, lambda: False)
    with subprocess.Popen(["sleep", "60"]) as trainer:
        entry = Owned(TRAINER, "its mark", trainer.pid, start_time(trainer.pid))
        Ledger(folder.ledger).record(replace(entry, info={"waits": asleep}))
        looks = iter([True, True, False, True, True, True])
        says = [as_it_waits(folder.path, {}, lambda: next(looks)) for _ in range(6)]
        assert says == [asleep] * 5 + [{}]
        trainer.kill()


def test_another_environment_is_another_process_whoever_starts_it(folder: RunFolder) -> None:
    def code(**changes: str) -> str:
        return KeptTrainer(folder.path, {"OMP_NUM_THREADS": "1", **changes})._code()

    assert code() == code(FIELDKIT_OWNER="train-1", GRPO_LOOP="77", GRPO_LOCK_FD="5")
    assert len({code(), code(OMP_NUM_THREADS="2"), code(CUDA_VISIBLE_DEVICES="1")}) == 3


def test_an_upgrade_of_the_packages_under_a_night_is_another_process(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(packages))
    before = kept(folder)._code()
    assert kept(folder)._code() == before
    (packages / "torch-9.9.dist-info").mkdir()
    assert kept(folder)._code() != before


def test_a_process_that_stopped_in_its_step_is_ended_when_it_is_silent_for_too_long(
    folder: RunFolder, request_line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that hangs in a driver, and does not hear SIGTERM."""
    monkeypatch.setattr(kept_trainer, "GRACE_SECONDS", 0.5)
    quiet = Quiet(2.0)

    def stop(line: str) -> None:
        quiet.heard()
        os.kill(owned(folder).pid or 0, signal.SIGSTOP)

    kept(folder).ask(request_line, ignore, never)  # loaded, so that it is not silent for long
    stopped = owned(folder)
    Path(Request.read(request_line).inputs.out_dir, "train.json").unlink()
    assert kept(folder).ask(request_line, stop, quiet.too_long) is None
    assert not is_running(stopped)
    assert Ledger(folder.ledger).get(TRAINER) is None


def test_a_process_whose_socket_was_removed_is_replaced(folder: RunFolder, quick_line: str) -> None:
    """As by what cleans /tmp: the process lives, and nothing reaches it."""
    kept(folder).ask(quick_line, ignore, never)
    first = owned(folder)
    Path(first.info["socket"]).unlink()
    answer = kept(folder).ask(quick_line, ignore, never)
    assert answer is not None
    assert answer.code == 0
    assert not is_running(first)
    assert owned(folder).pid != first.pid


def test_a_wish_to_stop_ends_the_process_in_its_step(folder: RunFolder, request_line: str) -> None:
    assert kept(folder).ask(request_line, ignore, lambda: True) is None
    assert Ledger(folder.ledger).get(TRAINER) is None
    assert not Path(Request.read(request_line).inputs.out_dir, "train.json").exists()


def test_ending_it_leaves_no_process_and_no_socket(folder: RunFolder, quick_line: str) -> None:
    kept(folder).ask(quick_line, ignore, never)
    found = owned(folder)
    assert stop_trainer(folder.path) == 1
    assert not is_running(found)
    assert not Path(found.info["scratch"]).exists()
    assert stop_trainer(folder.path) == 0
    assert kept(folder).held == 0


@pytest.mark.parametrize(("gpu", "held"), [(80 * GIB, 5 * GIB), (None, 7 * GIB)])
def test_it_holds_of_a_gpus_memory_what_is_on_the_gpu_and_of_shared_memory_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: int | None, held: int
) -> None:
    monkeypatch.setattr(Ledger, "get", lambda self, name: Owned(name, "trainer-1", pid=1))
    monkeypatch.setattr(kept_trainer, "is_running", lambda owned: True)
    monkeypatch.setattr("fieldkit.gate.memory.gpu_total", lambda: gpu)
    monkeypatch.setattr("fieldkit.gate.memory.held_by", lambda pid: 2 * GIB)
    monkeypatch.setattr("fieldkit.gate.memory.gpu_held_by", lambda pids: 5 * GIB)
    assert KeptTrainer(tmp_path, {}).held == held


@pytest.mark.parametrize(("driver", "held"), [(0, 15 * GIB), (16 * GIB, 16 * GIB)])
def test_what_it_says_that_it_holds_counts_where_the_driver_tells_nobody(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, driver: int, held: int
) -> None:
    ledger = Ledger(folder.ledger)
    entry = ledger.started(ledger.announce(TRAINER, ["trainer"], folder.log), os.getpid())
    said = {"event": "end", "code": 0, "error": "", "on_gpu": 15 * GIB}
    answer = kept_trainer._answer(json.dumps(said))
    assert answer is not None
    kept(folder)._note(on_gpu=answer.on_gpu)
    monkeypatch.setattr("fieldkit.gate.memory.gpu_total", lambda: 24 * GIB)
    monkeypatch.setattr("fieldkit.gate.memory.gpu_held_by", lambda pids: driver)
    assert kept(folder).held == held
    ledger.forget(entry)


def test_it_stays_only_beside_an_engine_that_keeps_its_memory() -> None:
    def engine(**info: str) -> Owned:
        return Owned("engine", "engine-1", info=dict(info))

    assert stands_beside(engine(lifecycle="hotswap"))
    assert not stands_beside(engine(lifecycle="restart"))
    assert not stands_beside(engine())
    assert not stands_beside(None)
