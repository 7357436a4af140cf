"""The gradient of a bundle, against a plain computation with all the logits of each turn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fieldkit.errors import BadInput, Shortage
from fieldkit.records import RolloutGroup
from fieldkit.training.adapter import adapter_sha, read_adapter
from fieldkit.training.snapshot import LoraReferenceSnapshot
from tests.trainer.conftest import PROMPT, VOCABULARY, make_adapter, make_group
from tests.trainer.footprint.test_step_bytes import saved_bytes
from trainer.batch import collect
from trainer.gradient import Own, accumulate_gradient, check_ids, reference_logprobs
from trainer.passes import take_passes
from trainer.progress import Lines
from trainer.scoring.micro_batch import micro_batches, tensors
from trainer.scoring.policy import Policy, load_policy
from trainer.settings import TrainerSettings

Gradient = dict[str, torch.Tensor]
SETTINGS = TrainerSettings(temperature=0.8, kl_coef=0.3)


def load(model: Path, adapter: Path, checkpointing: bool = False) -> Policy:
    return load_policy(
        model, read_adapter(adapter), torch.float32, gradient_checkpointing=checkpointing
    )


@pytest.fixture
def groups(adapter: Path) -> list[RolloutGroup]:
    rng = random.Random(11)
    sha = adapter_sha(adapter)
    rewards = [(0.0, 1.0, 0.5), (0.4, 0.4), (1.0, 0.1, 0.2, 0.9)]
    return [make_group(rng, sha, f"t{i}", r, 0.8, PROMPT) for i, r in enumerate(rewards)]


def run(
    policy: Policy, reference: Path, groups: Sequence[RolloutGroup], settings: TrainerSettings
) -> tuple[Gradient, dict[str, float]]:
    policy.model.zero_grad()
    batch = collect(groups, settings)
    batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
    quiet = Lines(StringIO())
    snapshot = LoraReferenceSnapshot.from_disk(policy.model, reference)
    references = reference_logprobs(policy, snapshot, batches, settings, quiet)
    figures, _ = accumulate_gradient(policy, batch, batches, references, settings, quiet)
    gradient = {name: p.grad.clone() for name, p in policy.lora().items() if p.grad is not None}
    assert gradient.keys() == policy.lora().keys()
    return gradient, figures


def test_micro_batches_in_parallel_add_up_to_the_same_bits(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    settings = TrainerSettings(temperature=0.8, kl_coef=0.3, tokens_per_microbatch=25)
    segments = collect(groups, settings).segments
    assert len(micro_batches(segments, settings, shared=True)) > 4
    policy = load(tiny_model, adapter)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as each of them has
    try:
        policy.at_once = 1
        alone, figures = run(policy, reference, groups, settings)
        for policy.at_once in (2, 4):
            together, same = run(policy, reference, groups, settings)
            assert same == figures
            assert all(torch.equal(alone[name], together[name]) for name in alone)
    finally:
        torch.set_num_threads(threads)


def test_gradients_made_in_parallel_have_no_gaps_as_those_of_a_backward_pass(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    """Several processes add them up as one vector."""
    policy = load_policy(
        tiny_model, read_adapter(adapter), torch.bfloat16, gradient_checkpointing=False
    )
    policy.at_once = 2
    run(policy, reference, groups, replace(SETTINGS, tokens_per_microbatch=25))
    assert all(p.grad.is_contiguous() for p in policy.lora().values() if p.grad is not None)


def naive(
    policy: Policy, reference: Path, groups: Sequence[RolloutGroup], settings: TrainerSettings
) -> tuple[Gradient, float]:
    """L turn by turn: one forward each, all logits, log_softmax, the formula of the design."""
    policy.model.zero_grad()
    snapshot = LoraReferenceSnapshot.from_disk(policy.model, reference)
    n = sum(len(turn.completion_ids) for g in groups for t in g.trajectories for turn in t.turns)

    def score(ids: list[int], prompt: int) -> torch.Tensor:
        logits = policy.model(input_ids=torch.tensor([ids])).logits[0].float()
        all_logprobs = torch.log_softmax(logits / settings.temperature, -1)
        targets = torch.tensor(ids[prompt:])
        return all_logprobs[prompt - 1 : -1].gather(-1, targets[:, None]).squeeze(-1)

    total = 0.0
    for group in groups:
        if len({t.reward for t in group.trajectories}) == 1:
            continue
        for trajectory, advantage in zip(group.trajectories, group.advantages, strict=True):
            for turn in trajectory.turns:
                ids = [*turn.prompt_ids, *turn.completion_ids]
                with snapshot, torch.no_grad():
                    reference_n = score(ids, len(turn.prompt_ids))
                logprobs_n = score(ids, len(turn.prompt_ids))
                ratio = (logprobs_n.detach() - torch.tensor(turn.logprobs)).exp()
                weights = torch.minimum(ratio, torch.tensor(settings.tis_cap))
                d = reference_n - logprobs_n
                kl = (d.exp() - d - 1).sum()
                loss = (-(weights * advantage * logprobs_n).sum() + settings.kl_coef * kl) / n
                torch.autograd.backward(loss)
                total += loss.item()
    gradient = {name: p.grad.clone() for name, p in policy.lora().items() if p.grad is not None}
    return gradient, total


# float32 has 2^-24 = 6e-8 of relative rounding; a few hundred additions in another order make 1e-5.
SAME_UP_TO_ROUNDING = 2e-5


def assert_equal(a: Gradient, b: Gradient) -> None:
    for name in a:
        assert (a[name] - b[name]).norm() <= SAME_UP_TO_ROUNDING * b[name].norm(), name


def test_loss_and_gradient_equal_the_plain_computation(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    policy = load(tiny_model, adapter)
    gradient, figures = run(policy, reference, groups, SETTINGS)
    plain_gradient, plain_loss = naive(policy, reference, groups, SETTINGS)
    assert figures["loss"] == pytest.approx(plain_loss, rel=1e-4)
    assert any(g.abs().max() > 1e-3 for g in gradient.values())
    assert_equal(gradient, plain_gradient)


def test_turns_without_an_advantage_have_no_part_in_the_gradient_where_there_is_no_kl(
    tiny_model: Path, adapter: Path, groups: list[RolloutGroup]
) -> None:
    """They are left out then; here they are scored all the same, beside a KL of weight 0."""
    rng = random.Random(5)
    groups = [
        replace(
            g,
            turn_advantages=tuple(
                tuple(rng.choice((0.0, a)) for _ in t.turns)
                for t, a in zip(g.trajectories, g.advantages, strict=True)
            ),
        )
        for g in groups
    ]
    policy, quiet = load(tiny_model, adapter), Lines(StringIO())
    without = replace(SETTINGS, kl_coef=0.0)
    found = []
    for cut_by in (SETTINGS, without):
        policy.model.zero_grad()
        batch = collect(groups, cut_by)
        batches = micro_batches(batch.segments, without, shared=policy.shares_rows)
        figures, _ = accumulate_gradient(policy, batch, batches, None, without, quiet)
        assert "kl" not in figures
        gradient = {n: p.grad.clone() for n, p in policy.lora().items() if p.grad is not None}
        found.append((batch, figures, gradient))
    (all_of_it, figures, gradient), (part, same_figures, same_gradient) = found
    assert part.n_scored < all_of_it.n_scored
    assert figures["loss"] == pytest.approx(same_figures["loss"], rel=1e-5)
    assert_equal(gradient, same_gradient)


def test_micro_batches_sum_to_one_big_batch(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    policy = load(tiny_model, adapter)
    whole, figures = run(policy, reference, groups, SETTINGS)
    one_by_one = TrainerSettings(temperature=0.8, kl_coef=0.3, tokens_per_microbatch=1)
    parts, same_figures = run(policy, reference, groups, one_by_one)
    assert_equal(whole, parts)
    assert figures["loss"] == pytest.approx(same_figures["loss"], rel=1e-5)
    assert figures["kl"] == pytest.approx(same_figures["kl"], rel=1e-5)
    assert figures["clipped_share"] == same_figures["clipped_share"]


def test_checkpointing_changes_memory_and_not_the_gradient(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    plain, _ = run(load(tiny_model, adapter), reference, groups, SETTINGS)
    recomputed, _ = run(load(tiny_model, adapter, True), reference, groups, SETTINGS)
    assert_equal(plain, recomputed)
    segments = collect(groups, SETTINGS).segments

    def held(policy: Policy) -> int:
        micro = tensors(segments, policy.device, shared=policy.shares_rows)
        return saved_bytes(policy, lambda: policy.logprobs(micro, 1.0))

    assert held(load(tiny_model, adapter, True)) < held(load(tiny_model, adapter)) / 2


def test_dropout_is_off_in_train_mode(tiny_model: Path, adapter: Path) -> None:
    # The model's config and the adapter's both ask for 0.5.
    policy = load(tiny_model, adapter)
    assert policy.model.training
    segments = collect([make_group(random.Random(0), "a")], SETTINGS).segments
    micro = tensors(segments, policy.device, shared=True)
    first, _ = policy.logprobs(micro, 1.0)
    second, _ = policy.logprobs(micro, 1.0)
    assert torch.equal(first, second)


def test_dropout_that_is_a_number_of_a_layer_or_of_the_config_is_off_too(tmp_path: Path) -> None:
    """OPT keeps its own as numbers and leaves out whole layers by chance; others read the config in
    each forward pass."""
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        dropout=0.5,
        attention_dropout=0.5,
        layerdrop=0.5,
    )
    OPTForCausalLM(config).save_pretrained(tmp_path / "model")  # type: ignore[no-untyped-call]
    policy = load(
        tmp_path / "model", make_adapter(tmp_path / "model", tmp_path / "adapter", seed=1)
    )
    segments = collect([make_group(random.Random(0), "a")], SETTINGS).segments
    micro = tensors(segments, policy.device, shared=policy.shares_rows)
    first, *others = (policy.logprobs(micro, 1.0)[0] for _ in range(4))
    assert policy.model.training
    assert all(torch.equal(first, other) for other in others)
    own: Any = policy.model.config
    assert own.dropout == own.attention_dropout == own.layerdrop == 0.0


@pytest.mark.parametrize("shared", [True, False])
def test_neither_neighbours_nor_padding_reach_a_trained_token(
    tiny_model: Path, adapter: Path, groups: list[RolloutGroup], shared: bool
) -> None:
    policy = load(tiny_model, adapter)
    segments = collect(groups, SETTINGS).segments
    with torch.no_grad():
        together, _ = policy.logprobs(tensors(segments, policy.device, shared=shared), 1.0)
        each = [tensors([s], policy.device, shared=False) for s in segments]
        alone = [policy.logprobs(one, 1.0)[0] for one in each]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)


def test_the_reference_pass_leaves_the_policy_as_it_was(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    policy = load(tiny_model, adapter)
    run(policy, reference, groups, SETTINGS)
    saved = load_file(adapter / "adapter_model.safetensors")
    assert all(torch.equal(p, saved[name]) for name, p in policy.lora().items())


def test_a_reference_equal_to_the_policy_has_no_kl(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    _, figures = run(load(tiny_model, adapter), adapter, groups, SETTINGS)
    assert figures["kl"] == pytest.approx(0.0, abs=1e-9)
    _, apart = run(load(tiny_model, adapter), reference, groups, SETTINGS)
    assert apart["kl"] > 0.01
    assert apart["policy_loss"] == figures["policy_loss"], "it does not depend on the reference"


@pytest.mark.parametrize("kl", [{}, {"kl_estimator": "k1", "kl_in": "reward"}])
def test_the_policy_is_its_own_reference_without_a_pass(
    kl: dict[str, Any], tiny_model: Path, adapter: Path, groups: list[RolloutGroup]
) -> None:
    """Before the first optimizer step, and for every pass after it."""
    settings, quiet = replace(SETTINGS, passes=2, **kl), Lines(StringIO())
    batch = collect(groups, settings)

    def moved(policy: Policy, *, own: bool) -> tuple[Gradient, dict[str, float]]:
        batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
        snapshot = LoraReferenceSnapshot.from_disk(policy.model, adapter)
        references = reference_logprobs(policy, snapshot, batches, settings, quiet)
        optimizer = torch.optim.SGD(policy.lora().values(), lr=1.0)
        figures = take_passes(
            policy, optimizer, batch, batches, Own() if own else references, settings, quiet, "step"
        )
        return {name: p.detach().clone() for name, p in policy.lora().items()}, figures

    passed, figures = moved(load(tiny_model, adapter), own=False)
    spared, same = moved(load(tiny_model, adapter), own=True)
    assert same == figures
    assert same["kl"] == 0
    assert all(torch.equal(value, spared[name]) for name, value in passed.items())


def test_the_sampler_difference_is_measured_against_the_bundle(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup]
) -> None:
    policy = load(tiny_model, adapter)
    _, figures = run(policy, reference, groups, SETTINGS)
    segments = collect(groups, SETTINGS).segments
    with torch.no_grad():
        micro = tensors(segments, policy.device, shared=policy.shares_rows)
        logprobs, _ = policy.logprobs(micro, SETTINGS.temperature)
    sampler = torch.tensor([lp for s in segments for lp in s.sampler_logprobs])
    difference = logprobs - sampler
    assert figures["sampler_mean_abs"] == pytest.approx(difference.abs().mean().item(), rel=1e-4)
    assert figures["sampler_max_abs"] == pytest.approx(difference.abs().max().item(), rel=1e-4)
    cut = (difference.exp() > SETTINGS.tis_cap).float().mean().item()
    assert figures["clipped_share"] == pytest.approx(cut)
    assert 0 < cut < 1


def test_in_a_later_pass_the_kl_in_the_reward_is_that_of_the_policy_before_the_first(
    tiny_model: Path, adapter: Path, groups: list[RolloutGroup]
) -> None:
    """Before the first pass each token had −1, under the reference −1.5: k1 is 0.5, and β 0.3 takes
    0.15 of every advantage, whatever the policy says now."""
    settings = TrainerSettings(kl_coef=0.3, kl_estimator="k1", kl_in="reward")
    policy, batch = load(tiny_model, adapter), collect(groups, settings)
    batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
    old = [torch.full((sum(s.n_trained for s in b),), -1.0) for b in batches]
    references = [o - 0.5 for o in old]
    quiet = Lines(StringIO())
    figures, now = accumulate_gradient(policy, batch, batches, references, settings, quiet, old)
    segments = [s for b in batches for s in b]
    sampler_n = torch.tensor([lp for s in segments for lp in s.sampler_logprobs])
    advantages_n = torch.tensor([a for s in segments for a in s.advantages])
    weights_n = (torch.cat(now) - sampler_n).exp().clamp(max=settings.tis_cap)
    losses_n = -weights_n * (advantages_n - 0.15) * torch.cat(now)
    assert figures["policy_loss"] == pytest.approx(losses_n.sum().item() / batch.total, rel=1e-4)


def test_a_logprob_that_is_not_finite_names_task_turn_and_token(
    tiny_model: Path, adapter: Path, reference: Path, groups: list[RolloutGroup], tmp_path: Path
) -> None:
    # Finite weights that overflow inside the model: no check of the file can see it.
    tensors = load_file(adapter / "adapter_model.safetensors")
    huge = {name: torch.full_like(t, 1e30) for name, t in tensors.items()}
    (tmp_path / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    save_file(huge, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BadInput, match=r"task t\d k=\d turn 0 token 0: .* under the policy is nan"):
        run(load(tiny_model, tmp_path), reference, groups, SETTINGS)
    with pytest.raises(BadInput, match="under the reference adapter is nan"):
        run(load(tiny_model, adapter), tmp_path, groups, SETTINGS)


def test_an_id_that_the_model_does_not_know_is_named(tiny_model: Path, adapter: Path) -> None:
    policy = load(tiny_model, adapter)
    assert policy.vocabulary == VOCABULARY
    segment = collect([make_group(random.Random(0), "a")], SETTINGS).segments[0]
    strange = replace(segment, ids=(*segment.ids, VOCABULARY))
    with pytest.raises(BadInput, match=f"task t0 k=0: token id {VOCABULARY}"):
        check_ids(policy, [strange])


@pytest.mark.parametrize(
    ("checkpointing", "of", "remedy"),
    [
        (False, 2, r"set .*microbatch = \d+, or set trainer.gradient_checkpointing = true"),
        (True, 2, r"set trainer.tokens_per_microbatch = \d+"),
        (False, 1, "set trainer.gradient_checkpointing = true"),
        (True, 1, "take fewer rollout.max_turns in a new run"),
    ],
)
def test_a_micro_batch_that_does_not_fit_the_gpu_names_what_is_not_set_yet(
    tiny_model: Path,
    adapter: Path,
    groups: list[RolloutGroup],
    monkeypatch: pytest.MonkeyPatch,
    checkpointing: bool,
    of: int,
    remedy: str,
) -> None:
    policy, quiet = load(tiny_model, adapter, checkpointing), Lines(StringIO())

    def full(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(policy, "logprobs", full)
    batch = collect(groups, SETTINGS)
    with pytest.raises(Shortage, match=f"of {of} segments, .* does not fit the GPU; {remedy}$"):
        accumulate_gradient(policy, batch, [batch.segments[:of]], None, SETTINGS, quiet)
