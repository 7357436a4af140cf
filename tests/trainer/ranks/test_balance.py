"""Ranks get every segment once, and about as many tokens each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.trainer.conftest import make_group
from trainer.batch import Segment, Span, collect
from trainer.ranks.balance import parts
from trainer.scoring.micro_batch import micro_batches, tokens
from trainer.settings import TrainerSettings

SETTINGS = TrainerSettings(tokens_per_microbatch=40)


@pytest.fixture
def segments() -> tuple[Segment, ...]:
    """Of twelve tasks with four episodes each, which begin alike."""
    rng = random.Random(3)
    groups = [
        make_group(rng, "sha", f"t{i}", (0.0, 1.0, 0.5, 0.2), prompt=[i, *range(12, 24)])
        for i in range(12)
    ]
    return collect(groups, SETTINGS).segments


def load(of_rank: Sequence[Segment], shared: bool, settings: TrainerSettings = SETTINGS) -> int:
    return sum(tokens(b, shared) for b in micro_batches(of_rank, settings, shared=shared))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("of", [1, 2, 3, 8])
def test_every_segment_goes_to_one_rank_and_the_same_on_every_rank(
    of: int, shared: bool, segments: tuple[Segment, ...]
) -> None:
    given = parts(segments, of, shared=shared)
    assert len(given) == of
    assert sorted(map(id, (s for part in given for s in part))) == sorted(map(id, segments))
    shuffled = random.Random(1).sample(segments, len(segments))
    assert parts(shuffled, of, shared=shared) == given


@pytest.mark.parametrize("shared", [True, False])
def test_one_rank_scores_the_micro_batches_of_a_process_by_itself(
    shared: bool, segments: tuple[Segment, ...]
) -> None:
    (part,) = parts(segments, 1, shared=shared)
    alone = micro_batches(segments, SETTINGS, shared=shared)
    assert micro_batches(part, SETTINGS, shared=shared) == alone


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("of", "most"), [(2, 1.15), (4, 1.25)])
def test_the_fullest_rank_has_hardly_more_than_its_fair_share(
    of: int, most: float, shared: bool, segments: tuple[Segment, ...]
) -> None:
    loads = [load(part, shared) for part in parts(segments, of, shared=shared)]
    assert max(loads) <= most * load(segments, shared) / of


@pytest.mark.parametrize("of", [2, 4])
def test_ranks_are_balanced_where_attempts_share_nearly_everything(of: int) -> None:
    """Shared ids count once: a quarter of the bundle as it is stored would be a whole one."""
    drawn = random.Random(1)
    none = (0.0,) * 10
    segments = [
        Segment(f"t{i}", k, (i, *range(200), *ids), (Span(0, 201, 10),), none, none, none)
        for i in range(8)
        for k, ids in enumerate(drawn.choices(range(90), k=10) for _ in range(16))
    ]
    plenty = replace(SETTINGS, tokens_per_microbatch=4096)
    loads = [load(part, True, plenty) for part in parts(segments, of, shared=True)]
    everything = load(segments, True, plenty)
    assert max(loads) < 1.2 * min(loads)
    assert max(loads) < 1.1 * everything / of + 201  # one beginning is computed by each


def test_the_largest_piece_goes_first(segments: tuple[Segment, ...]) -> None:
    """Of 4, 2 and 2 tokens each rank gets 4. With the small ones first, one would get 4 + 2."""
    one = segments[0]
    pieces = [
        replace(one, task_id=f"t{i}", ids=one.ids[: n + 1], spans=(Span(0, 1, n),))
        for i, n in enumerate((2, 4, 2))
    ]
    given = parts(pieces, 2, shared=False)
    assert [[s.n_inputs for s in part] for part in given] == [[4], [2, 2]]


def test_two_ranks_compute_hardly_anything_twice(segments: tuple[Segment, ...]) -> None:
    """A prompt is a third of what an episode has by itself here."""
    loads = [load(part, shared=True) for part in parts(segments, 2, shared=True)]
    assert sum(loads) < 1.08 * load(segments, shared=True)


def test_a_rank_has_none_where_there_are_fewer_segments_than_ranks(
    segments: tuple[Segment, ...],
) -> None:
    given = parts(segments[:2], 3, shared=True)
    assert sorted(map(len, given)) == [0, 1, 1]


def test_episodes_of_one_task_are_shared_out_too(segments: tuple[Segment, ...]) -> None:
    one_task = [s for s in segments if s.task_id == "t0"]
    given = parts(one_task, 2, shared=True)
    assert all(given)
