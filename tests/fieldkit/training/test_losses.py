"""Every term of the objective on numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fieldkit.training.losses import importance_weights, k1, k2, k3

LN2 = math.log(2)


def test_the_weight_is_the_ratio_of_trainer_to_sampler_up_to_the_cap() -> None:
    trainer = torch.tensor([-1.0, -1.0, -1.0])
    sampler = torch.tensor([-1.0, -1.0 + LN2, -1.0 - 3 * LN2])  # ratios 1, 1/2, 8
    weights, cut = importance_weights(trainer, sampler, cap=2.0)
    assert weights.tolist() == pytest.approx([1.0, 0.5, 2.0])
    assert cut.tolist() == [False, False, True]


def test_the_weight_carries_no_gradient() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    weights, _ = importance_weights(logprobs, torch.tensor([-1.5, -1.5]), cap=2.0)
    assert not weights.requires_grad


def test_k3_is_zero_where_both_agree_and_positive_elsewhere() -> None:
    logprobs = torch.tensor([-1.0, -1.0, -1.0])
    values = k3(logprobs, torch.tensor([-1.0, -1.0 + LN2, -1.0 - LN2]))
    # exp(d) - d - 1 at d = 0, ln 2, -ln 2
    assert values.tolist() == pytest.approx([0.0, 1 - LN2, LN2 - 0.5], abs=1e-6)


def test_k3_keeps_its_precision_near_zero() -> None:
    d = 1e-4
    value = k3(torch.zeros(1), torch.full((1,), d)).item()
    assert value == pytest.approx(d * d / 2, rel=0.01)


def test_the_gradient_of_k3_is_one_minus_the_ratio() -> None:
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    loss = k3(logprobs, torch.tensor([-1.0 + LN2, -1.0 - LN2])).sum()
    (gradient,) = torch.autograd.grad(loss, logprobs)
    assert gradient.tolist() == pytest.approx([1 - 2.0, 1 - 0.5])


def test_k3_estimates_the_reverse_kl_and_its_gradient_is_that_of_the_forward_kl() -> None:
    scores = torch.tensor([0.3, -0.2, 0.7, 0.0], dtype=torch.double, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.0, 0.4, 0.1, -0.5], dtype=torch.double), -1)
    policy = torch.log_softmax(scores, -1)
    probabilities = policy.exp().detach()

    mean_k3 = (probabilities * k3(policy, reference)).sum()  # sampled from the policy, exactly
    reverse = (policy.exp() * (policy - reference)).sum()
    assert mean_k3.item() == pytest.approx(reverse.item())

    forward = (reference.exp() * (reference - policy)).sum()
    (of_k3,) = torch.autograd.grad(mean_k3, scores, retain_graph=True)
    (of_forward,) = torch.autograd.grad(forward, scores, retain_graph=True)
    (of_reverse,) = torch.autograd.grad(reverse, scores)
    assert torch.allclose(of_k3, of_forward)
    assert not torch.allclose(of_k3, of_reverse, rtol=1e-2)


def test_the_estimators_against_the_kl_of_two_distributions_counted_out() -> None:
    logits = torch.tensor([0.3, -0.8, 1.1], dtype=torch.float64, requires_grad=True)
    policy = torch.log_softmax(logits, -1)
    reference = torch.log_softmax(torch.tensor([0.2, -0.5, 0.9], dtype=torch.float64), -1)
    kl = (policy.exp() * (policy - reference)).sum()
    forward = (reference.exp() * (reference - policy)).sum()

    def mean(values: torch.Tensor) -> torch.Tensor:
        """Under the policy; its sampling carries no gradient."""
        return (policy.exp().detach() * values).sum()

    def gradient(value: torch.Tensor) -> list[float]:
        (found,) = torch.autograd.grad(value, logits, retain_graph=True)
        return [float(g) for g in found]

    for estimator in (k1, k3):
        assert mean(estimator(policy, reference)).item() == pytest.approx(kl.item(), rel=1e-12)
    assert mean(k2(policy, reference)).item() == pytest.approx(kl.item(), rel=0.15)
    assert gradient(mean(k1(policy, reference))) == pytest.approx([0.0] * 3, abs=1e-12)
    assert gradient(mean(k2(policy, reference))) == pytest.approx(gradient(kl), rel=1e-9)
    assert gradient(mean(k3(policy, reference))) == pytest.approx(gradient(forward), rel=1e-9)
