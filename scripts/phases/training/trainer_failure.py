"""Why a trainer ended without its step, and what to set so that the next one does not."""

from __future__ import annotations

from pathlib import Path

from fieldkit.codec import read_bundle
from fieldkit.errors import Shortage, last_told
from fieldkit.gate import memory
from fieldkit.training.adapter import read_adapter
from rollout.engine.vllm_server import preloads
from scripts.base.exit_codes import KILLED, killed, raise_code
from scripts.phases.context import Context
from scripts.phases.training.step_settings import settings_of_step
from trainer.batch import collect
from trainer.footprint.budget import Budget, smaller_budget
from trainer.footprint.step_bytes import item_bytes_of
from trainer.scoring.micro_batch import micro_batches
from trainer.scoring.shared_prefix import can_share
from trainer.settings import TrainerSettings


def refuse_failure(ctx: Context, code: int, n: int, log: Path) -> None:
    """Raise the error for the trainer's exit code; 0 raises nothing."""
    if code in KILLED:
        said = last_error(log)  # what started several processes names the one that was killed
        whole = killed(f"step {n}: the trainer", code)
        what = f"step {n}: the trainer's {said}." if said.startswith("rank ") else whole
        raise Shortage(
            f"{what} The bundle is kept. {_what_is_smaller(ctx, n)};"
            f" then run the same command again. Its log: {log}"
        )
    raise_code(code, last_error(log) if code else "", f"step {n}: the trainer", log)


def _what_is_smaller(ctx: Context, n: int) -> str:
    """The settings that make step n's trainer smaller, with the token budget that fits."""
    settings = settings_of_step(ctx, n)
    other = _what_else_is_smaller(ctx, settings)
    if ctx.config.cluster.used:
        return (
            "How much of its node's memory was free is not known here: set"
            f" trainer.tokens_per_microbatch below {settings.microbatch_tokens}, or {other}"
        )
    if _has_gpu_memory(ctx):
        return f"It was the host's memory, of which a micro-batch on the GPU takes none: {other}"
    segments = collect(read_bundle(ctx.folder.bundle(n)), settings).segments
    if not segments:
        return f"Its bundle has nothing to score, so no token budget makes it smaller: {other}"
    model = ctx.model_dir()
    shared = can_share(model)
    batches = micro_batches(segments, settings, shared=shared)
    adapter = read_adapter(ctx.folder.adapter(n - 1))
    item = item_bytes_of(settings)
    tcmalloc = preloads(ctx.config.engine.tcmalloc) is not None
    budget = smaller_budget(
        model, batches, settings, item, adapter, shared=shared, tcmalloc=tcmalloc
    )
    return told_budget(budget, settings.microbatch_tokens, other)


def _what_else_is_smaller(ctx: Context, settings: TrainerSettings) -> str:
    """What besides the token budget makes the trainer smaller, as advice."""
    others, ranks = [], settings.ranks_on(ctx.trainer_devices)
    of_host_only = _has_gpu_memory(ctx)
    if not (settings.gradient_checkpointing or of_host_only):
        others.append("trainer.gradient_checkpointing = true")
    if ranks > 1 and not settings.shard_base:  # fewer would each keep a larger part of the base
        others.append(f"trainer.processes = {ranks // 2}")
    engine, on_cluster = ctx.config.engine, ctx.config.cluster.used
    beside = engine.replicas and not on_cluster and not ctx.config.run.overlap
    if beside and engine.lifecycle != "restart" and not of_host_only:
        others.append('engine.lifecycle = "restart", which ends the engine while the trainer runs')
    return f"set {' or '.join(others)}" if others else "free memory"


def _has_gpu_memory(ctx: Context) -> bool:
    """Whether the trainer computes on this machine in a GPU's own memory."""
    on_gpu = ctx.trainer_devices > 0 and not ctx.config.cluster.used
    return on_gpu and memory.gpu_total() is not None


def told_budget(budget: Budget, present: int, other: str) -> str:
    """The token budget to set, and why. present: the current value; other: other advice."""
    if budget.smaller is not None:
        now = (
            f"and about {budget.fits} fit into the memory that is available now"
            if budget.fits < budget.largest
            else "which should fit into the memory that is available now, by an estimate that was "
            "too low or did not know what else ran"
        )
        return (
            f"Its largest micro-batch had {budget.largest} tokens, {now}: set "
            f"trainer.tokens_per_microbatch = {budget.smaller} (it is {present}), or {other}"
        )
    why = (
        f"about {budget.fits * budget.at_a_time} fit into the memory that is available now"
        if budget.fits < budget.least
        else "its largest micro-batch was no larger than that"
    )
    return (
        "No trainer.tokens_per_microbatch is small enough: the longest segment alone has "
        f"{budget.longest} tokens, and {why}. What helps is to {other}"
    )


def last_error(log: Path) -> str:
    """The trainer's own error message, for a person; the exit code decides what happens."""
    return last_told(log.read_text(encoding="utf-8", errors="replace"))
