"""Running one phase as a process: lock, journal, signals, and what it says.

Every phase is entered here, whether a person typed it, grpo_loop.sh did, or `grpo run`. What a
phase does is its own; how it is framed is the same for all.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from fieldkit.errors import foreseen
from fieldkit.files.journal import Journal
from rollout.sandbox.command import SandboxKind
from scripts.base.events import Event, EventKind, Tell
from scripts.base.signals import Wish, listening
from scripts.phases.context import Context, Done
from scripts.run.config import read_config
from scripts.run.folder import RunFolder, open_run
from scripts.run.lock import run_lock
from scripts.run.manifest import check_host, read_manifest
from scripts.run.next_phase import Phase
from scripts.run.timings import Stopwatch, process_began
from scripts.run.verify import put_aside_changes

BUG = 1
"""Exit code of what nobody foresaw."""


_WHERE = {
    Phase.START: ("scripts.phases.start", "start"),
    Phase.ROLLOUT: ("scripts.phases.rollout", "rollout"),
    Phase.TRAIN: ("scripts.phases.train", "train"),
    Phase.EVAL: ("scripts.phases.eval", "evaluate"),
}


TRACKED = (Phase.TRAIN, Phase.EVAL)
"""The phases that end with figures for the trackers."""


def run_phase(
    phase: Phase, run: str, tell: Tell, sandbox: SandboxKind = "bwrap", **options: Any
) -> Done:
    """Do one phase of RUN under its lock and journal it. Raises what the phase raises."""
    work = _load(phase)
    folder = open_run(run)
    config = read_config(folder.config, sandbox)
    wish = Wish(lambda text: tell(Event(EventKind.NOTE, text)))
    watch = Stopwatch(process_began())
    with run_lock(folder.lock), listening(wish):
        _refuse_foreign(folder)
        ctx = Context(folder, config, tell, wish, watch, **options)
        tell(Event(EventKind.PHASE, phase.value))
        with watch.part("verify"):
            put_aside_changes(folder, tell)
        done = journalled(folder, phase.value, lambda: work(ctx))
        if phase in TRACKED:
            _track(ctx)
        return done


def journalled(folder: RunFolder, name: str, work: Callable[[], Done]) -> Done:
    """Do `work` between two lines of the journal: when, and how it ended."""
    journal = Journal(folder.journal)
    began = time.time()
    journal.append("phase_start", phase=name)
    try:
        done = work()
    except BaseException as e:
        # On a full disk the journal cannot be written either, and how it came to that matters more.
        with contextlib.suppress(OSError):
            journal.append(
                "phase_end", phase=name, start=began, exit=_code(e), error=str(e) or repr(e)
            )
        raise
    journal.append("phase_end", phase=name, start=began, exit=0, wrote=done.wrote)
    return done


def _code(error: BaseException) -> int:
    known = foreseen(error)
    return known.exit_code if known is not None else BUG


def keep_traceback(folder: RunFolder, name: str) -> str:
    """Write the traceback being handled to the run's log/; return where it lies."""
    folder.log.mkdir(parents=True, exist_ok=True)
    path = folder.log / f"bug-{name}-{time.strftime('%Y%m%d-%H%M%S')}.log"
    path.write_text(traceback.format_exc())
    return str(path)


def _track(ctx: Context) -> None:
    from scripts.track.trackers import track  # slow to import, and not needed by other phases

    track(ctx.folder, ctx.config, ctx.tell, lambda: ctx.wish.now)


def _refuse_foreign(folder: RunFolder) -> None:
    manifest = read_manifest(folder)
    if manifest is not None:
        check_host(folder, manifest)


def _load(phase: Phase) -> Callable[[Context], Done]:
    module, name = _WHERE[phase]
    work: Callable[[Context], Done] = getattr(import_module(module), name)
    return work
