"""Plays the preflight: a few groups whose rewards say whether a night can learn anything.

The start phase plays it before the first step; `grpo preflight` plays it at any time with the
newest adapter, or with run.toml's if the run is not started. It changes no step.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_json
from rollout.draw.base import Drawing
from rollout.draw.rules import DRAWS
from rollout.preflight import (
    PREFLIGHT_TASKS,
    Preflight,
    Verdict,
    explain,
    preflight,
    render_rows,
)
from rollout.sandbox.command import SandboxKind
from scripts.base.events import Tell, table
from scripts.phases.context import Context
from scripts.phases.make_player import player, serve_and_render, show
from scripts.phases.run_phase import entered
from scripts.run.manifest import check_host, read_manifest
from scripts.run.verify import require_base
from scripts.words.table import Table
from scripts.words.text import as_text

PREFLIGHT_SCHEMA = 1


def preflight_newest(run: str, tell: Tell, sandbox: SandboxKind) -> Preflight:
    """Play the preflight of RUN, show it, and return its figures. Raises what playing raises."""
    with entered(run, tell, sandbox) as ctx:
        check_host(ctx.folder, read_manifest(ctx.folder))
        require_base(ctx.folder, ctx.model_dir)
        done = ctx.folder.finished_steps()
        adapter = ctx.folder.adapter(done - 1) if done else ctx.start_adapter
        report = play_preflight(ctx, adapter, max(0, done - 1))
        ctx.journal.append("preflight", verdict=report.verdict.value)
    return report


def play_preflight(ctx: Context, adapter: Path, n: int, *, for_training: bool = False) -> Preflight:
    """Play a few groups with step `n`'s adapter, paid as the step after it; show their rewards, and
    store the figures. for_training: as `serve`'s."""
    ctx.about_to_play()
    version = ctx.folder.version(n)
    servers, chat = serve_and_render(ctx, adapter, version, for_training=for_training)

    settings, pool = ctx.config.rollout, ctx.pool()
    wanted = min(PREFLIGHT_TASKS, len(pool))
    drawing = Drawing(settings.run_seed, 1, pool, wanted, mix=ctx.config.data.mix)

    async def play() -> Preflight:
        async with player(ctx, servers, chat, settings, step=n + 1) as p:
            return await preflight(
                DRAWS[settings.draw](drawing),
                player=p,
                run_seed=settings.run_seed,
                group_size=settings.group_size,
                on_progress=show(ctx),
            )

    with ctx.watch.part("preflight"):
        report = ctx.run_async(play())
    write_json(ctx.folder.preflight, {"schema": PREFLIGHT_SCHEMA, "step": n, **asdict(report)})
    columns, *rows = render_rows(report)
    shown = Table(f"Preflight of step {n}", columns, tuple(rows), (explain(report),))
    table(ctx.tell, as_text(shown.rich()))
    return report


def require_signal(ctx: Context, report: Preflight) -> None:
    """Raise `BadInput` if no group's rewards differ: a night would learn nothing."""
    if report.verdict is Verdict.NO_SIGNAL:
        raise BadInput(
            f"{explain(report)} `grpo start {ctx.folder.typed}{ctx.config.flags} --skip-preflight` "
            "starts it anyway"
        )
