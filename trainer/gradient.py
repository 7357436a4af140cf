"""One pass over a bundle: reference logprobs, then losses and gradients by micro-batch.

The sums are the bundle's own (N is global), so how it was cut into micro-batches changes nothing
but memory. No optimizer and no file here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldkit.errors import BadInput, Shortage
from fieldkit.training.losses import importance_weights, k3, kl_loss, policy_loss
from fieldkit.training.snapshot import LoraReferenceSnapshot
from trainer.batch import Segment, TrainingBatch
from trainer.micro_batch import Micro, MicroBatch, tensors, tokens
from trainer.policy import Policy
from trainer.progress import Progress
from trainer.settings import TrainerSettings
from trainer.task_figures import TaskFigures


@dataclass(frozen=True)
class BundleFigures:
    """Sums and means over the scored tokens of a bundle, before the optimizer step.

    policy_loss, kl_loss: the two terms of L without β, both over N. kl: mean k3 per scored token
    (what a curve should show, since it does not shrink when groups fall silent). clipped_share:
    of scored tokens whose importance weight was cut. sampler_*: |lp_trainer − lp_sampler|.
    entropy: mean over scored tokens of the policy's entropy at T, in nats.
    """

    loss: float
    policy_loss: float
    kl_loss: float
    kl: float
    clipped_share: float
    mean_weight: float
    sampler_mean_abs: float
    sampler_max_abs: float
    entropy: float


def reference_logprobs(
    policy: Policy,
    reference: LoraReferenceSnapshot,
    batches: Sequence[Micro],
    temperature: float,
    progress: Progress,
) -> list[Tensor]:
    """Logprobs of every trained token under the reference: one swap, one no-grad pass."""
    out = []
    with reference, torch.no_grad():
        for done, segments in enumerate(batches, start=1):
            began = time.perf_counter()
            with _naming_the_budget(policy, segments):
                micro = tensors(segments, policy.device, shared=policy.shares_prompts)
                logprobs_n, _ = policy.logprobs(micro, temperature)
            _require_finite(logprobs_n, segments, "the reference adapter")
            out.append(logprobs_n)
            seconds = time.perf_counter() - began
            progress.micro_batch("reference", done, len(batches), _inputs(segments), seconds)
    return out


def accumulate_gradient(
    policy: Policy,
    batch: TrainingBatch,
    batches: Sequence[Micro],
    references: Sequence[Tensor] | None,
    settings: TrainerSettings,
    progress: Progress,
) -> BundleFigures:
    """Add the bundle's gradient to the LoRA parameters' .grad and return its figures.

    `references`: one tensor for each micro-batch, or None where β is 0.
    """
    sums, tasks = _Sums(), TaskFigures(batch, settings.tis_cap, progress)
    for done, segments in enumerate(batches, start=1):
        began = time.perf_counter()
        with _naming_the_budget(policy, segments):
            micro = tensors(segments, policy.device, shared=policy.shares_prompts)
            logprobs_n, entropy_n = policy.logprobs(micro, settings.temperature)
            _require_finite(logprobs_n, segments, "the policy")
            reference_n = references[done - 1] if references is not None else None
            loss = sums.add(micro, logprobs_n, entropy_n, reference_n, batch.n_tokens, settings)
            loss.backward()  # type: ignore[no-untyped-call]
        tasks.add(segments, micro, logprobs_n.detach(), reference_n)
        seconds = time.perf_counter() - began
        progress.micro_batch("policy", done, len(batches), _inputs(segments), seconds)
    return sums.figures(batch.n_scored, settings.kl_coef)


class _Sums:
    """Running sums over micro-batches, in Python floats."""

    def __init__(self) -> None:
        self.policy = self.kl = self.k3 = self.weights = self.entropy = 0.0
        self.clipped = 0
        self.difference = self.largest = 0.0

    def add(
        self,
        micro: MicroBatch,
        logprobs_n: Tensor,
        entropy_n: Tensor,
        reference_n: Tensor | None,
        n_tokens: int,
        settings: TrainerSettings,
    ) -> Tensor:
        """The micro-batch's share of the loss, with its gradient; its figures join the sums."""
        weights_n, cut_n = importance_weights(
            logprobs_n, micro.sampler_logprobs_n, settings.tis_cap
        )
        loss = policy_loss(logprobs_n, weights_n, micro.advantages_n, n_tokens)
        self.policy += loss.item()
        if reference_n is not None:
            kl = kl_loss(logprobs_n, reference_n, n_tokens)
            self.kl += kl.item()
            self.k3 += k3(logprobs_n.detach(), reference_n).sum().item()
            loss = loss + settings.kl_coef * kl
        difference_n = (logprobs_n.detach() - micro.sampler_logprobs_n).abs()
        self.difference += difference_n.sum().item()
        self.largest = max(self.largest, difference_n.max().item())
        self.weights += weights_n.sum().item()
        self.clipped += int(cut_n.sum())
        self.entropy += entropy_n.sum().item()
        return loss

    def figures(self, n_scored: int, kl_coef: float) -> BundleFigures:
        return BundleFigures(
            loss=self.policy + kl_coef * self.kl,
            policy_loss=self.policy,
            kl_loss=self.kl,
            kl=self.k3 / n_scored,
            clipped_share=self.clipped / n_scored,
            mean_weight=self.weights / n_scored,
            sampler_mean_abs=self.difference / n_scored,
            sampler_max_abs=self.largest,
            entropy=self.entropy / n_scored,
        )


def check_ids(policy: Policy, segments: Sequence[Segment]) -> None:
    """Raise `BadInput` for an id that the model has no embedding for."""
    for segment in segments:
        if max(segment.ids) >= policy.vocabulary:
            raise BadInput(
                f"task {segment.task_id} k={segment.k}: token id {max(segment.ids)}, but the model "
                f"knows {policy.vocabulary}: the bundle was sampled from another model"
            )


def _require_finite(logprobs_n: Tensor, segments: Micro, under: str) -> None:
    bad = torch.nonzero(~torch.isfinite(logprobs_n)).flatten()
    if len(bad) == 0:
        return
    i = first = int(bad[0])
    for segment in segments:
        if i < segment.n_trained:
            raise BadInput(
                f"{segment.where(i)}: its logprob under {under} is {logprobs_n[first].item()} "
                f"({len(bad)} such tokens in this micro-batch); check that adapter"
            )
        i -= segment.n_trained


def _inputs(segments: Micro) -> int:
    return sum(s.n_inputs for s in segments)


@contextmanager
def _naming_the_budget(policy: Policy, segments: Micro) -> Iterator[None]:
    """Turn the GPU's out-of-memory error into a `Shortage` that says which budget was too large."""
    try:
        yield
    except torch.OutOfMemoryError as e:
        n = tokens(segments, policy.shares_prompts)
        # One segment is a micro-batch of its own under any budget.
        smaller = f"tokens_per_microbatch to {n // 2}, or " if len(segments) > 1 else ""
        raise Shortage(
            f"task {segments[0].task_id}: a micro-batch of {len(segments)} segments, {n} tokens, "
            f"does not fit the GPU; set {smaller}gradient_checkpointing to true"
        ) from e
