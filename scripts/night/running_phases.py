"""The phases that a loop runs now, as child processes: one, or two at the same time.

The loop says which phases run, and decides what follows from their ends. This module gives each
phase its command, its log and the run's lock. It shows their events, and passes on what the person
asks for meanwhile. It must not decide what is due.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fieldkit.errors import Interrupted
from fieldkit.process.ledger import Ledger
from scripts.base.children import Program, run_children
from scripts.base.display import Display
from scripts.base.events import EventKind, detail, note, read_event
from scripts.base.exit_codes import Killed, raise_code
from scripts.base.signals import Wish
from scripts.night.loop_options import LoopOptions
from scripts.phases.registry import HARDER, PHASES
from scripts.run.config import RunConfig, play_flags
from scripts.run.folder import RunFolder
from scripts.run.lock import LOCK_FD_VARIABLE
from scripts.run.next_phase import Phase
from scripts.run.timings import LOOP_VARIABLE


@dataclass(eq=False)
class PhaseProcess:
    """A phase in a child process. failure: the text of its error. was_stopped: at the end of the
    step, as the person asked."""

    phase: Phase
    log: Path
    code: int = 0
    failure: str = ""
    was_stopped: bool = False

    @property
    def has_failed(self) -> bool:
        return self.code != 0 and not self.was_stopped

    def raise_failure(self, asked: bool) -> None:
        """Raise the error for its exit code, if it has failed. asked: whether the loop was asked to
        stop; a phase that something else told to end, as a guard against short memory does, counts
        as killed."""
        if not self.has_failed:
            return
        who = f"the {self.phase.value} phase"
        if self.code == Interrupted.exit_code and not asked:
            raise Killed(
                f"{who} was told to end, and not by this loop: memory may be short; its log:"
                f" {self.log}"
            )
        raise_code(self.code, self.failure, who, self.log)


class RunningPhases:
    """Phases that run at the same time. The first is the one that is due; a second plays beside it.

    ended: those that have ended, in the order of their ends. It holds them where `run` raises too.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        folder: RunFolder,
        config: RunConfig,
        options: LoopOptions,
        display: Display,
        wish: Wish,
        lock_fd: int,
    ) -> None:
        self.folder = folder
        self.config = config
        self.options = options
        self.display = display
        self.wish = wish
        self.lock_fd = lock_fd
        now = time.strftime("%Y%m%d-%H%M%S")
        self.children = [PhaseProcess(p, folder.log / f"{p.value}-{now}.log") for p in phases]
        self.ended: list[PhaseProcess] = []

    def run(self, on_tick: Callable[[], None]) -> None:
        """Run them to the end of all. on_tick: as in `run_children`.

        A phase that fails raises nothing here. Raises what keeps a phase from its start, as a full
        disk does, and `Unavailable` for one that does not end when it is told to.
        """
        run_children(
            [self._program(child) for child in self.children],
            ledger=Ledger(self.folder.ledger),
            on_tick=on_tick,
            env={
                **os.environ,
                LOCK_FD_VARIABLE: str(self.lock_fd),
                LOOP_VARIABLE: f"{os.getpid()}",
            },
            pass_fds=(self.lock_fd,),
        )

    def _program(self, child: PhaseProcess) -> Program:
        return Program(
            phase_command(child.phase, self.folder, self.config, self.options),
            child.phase.value,
            child.log,
            on_line=lambda line: self._hear(line, child),
            stop_asked=lambda: self._stop_asked(child),
            on_end=lambda code: self._end(child, code),
        )

    def _is_beside(self, child: PhaseProcess) -> bool:
        return child is not self.children[0]

    def _hear(self, line: str, child: PhaseProcess) -> None:
        """Show what a child has said."""
        event = read_event(line)
        if event is None:
            if line.strip():
                detail(self.display.tell, line)
        elif event.kind is EventKind.FAILED:
            child.failure = event.text
        elif event.kind is not EventKind.PHASE:  # the loop told it already, with the figures
            self.display.tell(replace(event, beside=self._is_beside(child)))

    def _stop_asked(self, child: PhaseProcess) -> bool:
        # "Finish the step" means the one that is trained; what plays beside it goes on later.
        if self._is_beside(child) and self.wish.finish and self.children[0] in self.ended:
            child.was_stopped = True
        return self.wish.now or child.was_stopped

    def _end(self, child: PhaseProcess, code: int) -> None:
        """Note that a child has ended; say that another still runs, where this one failed."""
        child.code = code
        self.ended.append(child)
        others = [other.phase.value for other in self.children if other not in self.ended]
        if code != 0 and others and not self.wish.now:
            told = f"the {child.phase} phase failed; the {others[0]} phase beside it"
            note(self.display.tell, f"{told} comes to its end first")


def phase_command(
    phase: Phase, folder: RunFolder, config: RunConfig, options: LoopOptions
) -> Sequence[str]:
    """The command line of a phase, with what was typed for the loop."""
    words = [sys.executable, "-P", "-m", "scripts.cli", phase.value, str(folder.path)]
    given = [flag for flag in PHASES[phase].flags if getattr(options, flag, False)]
    given += [HARDER] if phase is Phase.GROW and config.run.on_converged == HARDER else []
    words += [f"--{flag.replace('_', '-')}" for flag in given]
    return [*words, *play_flags(options.sandbox).split(), "--events"]
