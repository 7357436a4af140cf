"""Ctrl-C at real loops: once finishes the step, twice stops now, and the same command goes on.

A terminal sends SIGINT to everything in the foreground, so each loop is a process group here and
the group is hit. Both loops are asked the same: `grpo run`, and grpo_loop.sh, whose phases are in
its own group. The nights are those of the two-layer model on the scripted engine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import start_time
from rollout.engine.serve import find_engine, stop_engine
from scripts.base.checkout import ROOT
from scripts.run.config import read_config
from scripts.run.lock import holder, is_held
from tests.chaos.night import GRPO_RUN, alive, require_readable, trained_twice
from tests.scripts.night.running import Night, as_from_a_terminal
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(1200)

INTERRUPTED = 130
NOT_OWNER = 6
GRPO_LOOP = (str(ROOT / "scripts" / "grpo_loop.sh"),)
LOOPS = pytest.mark.parametrize("command", [GRPO_RUN, GRPO_LOOP], ids=["grpo-run", "grpo_loop.sh"])


class Foreground(Night):
    """A night whose loops run as in the foreground of a terminal."""

    @contextmanager
    def looping(self, command: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
        """A loop over the night, in a process group of its own; ended at the latest on leaving."""
        with open(self.log, "ab") as out:
            loop = subprocess.Popen(
                [*command, str(self.folder.path)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.env,
                process_group=0,
            )
        try:
            yield loop
        finally:
            loop.kill()
            loop.wait()

    def ctrl_c(self, loop: subprocess.Popen[bytes]) -> None:
        """What a terminal does, and the loop has heard it."""
        heard = self.said.count("finishing this step")
        os.killpg(loop.pid, signal.SIGINT)
        if not heard:
            self.until(loop, lambda: "finishing this step" in self.said)

    def ends(self, command: tuple[str, ...]) -> int:
        """Run the loop to its end; its exit code."""
        with self.looping(command) as loop:
            return loop.wait()


@pytest.fixture(scope="module")
def evening(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A night that has played what it starts from, and no step yet."""
    folder = write_run(
        tmp_path_factory.mktemp("evening") / "night",
        *policy,
        run={"steps": 2},
        rollout={"concurrency": 2},
        engine={"lifecycle": "hotswap"},
    )
    night = Night(folder)
    assert night.run("--steps", "0") == 0, night.said
    return folder


@pytest.fixture
def night(evening: Path, tmp_path: Path) -> Iterator[Foreground]:
    """The same night from its evening on. It leaves no engine behind."""
    night = Foreground(shutil.copytree(evening, tmp_path / "night"))
    yield night
    stop_engine(night.folder.path)


@pytest.fixture(autouse=True)
def in_a_terminal() -> Iterator[None]:
    with as_from_a_terminal():
        yield


def one_step_only(night: Foreground) -> None:
    """Shorten the rest of the night, where a second step would show nothing more."""
    text = night.folder.config.read_text()
    assert "steps = 2" in text
    night.folder.config.write_text(text.replace("steps = 2", "steps = 1"))


def assert_the_same_command_goes_on(night: Foreground, command: tuple[str, ...]) -> None:
    """To the end of the night, and nothing is lost, done twice or left behind."""
    require_readable(night.folder.path)
    assert alive(night.folder.path) == [], "an interrupted loop has left something running"
    assert night.ends(command) == 0, night.said
    assert night.folder.finished_steps() == 1 + int(read_config(night.folder.config).run.steps)
    assert trained_twice(night.folder.path) == []
    assert alive(night.folder.path) == []


@pytest.mark.slow
@LOOPS
def test_ctrl_c_once_in_a_rollout_finishes_the_step(
    night: Foreground, command: tuple[str, ...]
) -> None:
    with night.looping(command) as loop:
        night.until(loop, lambda: night.events("phase_start", "rollout"))
        night.ctrl_c(loop)
        assert loop.wait() == INTERRUPTED, night.said
    assert night.folder.finished_steps() == 2, "step 0 and the step that was under way"
    assert night.events("phase_start", "rollout") == 1, "it began a step that nobody wanted"
    assert_the_same_command_goes_on(night, command)


@pytest.mark.slow
@LOOPS
def test_ctrl_c_twice_in_a_rollout_stops_now(night: Foreground, command: tuple[str, ...]) -> None:
    with night.looping(command) as loop:
        night.until(loop, night.finished_episodes)
        night.ctrl_c(loop)
        night.ctrl_c(loop)
        assert loop.wait() == INTERRUPTED, night.said
    assert not night.folder.bundle(1).exists()
    assert night.finished_episodes()
    one_step_only(night)
    assert_the_same_command_goes_on(night, command)


@LOOPS
def test_ctrl_c_in_the_rollout_and_again_in_the_training_stops_now(
    night: Foreground, command: tuple[str, ...]
) -> None:
    with night.looping(command) as loop:
        night.until(loop, night.finished_episodes)
        night.ctrl_c(loop)
        night.until(loop, lambda: night.events("phase_start", "train"))
        night.ctrl_c(loop)
        assert loop.wait() == INTERRUPTED, night.said
    assert night.folder.bundle(1).is_file()
    assert night.folder.finished_steps() == 1, "the step was finished all the same"
    assert alive(night.folder.path) == []


def test_the_shell_loop_owns_its_run_from_the_first_phase_to_the_last(night: Foreground) -> None:
    """Between two phases too: a second loop is refused, and the first keeps its engine."""
    with night.looping(GRPO_LOOP) as loop:
        night.until(loop, lambda: holder(night.folder.lock) == loop.pid)
        night.until(loop, night.finished_episodes)
        engine = find_engine(night.folder.path)
        assert engine is not None
        assert engine.pid is not None
        assert night.ends(GRPO_LOOP) == NOT_OWNER
        assert f"another loop owns run night: pid {loop.pid} on" in night.said
        assert f"`kill {loop.pid}`" in night.said
        assert night.ends(GRPO_RUN) == NOT_OWNER
        assert start_time(engine.pid) is not None, "who was refused has stopped the first's engine"
        night.until(loop, lambda: night.events("phase_end", "rollout"))
        assert holder(night.folder.lock) == loop.pid
        assert is_held(night.folder.lock)
        loop.terminate()
        assert loop.wait() == INTERRUPTED, night.said
    assert not is_held(night.folder.lock)


@pytest.mark.slow
def test_the_shell_loop_stops_now_where_it_is_killed_as_a_refused_one_is_told(
    night: Foreground,
) -> None:
    with night.looping(GRPO_LOOP) as loop:
        night.until(loop, night.finished_episodes)
        loop.terminate()
        assert loop.wait() == INTERRUPTED, night.said
    assert not night.folder.bundle(1).exists()
    assert alive(night.folder.path) == []


@pytest.mark.slow
def test_a_phase_ends_with_a_shell_loop_that_was_killed_and_the_same_command_goes_on(
    night: Foreground,
) -> None:
    with night.looping(GRPO_LOOP) as loop:
        night.until(loop, night.finished_episodes)
        loop.kill()
    one_step_only(night)
    assert night.ends(GRPO_LOOP) == 0, night.said
    assert night.events("phase_end", "rollout") == 2, "one of them as interrupted"
    assert trained_twice(night.folder.path) == []
    assert Ledger(night.folder.ledger).entries() == []
