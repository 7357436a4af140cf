"""The rollout phase: plays the next step's tasks and writes its bundle.

The run folder and the run's seed determine the step's number, tasks and seeds, so a rollout that
was killed and runs again is the same rollout. Nothing here decides whether a step is due.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file, write_json
from fieldkit.files.sharded import sha256_records
from fieldkit.records import RolloutGroup, Signal, Task
from fieldkit.training.adapter import adapter_sha
from reward.group_signal import draw_of, had_no_room, was_late
from reward.totals import totals
from rollout.bundle import roll_out
from rollout.draw.base import Drawing
from rollout.draw.rules import DRAWS
from scripts.base.events import alarm
from scripts.phases.checks import check_kept_apart, require_staying_engine
from scripts.phases.context import Context, Done
from scripts.phases.make_player import player, serve_and_render, show
from scripts.run.manifest import bound_changes, read_manifest, refuse_change
from scripts.run.next_phase import sampled_from
from scripts.run.reader import RunReader
from scripts.run.run_pool import APPENDED, grown_tasks, joined_tasks
from scripts.run.timings import read_timings, write_timings
from scripts.run.verify import require_base


def rollout(ctx: Context) -> Done:
    """Sample the bundle of the step after the newest finished one; keep a finished bundle. With an
    overlap, that of the step after it where it is there: it is played while that one is trained."""
    n = next_step(ctx)
    if ctx.folder.has_bundle(n) and ctx.config.run.overlap:
        n += 1
    if ctx.folder.has_bundle(n):
        return Done(f"step {n}: the bundle is there already")
    if not _checked_at_start(ctx):
        check_kept_apart(ctx)
    ctx.about_to_play()
    ctx.folder.step(n).mkdir(exist_ok=True)
    groups = _play(ctx, n)
    timings = read_timings(ctx.folder.timings(n), n).with_segment(ctx.watch.segment("rollout"))
    write_timings(ctx.folder.timings(n), timings)
    bundle = ctx.folder.bundle(n)
    for warning in (unrewarded(groups), late(groups), no_room(groups)):
        if warning is not None:
            alarm(ctx.tell, warning)
    return Done(_told(n, groups), {ctx.folder.relative(bundle): sha256_records(bundle)})


def next_step(ctx: Context) -> int:
    """The number of the current step.

    Raises `BadInput` if the run is not started, or if run.toml, the data or the base model changed
    since.
    """
    done, manifest = ctx.folder.finished_steps(), read_manifest(ctx.folder)
    changed = list(bound_changes(manifest, ctx.config)) if manifest else []
    if manifest is None or done == 0 or (done == 1 and changed):
        run = f"{ctx.folder.typed}{ctx.config.flags}"
        since = f" with {changed[0]} as it is now" if done and changed else ""
        raise BadInput(
            f"{ctx.folder.path}: not started yet{since}; `grpo start {run}` checks it and writes "
            f"step-000 (`grpo run {run}` does everything)"
        )
    refuse_change(ctx.folder, manifest, ctx.config)
    with ctx.watch.part("verify"):
        require_base(ctx.folder, ctx.model_dir)
    require_staying_engine(ctx)
    return done


def _play(ctx: Context, n: int) -> tuple[RolloutGroup, ...]:
    settings = ctx.config.rollout
    sampler = _sampler(ctx, n)
    adapter, version = ctx.folder.adapter(sampler), ctx.folder.version(sampler)
    servers, chat = serve_and_render(ctx, adapter, version, for_training=True)
    tasks = _draw(ctx, n)

    async def play() -> tuple[RolloutGroup, ...]:
        async with player(ctx, servers, chat, settings, step=n) as p:
            return await roll_out(
                n,
                tasks[: settings.tasks_per_step],
                spare=tasks[settings.tasks_per_step :],
                player=p,
                run_seed=settings.run_seed,
                group_size=settings.group_size,
                partial=ctx.folder.partial(n),
                bundle=ctx.folder.bundle(n),
                on_progress=show(ctx),
            )

    with ctx.watch.part("rollout"):
        return ctx.run_async(play())


def _sampler(ctx: Context, n: int) -> int:
    """The step whose adapter plays step `n`. Raises `BadInput` where an overlap needs an older one
    that was changed: the newest is held against its hash when a phase begins (`run.verify`)."""
    sampler = sampled_from(n, ctx.config.run.overlap)
    if sampler == n - 1:
        return sampler
    said, folder = RunReader(ctx.folder).step(sampler).adapter_sha, ctx.folder.adapter(sampler)
    if (found := adapter_sha(folder)) != said:
        raise BadInput(
            f"{folder}: its hash is {found[:12]}, but step {sampler} was trained to {said[:12]}: it"
            f" was changed afterwards. Put it back, or remove {ctx.folder.step(sampler)} and the"
            " steps after it, which are then made again"
        )
    return sampler


def _draw(ctx: Context, n: int) -> list[Task]:
    """Step n's tasks, and behind them the spare ones."""
    settings, pool = ctx.config.rollout, ctx.pool()
    drawing = Drawing(
        settings.run_seed,
        n,
        pool,
        settings.tasks_per_step,
        spare=settings.resample,
        group_size=settings.group_size,
        mix=ctx.config.data.mix,
        sums=RunReader(ctx.folder).draws_before(n),
        joined=_joined(ctx, n, pool),
    )
    return DRAWS[settings.draw](drawing)


def _joined(ctx: Context, n: int, pool: Sequence[Task]) -> dict[str, int]:
    """As `joined_tasks`. Writes into the manifest which tasks a person added to the task file and
    this step is the first to meet: a kill must not make them younger."""
    manifest = read_manifest(ctx.folder)
    grown = grown_tasks(ctx.folder, manifest)
    found = joined_tasks(manifest, grown, pool, n - 1)
    appended = {task: step for task, step in found.items() if task not in grown}
    if manifest is not None and appended != (data := manifest["data"]).get(APPENDED, {}):
        write_json(ctx.folder.manifest, {**manifest, "data": {**data, APPENDED: appended}})
    return found


def _checked_at_start(ctx: Context) -> bool:
    """Whether the pool is still the one that the start held against the held-out tasks. It may have
    grown since, and an arm of its own, whose pool is the held-out file, has no start."""
    started = (read_manifest(ctx.folder) or {}).get("data", {}).get("pool", {}).get("sha256")
    now = sha256_file(ctx.pool_file)
    return now == started and now != sha256_file(ctx.heldout_file)


def unrewarded(groups: tuple[RolloutGroup, ...]) -> str | None:
    """A warning about episodes to which no part of the reward applies; None without any."""
    played = [(g, t) for g in groups for t in g.trajectories]
    found = [(g, t) for g, t in played if t.grade.unrewarded and not was_late(t)]
    if not found:
        return None
    group, trajectory = found[0]
    return (
        f"{len(found)} of {len(played)} episodes get no reward: every reward function gave None or"
        f" has weight 0 (the first: env {group.env}, task {group.task_id}, k = {trajectory.k})."
        " They have no advantage; see envs.NAME.rewards"
    )


def late(groups: tuple[RolloutGroup, ...]) -> str | None:
    """A warning about episodes that a late call ended; None without any."""
    played = [t for g in groups for t in g.trajectories]
    found = [t for t in played if was_late(t)]
    if not found:
        return None
    return (
        f"{len(found)} of {len(played)} episodes ended because a call had no answer in time. They"
        f" have no advantage. The first: task {found[0].task_id}, k = {found[0].k}:"
        f" {found[0].turns[-1].observation}"
    )


def no_room(groups: tuple[RolloutGroup, ...]) -> str | None:
    """A warning about episodes that could not begin; None without any."""
    played = [t for g in groups for t in g.trajectories]
    found = [t for t in played if had_no_room(t)]
    if not found:
        return None
    return (
        f"{len(found)} of {len(played)} episodes took no turn: what"
        " their environment begins with leaves no room for a reply (the first: task"
        f" {found[0].task_id}, k = {found[0].k}). A new run with a larger engine.max_model_len has"
        " room for them"
    )


def _told(n: int, groups: tuple[RolloutGroup, ...]) -> str:
    sums = totals([t for g in groups for t in g.trajectories])
    learnable = sum(g.signal is Signal.LEARNABLE for g in groups)
    mixed, out = sum(draw_of(g).mixed for g in groups), sum(g.left_out for g in groups)
    left = f", {out} left out" if out else ""
    return (
        f"step {n}: {sums.n} episodes, reward {sums.mean_reward:.3f}, "
        f"passed {sums.pass_rate:.0%}, stopped by themselves {sums.stop_rate:.0%}, "
        f"{sums.mean_turns:.2f} turns, {learnable} of {len(groups)} groups learnable, "
        f"{mixed} with passes and failures{left}"
    )
