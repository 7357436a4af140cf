"""`grpo preflight`: the evening's look at rewards and advantages, at any time of a run.

Plays with the newest adapter, or with the one run.toml names where the run was not started yet.
It leaves the run's steps alone.
"""

from __future__ import annotations

from fieldkit.files.journal import Journal
from rollout.sandbox.command import SandboxKind
from scripts.base.events import Tell, note
from scripts.base.signals import Wish, listening
from scripts.phases.context import Context
from scripts.phases.start import play_preflight
from scripts.run.config import read_config
from scripts.run.folder import open_run
from scripts.run.lock import run_lock
from scripts.run.timings import Stopwatch, process_began


def preflight_newest(run: str, tell: Tell, sandbox: SandboxKind) -> None:
    """Play the preflight of RUN and show it. Raises what playing raises."""
    folder = open_run(run)
    config = read_config(folder.config, sandbox)
    wish = Wish(lambda text: note(tell, text))
    with run_lock(folder.lock), listening(wish):
        ctx = Context(folder, config, tell, wish, Stopwatch(process_began()))
        done = folder.finished_steps()
        adapter = folder.adapter(done - 1) if done else ctx.start_adapter
        report = play_preflight(ctx, adapter, max(0, done - 1))
        Journal(folder.journal).append("preflight", verdict=report.verdict.value)
