"""The optimizer's steps over one bundle, against a loop that is written out."""

from __future__ import annotations

import random
from io import StringIO
from pathlib import Path

import pytest
import torch

from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup
from fieldkit.training import objectives
from fieldkit.training.adapter import adapter_sha, read_adapter
from fieldkit.training.losses import importance_weights, k3
from fieldkit.training.snapshot import LoraReferenceSnapshot
from tests.trainer.conftest import make_group
from trainer.batch import TrainingBatch, collect
from trainer.gradient import reference_logprobs
from trainer.passes import take_passes
from trainer.progress import JsonLines, Lines
from trainer.scoring.micro_batch import Micro, micro_batches, tensors
from trainer.scoring.policy import Policy, load_policy
from trainer.settings import TrainerSettings

QUIET = Lines(StringIO())


@pytest.fixture
def groups(adapter: Path) -> list[RolloutGroup]:
    rng, sha = random.Random(11), adapter_sha(adapter)
    rewards = [(0.0, 1.0, 0.5), (0.4, 0.4), (1.0, 0.1, 0.2, 0.9)]
    return [make_group(rng, sha, f"t{i}", r) for i, r in enumerate(rewards)]


class Prepared:
    """A policy, its optimizer and a bundle with its reference logprobs."""

    def __init__(
        self,
        model: Path,
        adapter: Path,
        reference: Path,
        groups: list[RolloutGroup],
        settings: TrainerSettings,
    ) -> None:
        info = read_adapter(adapter)
        self.settings = settings
        self.policy: Policy = load_policy(model, info, torch.float32, gradient_checkpointing=False)
        self.optimizer = torch.optim.AdamW(
            self.policy.lora().values(), lr=settings.lr, weight_decay=0.0, foreach=False
        )
        self.batch: TrainingBatch = collect(groups, settings)
        self.batches: tuple[Micro, ...] = micro_batches(
            self.batch.segments, settings, shared=self.policy.shares_rows
        )
        snapshot = LoraReferenceSnapshot.from_disk(self.policy.model, reference)
        self.references: list[torch.Tensor] | None = reference_logprobs(
            self.policy, snapshot, self.batches, settings, QUIET
        )

    def take_passes(self, progress: Lines | JsonLines = QUIET) -> dict[str, float]:
        return take_passes(
            self.policy,
            self.optimizer,
            self.batch,
            self.batches,
            self.references,
            self.settings,
            progress,
            "step 3",
        )

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: p.detach() for name, p in self.policy.lora().items()}


def test_one_pass_of_the_default_is_the_published_loss_to_the_last_bit(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    """−Σ w·A·lp / N + β·Σ k3 / N, one gradient, one clip, one step: what runs have always had."""
    settings = TrainerSettings(lr=1e-2, kl_coef=0.3, tokens_per_microbatch=60)
    files = (tiny_model, adapter, reference, groups)
    ours, plain = Prepared(*files, settings), Prepared(*files, settings)
    ours.policy.at_once = 1  # several have a thread each, which rounds otherwise
    figures = ours.take_passes()

    assert len(plain.batches) > 2
    assert plain.references is not None
    n = plain.batch.n_tokens
    for segments, reference_n in zip(plain.batches, plain.references, strict=True):
        micro = tensors(segments, plain.policy.device, shared=plain.policy.shares_rows)
        logprobs_n, _ = plain.policy.logprobs(micro, 1.0)
        weights_n, _ = importance_weights(logprobs_n, micro.sampler_logprobs_n, settings.tis_cap)
        loss = -(weights_n * micro.advantages_n * logprobs_n).sum() / n
        loss = loss + settings.kl_coef * (k3(logprobs_n, reference_n).sum() / n)
        torch.autograd.backward(loss)
    norm = torch.nn.utils.clip_grad_norm_(plain.policy.lora().values(), settings.clip_norm)
    plain.optimizer.step()

    assert figures["grad_norm"] == norm.item()
    wanted = plain.weights()
    assert all(torch.equal(found, wanted[name]) for name, found in ours.weights().items())


def test_the_ratios_of_every_pass_are_to_the_policy_before_the_first(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    settings = TrainerSettings(
        objective="dapo", lr=1e-2, kl_coef=0.0, passes=3, tokens_per_microbatch=10_000
    )
    files = (tiny_model, adapter, reference, groups)
    ours, plain = Prepared(*files, settings), Prepared(*files, settings)
    figures = ours.take_passes()

    (segments,) = plain.batches
    micro = tensors(segments, plain.policy.device, shared=plain.policy.shares_rows)
    old_n = plain.policy.logprobs(micro, 1.0)[0].detach()
    weights_n, _ = importance_weights(old_n, micro.sampler_logprobs_n, settings.tis_cap)
    held = []
    for _ in range(3):
        plain.optimizer.zero_grad()
        logprobs_n, _ = plain.policy.logprobs(micro, 1.0)
        losses_n, held_n = objectives.dapo(logprobs_n, old_n, micro.advantages_n)
        torch.autograd.backward((losses_n * weights_n).sum() / plain.batch.n_tokens)
        torch.nn.utils.clip_grad_norm_(plain.policy.lora().values(), settings.clip_norm)
        plain.optimizer.step()
        held.append(held_n.float().mean().item())

    wanted = plain.weights()
    assert all(torch.allclose(w, wanted[name], atol=1e-6) for name, w in ours.weights().items())
    assert held[0] == 0 < held[1] < held[2]
    assert figures["ratio_clipped_share"] == pytest.approx(held[2])


def test_the_figures_are_those_of_the_policy_that_sampled(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    files = (tiny_model, adapter, reference, groups)
    once, twice = (
        Prepared(*files, TrainerSettings(lr=1e-2, passes=n)).take_passes() for n in (1, 2)
    )
    assert once == twice
    assert "ratio_clipped_share" not in once


FIGURES = (
    *("loss", "policy_loss", "kl_loss", "kl", "clipped_share", "mean_weight"),
    *("sampler_mean_abs", "sampler_max_abs", "entropy", "grad_norm", "ratio_clipped_share"),
)
"""In train.json, in this order."""


@pytest.mark.parametrize(
    ("objective", "has_reference", "without"),
    [
        ("grpo", True, ()),
        ("reinforce", True, ("ratio_clipped_share",)),
        ("masked", True, ("clipped_share", "mean_weight")),
        ("grpo", False, ("kl",)),
    ],
)
def test_a_step_has_the_figures_that_its_settings_give_a_meaning(
    objective: str,
    has_reference: bool,
    without: tuple[str, ...],
    tiny_model: Path,
    adapter: Path,
    reference: Path,
    groups: list[RolloutGroup],
) -> None:
    settings = TrainerSettings(objective=objective)
    prepared = Prepared(tiny_model, adapter, reference, groups, settings)
    if not has_reference:
        prepared.references = None
    assert list(prepared.take_passes()) == [name for name in FIGURES if name not in without]


def test_the_log_names_a_task_once_and_every_pass(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    out = StringIO()
    Prepared(tiny_model, adapter, reference, groups, TrainerSettings(passes=3)).take_passes(
        Lines(out)
    )
    lines = out.getvalue().splitlines()
    assert sum(line.startswith("[trainer] task t0:") for line in lines) == 1
    assert sum(line.startswith("[trainer] policy 1/1:") for line in lines) == 1
    assert sum(line.startswith("[trainer] policy again 1/1:") for line in lines) == 2


def test_a_gradient_that_is_not_finite_names_step_and_pass(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    prepared = Prepared(tiny_model, adapter, reference, groups, TrainerSettings(kl_coef=1.0))
    assert prepared.references is not None
    prepared.references = [torch.full_like(r, 1e4) for r in prepared.references]  # exp overflows
    with pytest.raises(BadInput, match=r"step 3: the gradient's norm is (nan|inf) in pass 1"):
        prepared.take_passes()
