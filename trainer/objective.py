"""The objectives: what loss each trained token gets, and how these become one number.

A new one is one line `OBJECTIVES.register(…)`, from which settings, errors and documentation list
it. The formulas are in `fieldkit.training.objectives`. torch is imported only when a loss is
computed, because every command reads the settings.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fieldkit.registry import Registry
from fieldkit.training import objectives
from fieldkit.training.losses import importance_weights
from fieldkit.training.objectives import Normalisation, TokenLosses

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """The n trained tokens of a micro-batch, whole turns one after another.

    Logprobs at T: under the policy (with the gradient), under the policy before the first optimizer
    step on this bundle, and as the sampler reported them. lengths_r: tokens of each of r turns.
    """

    logprobs_n: Tensor
    old_logprobs_n: Tensor
    sampler_logprobs_n: Tensor
    advantages_n: Tensor
    lengths_r: Tensor
    tis_cap: float

    @cached_property
    def policy_weights(self) -> tuple[Tensor, Tensor]:
        """Truncated importance weights of the policy over the sampler, and where the cap cut."""
        return importance_weights(self.logprobs_n, self.sampler_logprobs_n, self.tis_cap)

    @property
    def old_weights_n(self) -> Tensor:
        """Truncated importance weights of the old policy over the sampler. An objective whose ratio
        is new over old multiplies by them, so that together they are new over sampler."""
        return importance_weights(self.old_logprobs_n, self.sampler_logprobs_n, self.tis_cap)[0]


@dataclass(frozen=True)
class Band:
    """How far a ratio may be from 1: 1 − low to 1 + high."""

    low: float
    high: float


def published_band(formula: Callable[..., TokenLosses]) -> Band:
    """The band of the paper, which is the formula's default."""
    of = inspect.signature(formula).parameters
    return Band(of["clip_low"].default, of["clip_high"].default)


EVERYTHING = Band(1.0, math.inf)
"""No ratio is outside."""


@dataclass(frozen=True)
class ObjectiveKind:
    """One way to turn the tokens of a bundle into a loss."""

    losses: Callable[[Tokens, Band], TokenLosses]
    """A loss for each token."""
    meaning: str
    """One line for the documentation."""
    normalisation: Normalisation
    """How the paper averages them."""
    band: Band = EVERYTHING
    """The paper's band, if the objective clips a ratio."""
    caps_weights: bool = True
    """Whether it multiplies by importance weights that trainer.tis_cap bounds, whose mean and share
    of capped tokens are then reported."""
    of_sampler: bool = False
    """Whether its band bounds the ratio to the sampler, and not the one to the policy before the
    first optimizer step."""

    @property
    def clips(self) -> bool:
        """Whether it has a band, which settings can change and whose share of tokens is
        reported."""
        return self.band != EVERYTHING


def _reinforce(tokens: Tokens, band: Band) -> TokenLosses:
    """Weighted by the present policy over the sampler, also after the first optimizer step."""
    weights_n, cut_n = tokens.policy_weights
    losses_n = objectives.reinforce(tokens.logprobs_n, weights_n, tokens.advantages_n)
    return TokenLosses(losses_n, cut_n)


def _of_ratio(
    formula: Callable[[Tensor, Tensor, Tensor, float, float], TokenLosses],
) -> Callable[[Tokens, Band], TokenLosses]:
    """An objective of the ratio new over old, times the weights of old over sampler."""

    def losses(tokens: Tokens, band: Band) -> TokenLosses:
        losses_n, clipped_n = formula(
            tokens.logprobs_n, tokens.old_logprobs_n, tokens.advantages_n, band.low, band.high
        )
        return TokenLosses(losses_n * tokens.old_weights_n, clipped_n)

    return losses


def _gspo(tokens: Tokens, band: Band) -> TokenLosses:
    """Its tokens share their row's loss, so in effect a row has the mean of its tokens' weights, as
    in TRL."""
    losses_n, clipped_n = objectives.gspo(
        tokens.logprobs_n,
        tokens.old_logprobs_n,
        tokens.advantages_n,
        tokens.lengths_r,
        band.low,
        band.high,
    )
    return TokenLosses(losses_n * tokens.old_weights_n, clipped_n)


def _masked(tokens: Tokens, band: Band) -> TokenLosses:
    return objectives.masked_importance_sampling(
        tokens.logprobs_n, tokens.sampler_logprobs_n, tokens.advantages_n, band.low, band.high
    )


OBJECTIVES: Registry[ObjectiveKind] = Registry("objective")
"""By the names that settings use."""
OBJECTIVES.register(
    "reinforce",
    ObjectiveKind(
        _reinforce,
        "the policy gradient with truncated importance weights, trainer over sampler; its mean is"
        " over tokens",
        normalisation="token",
    ),
)
OBJECTIVES.register(
    "grpo",
    ObjectiveKind(
        _of_ratio(objectives.grpo),
        "PPO's clipped surrogate, 0.8 to 1.2, and the mean over turns of their means"
        " (arXiv:2402.03300)",
        normalisation="sequence",
        band=published_band(objectives.grpo),
    ),
)
OBJECTIVES.register(
    "dr_grpo",
    ObjectiveKind(
        _of_ratio(objectives.dr_grpo),
        "the same surrogate over a constant length (arXiv:2503.20783); the paper also has"
        ' advantages.scale = "mean"',
        normalisation="constant",
        band=published_band(objectives.dr_grpo),
    ),
)
OBJECTIVES.register(
    "dapo",
    ObjectiveKind(
        _of_ratio(objectives.dapo),
        "the same surrogate with a higher upper bound, 0.8 to 1.28, and a mean over tokens"
        " (arXiv:2503.14476)",
        normalisation="token",
        band=published_band(objectives.dapo),
    ),
)
OBJECTIVES.register(
    "gspo",
    ObjectiveKind(
        _gspo,
        "one ratio for a whole turn, its tokens' geometric mean, 0.9997 to 1.0004, and a mean over"
        " turns (arXiv:2507.18071)",
        normalisation="sequence",
        band=published_band(objectives.gspo),
    ),
)
OBJECTIVES.register(
    "cispo",
    ObjectiveKind(
        _of_ratio(objectives.cispo),
        "the policy gradient weighted by the ratio, cut at 5, so that no token is dropped; a mean"
        " over tokens (arXiv:2506.13585)",
        normalisation="token",
        band=published_band(objectives.cispo),
    ),
)
OBJECTIVES.register(
    "masked",
    ObjectiveKind(
        _masked,
        "the policy gradient without the tokens whose weight, trainer over sampler, is outside 0.5"
        " to 5; a mean over tokens (the mask of arXiv:2510.18855)",
        normalisation="token",
        band=published_band(objectives.masked_importance_sampling),
        caps_weights=False,
        of_sampler=True,
    ),
)
