"""The eval phase: plays the due arms on the held-out set, on one engine.

At the start of a run the due arms are do-nothing, oracle, the base model and the starting adapter;
later the newest adapter. An adapter also plays a few of the tasks at the training temperature. A
finished arm is not played again. The report interprets the figures.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file
from fieldkit.files.sharded import sha256_records
from fieldkit.records import Task
from rollout.arm import BASE_ADAPTER, TRAJECTORIES, EvalSummary, evaluate_arm
from rollout.engine.target import Served
from rollout.envs.tool_yardsticks import YARDSTICK_FORM
from rollout.player import Player
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from rollout.yardsticks import YARDSTICKS, yardstick_player
from scripts.base.checkout import in_checkout
from scripts.base.events import alarm, note
from scripts.evidence.played import WARM_START, step_name
from scripts.phases.context import Context, Done
from scripts.phases.final_set import open_final_set
from scripts.phases.make_player import (
    player,
    renderer,
    reward,
    serve_and_render,
    show,
    worlds,
)
from scripts.phases.registry import STEP
from scripts.phases.rollout import next_step
from scripts.phases.shared_arms import take_over
from scripts.phases.start import evaluation_identity
from scripts.run.ancestry import record_run
from scripts.run.manifest import read_manifest
from scripts.run.next_phase import RunFiles, due_arms, is_over
from scripts.run.state import read_files
from scripts.run.timings import Stopwatch, eval_segment, read_timings, write_timings
from scripts.words.quantities import counted


def evaluate(ctx: Context) -> Done:
    """Play every missing arm: the start arms and the newest adapter, or one step's adapter."""
    next_step(ctx)  # refuses a run that was not started
    files = read_files(ctx.folder, ctx.config)
    step = ctx.numbers.get(STEP)
    if step is None:
        due = due_arms(files, steps=files.newest, eval_every=0, base=_base_now(ctx, files))
    else:
        due = _arm_of_step(ctx, files, step)
    if not due:
        one = "every due arm is" if step is None else f"step {step} is"
        return Done(f"{one} evaluated already")
    _require_own_arms(ctx)
    ctx.about_to_play()
    for arm in due:
        _record_opening(ctx, files, arm)
        if arm in files.adapters:
            # First, because the arm's own evaluation is what makes it no longer due.
            _play_at_training_temperature(ctx, files, arm)
        _finish(ctx, _play(ctx, files, arm), ctx.folder.evals)
        _keep_time(ctx, files.newest, arm)
        ctx.watch = Stopwatch(time.time())
    try:
        record_run(ctx.folder)
    except (BadInput, OSError) as e:  # a table beside the run ends no night
        alarm(ctx.tell, f"the lineage is not recorded: {e}")
    return Done(f"{len(due)} arm(s) evaluated")


def _require_own_arms(ctx: Context) -> None:
    """Raise `BadInput` where this checkout hashes tasks or limits otherwise than the one that began
    the run: an arm that it plays would stay due, and a loop would come back to it for ever."""
    began, manifest = (read_manifest(ctx.folder) or {}).get("evaluation", {}), ctx.folder.manifest
    now = evaluation_identity(ctx, ctx.heldout())
    if other := [key for key, sha in now.items() if began.get(key) != sha]:
        raise BadInput(
            f"{manifest}: evaluation.{other[0]}: what this checkout would play is not what the run"
            " began with, so its arms could not be compared. Go back to the commit that the file"
            " names in versions, or start another run with `grpo new`"
        )


def _record_opening(ctx: Context, files: RunFiles, arm: str) -> None:
    """Record a policy that is about to play tasks of the final set."""
    if arm in YARDSTICKS:
        return
    name = name_of(files, arm)
    if arm == files.adapters[0]:
        adapter = str(in_checkout(ctx.start_adapter))
        name = adapter if ctx.config.is_one_arm else f"{name} ({adapter})"
    trained = arm in files.adapters and arm != files.adapters[0]
    open_final_set(ctx, name, arm, trained=trained)


def _base_now(ctx: Context, files: RunFiles) -> bool:
    """Whether the base model's arm is wanted. One that another run has played is taken over."""
    when = ctx.config.eval.base
    if when != "end":
        return when == "start"
    if BASE_ADAPTER not in files.evaluated and take_over(ctx, BASE_ADAPTER, BASE_ADAPTER):
        note(ctx.tell, f"{BASE_ADAPTER}: taken over from another run under the same conditions")
        return False
    return is_over(files, files.newest)


def check_step(ctx: Context) -> None:
    """Raise `BadInput` as `_arm_of_step` does; nothing where no step was named."""
    if (step := ctx.numbers.get(STEP)) is not None:
        next_step(ctx)
        _arm_of_step(ctx, read_files(ctx.folder, ctx.config), step)


def _arm_of_step(ctx: Context, files: RunFiles, step: int) -> tuple[str, ...]:
    """The adapter of that step, if it is not evaluated yet. Raises `BadInput` where there is no
    such step, or where its adapter is gone."""
    run = ctx.folder.typed
    if step > files.newest:
        raise BadInput(
            f"--step {step}: run {run} has finished steps 0 to {files.newest}; "
            f"`grpo eval {run}{ctx.config.flags} --step {files.newest}` evaluates the newest"
        )
    arm = files.adapters[step]
    if arm in files.evaluated:
        return ()
    adapter = ctx.folder.adapter(_last_step_of(files, arm))
    if not adapter.is_dir():
        raise BadInput(
            f"{adapter}: no such folder; `grpo clean` removes checkpoints, and the training cannot "
            f"be repeated for one step. `grpo compare {run}@warm {run}` shows what was evaluated"
        )
    return (arm,)


def _finish(ctx: Context, summary: EvalSummary, evals: Path) -> None:
    """Tell the arm's figures, and journal what was written, and from which task file."""
    note(ctx.tell, told(summary))
    played = evals / summary.key / TRAJECTORIES
    wrote = {ctx.folder.relative(played): sha256_records(played)}
    file = {"path": ctx.config.data.heldout, "sha256": sha256_file(ctx.heldout_file)}
    tasks = {**file, "n": summary.n_tasks}
    ctx.journal.append("arm_played", arm=summary.arm, wrote=wrote, tasks=tasks)


def _play_at_training_temperature(ctx: Context, files: RunFiles, arm: str) -> None:
    """Play the first held-out tasks at rollout.temperature, where learning shows first."""
    tasks = ctx.heldout()[: ctx.config.eval.tasks_at_training_temperature]
    settings = ctx.config.rollout.at(ctx.config.rollout.temperature)
    if not tasks or settings.temperature == ctx.config.eval.temperature:
        return
    name = f"{name_of(files, arm)} at T = {settings.temperature:g}"
    note(ctx.tell, f"evaluating {name} on {counted(len(tasks), 'held-out task')}")
    evals = ctx.folder.training_evals
    _finish(ctx, _play_served(ctx, files, arm, name, settings, tasks, evals), evals)


def name_of(files: RunFiles, arm: str) -> str:
    """The arm's name in tables, as `arm_names` gives it."""
    if arm not in files.adapters:
        return arm
    return WARM_START if arm == files.adapters[0] else step_name(_last_step_of(files, arm))


def _play(ctx: Context, files: RunFiles, arm: str) -> EvalSummary:
    name = name_of(files, arm)
    note(ctx.tell, f"evaluating {name} on the held-out set")
    if arm in YARDSTICKS:
        return _play_yardstick(ctx, arm)
    taken = take_over(ctx, name, arm)
    if taken is not None:
        note(ctx.tell, f"{name}: another run played it under the same conditions; taken from there")
        return taken
    limits, tasks = ctx.eval_limits, ctx.heldout()
    return _play_served(ctx, files, arm, name, limits, tasks, ctx.folder.evals)


def _play_yardstick(ctx: Context, name: str) -> EvalSummary:
    one = yardstick_player(
        name,
        worlds=worlds(ctx, YARDSTICK_FORM),
        settings=ctx.eval_limits,
        reward=reward(ctx),
        load=functools.cache(lambda: renderer(ctx)),
    )
    with ctx.watch.part("eval"):
        return ctx.run_async(_evaluate(ctx, name, one, ctx.heldout(), ctx.folder.evals))


async def _evaluate(
    ctx: Context, name: str, one: Player, tasks: Sequence[Task], evals: Path
) -> EvalSummary:
    return await evaluate_arm(
        name,
        tasks,
        player=one,
        evals=evals,
        samples=ctx.config.eval.samples,
        on_progress=show(ctx),
    )


def _serve(ctx: Context, files: RunFiles, arm: str) -> tuple[tuple[Served, ...], ChatRenderer]:
    """Serve the arm. The server of the base model also holds the newest adapter (at the start the
    starting one), so that both are played under the same conditions."""
    if arm == BASE_ADAPTER:
        keep = {ctx.folder.version(files.newest): ctx.folder.adapter(files.newest)}
        return serve_and_render(ctx, None, "base", keep)
    n = _last_step_of(files, arm)
    return serve_and_render(ctx, ctx.folder.adapter(n), ctx.folder.version(n))


def _last_step_of(files: RunFiles, arm: str) -> int:
    """The newest step with that adapter; an engine that already serves it uses this step's name."""
    return next(n for n in range(files.newest, -1, -1) if files.adapters[n] == arm)


def _play_served(
    ctx: Context,
    files: RunFiles,
    arm: str,
    name: str,
    settings: EpisodeSettings,
    tasks: Sequence[Task],
    evals: Path,
) -> EvalSummary:
    servers, chat = _serve(ctx, files, arm)

    async def play() -> EvalSummary:
        async with player(ctx, servers, chat, settings) as one:
            return await _evaluate(ctx, name, one, tasks, evals)

    with ctx.watch.part("eval"):
        return ctx.run_async(play())


def _keep_time(ctx: Context, n: int, arm: str) -> None:
    """n: the step after which the arm was played, whichever step is its own: between a step's
    phases nothing but a pause of the loop may lie."""
    timings = read_timings(ctx.folder.timings(n), n)
    segment = ctx.watch.segment(eval_segment(arm))
    write_timings(ctx.folder.timings(n), timings.with_segment(segment))


def told(s: EvalSummary) -> str:
    """One arm in one line."""
    return (
        f"{s.arm}: passed {s.n_passed}/{s.n_trajectories}, assertions {s.assertion_rate:.1%}, "
        f"stopped by itself {s.stop_rate:.1%}, {s.mean_turns:.2f} turns, {s.seconds:.0f} s"
    )
