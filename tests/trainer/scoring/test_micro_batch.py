"""Micro-batches hold every segment once, within the budget; what a task's episodes share is there
once, and nothing of the result changes by it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fieldkit.peft_models import VOCABULARY, peft_model
from tests.trainer.conftest import make_group
from trainer.batch import Segment, Span, collect
from trainer.scoring.micro_batch import Micro, micro_batches, tensors, tokens
from trainer.scoring.policy import Policy
from trainer.scoring.shared_prefix import Family, can_share, register
from trainer.settings import TrainerSettings

SETTINGS = TrainerSettings()
CPU = torch.device("cpu")


def segment(task: str, k: int, ids: tuple[int, ...], start: int) -> Segment:
    """A segment whose ids are sampled from `start` on."""
    n = len(ids) - start
    advantages = tuple(0.1 * (k + i + 1) for i in range(n))
    return Segment(task, k, ids, (Span(0, start, n),), (-1.0,) * n, advantages, (1.0,) * n)


def task(name: str, prompt: int, replies: tuple[int, ...], seed: int = 0) -> list[Segment]:
    """Segments with one prompt of `prompt` ids, and replies of these lengths."""
    drawn = random.Random(f"{name}{seed}")
    ids = tuple(drawn.randrange(VOCABULARY) for _ in range(prompt))
    return [
        segment(name, k, (*ids, *(drawn.randrange(VOCABULARY) for _ in range(n))), prompt)
        for k, n in enumerate(replies)
    ]


def found() -> tuple[Segment, ...]:
    groups = [make_group(random.Random(i), "a", f"t{i}", (0.0, 1.0, 0.5, 0.2)) for i in range(6)]
    return collect(groups, SETTINGS).segments


# --- which segments go together -------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_every_segment_is_there_once_and_the_budget_is_kept(shared: bool) -> None:
    segments = found()
    budget = 3 * max(s.n_inputs for s in segments)
    settings = TrainerSettings(tokens_per_microbatch=budget)
    batches = micro_batches(segments, settings, shared=shared)
    assert len(batches) > 1
    in_batches = [(s.task_id, s.k, s.spans) for b in batches for s in b]
    assert sorted(in_batches) == sorted((s.task_id, s.k, s.spans) for s in segments)
    assert all(tokens(b, shared) <= budget for b in batches)


@pytest.mark.parametrize("shared", [True, False])
def test_the_longest_segment_comes_first(shared: bool) -> None:
    segments = found()
    first = micro_batches(segments, TrainerSettings(tokens_per_microbatch=1), shared=shared)[0]
    assert first[0].n_inputs == max(s.n_inputs for s in segments)


def test_a_segment_longer_than_the_budget_is_a_micro_batch_of_one() -> None:
    segments = task("a", 4, (3,)) + task("b", 5, (2,))
    batches = micro_batches(segments, TrainerSettings(tokens_per_microbatch=1), shared=True)
    assert [len(b) for b in batches] == [1, 1]


def names(batches: Iterable[Micro]) -> list[tuple[str, ...]]:
    return [tuple(f"{s.task_id}{s.k}" for s in batch) for batch in batches]


def test_a_task_is_split_only_where_it_does_not_fit_by_itself() -> None:
    segments = task("a", 10, (5, 5)) + task("b", 10, (5, 5)) + task("c", 10, (4, 4, 4, 4))
    settings = TrainerSettings(tokens_per_microbatch=19)
    batches = micro_batches(segments, settings, shared=True)
    assert names(batches) == [("c0", "c1", "c2"), ("a0", "a1"), ("b0", "b1"), ("c3",)]


def test_what_a_task_leaves_free_goes_to_others() -> None:
    segments = task("a", 10, (5, 5, 5, 5)) + task("b", 3, (4, 4)) + task("c", 2, (1,))
    settings = TrainerSettings(tokens_per_microbatch=24)
    batches = micro_batches(segments, settings, shared=True)
    assert names(batches) == [("a0", "a1", "a2", "c0"), ("a3", "b0", "b1")]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.integers(1, 9), min_size=1, max_size=6)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 40),
)
def test_no_two_micro_batches_would_fit_into_one(
    shapes: list[tuple[int, list[int]]], budget: int
) -> None:
    found = [
        s
        for i, (prompt, replies) in enumerate(shapes)
        for s in task(f"t{i}", prompt + 1, (*replies,))
    ]
    settings = TrainerSettings(tokens_per_microbatch=budget)
    for shared in (True, False):
        batches = micro_batches(found, settings, shared=shared)
        together = [tokens([*a, *b], shared) for a, b in combinations(batches, 2)]
        assert all(n > budget for n in together)


def test_a_segment_may_be_as_long_as_the_context_of_a_large_model() -> None:
    """Whether it fits is the memory's to say, and no number's (`trainer.budget`)."""
    ((long,),) = micro_batches(task("a", 130_000, (1_000,)), SETTINGS, shared=True)
    assert long.n_inputs == 130_999


# --- what is shared -------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=5))
def test_a_family_shares_the_longest_beginning_that_all_have(rows: list[list[int]]) -> None:
    family = Family.of(0, [tuple(row) for row in rows])
    by_hand = 0
    while len(rows) > 1 and len({tuple(r[: by_hand + 1]) for r in rows}) == 1:
        if by_hand == min(map(len, rows)):
            break
        by_hand += 1
    assert family.shared == by_hand
    assert family.own == tuple(len(row) - by_hand for row in rows)


def test_a_prompt_is_in_the_row_once() -> None:
    segments = task("a", 20, (3, 4, 5)) + task("b", 7, (2, 2))
    micro = tensors(segments, CPU, shared=True)
    inputs = 20 + (2 + 3 + 4) + 7 + (1 + 1)  # the last id of each only comes out
    assert micro.ids_BS.shape == (1, inputs)
    assert tokens(segments, shared=True) == inputs
    assert tokens(segments, shared=False) == 5 * 24
    of_a = micro.positions_BS[0, :20].tolist(), micro.positions_BS[0, 20:22].tolist()
    assert of_a == (list(range(20)), [20, 21])


@pytest.mark.parametrize("shared", [True, False])
def test_each_trained_token_is_predicted_from_the_id_before_it(shared: bool) -> None:
    segments = task("a", 20, (3, 4, 5)) + task("b", 7, (2, 2))
    micro = tensors(segments, CPU, shared=shared)
    before = micro.ids_BS[micro.rows_n, micro.columns_n].tolist()
    places = micro.positions_BS[micro.rows_n, micro.columns_n].tolist()
    sampled = [(s, p) for s in segments for p in range(s.spans[0].start, len(s.ids))]
    assert before == [s.ids[p - 1] for s, p in sampled]
    assert places == [p - 1 for _, p in sampled]
    assert micro.targets_n.tolist() == [s.ids[p] for s, p in sampled]


# --- and nothing changes --------------------------------------------------------------------------

SHARING = ("llama", "qwen2", "qwen3", "moe")


@pytest.mark.parametrize("architecture", SHARING)
def test_logprobs_and_gradients_are_those_of_each_segment_by_itself(architecture: str) -> None:
    # The second task's segments are one another's beginning, and one is there twice.
    ids = task("b", 9, (8,))[0].ids
    nested = [segment("b", k, ids[:n], 9) for k, n in enumerate((12, 17, 17))]
    segments = task("a", 11, (3, 6, 4)) + nested + task("c", 5, (7,))
    register()
    policy = Policy(peft_model(architecture), CPU, shares_prompts=True)
    policy.model.train()
    with policy.attention("sdpa"):
        alone, gradient = scored(policy, [[s] for s in segments], shared=False)
    together, same_gradient = scored(policy, [segments], shared=True)
    assert torch.allclose(alone, together, atol=1e-5)
    assert (gradient - same_gradient).norm() <= 1e-5 * gradient.norm()
    assert gradient.norm() > 1e-3


def scored(
    policy: Policy, batches: list[list[Segment]], shared: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of all trained tokens, and the gradient of their sum weighted by advantage."""
    policy.model.zero_grad()
    found = []
    for segments in batches:
        micro = tensors(segments, CPU, shared=shared)
        logprobs, _ = policy.logprobs(micro, 1.0)
        (logprobs * micro.advantages_n).sum().backward()  # type: ignore[no-untyped-call]
        found.append(logprobs.detach())
    gradients = [p.grad for p in policy.lora().values()]
    return torch.cat(found), torch.cat([g.flatten() for g in gradients if g is not None])


def test_rows_are_shared_only_where_every_layer_sees_the_whole_context(tmp_path: Path) -> None:
    def shares(text: str) -> bool:
        (tmp_path / "config.json").write_text(text)
        return can_share(tmp_path)

    assert shares('{"model_type": "llama"}')
    assert shares('{"model_type": "mistral", "sliding_window": null}')
    assert shares('{"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": false}')
    assert not shares('{"model_type": "mistral", "sliding_window": 4096}')
    assert not shares('{"model_type": "qwen2", "layer_types": ["sliding_attention"]}')
    assert not shares('{"model_type": "gpt2"}')
