"""Every objective on numbers worked out by hand: the value, the gradient, what is held back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fieldkit.errors import BadInput
from fieldkit.training import objectives
from fieldkit.training.losses import k1, k2, k3
from fieldkit.training.objectives import TokenLosses, kl_in_reward, normalised, token_shares

OLD = torch.tensor([-1.0, -1.0, -1.0, -1.0])
RATIOS = (0.5, 0.9, 1.1, 2.0)


def at(ratios: tuple[float, ...]) -> Tensor:
    """Logprobs whose ratios to `OLD` these are."""
    return (OLD + torch.tensor(ratios).log()).requires_grad_()


def gradient(losses_n: Tensor, logprobs_n: Tensor) -> list[float]:
    (found,) = torch.autograd.grad(losses_n.sum(), logprobs_n)
    return [float(g) for g in found]


def checked(
    found: TokenLosses,
    logprobs_n: Tensor,
    losses: list[float],
    slopes: list[float],
    clipped: list[bool],
) -> None:
    assert found.losses_n.tolist() == pytest.approx(losses, rel=1e-5)
    assert gradient(found.losses_n, logprobs_n) == pytest.approx(slopes, rel=1e-5)
    assert found.clipped_n.tolist() == clipped


def test_reinforce_is_minus_w_times_a_times_logprob() -> None:
    logprobs = torch.tensor([-3.0, -4.0], requires_grad=True)
    losses = objectives.reinforce(logprobs, torch.tensor([1.0, 0.5]), torch.tensor([2.0, -1.0]))
    assert losses.tolist() == [6.0, -2.0]
    assert gradient(losses, logprobs) == [-2.0, 0.5]


def test_grpo_pays_a_good_token_no_more_than_the_upper_bound() -> None:
    logprobs = at(RATIOS)
    found = objectives.grpo(logprobs, OLD, torch.ones(4), 0.2, 0.2)
    # −min(r, clip(r, 0.8, 1.2)): below the band the surrogate goes on, above it is flat.
    losses, slopes = [-0.5, -0.9, -1.1, -1.2], [-0.5, -0.9, -1.1, 0.0]
    checked(found, logprobs, losses, slopes, [False, False, False, True])


def test_grpo_blames_a_bad_token_no_more_than_the_lower_bound() -> None:
    logprobs = at(RATIOS)
    found = objectives.grpo(logprobs, OLD, -torch.ones(4), 0.2, 0.2)
    # max(r, clip(r, 0.8, 1.2)): a bad token that became likelier is pushed with all its ratio.
    losses, slopes = [0.8, 0.9, 1.1, 2.0], [0.0, 0.9, 1.1, 2.0]
    checked(found, logprobs, losses, slopes, [True, False, False, False])


def test_dapo_lets_a_good_token_rise_further_than_grpo_and_dr_grpo() -> None:
    logprobs = at((0.5, 0.9, 1.25, 1.3))
    ones = torch.ones(4)
    assert objectives.dapo(logprobs, OLD, ones).clipped_n.tolist() == [False] * 3 + [True]
    for narrow in (objectives.grpo, objectives.dr_grpo):
        assert narrow(logprobs, OLD, ones).clipped_n.tolist() == [False] * 2 + [True] * 2


def test_gspo_has_one_ratio_for_a_row_the_geometric_mean_of_its_tokens() -> None:
    logprobs = at((0.5, 2.0, 1.0, 1.21))
    rows = torch.tensor([2, 0, 2])
    found = objectives.gspo(logprobs, OLD, torch.tensor([1.0, 1.0, 1.0, 1.0]), rows, 0.2, 0.2)
    # √(0.5·2) = 1 and √(1·1.21) = 1.1. A token has half of each of its row's two losses' slopes.
    losses, slopes = [-1.0, -1.0, -1.1, -1.1], [-1.0, -1.0, -1.1, -1.1]
    checked(found, logprobs, losses, slopes, [False] * 4)


def test_gspo_of_no_row_is_no_loss() -> None:
    none = torch.zeros(0)
    assert len(objectives.gspo(none, none, none, torch.zeros(0, dtype=torch.long)).losses_n) == 0


def test_gspo_clips_a_row_as_a_whole() -> None:
    logprobs = at((1.0, 1.0, 1.0, 4.0))
    rows = torch.tensor([2, 2])
    found = objectives.gspo(logprobs, OLD, torch.ones(4), rows, 0.2, 0.2)  # ratios 1 and 2
    checked(
        found, logprobs, [-1.0, -1.0, -1.2, -1.2], [-1.0, -1.0, 0.0, 0.0], [False] * 2 + [True] * 2
    )


def test_cispo_cuts_the_weight_and_drops_no_token() -> None:
    logprobs = at(RATIOS)
    found = objectives.cispo(logprobs, OLD, torch.tensor([1.0, 1.0, 1.0, -3.0]), 0.2, 0.2)
    weights = [0.8, 0.9, 1.1, 1.2]
    advantages = [1.0, 1.0, 1.0, -3.0]
    slopes = [-w * a for w, a in zip(weights, advantages, strict=True)]
    losses = [s * lp for s, lp in zip(slopes, logprobs.tolist(), strict=True)]
    checked(found, logprobs, losses, slopes, [True, False, False, True])


def test_cispo_has_no_lower_bound_of_its_own() -> None:
    found = objectives.cispo(at((1e-6, 0.5, 5.0, 5.1)), OLD, torch.ones(4))
    assert found.clipped_n.tolist() == [False, False, False, True]


def test_masked_importance_sampling_drops_what_leaves_the_band() -> None:
    logprobs = at((0.4, 0.9, 4.0, 6.0))
    found = objectives.masked_importance_sampling(logprobs, OLD, torch.ones(4))
    slopes = [0.0, -0.9, -4.0, 0.0]
    losses = [s * lp for s, lp in zip(slopes, logprobs.tolist(), strict=True)]
    checked(found, logprobs, losses, slopes, [True, False, False, True])


def test_before_the_first_step_every_objective_has_the_plain_policy_gradient() -> None:
    advantages, rows = torch.tensor([1.0, 1.0, -2.0, -2.0]), torch.tensor([2, 2])
    logprobs = OLD.clone().requires_grad_()
    for found in (
        objectives.grpo(logprobs, OLD, advantages),
        objectives.dr_grpo(logprobs, OLD, advantages),
        objectives.dapo(logprobs, OLD, advantages),
        objectives.gspo(logprobs, OLD, advantages, rows),
        objectives.cispo(logprobs, OLD, advantages),
        objectives.masked_importance_sampling(logprobs, OLD, advantages),
    ):
        assert gradient(found.losses_n, logprobs) == pytest.approx([-1.0, -1.0, 2.0, 2.0])
        assert not found.clipped_n.any()


def test_rows_of_one_and_three_tokens_under_each_mean() -> None:
    losses = torch.tensor([4.0, 1.0, 2.0, 3.0, 10.0])  # a group of rows [4], [1, 2, 3]; one of [10]
    lengths = [[1, 3], [1]]

    def mean(how: objectives.Normalisation) -> float:
        shares, total = token_shares(lengths, how, longest=5)
        of_tokens = [
            share
            for rows, counts in zip(lengths, shares, strict=True)
            for n, share in zip(rows, counts, strict=True)
            for _ in range(n)
        ]
        return normalised(losses, torch.tensor(of_tokens), total).item()

    assert mean("token") == pytest.approx(20 / 5)
    assert mean("sequence") == pytest.approx((4 + 2 + 10) / 3)
    assert mean("group") == pytest.approx((10 / 4 + 10) / 2)
    assert mean("constant") == pytest.approx(20 / (3 * 5))


def test_rows_and_groups_without_a_token_take_no_part() -> None:
    assert token_shares([[2, 0], [0], []], "sequence") == ([[0.5, 1.0], [1.0], []], 1.0)
    assert token_shares([[2, 0], [0], []], "group")[1] == 1.0
    with pytest.raises(ValueError, match="no row has a token"):
        token_shares([[0], []], "token")


def test_a_mean_that_lacks_its_number_or_its_name_is_refused() -> None:
    with pytest.raises(BadInput, match=r'"constant" divides by .*: longest is None'):
        token_shares([[100]], "constant")
    with pytest.raises(BadInput, match="normalisation 'mean' is unknown; known: token, sequence"):
        token_shares([[100]], "mean")  # type: ignore[arg-type]


def test_reinforce_over_tokens_is_the_default_objective_to_the_last_bit() -> None:
    drawn = torch.Generator().manual_seed(3)
    logprobs, reference, advantages = torch.randn(3, 301, generator=drawn)
    logprobs.requires_grad_()
    weights = torch.rand(301, generator=drawn)
    shares, total = token_shares([[300], [1, 40]], "token")
    assert {share for rows in shares for share in rows} == {1.0}
    counts = torch.ones(301)
    ours = normalised(objectives.reinforce(logprobs, weights, advantages), counts, total)
    plain = -(weights * advantages * logprobs).sum() / 341
    assert torch.equal(ours, plain)
    (mine,) = torch.autograd.grad(ours, logprobs)
    (theirs,) = torch.autograd.grad(plain, logprobs)
    assert torch.equal(mine, theirs)
    estimates = k3(logprobs, reference)
    assert torch.equal(normalised(estimates, counts, total), estimates.sum() / 341)


def test_k1_in_the_reward_has_the_gradient_of_k2_in_the_loss() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    reference = torch.tensor([-1.5, -1.0, -0.5])
    advantages, ones, beta = torch.tensor([1.0, -1.0, 0.5]), torch.ones(3), 0.3
    paid = kl_in_reward(advantages, k1(logprobs, reference), beta)
    assert paid.tolist() == pytest.approx([1 - 0.3 * 0.5, -1 + 0.3, 0.5])
    assert not paid.requires_grad
    in_reward = gradient(objectives.reinforce(logprobs, ones, paid), logprobs)
    losses = objectives.reinforce(logprobs, ones, advantages) + beta * k2(logprobs, reference)
    assert in_reward == pytest.approx(gradient(losses, logprobs))


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("gap", [-1000.0, 1000.0])
def test_a_ratio_that_no_float_holds_gives_no_nan(gap: float, advantage: float) -> None:
    for objective in (
        objectives.grpo,
        lambda new, old, advantages: objectives.gspo(new, old, advantages, torch.tensor([2])),
    ):
        logprobs = torch.full((2,), -1.0, requires_grad=True)
        found = objective(logprobs, logprobs.detach() - gap, torch.full((2,), advantage))
        assert found.losses_n.isfinite().all()
        assert gradient(found.losses_n, logprobs) == [0.0, 0.0]


def test_a_ratio_far_away_gives_no_nan() -> None:
    logprobs = torch.tensor([-1.0, -math.log(2)], requires_grad=True)
    old = torch.tensor([-80.0, -80.0])
    found = objectives.cispo(logprobs, old, torch.tensor([1.0, -1.0]))
    assert found.clipped_n.tolist() == [True, True]
    assert gradient(found.losses_n, logprobs) == [-5.0, 5.0]
