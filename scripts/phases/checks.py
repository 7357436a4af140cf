"""Checks a run's tasks, environments, model, adapter, disk, servers and sandbox before it starts.

Each check raises a `FieldkitError` that says what is wrong, where, and the next command. The only
side effect is the download of a hub model. Phases rely on these checks; only the adapter is checked
again, each time it is served.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable

from fieldkit.errors import BadInput, Shortage
from fieldkit.gate.memory import GIB, available
from fieldkit.records import Task
from fieldkit.training.adapter import (
    CONFIG_FILE,
    AdapterInfo,
    base_name,
    check_adapter,
    is_quantised,
    other_base,
    read_adapter,
    weight_bytes,
)
from rollout.draw.mix import check_mix
from rollout.engine.lifecycle import AUTO, LIFECYCLES, RESTART
from rollout.engine.outside import look_at
from rollout.engine.vllm_server import require_servable
from rollout.envs.base import Site
from rollout.envs.configured import environment_hashes
from rollout.envs.registry import environment_of, make_world
from rollout.policies import SampledPolicy, WrittenSampler
from rollout.preflight import PREFLIGHT_TASKS
from rollout.sandbox.base import probe
from rollout.tasks import check_disjoint, check_without_final, read_tasks
from scripts.base.checkout import ROOT
from scripts.phases.context import Context
from scripts.prepare.start_adapter import (
    calls_no_tool,
    learned_another_template,
    missing_adapter,
)
from scripts.run.run_pool import require_reserve, reserve_file
from scripts.run.template import chat_renderer, tool_form
from scripts.track.trackers import require_trackers
from scripts.words.quantities import listed
from trainer.scoring.trainable import check_trainable

DISK_MARGIN_BYTES = 1 * GIB
"""Disk space that must stay free on top of what the run writes."""

_BYTES_A_TOKEN = 50
"""Of the longest context, for a trajectory. Measured: 12 turns with ids, logprobs and text take 40
to 80 kB of JSON in a context of 2,048."""
_ADAPTER_COPIES = 4
"""A step keeps the weights and AdamW's two moments, plus one copy while it writes."""
_OUTPUT_LAYER = "lm_head"
"""As nearly all models name it. The trainer refuses one of another name when it has loaded it."""
_TRAINED_BYTES = 4
"""Bytes of one adapter weight as the trainer writes it, whatever its original dtype."""


def check_run(ctx: Context) -> AdapterInfo:
    """Check tasks, environments, model, adapter, engine, disk, servers and nodes elsewhere, and the
    sandbox; return the starting adapter."""
    require_trackers(ctx.config)
    ctx.config.trainer.check_new(ctx.trainer_devices)
    require_staying_engine(ctx)
    check_tasks(ctx)
    check_before_it_begins(ctx)
    check_envs(ctx)
    adapter = check_start_adapter(ctx)
    check_model(ctx)
    check_engine(ctx)
    check_prompts(ctx)
    check_disk(ctx, adapter)
    look_at(ctx.config.engine)
    if ctx.config.cluster.used:
        check_cluster(ctx)
    probe(ctx.config.sandbox)
    return adapter


def check_cluster(ctx: Context) -> str:
    """Check that the nodes of the run's cluster are alike and see its files; what was found."""
    from rollout.cluster.node_check import check_nodes

    config = ctx.config
    stays = config.engine.lifecycle != RESTART.name
    return check_nodes(
        config.cluster,
        config.sandbox,
        ctx.folder.path,
        ctx.model_dir(),
        staying=config.engine.replicas if stays else 0,
    )


def check_tasks(ctx: Context) -> tuple[int, int]:
    """Check that tasks are sound, a step's batch fits the pool, and pool and held-out set differ.

    Returns the number of tasks in the pool, and the number of held-out tasks that are played.
    """
    pool, wanted = ctx.pool(), ctx.config.rollout.tasks_per_step
    heldout = ctx.heldout()
    if wanted > len(pool):
        raise BadInput(
            f"rollout.tasks_per_step is {wanted}, but the pool {ctx.pool_file} holds {len(pool)} "
            "tasks; lower it, or grow the pool"
        )
    if ctx.config.data.mix:
        at_once = max(wanted, min(PREFLIGHT_TASKS, len(pool)))
        check_mix(pool, at_once, ctx.config.data.mix)
    check_kept_apart(ctx)
    for file, tasks in ((ctx.pool_file, pool), (ctx.heldout_file, heldout)):
        for task in tasks:
            for reason in environment_of(task).fits(task, ctx.config.sandbox):
                raise BadInput(
                    f"{file}: task {task.task_id}: {reason}; raise it or shorten the seed"
                )
    return len(pool), len(heldout)


def check_before_it_begins(ctx: Context) -> None:
    """Check what a run keeps once it has begun. Raises `BadInput` where the pool is to grow from
    nothing, and for an environment that no task of pool, held-out set and reserve is of: the night
    would be one of other tasks."""
    config = ctx.config
    require_reserve(ctx.folder, config)
    if not config.envs:
        return
    files = [ctx.pool_file, ctx.heldout_file]
    if config.run.on_converged != "stop":
        files.append(reserve_file(config))
    played = {task.env for file in files for task in read_tasks(file)}
    for name in config.envs:
        if name not in played:
            run = f"{ctx.folder.typed}{config.flags}"
            write = f"`grpo env tasks {name} --run {ctx.folder.typed} --rows"
            pool, heldout = (
                shlex.quote(str(ctx.folder.path / file)) for file in ("pool.jsonl", "heldout.jsonl")
            )
            raise BadInput(
                f"{ctx.folder.config}: no task of {listed([str(file) for file in files])} is one of"
                f" [envs.{name}]: {write} 256 --out {pool}` and {write} 48 --seed 1000 --out"
                f" {heldout}` write some, and `grpo run {run} --set data.pool={pool} --set"
                f" data.heldout={heldout}` takes them"
            )


def check_kept_apart(ctx: Context) -> None:
    """Raise `BadInput`, naming both lines, where the pool shares a task with the held-out or the
    final set."""
    check_disjoint(ctx.pool_file, ctx.heldout_file)
    final = ctx.final_file
    if final is not None and final != ctx.heldout_file:
        check_without_final(ctx.pool_file, final)


def check_envs(ctx: Context) -> str:
    """Check that the run's environments are there: code, virtual environments, and what a class
    needs for its first task, such as a database. Returns what was found.

    Raises `BadInput`, and `Unavailable` for a class whose reset fails. Servers and programs are not
    started. On a cluster this machine plays the classes too, as yardsticks.
    """
    envs = ctx.config.envs
    environment_hashes(envs, ROOT)
    in_process = [name for name, env in envs.items() if env.style == "trl"]
    for name in in_process:
        task = next((t for t in (*ctx.pool(), *ctx.heldout()) if t.env == name), None)
        if task is not None:
            ctx.run_async(_opened(ctx, task))
    return ", ".join(f"{name} ({env.code})" for name, env in envs.items())


async def _opened(ctx: Context, task: Task) -> None:
    world = make_world(task, Site(ctx.config.sandbox, ctx.scratch, ctx.config.rollout.protocol))
    try:
        await world.reset(task, 0)
    finally:
        await world.close()


def require_staying_engine(ctx: Context) -> None:
    """Raise `BadInput` where run.overlap has an engine play while the trainer works, and
    engine.lifecycle may end it meanwhile."""
    engine = ctx.config.engine
    if not ctx.config.run.overlap or not engine.replicas:
        return  # those in engine.urls stay
    name = engine.lifecycle
    if name == AUTO or not LIFECYCLES.named(name).keeps_memory:
        run = f"`grpo run {ctx.folder.typed}{ctx.config.flags} --set"
        raise BadInput(
            f"{ctx.folder.config}: run.overlap is 1, so the engine plays while the trainer works,"
            f' and engine.lifecycle = "{name}" may end it for that; {run}'
            f" engine.lifecycle=hotswap` keeps it beside the trainer. Where the memory does not"
            f" suffice for both: {run} run.overlap=0`, before the first step"
        )


def check_engine(ctx: Context) -> None:
    """Raise `BadInput` where the run starts servers on this machine, and vLLM would not start one
    of these settings."""
    if ctx.config.engine.replicas and not ctx.config.cluster.used:
        require_servable(ctx.model_dir(), ctx.config.engine)


def check_prompts(ctx: Context) -> int:
    """Return the tokens of the longest opening prompt. Raises `BadInput` naming the first task
    whose prompt leaves no room for a reply in the context."""
    opened, longest = _opening_tokens(ctx), 0
    for file, tasks in ((ctx.pool_file, ctx.pool()), (ctx.heldout_file, ctx.heldout())):
        for task in tasks:
            try:
                longest = max(longest, opened(task))
            except BadInput as e:
                raise BadInput(f"{file}: {e}") from None
    return longest


def prompt_fits(ctx: Context) -> Callable[[Task], bool]:
    """Whether a task's opening prompt leaves room for a reply, for any number of tasks."""
    opened = _opening_tokens(ctx)

    def fits(task: Task) -> bool:
        try:
            opened(task)
        except BadInput:
            return False
        return True

    return fits


def _opening_tokens(ctx: Context) -> Callable[[Task], int]:
    """The tokens of a task's opening prompt; 0 where only the world itself knows it. Raises
    `BadInput` for one that leaves no room."""
    renderer = chat_renderer(ctx.config.model, ctx.model_dir())
    silent = WrittenSampler(lambda *_: "", renderer)

    def tokens(task: Task) -> int:
        opening = environment_of(task).opening
        if opening is None:
            return 0
        policy = SampledPolicy(silent, renderer, ctx.config.rollout)
        policy.begin(task, opening(task))
        return len(policy.prompt_ids)

    return tokens


def check_model(ctx: Context) -> None:
    """Check the chat template, the training dtype and that each of the trainer's processes has a
    device and memory for the base. Raises `BadInput` naming key or template, and `Shortage`."""
    # Both raise for a chat template that cannot be used.
    chat_renderer(ctx.config.model, ctx.model_dir())
    tool_form(ctx.config.model, ctx.model_dir())
    trainer, devices = ctx.trainer(), ctx.trainer_devices
    used = ctx.config.cluster.used
    where = "cluster.trainer_needs asks for" if used else "this machine has"
    trainer.require_devices(devices, where)
    sharded = trainer.shard_base and trainer.ranks_on(devices) > 1
    check_trainable(
        ctx.model_dir(),
        trainer.dtype,
        trainer.serving_dtype,
        context=ctx.config.rollout.max_model_len,
        sharded=sharded,
    )
    if sharded and devices and not used and available().gpu is not None:
        from trainer.footprint.budget import require_whole_bases
        from trainer.footprint.step_bytes import item_bytes_of

        require_whole_bases(ctx.model_dir(), item_bytes_of(trainer), trainer.ranks_on(devices))


def check_start_adapter(ctx: Context, *, trains: bool = True) -> AdapterInfo:
    """Check that run.toml's adapter fits the model, and can be trained. Raises `BadInput` naming
    key or tensor. trains: False where it is only to be played."""
    if (missing := missing_adapter(ctx.folder, ctx.config)) is not None:
        raise BadInput(missing)
    # Before a model is downloaded for one that cannot be served or trained.
    adapter = read_adapter(ctx.start_adapter)
    if trains and _OUTPUT_LAYER in adapter.target_modules:
        raise BadInput(
            f"{ctx.start_adapter / CONFIG_FILE}: target_modules: {_OUTPUT_LAYER}: the trainer "
            "takes a model whose output layer is frozen; train an adapter without it"
        )
    return check_adapter(ctx.start_adapter, ctx.model_dir())


def doubt(ctx: Context, adapter: AdapterInfo) -> str | None:
    """A warning where the adapter calls none of an environment's tools, has another chat template
    beside it, or names another base model; None where it does not."""
    if (no_tools := calls_no_tool(ctx.folder, ctx.config)) is not None:
        return no_tools
    template = learned_another_template(ctx.folder, ctx.config, ctx.model_dir())
    if template is not None:
        return template
    model = str(ctx.model_dir())
    other = other_base(adapter, model)
    if other is None:
        return None
    if is_quantised(other, model):
        return (
            f"{adapter.path / CONFIG_FILE} says that it was trained on {other}, whose weights have "
            f"fewer bits than those of {base_name(model)}, which are served and trained here: the "
            "start table shows what that costs it"
        )
    return (
        f"{adapter.path / CONFIG_FILE} says that it was trained on {other}, and its shapes fit "
        f"{base_name(model)} too; if that is another model, the start table shows the adapter "
        "below its base"
    )


def check_disk(ctx: Context, adapter: AdapterInfo) -> None:
    """Raise `Shortage` if the run's disk cannot hold the steps that are left."""
    needed = disk_needed(ctx, adapter)
    free = shutil.disk_usage(ctx.folder.path).free
    if free < needed:
        raise Shortage(
            f"{ctx.folder.path}: {free / GIB:.1f} GiB free on this disk, the run needs about "
            f"{needed / GIB:.1f} GiB; free some, or put the run elsewhere: `grpo new /PATH/RUN`"
        )


def disk_needed(ctx: Context, adapter: AdapterInfo) -> int:
    """An upper estimate of the bytes that the run will still write, plus the margin."""
    config, rollout = ctx.config, ctx.config.rollout
    night, _ = ctx.night()
    planned = 100 if night.steps == "auto" else night.steps
    steps = max(1, planned + 1 - max(1, ctx.folder.finished_steps()))  # the first is step 0
    every = night.eval_every
    a_step = (rollout.tasks_per_step + rollout.resample) * rollout.group_size
    # Before and after, both yardsticks, the base, and those on the way.
    arms = 5 + (steps // every if every else 0)
    an_arm = len(ctx.heldout()) * config.eval.samples + config.eval.tasks_at_training_temperature
    trajectories = steps * a_step + arms * an_arm
    adapters = steps * _ADAPTER_COPIES * weight_bytes(adapter.path, _TRAINED_BYTES)
    written = trajectories * _BYTES_A_TOKEN * rollout.max_model_len
    return adapters + written + DISK_MARGIN_BYTES
