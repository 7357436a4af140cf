"""`grpo doctor RUN`: checks whether the run would start, and forecasts its memory.

Runs all checks of the start phase, even after one fails. The only side effect is the download of a
hub model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fieldkit.errors import BadInput, FieldkitError
from fieldkit.gate.memory import GIB
from rollout.engine.forecast import forecast
from rollout.engine.outside import look_at
from rollout.engine.port import free_port
from rollout.engine.serve import find_engine
from rollout.sandbox.command import SandboxKind
from scripts.base.signals import Wish
from scripts.doctor.checkup import Finding, Unchecked, examine, finding
from scripts.phases.checks import (
    check_before_it_begins,
    check_cluster,
    check_disk,
    check_engine,
    check_envs,
    check_model,
    check_prompts,
    check_start_adapter,
    check_tasks,
    disk_needed,
    doubt,
    require_staying_engine,
)
from scripts.phases.context import Context
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch, process_began
from scripts.run.verify import require_weights
from scripts.track.points import Tracker
from scripts.track.trackers import wanted_trackers


class _WithoutModel(Context):
    """The context of a run whose model is not there, which is looked for once."""

    def model_dir(self) -> Path:
        raise Unchecked("it needs the model")


def examine_run(
    folder: RunFolder, sandbox: SandboxKind = "bwrap", *, has_model: bool = True
) -> list[Finding]:
    """Every check of one run; only the first if run.toml cannot be read. has_model: false where a
    check of the machine has found that the model is not there."""
    try:
        config = read_config(folder.config, sandbox)
    except FieldkitError as e:
        return [Finding("settings", False, str(e), is_input=True)]
    kind = Context if has_model else _WithoutModel
    ctx = kind(folder, config, lambda event: None, Wish(), Stopwatch(process_began()))
    checks: dict[str, Callable[[Context], str]] = {
        "tasks": _tasks,
        "adapter": _adapter,
        "training": _training,
        "engine": _engine,
        "prompts": _prompts,
        "run's disk": _disk,
        "port": _port,
        "forecast": _forecast,
    }
    if config.run.overlap:
        checks["overlap"] = _overlap
    if config.envs:
        checks["envs"] = check_envs
    if folder.manifest.is_file():
        checks["weights"] = _weights
    if config.engine.urls:
        checks["outside servers"] = _outside
    if config.cluster.used:  # neither engine nor trainer is on this machine
        del checks["engine"], checks["port"], checks["forecast"]
        checks["cluster"] = check_cluster
    extra = [tracker for tracker in wanted_trackers(config) if tracker.module]
    checks |= {tracker.module: partial(_installed, tracker) for tracker in extra}
    return [
        Finding("settings", True, f"{folder.config}: every key is known and valid"),
        *(finding(name, partial(check, ctx)) for name, check in checks.items()),
    ]


def examine_machine_for(folder: RunFolder, sandbox: SandboxKind) -> list[Finding]:
    """Every check of the machine, for this run's sandbox and model if run.toml can be read."""
    try:
        config = read_config(folder.config, sandbox)
    except FieldkitError:
        config = None  # `examine_run` reports what is wrong with it
    return examine(config, folder.path)


def _tasks(ctx: Context) -> str:
    n_pool, n_heldout = check_tasks(ctx)
    if not ctx.folder.manifest.is_file():  # what a begun run has, it keeps
        check_before_it_begins(ctx)
    return f"{n_pool} in the pool, {n_heldout} held out, none in both"


def _adapter(ctx: Context) -> str:
    adapter = check_start_adapter(ctx)
    said = f"{adapter.path}: rank {adapter.rank}, fits {ctx.model_dir()}"
    return said if (but := doubt(ctx, adapter)) is None else f"{said}; but {but}"


def _weights(ctx: Context) -> str:
    require_weights(ctx.folder)
    return "nothing that the run goes on from is missing"


def _training(ctx: Context) -> str:
    if not ctx.folder.manifest.is_file():
        ctx.config.trainer.check_new(ctx.trainer_devices)
    check_model(ctx)
    return f"the model, served in {ctx.trainer().serving_dtype}, can be trained"


def _engine(ctx: Context) -> str:
    check_engine(ctx)
    return "its settings suit the model and this machine"


def _prompts(ctx: Context) -> str:
    longest, limits = check_prompts(ctx), ctx.config.rollout
    if not longest:
        own = [f"`grpo env check {name} --run {ctx.folder.typed}`" for name in ctx.config.envs]
        does = f"; {', '.join(own)} measures them" if own else ""
        return f"not measured: an environment writes them{does}"
    return f"the longest takes {longest} of {limits.max_model_len} tokens"


def _overlap(ctx: Context) -> str:
    require_staying_engine(ctx)
    return "the engine stays while the trainer works"


def _installed(tracker: Tracker, ctx: Context) -> str:
    tracker.require()
    return "installed"


def _disk(ctx: Context) -> str:
    try:
        adapter = check_start_adapter(ctx)
    except BadInput:
        raise Unchecked("it needs the adapter") from None
    check_disk(ctx, adapter)
    needed = disk_needed(ctx, adapter)
    free = shutil.disk_usage(ctx.folder.path).free
    return f"{free / GIB:.1f} GiB free, the run needs about {needed / GIB:.1f}"


def _port(ctx: Context) -> str:
    wanted = ctx.config.engine.port
    if not wanted:
        return "any free one"
    if find_engine(ctx.folder.path) is None:
        for replica in range(ctx.config.engine.replicas):
            free_port(wanted + replica)
    return f"{wanted} is free, or this run's own"


def _outside(ctx: Context) -> str:
    return "; ".join(look_at(ctx.config.engine))


def _forecast(ctx: Context) -> str:
    if find_engine(ctx.folder.path) is not None:
        return "the run's engine is running, so its memory is already in use"
    return forecast(ctx.engine(), ctx.model_dir(), ctx.trainer_bytes()).told()
