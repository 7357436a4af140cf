"""One pass over a bundle: reference logprobs, then losses and gradients by micro-batch.

The sums are over the whole bundle (as are shares and total), so the cut into micro-batches changes
only the memory. On a CPU several are computed in parallel, and added in their order. Nothing here
knows an optimizer or a file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldkit.errors import BadInput, Shortage
from fieldkit.training.losses import KL_ESTIMATORS, k3
from fieldkit.training.objectives import kl_in_reward, normalised
from fieldkit.training.snapshot import LoraReferenceSnapshot
from trainer.batch import Segment, TrainingBatch
from trainer.objective import OBJECTIVES, Tokens
from trainer.progress import Progress
from trainer.ranks.rank import ALONE, Rank
from trainer.scoring.micro_batch import Micro, MicroBatch, tensors, tokens
from trainer.scoring.parallel import in_order
from trainer.scoring.policy import Policy
from trainer.settings import TrainerSettings
from trainer.task_figures import TaskFigures


class Own:
    """That the reference is the adapter under training, as in a run's first step: its logprobs are
    the policy's before the first optimizer step, and need no pass of their own."""


References = Sequence[Tensor] | Own | None
"""The reference's logprobs, one tensor for each micro-batch; None where β is 0."""


def reference_logprobs(
    policy: Policy,
    reference: LoraReferenceSnapshot,
    batches: Sequence[Micro],
    settings: TrainerSettings,
    progress: Progress,
    bundle: Sequence[Segment] = (),
    rank: Rank = ALONE,
) -> list[Tensor]:
    """Logprobs of every trained token under the reference: one swap, one no-grad pass.

    bundle: the segments of all ranks, of which `batches` are this one's.
    """
    out = []
    missing = _missing(policy, batches, rank)

    def scored(segments: Micro) -> tuple[Tensor, float]:
        began = time.perf_counter()
        with torch.no_grad(), _naming_the_budget(policy, segments):
            micro = tensors(segments, policy.device, shared=policy.shares_rows)
            logprobs_n, _ = policy.logprobs(micro, settings.temperature)
        _require_finite(logprobs_n, segments, "the reference adapter")
        return logprobs_n, time.perf_counter() - began

    with reference, policy.in_passes(), torch.no_grad():
        made = in_order(scored, batches, policy.at_once, _too_long(policy, settings))
        found = zip(batches, made, strict=True)
        for done, (segments, (logprobs_n, seconds)) in enumerate(found, start=1):
            out.append(logprobs_n)
            progress.micro_batch("reference", done, len(batches), _inputs(segments), seconds)
        _make_up(policy, missing, bundle)
    return out


def accumulate_gradient(
    policy: Policy,
    batch: TrainingBatch,
    batches: Sequence[Micro],
    references: References,
    settings: TrainerSettings,
    progress: Progress,
    old: Sequence[Tensor] | None = None,
    rank: Rank = ALONE,
) -> tuple[dict[str, float], list[Tensor]]:
    """Add the bundle's gradient to the LoRA parameters' .grad and return its `_Sums.figures`.

    `old`: logprobs of the policy before the first optimizer step on this bundle, one tensor for
    each micro-batch; None where this is that policy, whose own logprobs are returned beside the
    figures to be kept.
    `batches`, `references` and `old` are this rank's part of the bundle, gradient and figures those
    of all ranks; `batch` is the whole bundle.
    """
    sums, tasks = _Sums(), TaskFigures(batch, progress)
    scored = []
    missing = _missing(policy, batches, rank)
    parameters = list(policy.lora().values())

    def differentiated(i: int) -> _Pass:
        began = time.perf_counter()
        own = _Sums()
        with _naming_the_budget(policy, batches[i]):
            micro = tensors(batches[i], policy.device, shared=policy.shares_rows)
            logprobs_n, entropy_n = policy.logprobs(micro, settings.temperature)
            _require_finite(logprobs_n, batches[i], "the policy")
            now_n = logprobs_n.detach()
            old_n = now_n if old is None else old[i]
            if references is None:
                reference_n = None
            else:
                reference_n = old_n if isinstance(references, Own) else references[i]
            loss, parts_n, k3_n = own.add(
                micro, logprobs_n, old_n, entropy_n, reference_n, batch.total, settings
            )
            gradient: tuple[Tensor | None, ...] = ()
            if policy.at_once == 1:
                loss.backward()  # type: ignore[no-untyped-call]
            else:  # .grad is for one thread at a time
                gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
            # A GPU has computed it all by the time that it tells these.
            parts, of_kl = parts_n.tolist(), None if k3_n is None else k3_n.tolist()
        seconds = time.perf_counter() - began
        return _Pass(now_n, own, parts, of_kl, gradient, seconds)

    phase = "policy" if old is None else "policy again"
    with policy.in_passes():
        alone, numbers = _too_long(policy, settings), range(len(batches))
        made = in_order(differentiated, numbers, policy.at_once, lambda i: alone(batches[i]))
        for done, (segments, one) in enumerate(zip(batches, made, strict=True), start=1):
            scored.append(one.logprobs_n)
            sums = _Sums.of_all([sums, one.sums])
            _add(parameters, one.gradient)
            if old is None:
                tasks.add(segments, one.parts, one.k3)
            progress.micro_batch(phase, done, len(batches), _inputs(segments), one.seconds)
    _make_up(policy, missing, batch.segments)
    rank.add_gradients(policy.lora().values())
    if old is None:
        tasks.tell_shared(rank)
    whole = _Sums.of_all(rank.gather(sums))
    figures = whole.figures(batch.n_scored, settings, has_reference=references is not None)
    return figures, scored


def _too_long(policy: Policy, settings: TrainerSettings) -> Callable[[Micro], bool]:
    """Whether a micro-batch is larger than the budget, because a segment is. Such ones are computed
    one after the other: of those that fill the context one has to fit, not one for each core."""
    most = settings.microbatch_tokens  # which may ask for the machine's devices
    return lambda segments: tokens(segments, policy.shares_rows) > most


def _add(parameters: Sequence[Tensor], gradient: Sequence[Tensor | None]) -> None:
    """Add a micro-batch's gradient to theirs, which get rows without gaps as from a backward pass;
    an empty one is there already."""
    for parameter, part in zip(parameters, gradient, strict=False):
        if part is None:
            continue
        if parameter.grad is None:
            parameter.grad = part.contiguous()
        else:
            parameter.grad.add_(part)


@dataclass(frozen=True)
class _Pass:
    """What one micro-batch gives, n trained tokens of it. parts, k3: of each token. gradient: of
    each parameter; empty where the backward pass has added it to them."""

    logprobs_n: Tensor
    sums: _Sums
    parts: list[float]
    k3: list[float] | None
    gradient: tuple[Tensor | None, ...]
    seconds: float


class _Sums:
    """Running sums over micro-batches, in Python floats."""

    def __init__(self) -> None:
        self.policy = self.kl = self.k3 = self.weights = self.entropy = 0.0
        self.clipped = self.held = 0
        self.difference = self.largest = 0.0

    def add(
        self,
        micro: MicroBatch,
        logprobs_n: Tensor,
        old_n: Tensor,
        entropy_n: Tensor,
        reference_n: Tensor | None,
        total: float,
        settings: TrainerSettings,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The micro-batch's part of the loss, with its gradient; adds its figures to the sums.

        Also returns each token's part of the policy loss and its k3, without gradients.
        """
        estimator = KL_ESTIMATORS[settings.kl_estimator]
        in_reward = settings.kl_in == "reward"
        advantages_n = micro.advantages_n
        if reference_n is not None and in_reward:
            kl_n = estimator(old_n, reference_n)
            advantages_n = kl_in_reward(advantages_n, kl_n, settings.kl_coef)
        sampler_n = micro.sampler_logprobs_n
        tokens = Tokens(logprobs_n, old_n, sampler_n, advantages_n, micro.turns_r, settings.tis_cap)
        losses_n, held_n = OBJECTIVES[settings.objective].losses(tokens, settings.band)
        loss = normalised(losses_n, micro.shares_n, total)
        self.policy += loss.item()
        k3_n = None
        if reference_n is not None:
            k3_n = k3(logprobs_n.detach(), reference_n)
            self.k3 += k3_n.sum().item()
        if reference_n is not None and not in_reward:
            kl = normalised(estimator(logprobs_n, reference_n), micro.shares_n, total)
            self.kl += kl.item()
            loss = loss + settings.kl_coef * kl
        difference_n = (logprobs_n.detach() - sampler_n).abs()
        self.difference += difference_n.sum().item()
        self.largest = max(self.largest, difference_n.max().item())
        weights_n, cut_n = tokens.policy_weights
        self.weights += weights_n.sum().item()
        self.clipped += int(cut_n.sum())
        self.held += int(held_n.sum())
        self.entropy += entropy_n.sum().item()
        return loss, losses_n.detach() * micro.shares_n / total, k3_n

    @classmethod
    def of_all(cls, ranks: Sequence[_Sums]) -> _Sums:
        """The sums of all ranks, added in their order."""
        total = cls()
        for each in ranks:
            for name, value in vars(each).items():
                before = getattr(total, name)
                setattr(total, name, max(before, value) if name == "largest" else before + value)
        return total

    def figures(
        self, n_scored: int, settings: TrainerSettings, *, has_reference: bool
    ) -> dict[str, float]:
        """Sums and means over the scored tokens of a bundle, before the optimizer step; only those
        that the settings give a meaning.

        policy_loss, kl_loss: the two terms of L without β; kl_loss is 0 where the KL is in the
        reward. kl: mean k3 per scored token (what a curve should show, since it does not shrink
        when groups fall silent), with a reference. clipped_share: of scored tokens whose importance
        weight was cut. mean_weight: of those weights. Both where the objective uses such weights.
        sampler_*: |lp_trainer − lp_sampler|. entropy: mean over scored tokens of the policy's
        entropy at T, in nats. ratio_clipped_share: of scored tokens that the objective's band held
        back, where it clips a ratio.
        """
        objective = OBJECTIVES[settings.objective]
        found = {
            "loss": self.policy + settings.kl_coef * self.kl,
            "policy_loss": self.policy,
            "kl_loss": self.kl,
        }
        if has_reference:
            found["kl"] = self.k3 / n_scored
        if objective.caps_weights:
            found["clipped_share"] = self.clipped / n_scored
            found["mean_weight"] = self.weights / n_scored
        found["sampler_mean_abs"] = self.difference / n_scored
        found["sampler_max_abs"] = self.largest
        found["entropy"] = self.entropy / n_scored
        if objective.clips:
            found["ratio_clipped_share"] = self.held / n_scored
        return found


def _missing(policy: Policy, batches: Sequence[Micro], rank: Rank) -> int:
    """How many passes another rank makes more than this one, where all have to make equally many.
    All ranks call it before their first pass."""
    return max(rank.gather(len(batches))) - len(batches) if policy.is_sharded else 0


def _make_up(policy: Policy, passes: int, bundle: Sequence[Segment]) -> None:
    """Make so many passes, which score a segment of the bundle and add a gradient of 0."""
    for _ in range(passes):
        shortest = min(bundle, key=lambda s: s.n_inputs)
        micro = tensors([shortest], policy.device, shared=policy.shares_rows)
        logprobs_n, _ = policy.logprobs(micro, temperature=1.0)
        if logprobs_n.requires_grad:
            (0.0 * logprobs_n.sum()).backward()  # type: ignore[no-untyped-call]


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


class MicroBatchTooLarge(Shortage):
    """A micro-batch did not fit the GPU. smaller: a token budget that cuts it, None where its one
    segment is all that it has."""

    def __init__(self, what: str, smaller: int | None, remedies: Sequence[str]) -> None:
        super().__init__(
            f"{what}; {', or '.join(remedies) or 'take fewer rollout.max_turns in a new run'}"
        )
        self.what = what
        self.smaller = smaller


@contextmanager
def _naming_the_budget(policy: Policy, segments: Micro) -> Iterator[None]:
    """Turn the GPU's out-of-memory error into a `MicroBatchTooLarge`."""
    try:
        yield
    except torch.OutOfMemoryError as e:
        n = tokens(segments, policy.shares_rows)
        smaller = n // 2 if len(segments) > 1 else None
        remedies = [f"set trainer.tokens_per_microbatch = {smaller}"] if smaller else []
        if not policy.is_checkpointing:
            remedies.append("set trainer.gradient_checkpointing = true")
        what = f"task {segments[0].task_id}: a micro-batch of {len(segments)} segments, {n} tokens,"
        raise MicroBatchTooLarge(f"{what} does not fit the GPU", smaller, remedies) from e
