"""Runs one phase as a process, with lock, journal, signals and events.

A person, grpo_loop.sh and `grpo run` all enter a phase here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from fieldkit.files.journal import Journal
from rollout.sandbox.command import SandboxKind
from scripts.base.events import Event, EventKind, Tell, note
from scripts.base.exit_codes import as_journalled
from scripts.base.signals import Wish, listening
from scripts.phases.context import Context, Done
from scripts.phases.registry import PHASES
from scripts.run.config import read_config
from scripts.run.folder import RunFolder, open_run
from scripts.run.lock import run_lock
from scripts.run.manifest import check_host, read_manifest
from scripts.run.timings import LOOP_VARIABLE, Stopwatch, process_began
from scripts.run.verify import put_aside_changes


def run_phase(
    name: str,
    run: str,
    tell: Tell,
    sandbox: SandboxKind = "bwrap",
    flags: Collection[str] = (),
    numbers: Mapping[str, int] | None = None,
) -> Done:
    """Run the named phase on RUN under its lock and journal it. Raises what the phase raises."""
    phase = PHASES[name]
    work = phase.load()
    with entered(run, tell, sandbox) as ctx:
        ctx.flags, ctx.numbers = frozenset(flags), numbers or {}
        check_host(ctx.folder, read_manifest(ctx.folder))
        tell(Event(EventKind.PHASE, name))
        with ctx.watch.part("verify"):
            put_aside_changes(ctx.folder, tell)
        phase.require_possible(ctx)
        done = _journalled(ctx.folder, name, lambda: work(ctx))
        if phase.has_figures:
            from scripts.track.trackers import track  # slow to import

            track(ctx.folder, ctx.config, tell, lambda: ctx.wish.now)
        return done


@contextlib.contextmanager
def entered(run: str, tell: Tell, sandbox: SandboxKind) -> Iterator[Context]:
    """Hold RUN's lock and turn signals into wishes for the duration of the block."""
    folder = open_run(run)
    config = read_config(folder.config, sandbox)
    # Under a loop, which hears the same signals, the loop says it.
    wish = Wish() if LOOP_VARIABLE in os.environ else Wish(lambda text: note(tell, text))
    watch = Stopwatch(process_began())
    with run_lock(folder.lock), listening(wish), asyncio.Runner() as runner:
        yield Context(folder, config, tell, wish, watch, runner=runner)


def _journalled(folder: RunFolder, name: str, work: Callable[[], Done]) -> Done:
    """Do `work`; journal its start and its end."""
    journal = Journal(folder.journal)
    began = time.time()
    journal.append("phase_start", phase=name)
    try:
        done = work()
    except BaseException as e:
        # On a full disk this line cannot be written either; the first error matters more.
        with contextlib.suppress(OSError):
            journal.append("phase_end", phase=name, start=began, **as_journalled(e))
        raise
    journal.append("phase_end", phase=name, start=began, exit=0, wrote=done.wrote)
    return done
