"""The lines that a person reads during and after a step. No number is computed here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fieldkit.records import Outcome
from trainer.batch import TrainingBatch
from trainer.progress import Progress, Stopwatch
from trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from fieldkit.training.snapshot import LoraReferenceSnapshot
    from trainer.scoring.policy import Policy


def report_bundle(batch: TrainingBatch, progress: Progress) -> None:
    """What the bundle holds, before any model is loaded."""
    groups = ", ".join(f"{n} {signal.lower()}" for signal, n in batch.groups.items())
    progress.say(
        f"used {batch.n_used}/{batch.n_trajectories} rollouts; groups: {groups}; "
        f"{batch.n_tokens:,} sampled tokens, {batch.n_scored:,} scored"
    )


def report_loaded(
    policy: Policy,
    reference: LoraReferenceSnapshot | None,
    reference_is_own: bool,
    settings: TrainerSettings,
    watch: Stopwatch,
    progress: Progress,
) -> None:
    """What was loaded and how, and the largest change that the step can make."""
    trainable, total = policy.count_parameters()
    progress.say(
        f"bundle read in {watch.seconds['read']:.1f} s, torch and peft imported in "
        f"{watch.seconds['import']:.1f} s, model and adapter loaded in "
        f"{watch.seconds['load']:.1f} s, {policy.dtype} on {policy.device}"
    )
    progress.say(
        f"trainable params: {trainable:,} || all params: {total:,} || {trainable / total:.3%}"
    )
    if policy.is_sharded:
        progress.say(f"sharded: this process keeps {policy.count_kept():,} of all params")
    if reference is None:
        progress.say("no reference pass: the loss of this step has no KL")
    else:
        progress.say(f"reference snapshot: {len(reference)} tensors from {reference.source}")
        if reference_is_own:
            progress.say("no reference pass: the reference is this adapter, whose KL to it is 0")
    if settings.step_norm is not None:
        progress.say(f"the step moves the weights by at most {settings.step_norm:g} (L2)")


def report_ranks(loads: Sequence[int], progress: Progress) -> None:
    """How many positions of the bundle each rank scores; nothing for one."""
    if len(loads) > 1:
        progress.say(
            f"{len(loads)} processes share the bundle; tokens of each: "
            + ", ".join(f"{load:,}" for load in loads)
        )


def report_result(result: dict[str, Any], progress: Progress) -> None:
    """The step's figures, from its train.json."""
    if result["outcome"] == Outcome.NO_SIGNAL:
        progress.say(
            "NO_SIGNAL: no group has rewards that differ; adapter and optimizer state carried over"
        )
    else:
        for line in _trained(result["train"], result["seconds"]):
            progress.say(line)
    progress.say(f"adapter {result['parent_sha'][:12]} -> {result['adapter_sha'][:12]}")


def _trained(figures: dict[str, Any], seconds: dict[str, float]) -> list[str]:
    held, kl = figures.get("ratio_clipped_share"), figures.get("kl")
    clipped = figures.get("clipped_share")
    return [
        f"policy_loss={figures['policy_loss']:.4f} "
        + ("" if kl is None else f"kl_loss={figures['kl_loss']:.5f} kl={kl:.5f} ")
        + f"grad_norm={figures['grad_norm']:.3f} (before clipping)",
        f"sampler-trainer mean|Δlogprob|={figures['sampler_mean_abs']:.2e} "
        f"max={figures['sampler_max_abs']:.2e} "
        + ("" if clipped is None else f"clipped={clipped:.2%} ")
        + f"entropy={figures['entropy']:.3f} nats"
        + ("" if held is None else f"; held back by the objective={held:.2%}"),
        f"weight_delta_l2={figures['delta_l2']:.4f} max|Δ|={figures['delta_max_abs']:.6f}; "
        f"as served l2={figures['delta_served_l2']:.4f}, "
        f"{figures['delta_served_changed']:.1%} of the moved weights change",
        f"reference {seconds.get('reference', 0.0):.1f} s, gradient {seconds['gradient']:.1f} s "
        f"({figures['tokens_per_second']:.0f} tokens/s), canary {seconds['canary']:.1f} s, "
        f"wall {seconds['total']:.1f} s",
    ]
