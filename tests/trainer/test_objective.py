"""Objectives in the trainer: how a run chooses one, and what it does to a bundle's gradient."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file

from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup
from fieldkit.settings import settings_lines
from fieldkit.training.adapter import adapter_sha, read_adapter
from fieldkit.training.objectives import Normalisation, TokenLosses
from fieldkit.training.snapshot import LoraReferenceSnapshot
from tests.trainer.conftest import make_group
from trainer.batch import TrainingBatch, collect
from trainer.gradient import accumulate_gradient, reference_logprobs
from trainer.inputs import StepInputs
from trainer.objective import OBJECTIVES, Band, ObjectiveKind, Tokens
from trainer.passes import take_passes
from trainer.progress import Lines
from trainer.scoring.micro_batch import micro_batches, tensors
from trainer.scoring.policy import Policy, load_policy
from trainer.settings import TrainerSettings
from trainer.step import train

Gradient = dict[str, torch.Tensor]

SAME_UP_TO_ROUNDING = 2e-5  # float32, a few hundred additions in another order


@pytest.fixture
def policy(tiny_model: Path, adapter: Path) -> Policy:
    return load_policy(
        tiny_model, read_adapter(adapter), torch.float32, gradient_checkpointing=False
    )


@pytest.fixture
def groups(adapter: Path) -> list[RolloutGroup]:
    rng, sha = random.Random(11), adapter_sha(adapter)
    rewards = [(0.0, 1.0, 0.5), (0.4, 0.4), (1.0, 0.1, 0.2, 0.9)]
    return [make_group(rng, sha, f"t{i}", r) for i, r in enumerate(rewards)]


def sampled_by(policy: Policy, batch: TrainingBatch) -> TrainingBatch:
    """The batch with the policy's own logprobs for the sampler's, as without any rounding."""
    with torch.no_grad():
        each = [tensors([s], policy.device, shared=True) for s in batch.segments]
        own = [policy.logprobs(alone, 1.0)[0] for alone in each]
    pairs = zip(batch.segments, own, strict=True)
    return replace(
        batch, segments=tuple(replace(s, sampler_logprobs=tuple(lp.tolist())) for s, lp in pairs)
    )


def gradient(
    policy: Policy, reference: Path, batch: TrainingBatch, settings: TrainerSettings
) -> tuple[Gradient, dict[str, float]]:
    policy.model.zero_grad()
    batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
    quiet = Lines(StringIO())
    snapshot = LoraReferenceSnapshot.from_disk(policy.model, reference)
    references = reference_logprobs(policy, snapshot, batches, settings, quiet)
    figures, _ = accumulate_gradient(policy, batch, batches, references, settings, quiet)
    return {
        name: p.grad.clone() for name, p in policy.lora().items() if p.grad is not None
    }, figures


def assert_equal(a: Gradient, b: Gradient) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert (a[name] - b[name]).norm() <= SAME_UP_TO_ROUNDING * b[name].norm(), name


def after_two_passes(
    model: Path, adapter: Path, reference: Path, groups: Sequence[RolloutGroup], **said: Any
) -> tuple[Gradient, dict[str, float]]:
    """How far two passes of SGD have moved each tensor, and their figures."""
    settings = TrainerSettings(passes=2, optimizer="sgd", lr=3.0, kl_coef=0.3, **said)
    policy = load_policy(model, read_adapter(adapter), torch.float32, gradient_checkpointing=False)
    before = {name: p.detach().clone() for name, p in policy.lora().items()}
    batch = collect(groups, settings)
    batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
    quiet = Lines(StringIO())
    snapshot = LoraReferenceSnapshot.from_disk(policy.model, reference)
    references = reference_logprobs(policy, snapshot, batches, settings, quiet)
    sgd = torch.optim.SGD(policy.lora().values(), lr=settings.lr)
    figures = take_passes(policy, sgd, batch, batches, references, settings, quiet, "step 1")
    return {name: p.detach() - before[name] for name, p in policy.lora().items()}, figures


@pytest.mark.parametrize(("kl_in", "kl_estimator"), [("loss", "k3"), ("reward", "k1")])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_how_a_bundle_is_cut_changes_nothing(
    objective: str,
    kl_in: str,
    kl_estimator: str,
    tiny_model: Path,
    adapter: Path,
    reference: Path,
    groups: list[RolloutGroup],
) -> None:
    """Two passes, so that ratios of the second are far from 1 and some tokens are held back."""
    said: dict[str, Any] = {"objective": objective, "kl_in": kl_in, "kl_estimator": kl_estimator}
    files = (tiny_model, adapter, reference, groups)
    whole, figures = after_two_passes(*files, **said)
    parts, same = after_two_passes(*files, tokens_per_microbatch=1, **said)
    assert_equal(whole, parts)
    assert figures == pytest.approx(same, rel=1e-4)
    if OBJECTIVES[objective].clips and objective != "cispo":  # whose band ends at five times
        assert figures["ratio_clipped_share"] > 0
    if not OBJECTIVES[objective].clips:
        assert "ratio_clipped_share" not in figures


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "dapo", "cispo"])
def test_with_one_pass_and_one_mean_the_token_objectives_have_one_gradient(
    objective: str, policy: Policy, reference: Path, groups: list[RolloutGroup]
) -> None:
    plain = TrainerSettings(kl_coef=0.3)
    named = TrainerSettings(objective=objective, normalisation="token", kl_coef=0.3)
    batch = collect(groups, plain)
    found, figures = gradient(policy, reference, collect(groups, named), named)
    expected, _ = gradient(policy, reference, batch, plain)
    assert_equal(found, expected)
    assert figures["ratio_clipped_share"] == 0


@pytest.mark.parametrize("how", get_args(Normalisation))
def test_a_normalisation_counts_turns_and_groups_of_the_whole_bundle(
    how: Normalisation, policy: Policy, reference: Path, groups: list[RolloutGroup]
) -> None:
    settings = TrainerSettings(normalisation=how, kl_coef=0.3)
    batch = collect(groups, settings)
    _, figures = gradient(policy, reference, batch, settings)

    turns = [turn for g in groups for t in g.trajectories for turn in t.turns]
    n_tokens = sum(len(turn.completion_ids) for turn in turns)
    totals = {"token": n_tokens, "sequence": len(turns), "group": 3, "constant": len(turns) * 96}
    of_group = {
        g.task_id: sum(len(turn.completion_ids) for t in g.trajectories for turn in t.turns)
        for g in groups
    }
    expected = 0.0
    with torch.no_grad():
        for segment in batch.segments:
            alone = tensors([segment], policy.device, shared=True)
            logprobs, _ = policy.logprobs(alone, 1.0)
            weights = (logprobs - torch.tensor(segment.sampler_logprobs)).exp().clamp(max=2)
            losses = -(weights * torch.tensor(segment.advantages) * logprobs)
            begin = 0
            for span in segment.spans:
                loss = losses[begin : begin + span.length].sum().item()
                begin += span.length
                counts = {"sequence": span.length, "group": of_group[segment.task_id]}
                expected += loss / counts.get(how, 1)
    assert figures["policy_loss"] == pytest.approx(expected / totals[how], rel=1e-4)


def test_k1_in_the_reward_pulls_as_k2_in_the_loss(
    policy: Policy, reference: Path, groups: list[RolloutGroup]
) -> None:
    rewarded = TrainerSettings(kl_coef=0.5, kl_estimator="k1", kl_in="reward")
    lost = TrainerSettings(kl_coef=0.5, kl_estimator="k2")
    batch = sampled_by(policy, collect(groups, rewarded))
    in_reward, figures = gradient(policy, reference, batch, rewarded)
    in_loss, others = gradient(policy, reference, batch, lost)
    assert_equal(in_reward, in_loss)
    assert figures["kl_loss"] == 0 < others["kl_loss"]
    assert figures["kl"] == pytest.approx(others["kl"])
    without, _ = gradient(policy, reference, batch, replace(lost, kl_coef=0.0))
    assert any((without[n] - in_loss[n]).norm() > 0.1 * in_loss[n].norm() for n in in_loss)


def test_masked_leaves_out_what_sampler_and_trainer_see_too_differently(
    policy: Policy, reference: Path, groups: list[RolloutGroup]
) -> None:
    settings = TrainerSettings(objective="masked")
    batch = sampled_by(policy, collect(groups, settings))
    _, alike = gradient(policy, reference, batch, settings)
    assert alike["ratio_clipped_share"] == 0
    one = batch.segments[0]
    strange = replace(one, sampler_logprobs=(-30.0, *one.sampler_logprobs[1:]))
    odd = replace(batch, segments=(strange, *batch.segments[1:]))
    _, figures = gradient(policy, reference, odd, settings)
    assert figures["ratio_clipped_share"] == pytest.approx(1 / batch.n_scored)
    assert not {"clipped_share", "mean_weight"} & figures.keys(), "no weight of it is capped"
    _, capped = gradient(policy, reference, odd, TrainerSettings())
    assert capped["clipped_share"] == pytest.approx(1 / batch.n_scored)


def test_a_step_whose_objective_caps_no_weight_reports_none(
    bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    def step(objective: str) -> tuple[dict[str, Any], str]:
        settings = TrainerSettings(objective=objective, kl_coef=0.0, dtype="fp32")
        inputs = StepInputs(bundle, adapter, None, tiny_model, None, tmp_path / objective)
        said = StringIO()
        return train(inputs, settings, Lines(said))["train"], said.getvalue()

    capped, masked = step("reinforce"), step("masked")
    assert capped[0].keys() - masked[0].keys() == {"clipped_share", "mean_weight"}
    assert "clipped=" in capped[1]
    assert "clipped=" not in masked[1]


def test_an_objective_brings_its_band_and_its_mean_and_settings_win() -> None:
    gspo = TrainerSettings(objective="gspo")
    assert (gspo.band, gspo.normalised_by) == (Band(3e-4, 4e-4), "sequence")
    said = TrainerSettings(objective="gspo", clip_high=0.0, normalisation="group")
    assert (said.band, said.normalised_by) == (Band(3e-4, 0.0), "group")
    assert TrainerSettings().normalised_by == "token"


def test_a_row_of_gspo_has_the_mean_of_its_tokens_weights() -> None:
    """Two rows, of three tokens and of one; the first has one that the policy gives no longer."""
    old = torch.tensor([-1.0, -1.0, -7.0, -1.0])
    logprobs = old.clone().requires_grad_()
    sampler = torch.tensor([-1.0, -1.0, -1.0, -1.5])
    tokens = Tokens(logprobs, old, sampler, torch.ones(4), torch.tensor([3, 1]), tis_cap=2.0)
    losses_n = OBJECTIVES["gspo"].losses(tokens, Band(0.1, 0.1)).losses_n
    (slopes,) = torch.autograd.grad(losses_n.sum(), logprobs)
    row, other = (2 + math.exp(-6.0)) / 3, math.exp(0.5)
    assert slopes.tolist() == pytest.approx([-row] * 3 + [-other])


@pytest.mark.parametrize("key", ["clip_low", "clip_high"])
def test_a_band_for_an_objective_without_one_is_refused(key: str) -> None:
    said: dict[str, Any] = {key: 0.2}
    with pytest.raises(BadInput, match=rf"trainer\.{key}: objective 'reinforce' clips no ratio"):
        TrainerSettings(**said)


def test_an_objective_is_one_entry_of_the_registry(
    request: pytest.FixtureRequest,
    bundle: Path,
    adapter: Path,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    """From outside the package: settings know it, errors and documentation list it, and a step is
    taken with it."""

    def nothing(tokens: Tokens, band: Band) -> TokenLosses:
        outside = (tokens.logprobs_n - tokens.old_logprobs_n).abs() >= band.high
        return TokenLosses(tokens.logprobs_n * 0.0, outside)

    kind = ObjectiveKind(nothing, "learns nothing", "group", Band(0.0, 0.0))
    OBJECTIVES.register("nothing", kind)
    request.addfinalizer(lambda: OBJECTIVES.remove("nothing"))
    settings = TrainerSettings(objective="nothing", kl_coef=0.0, dtype="fp32")
    inputs = StepInputs(bundle, adapter, None, tiny_model, None, tmp_path / "step")
    figures = train(inputs, settings, Lines(StringIO()))["train"]
    assert figures["policy_loss"] == figures["grad_norm"] == figures["delta_l2"] == 0.0
    assert figures["ratio_clipped_share"] == 1.0
    before, after = (
        load_file(folder / "adapter_model.safetensors")
        for folder in (adapter, tmp_path / "step" / "adapter")
    )
    assert all(torch.equal(before[name], after[name]) for name in before)

    with pytest.raises(BadInput, match=r"'masked', 'nothing', found 'noting'; did you mean 'noth"):
        TrainerSettings(objective="noting")
    page = "\n".join(settings_lines(TrainerSettings))
    assert '- `objective = "nothing"`: learns nothing' in page
