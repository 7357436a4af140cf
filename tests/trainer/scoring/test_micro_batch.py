"""Micro-batches hold every segment once, within the budget; what their segments begin with is there
once, and nothing of the result changes by it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import accumulate, combinations, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.fieldkit.peft_models import VOCABULARY, peft_model
from tests.trainer.conftest import make_group
from trainer.batch import Segment, Span, collect
from trainer.scoring.micro_batch import (
    Micro,
    by_ids,
    micro_batches,
    pieces,
    tensors,
    tokens,
)
from trainer.scoring.policy import Policy
from trainer.scoring.shared_prefix import Row, can_share, register
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


def test_a_task_is_split_only_where_it_does_not_fit_by_itself() -> None:
    segments = task("a", 10, (5, 5)) + task("b", 10, (5, 5)) + task("c", 10, (4, 4, 4, 4))
    settings = TrainerSettings(tokens_per_microbatch=19)
    batches = micro_batches(segments, settings, shared=True)
    assert sorted(len(tasks) for tasks in of_tasks(batches)) == [1, 1, 1, 1]
    assert sum(tokens(b, shared=True) for b in batches) == 2 * (10 + 4 + 4) + 2 * 10 + 4 * 3


def test_what_a_task_leaves_free_goes_to_others() -> None:
    segments = task("a", 10, (5, 5, 5, 5)) + task("b", 3, (4, 4)) + task("c", 2, (1,))
    settings = TrainerSettings(tokens_per_microbatch=24)
    batches = micro_batches(segments, settings, shared=True)
    assert [tokens(b, shared=True) for b in batches] == [24, 23]
    assert {"a"} not in of_tasks(batches)


def of_tasks(batches: Iterable[Micro]) -> list[set[str]]:
    return [{s.task_id for s in batch} for batch in batches]


def test_attempts_that_part_late_go_together() -> None:
    """Of four attempts at a task two begin with the same turn, and so do the other two."""
    prompt = tuple(range(10))
    first, second = (*prompt, *[90] * 20), (*prompt, *[91] * 20)
    segments = [
        segment("a", k, (*turn, 100 + k, 7), 10)
        for k, turn in enumerate((first, second, first, second))
    ]
    settings = TrainerSettings(tokens_per_microbatch=40)
    batches = micro_batches(segments, settings, shared=True)
    assert [[s.k for s in batch] for batch in batches] == [[0, 2], [1, 3]]
    assert [tokens(b, shared=True) for b in batches] == [32, 32]


few_ids = st.lists(st.integers(0, 1), min_size=2, max_size=7)


@given(st.lists(few_ids, min_size=1, max_size=7), st.integers(1, 20))
def test_runs_have_as_few_tokens_as_sorted_segments_can_be_cut_into(
    rows: list[list[int]], most: int
) -> None:
    """By every cut that there is."""
    found = sorted((segment("a", k, (*ids,), 1) for k, ids in enumerate(rows)), key=by_ids)

    def ways(left: list[Segment]) -> Iterable[list[list[Segment]]]:
        if not left:
            yield []
        for n in range(1, len(left) + 1):
            if n == 1 or tokens(left[:n], shared=True) <= most:
                yield from ([left[:n], *rest] for rest in ways(left[n:]))

    def cost(runs: list[list[Segment]]) -> tuple[int, int]:
        return sum(tokens(run, shared=True) for run in runs), len(runs)

    given_back = pieces(found, most, shared=True)
    assert sorted((s for run in given_back for s in run), key=by_ids) == found
    assert cost(given_back) == min(map(cost, ways(found)))


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
    sizes = {id(s): tokens(p, True) for p in pieces(found, budget, shared=True) for s in p[:1]}
    for a, b in combinations(micro_batches(found, settings, shared=True), 2):
        assert sum(sizes.get(id(s), 0) for s in (*a, *b)) > budget  # of the pieces in both
    for a, b in combinations(micro_batches(found, settings, shared=False), 2):
        assert tokens([*a, *b], shared=False) > budget


def test_a_segment_may_be_as_long_as_the_context_of_a_large_model() -> None:
    """Whether it fits is the memory's to say, and no number's (`trainer.footprint`)."""
    ((long,),) = micro_batches(task("a", 130_000, (1_000,)), SETTINGS, shared=True)
    assert long.n_inputs == 130_999


# --- what is shared -------------------------------------------------------------------------------


@given(st.lists(few_ids, min_size=1, max_size=7), st.booleans())
def test_a_row_holds_each_beginning_of_sorted_sequences_once(
    rows: list[list[int]], in_order: bool
) -> None:
    """In another order some are there twice, and each sequence is whole all the same."""
    sequences = sorted(map(tuple, rows)) if in_order else [tuple(ids) for ids in rows]
    row = Row.of(sequences)
    size = sum(row.pieces)
    beginnings = {ids[:n] for ids in sequences for n in range(1, len(ids) + 1)}
    assert size == len(beginnings) if in_order else size >= len(beginnings)
    held: dict[int, int] = {}
    for ids, branch in zip(sequences, row.branches, strict=True):
        held |= zip(branch.columns[branch.shared :], ids[branch.shared :], strict=True)
        assert tuple(held[column] for column in branch.columns) == ids
    assert sorted(held) == list(range(size))


@given(st.lists(few_ids, min_size=1, max_size=7))
def test_each_sequence_is_made_of_whole_pieces(rows: list[list[int]]) -> None:
    row = Row.of([tuple(ids) for ids in rows])
    ends = list(accumulate(row.pieces, initial=0))
    columns = [range(start, end) for start, end in pairwise(ends)]
    for branch in row.branches:
        assert tuple(c for piece in branch.seen for c in columns[piece]) == branch.columns


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

SHARING = ("llama", "qwen2", "qwen3", "moe", "mistral", "gemma3")
"""The last two have sliding windows, shorter than the segments."""


@pytest.mark.parametrize("architecture", SHARING)
def test_logprobs_and_gradients_are_those_of_each_segment_by_itself(architecture: str) -> None:
    # The second task's segments are one another's beginning, and one is there twice. The third's
    # part again and again. The first and the last share no beginning with any other.
    ids = task("b", 9, (8,))[0].ids
    nested = [segment("b", k, ids[:n], 9) for k, n in enumerate((12, 17, 17))]
    bits = random.Random(1)
    tree = [segment("d", k, (5, *bits.choices((0, 1), k=9)), 3) for k in range(6)]
    segments = task("a", 11, (3, 6, 4)) + nested + sorted(tree, key=by_ids) + task("c", 5, (7,))
    row = Row.of([s.ids[:-1] for s in segments])
    assert max(len(b.seen) for b in row.branches) > 3
    register()
    policy = Policy(peft_model(architecture), CPU, shares_rows=True)
    policy.model.train()
    with policy.attention("sdpa"):
        alone, gradient = scored(policy, [[s] for s in segments], shared=False)
    for shared in (True, False):  # in padded rows too, as the canary has them
        together, same_gradient = scored(policy, [segments], shared=shared)
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


def test_rows_are_shared_where_attention_is_known_and_tells_its_window(tmp_path: Path) -> None:
    def shares(text: str) -> bool:
        (tmp_path / "config.json").write_text(text)
        return can_share(tmp_path)

    assert shares('{"model_type": "llama"}')
    assert shares('{"model_type": "mistral", "sliding_window": null}')
    assert shares('{"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": false}')
    assert shares('{"model_type": "mistral", "sliding_window": 4096}')
    assert shares('{"model_type": "qwen2", "layer_types": ["sliding_attention"]}')
    assert shares('{"model_type": "gemma3_text", "layer_types": ["sliding_attention"]}')
    assert shares('{"model_type": "qwen2_moe", "layer_types": ["full_attention"]}')
    assert not shares('{"model_type": "qwen2_moe", "layer_types": ["sliding_attention"]}')
    assert not shares('{"model_type": "gemma3_text", "use_bidirectional_attention": true}')
    assert not shares('{"model_type": "gemma3"}')  # which sees pictures
    assert not shares('{"model_type": "qwen3", "layer_types": ["chunked_attention"]}')
    assert not shares('{"model_type": "gpt2"}')
