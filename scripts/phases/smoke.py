"""`grpo preflight`: plays the preflight at any time of a run.

Plays with the newest adapter, or with run.toml's adapter if the run is not started yet. Does not
change the run's steps.
"""

from __future__ import annotations

from rollout.sandbox.command import SandboxKind
from scripts.base.events import Tell
from scripts.phases.run_phase import entered
from scripts.phases.start import play_preflight


def preflight_newest(run: str, tell: Tell, sandbox: SandboxKind) -> None:
    """Play the preflight of RUN and show it. Raises what playing raises."""
    with entered(run, tell, sandbox) as ctx:
        done = ctx.folder.finished_steps()
        adapter = ctx.folder.adapter(done - 1) if done else ctx.start_adapter
        report = play_preflight(ctx, adapter, max(0, done - 1))
        ctx.journal.append("preflight", verdict=report.verdict.value)
