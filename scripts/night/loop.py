"""`grpo run`: the loop of grpo_loop.sh with a display, time limits and a summary at the end.

The loop finds the next phase, runs it in a process of its own (`running_phases`), decides whether
one that failed is done once more, and stops between phases when asked. With run.overlap two run at
the same time: a step is trained while the next one is played. All state is in the run folder.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from typing import Any

from fieldkit.errors import BadInput, FieldkitError, Interrupted, Unavailable, foreseen
from fieldkit.files.journal import Journal
from fieldkit.process.ledger import Ledger
from scripts.base.children import TICK_SECONDS
from scripts.base.display import Both, Display, log_display, to_the_second
from scripts.base.events import Event, EventKind, alarm, detail, note
from scripts.base.exit_codes import as_journalled
from scripts.base.signals import Wish, listening
from scripts.night.again import Again
from scripts.night.held import Held
from scripts.night.loop_options import LoopOptions, with_options
from scripts.night.pages import show_evaluation, write_page
from scripts.night.running_phases import RunningPhases
from scripts.phases.registry import PHASES
from scripts.run.config import UNPROTECTED, RunConfig, read_config
from scripts.run.folder import RunFolder
from scripts.run.lock import LOOP, run_lock
from scripts.run.manifest import check_sandbox, free_changes, read_manifest
from scripts.run.memory_account import USED, told
from scripts.run.next_phase import FLAT, Phase, RunFiles, drive, phase_beside
from scripts.run.reader import RunReader
from scripts.run.run_pool import require_reserve
from scripts.run.state import (
    PAUSE,
    outlook,
    phase_now,
    raise_converged,
    read_files,
    read_measured,
    steps_planned,
)
from scripts.run.until import FORECAST, deadline, held, seconds_until
from scripts.run.verify import require_ours
from scripts.track.trackers import require_trackers

_READ_AGAIN_SECONDS = (2.0, 10.0, 60.0)
"""Pauses before a run whose files could not be read is looked at again."""


def run_loop(
    folder: RunFolder, options: LoopOptions, display: Display, wish: Wish | None = None
) -> None:
    """Run phases until the night is done. wish: gets what the person asks for meanwhile.

    Raises `PoolConverged` when the pool is exhausted, `Interrupted` when the person stopped it, and
    any error of a phase. Always stops the engine at the end; raises an error of that stop only if
    there is no other error. The display is closed, however it ends.
    """
    try:
        _run_phases(folder, options, display, wish or Wish())
    finally:
        display.close()


def _run_phases(folder: RunFolder, options: LoopOptions, display: Display, wish: Wish) -> None:
    config = with_options(read_config(folder.config, options.sandbox), options)
    check_sandbox(folder, config)
    require_ours(folder)
    require_trackers(config)
    if options.on_converged is not None:
        require_reserve(folder, config)
    enrolled = Ledger(folder.ledger).enrolled(LOOP)
    with run_lock(folder.lock) as lock_fd, listening(wish), enrolled:
        both = Both(display, log_display(folder.log, "loop"))
        wish.told = lambda text: note(both.tell, text)
        loop = _Loop(folder, config, options, both, wish, lock_fd)
        loop.journal_start()
        if options.sandbox == "none":
            alarm(both.tell, UNPROTECTED)
        trouble, has_failed = None, False
        try:
            left = drive(loop.look, loop.do, lambda: wish.finish)
        except BaseException as e:
            loop.journal_error(e)
            has_failed = isinstance(e, Exception) and not isinstance(e, Interrupted)
            raise
        finally:
            if not options.keep_engine:
                trouble = loop.stop_engine()
            if has_failed:  # memory may be what was short, and the engine has given back its own
                loop.write_page()
            both.close()
        loop.end(left, trouble)


class Standstill(BadInput):
    """A phase has ended well and is due again as it was."""


class _Loop:
    """One loop over one run, under its lock."""

    def __init__(
        self,
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
        self.journal = Journal(folder.journal)
        self.beside: Phase | None = None
        self.deadline = None
        if options.until:
            self.deadline = deadline(options.until, time.time(), self.journal.read())
        self.has_forecast = False
        self.unshown: Exception | None = None
        self.held = Held(folder)
        self.again = Again()
        self.seen: tuple[Any, ...] = ()

    def journal_start(self) -> None:
        """Journal the loop's start, its limits, and the free keys that have changed."""
        run = self.config.run
        told = ("steps", "minutes", "eval_every", "on_converged")
        limits: dict[str, Any] = {key: getattr(run, key) for key in told}
        if self.deadline is not None:
            limits["until"] = self.deadline
        manifest = read_manifest(self.folder)
        changed = free_changes(manifest, self.config) if manifest else {}
        self.journal.append("loop_start", limits=limits, changed=changed)
        if self.deadline is not None and self.deadline < time.time():
            self._note(
                f"--until {self.options.until} is the end that this night had, and has passed: what"
                " is trained is evaluated; to go on, say another time"
            )

    def look(self) -> Phase:
        """`_look`, again where the run's disk cannot be read for a moment, as a network's."""
        for pause in _READ_AGAIN_SECONDS:
            try:
                return self._look()
            except OSError as e:
                if isinstance(e, FieldkitError) or self.wish.finish:
                    raise
                alarm(self.display.tell, f"{e}; looked at again in {to_the_second(pause)}")
                self._wait(pause)
        return self._look()

    def _look(self) -> Phase:
        """Find the next phase by run.toml as it is now, as phases read it; tell the display, with
        the time left."""
        self.config = with_options(
            read_config(self.folder.config, self.options.sandbox), self.options
        )
        reader = RunReader(self.folder)
        files = read_files(self.folder, self.config, reader)
        steps = steps_planned(self.folder, self.config, files, self.deadline, reader)
        phase = phase_now(self.folder, self.config, files, steps, self.deadline, reader)
        self._refuse_standstill(phase, files, reader)
        self.beside = phase_beside(phase, files, steps, self.config.run.overlap)
        step = files.newest + (phase in (Phase.ROLLOUT, Phase.TRAIN))
        figures = {"step": float(max(0, step))}
        measured = read_measured(self.folder, files, reader)
        found = outlook(self.config, files, steps, measured, seconds_until(self.deadline))
        if found.forecast is not None:
            self._keep_forecast(steps, found.forecast)
        if found.steps is not None:
            figures["steps"] = float(found.steps)
        if found.left is not None:
            figures["seconds_left"] = found.left
        if phase is Phase.DONE:
            if files.flat and files.newest < steps:
                self._note(FLAT)
            if self.has_forecast and (kept := held(self.journal.read(), files.newest)) is not None:
                self._note(kept.told())
            if memory := told(self.journal.read(), reader.steps):
                self._note(memory)
            page = self.folder.path / "report.html"
            self._note(f"the page is {page}; `grpo show {self.folder.typed}` lists the attempts")
        if phase not in (Phase.DONE, Phase.CONVERGED):
            said = f"{phase}, {self.beside} beside it" if self.beside else phase.value
            self.display.tell(Event(EventKind.PHASE, said, figures=figures))
        return phase

    def _refuse_standstill(self, phase: Phase, files: RunFiles, reader: RunReader) -> None:
        """Raise `Standstill` where a phase went well and is due again, although nothing changed:
        loop and phase read the run differently, and would go on for ever."""
        bundles = files.bundle_ready, files.second_bundle_ready
        seen = (phase, files.newest, bundles, frozenset(files.evaluated), reader.manifest)
        if seen == self.seen and not self.wish.finish:
            raise Standstill(
                f"the {phase} phase went well and changed nothing, and is due again; the newest"
                f" {phase} log in {self.folder.log} says what it found. Was run.toml changed"
                f" meanwhile? `{self._resume}` reads it anew and goes on"
            )
        self.seen = seen

    def _keep_forecast(self, steps: int, left: float) -> None:
        """Journal this loop's first forecast, to compare it with the end."""
        if not self.has_forecast and left > 0:
            self.journal.append(FORECAST, steps=steps, end=round(time.time() + left, 3))
            self.has_forecast = True

    def do(self, phase: Phase) -> None:
        """Run one phase to its end, and the one that may run beside it. What failed and may go well
        the next time (`Again`) is left to `look`, which finds it again. Raises the error of the
        first that failed, by its exit code, when the other has come to its own end too."""
        phases = [phase, *([self.beside] if self.beside and not self.wish.finish else [])]
        running = RunningPhases(
            phases, self.folder, self.config, self.options, self.display, self.wish, self.lock_fd
        )
        try:
            self._run(running)
        except Exception as e:  # an `OSError` too: a full disk is the loop's as well
            failed = next((child.phase for child in running.ended if child.has_failed), phase)
            if not self._goes_again(failed, foreseen(e) or e):
                raise
            self.seen = ()
            return
        if PHASES[phase].shows_table:
            self._try_to_show()

    def _run(self, running: RunningPhases) -> None:
        """Run these phases to their ends; note which went well, and the memory that was held."""
        running.run(self._tick)
        for child in running.ended:
            if child.code == 0:
                self.again.went_well(child.phase)
        if (most := self.held.news()) is not None:
            self.journal.append(USED, bytes=most)
        if self.wish.now:
            raise Interrupted(self._resume_hint())
        for child in running.ended:
            child.raise_failure(self.wish.finish)

    def _goes_again(self, phase: Phase, error: Exception) -> bool:
        """Whether a phase that failed is done once more. Waits before, where that may help."""
        pause = None if self.wish.finish else self.again.pause(phase, error)
        if pause is None:
            return False
        later = f" in {to_the_second(pause)}" if pause else ""
        told = f"the {phase} phase is done once more{later}"
        alarm(self.display.tell, f"{error}; {told} (Ctrl-C stops)")
        if self.again.ends_engine(phase, error):
            self.stop_engine()
        if pause:
            with contextlib.suppress(OSError):  # a full disk may be what is waited for
                self.journal.append(PAUSE, phase=phase.value, seconds=pause, **as_journalled(error))
            self._wait(pause)
        return True

    def _wait(self, seconds: float) -> None:
        """Wait, at most until the person asks for an end."""
        over = time.monotonic() + seconds
        while (left := over - time.monotonic()) > 0 and not self.wish.finish:
            time.sleep(min(left, TICK_SECONDS))  # no event says that memory or disk came back
            self.display.tick()

    def _tick(self) -> None:
        self.display.tick()
        with contextlib.suppress(OSError):  # a figure of the night's end ends no phase
            self.held.look()

    def write_page(self) -> None:
        """Write what there is, for the person who comes after an error has ended the night."""
        try:
            write_page(self.folder, self.config, self.display.tell, self._note)
        except Exception as e:  # the night's own error matters more
            detail(self.display.tell, f"no page: {e}")

    def _try_to_show(self) -> None:
        """Show the evaluation. What fails there ends no night: a page can be made again."""
        self.unshown = None
        try:
            show_evaluation(self.folder, self.config, self.display.tell, self._note)
        except Exception as e:
            self.unshown = e
            told = f"no tables ({str(e) or repr(e)}): `grpo table {self.folder.typed}` makes them"
            alarm(self.display.tell, told)

    def _note(self, text: str) -> None:
        note(self.display.tell, text)

    def stop_engine(self) -> FieldkitError | None:
        """Stop the engine that the phases left running with what stays beside it, and the remains
        of killed ones.

        Returns the error, if any, so that it does not hide an error of a phase.
        """
        from rollout.engine.serve import stop_engine

        try:
            stop_engine(self.folder.path, self.config.engine, self._note)
        except FieldkitError as e:
            self._note(f"engine: {e}")
            return e
        except OSError as e:  # as on a disk that became read-only
            self._note(f"engine: {e}")
            return Unavailable(f"the engine may not have ended: {e}; see `grpo doctor`")
        return None

    def journal_error(self, error: BaseException) -> None:
        """Journal that this error ends the loop."""
        with contextlib.suppress(OSError):  # on a full disk the error itself matters more
            self.journal.append("loop_end", **as_journalled(error))

    def end(self, left: Phase, trouble: FieldkitError | None) -> None:
        """Journal the end; raise the error for the exit code, at last that of the newest tables.
        trouble: of `stop_engine`."""
        self.journal.append("loop_end", next=left.value)
        if left is Phase.CONVERGED:
            raise_converged(self.folder, self.config)
        if left is not Phase.DONE:
            raise Interrupted(self._resume_hint())
        if trouble is not None:
            raise type(trouble)(f"everything is finished and saved; {trouble}") from trouble
        if self.unshown is not None:
            raise self.unshown

    @property
    def _resume(self) -> str:
        return " ".join(["grpo run", self.folder.typed, *map(shlex.quote, self.options.words())])

    def _resume_hint(self) -> str:
        return f"stopped; `{self._resume}` goes on from here"
