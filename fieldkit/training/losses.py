"""Importance weights and estimators of the KL, as pure functions of per-token tensors.

The default objective is L = Σ reinforce(lp, w, A) / N + β·Σ k3 / N over the trained tokens, N of
the whole bundle. All inputs are 1-D of equal length n, float32, natural logarithms at the sampling
temperature. Nothing here knows a model, a batch or a file, so every formula can be checked on
numbers worked out by hand. The policy terms and their means are in
`fieldkit.training.objectives`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def importance_weights(
    logprobs_n: Tensor, sampler_logprobs_n: Tensor, cap: float
) -> tuple[Tensor, Tensor]:
    """Truncated importance weights w = min(exp(lp_trainer − lp_sampler), cap), and where cut.

    The sampler and the trainer run different kernels and perhaps different dtypes, so the tokens
    come from a slightly different policy than the one being trained; w corrects for it and its cap
    bounds the variance (Ionides 2008; for LLM rollouts Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training"). Detached: w scales a gradient, it does
    not carry one. Returns (w, w was cut), both of length n.
    """
    ratio = (logprobs_n.detach() - sampler_logprobs_n).exp()
    return ratio.clamp(max=cap), ratio > cap


def k1(logprobs_n: Tensor, reference_logprobs_n: Tensor) -> Tensor:
    """Schulman's k1 estimator of KL(π‖ref), per token: lp − lp_ref. Unbiased; may be negative.

    Its gradient is ∇lp, whose mean under π is 0, so as a loss it pulls nowhere.
    """
    return logprobs_n - reference_logprobs_n


def k2(logprobs_n: Tensor, reference_logprobs_n: Tensor) -> Tensor:
    """Schulman's k2 estimator, per token: (lp − lp_ref)² / 2; biased, and never < 0.

    Its gradient is (lp − lp_ref)·∇lp, whose mean under π is ∇KL(π‖ref), the reverse KL.
    """
    return (logprobs_n - reference_logprobs_n).square() / 2


def k3(logprobs_n: Tensor, reference_logprobs_n: Tensor) -> Tensor:
    """Schulman's k3 estimator of the KL, per token: exp(d) − d − 1 with d = lp_ref − lp; never < 0.

    As a value, with tokens sampled from the policy π, its mean is KL(π‖ref) (Schulman 2020,
    "Approximating KL divergence"). Its gradient is another matter: ∇k3 = (1 − exp(d))·∇lp, whose
    mean under π is −Σ ref·∇log π = ∇KL(ref‖π), the forward KL. So the number logged is the reverse
    KL, and what pulls on the weights is the forward one; to first order around ref they agree.
    """
    difference = reference_logprobs_n - logprobs_n
    return difference.expm1() - difference


KL_ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
"""By their names in Schulman 2020."""
