"""The published policy-gradient objectives, as pure functions of per-token tensors.

An objective gives each trained token a loss; how these become one number is a choice of its own
(`token_shares`, `normalised`). Tensors are 1-D of length n, float32, logprobs in nats at the
sampling temperature. A row is a sequence that was sampled in one piece; `lengths_r` holds the
length of each of r rows, which lie one after another in the n tokens. Ratios are new over old:
exp(lp − lp_old), where old is the policy before the first optimizer step on these tokens. The band
of a ratio is [1 − clip_low, 1 + clip_high]. Nothing here knows a model, a batch or a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from fieldkit.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

Normalisation = Literal["token", "sequence", "group", "constant"]
"""How token losses become one number: see `token_shares`."""

_LARGEST_LOG_RATIO = 20.0
"""As in verl. Beyond it there is no gradient; without a limit exp overflows at 88, and the gradient
is NaN even where the band holds the token back."""


class TokenLosses(NamedTuple):
    """A loss for each of n tokens, and which tokens the band held back."""

    losses_n: Tensor
    """With the gradient."""
    clipped_n: Tensor
    """bool: the band took or cut this token's gradient."""


def reinforce(logprobs_n: Tensor, weights_n: Tensor, advantages_n: Tensor) -> Tensor:
    """REINFORCE (Williams 1992) with given advantages and importance weights: −w·A·lp.

    weights_n: without a gradient, as `importance_weights` gives them.
    """
    return -(weights_n * advantages_n * logprobs_n)


def grpo(
    logprobs_n: Tensor,
    old_logprobs_n: Tensor,
    advantages_n: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> TokenLosses:
    """GRPO's policy term: −min(r·A, clip(r)·A) with r the token's ratio.

    Shao et al. 2024, arXiv:2402.03300, equation 3, which divides by the row's length and then by
    the number of rows ("sequence"); the clipped surrogate is PPO's (Schulman et al. 2017,
    arXiv:1707.06347, equation 7). Its KL is a term of its own (`k3`).
    """
    ratios_n = _ratios(logprobs_n - old_logprobs_n)
    return _clipped_surrogate(ratios_n, advantages_n, clip_low, clip_high)


def dr_grpo(
    logprobs_n: Tensor,
    old_logprobs_n: Tensor,
    advantages_n: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> TokenLosses:
    """Dr. GRPO's policy term, token by token that of `grpo`.

    Liu et al. 2025, arXiv:2503.20783, section 3.2. What it takes out is elsewhere: the division by
    the row's length ("constant" in place of "sequence"), and that by the group's standard deviation
    (the scale "mean" of `group_advantages`).
    """
    return grpo(logprobs_n, old_logprobs_n, advantages_n, clip_low, clip_high)


def dapo(
    logprobs_n: Tensor,
    old_logprobs_n: Tensor,
    advantages_n: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> TokenLosses:
    """DAPO's policy term: that of `grpo` with a wider band above (clip-higher).

    Yu et al. 2025, arXiv:2503.14476, equations 8 (objective), 10 (clip-higher) and 12 (a mean over
    tokens: "group" as it is written there, "token" as it is mostly done).
    """
    return grpo(logprobs_n, old_logprobs_n, advantages_n, clip_low, clip_high)


def gspo(
    logprobs_n: Tensor,
    old_logprobs_n: Tensor,
    advantages_n: Tensor,
    lengths_r: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> TokenLosses:
    """GSPO: the clipped surrogate of one ratio for a whole row, s = exp(mean(lp − lp_old)).

    Zheng et al. 2025, arXiv:2507.18071, equations 5 and 7; the band is that of section 5.1, far
    narrower since s is a geometric mean. Each token of a row has the row's loss, so that "sequence"
    gives the paper's mean over rows. Rows have to be whole.
    """
    ratios_n = _ratios(_row_means(logprobs_n - old_logprobs_n, lengths_r))
    return _clipped_surrogate(ratios_n, advantages_n, clip_low, clip_high)


def cispo(
    logprobs_n: Tensor,
    old_logprobs_n: Tensor,
    advantages_n: Tensor,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> TokenLosses:
    """CISPO: REINFORCE weighted by the clipped ratio, −sg(clip(r))·A·lp, so no token is dropped.

    MiniMax 2025, arXiv:2506.13585, equations 4 and 5. The paper sets no lower bound (clip_low 1)
    and gives no value for the upper one; 4 makes it 5, as Khatri et al. 2025 recommend
    (arXiv:2510.13786).
    """
    ratios_n = (logprobs_n.detach() - old_logprobs_n).exp()
    low, high = 1 - clip_low, 1 + clip_high
    losses_n = reinforce(logprobs_n, ratios_n.clamp(low, high), advantages_n)
    return TokenLosses(losses_n, (ratios_n < low) | (ratios_n > high))


def masked_importance_sampling(
    logprobs_n: Tensor,
    sampler_logprobs_n: Tensor,
    advantages_n: Tensor,
    clip_low: float = 0.5,
    clip_high: float = 4.0,
) -> TokenLosses:
    """REINFORCE that leaves out tokens on which trainer and sampler disagree: −M(ρ)·A·lp.

    ρ = exp(lp − lp_sampler), without a gradient; M(ρ) = ρ within the band and 0 outside. Where
    `importance_weights` cuts a weight down to its cap, this drops the token. The mask M and its
    band, 0.5 to 5, are those of IcePop (Ling team 2025, arXiv:2510.18855), here without PPO's clip
    beside it: with one optimizer step on a bundle that clip does nothing.
    """
    ratios_n = (logprobs_n.detach() - sampler_logprobs_n).exp()
    outside_n = (ratios_n < 1 - clip_low) | (ratios_n > 1 + clip_high)
    losses_n = reinforce(logprobs_n, ratios_n.masked_fill(outside_n, 0.0), advantages_n)
    return TokenLosses(losses_n, outside_n)


def kl_in_reward(advantages_n: Tensor, kl_n: Tensor, kl_coef: float) -> Tensor:
    """Advantages with a token's KL as a part of its reward: A − β·k, without a gradient.

    kl_n: `k1`, `k2` or `k3` of each token. "k_n in reward" of Liu et al. 2025, arXiv:2510.01555:
    with the ratio at 1, k1 in the reward has the gradient of k2 in the loss, that of KL(π‖ref).
    """
    return advantages_n - kl_coef * kl_n.detach()


def token_shares(
    lengths: Sequence[Sequence[int]], normalisation: Normalisation, longest: int | None = None
) -> tuple[list[list[float]], float]:
    """What each row's tokens count, and the total: the loss is Σ share · token loss / total.

    lengths: of each group's rows, in tokens; all rows of the bundle, also those that are not
    scored, so that a micro-batch's sums add up to the bundle's loss. longest: the tokens that a row
    may have, for "constant". Rows without a token count nowhere. Raises `BadInput` for a bundle
    without a token, "constant" without `longest`, and another name.

    - "token": the mean over all tokens; a long row weighs more.
    - "sequence": the mean over rows of each row's mean.
    - "group": the mean over groups of the mean over each group's tokens.
    - "constant": the sum over tokens, by rows times `longest`; no length has a say.

    >>> token_shares([[1, 3], [4]], "token")
    ([[1.0, 1.0], [1.0]], 8.0)
    >>> token_shares([[1, 2], [4]], "sequence")
    ([[1.0, 0.5], [0.25]], 3.0)
    >>> token_shares([[1, 3], [2]], "group")
    ([[0.25, 0.25], [0.5]], 2.0)
    >>> token_shares([[1, 3], [4]], "constant", longest=10)
    ([[1.0, 1.0], [1.0]], 30.0)
    """
    sums = [sum(rows) for rows in lengths]
    if not any(sums):
        raise BadInput("no row has a token")
    if normalisation == "constant" and (longest is None or longest < 1):
        raise BadInput(
            f'"constant" divides by the tokens that a row may have: longest is {longest}'
        )
    n_rows = sum(n > 0 for rows in lengths for n in rows)
    totals: dict[Normalisation, int] = {
        "token": sum(sums),
        "sequence": n_rows,
        "group": sum(n > 0 for n in sums),
        "constant": n_rows * (longest or 1),
    }
    if normalisation not in totals:
        raise BadInput(f"normalisation {normalisation!r} is unknown; known: {', '.join(totals)}")
    if normalisation == "sequence":
        divisors: Sequence[Sequence[int]] = lengths
    elif normalisation == "group":
        divisors = [[n] * len(rows) for n, rows in zip(sums, lengths, strict=True)]
    else:
        divisors = [[1] * len(rows) for rows in lengths]
    shares = [[1 / max(1, n) for n in rows] for rows in divisors]
    return shares, float(totals[normalisation])


def normalised(losses_n: Tensor, shares_n: Tensor, total: float) -> Tensor:
    """Σ share · loss / total: one number from token losses, with `token_shares`.

    shares_n: of each token, so each row's share as often as the row has tokens.

    >>> import torch
    >>> lengths = [[1, 2], [4]]
    >>> shares, total = token_shares(lengths, "sequence")
    >>> shares_r, lengths_r = torch.tensor(sum(shares, [])), torch.tensor(sum(lengths, []))
    >>> normalised(torch.ones(7), shares_r.repeat_interleave(lengths_r), total)
    tensor(1.)
    """
    return (losses_n * shares_n).sum() / total


def _ratios(log_ratios_n: Tensor) -> Tensor:
    return log_ratios_n.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()


def _clipped_surrogate(
    ratios_n: Tensor, advantages_n: Tensor, clip_low: float, clip_high: float
) -> TokenLosses:
    """−min(r·A, clip(r)·A): beyond the band there is no gradient where A asks for more of it."""
    low, high = 1 - clip_low, 1 + clip_high
    losses_n = -(ratios_n * advantages_n).minimum(ratios_n.clamp(low, high) * advantages_n)
    above_n = (ratios_n > high) & (advantages_n > 0)
    below_n = (ratios_n < low) & (advantages_n < 0)
    return TokenLosses(losses_n, above_n | below_n)


def _row_means(values_n: Tensor, lengths_r: Tensor) -> Tensor:
    """Each token gets the mean of its row; a row without a token has none to give it to."""
    import torch

    if not len(lengths_r):  # which segment_reduce cannot take
        return values_n
    sums_r = torch.segment_reduce(values_n, "sum", lengths=lengths_r)
    return (sums_r / lengths_r.clamp(min=1)).repeat_interleave(lengths_r)
