"""What of a bundle is trained on, and what is refused before it costs anything. No torch needed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup, Sampling, Signal
from tests.trainer.conftest import make_group, make_turns
from trainer.batch import check_bundle, collect
from trainer.settings import TrainerSettings

SHA = "a" * 64
HERE = Path("bundle.jsonl")
SETTINGS = TrainerSettings()


def group(seed: int = 0, rewards: tuple[float, ...] = (0.0, 1.0)) -> RolloutGroup:
    return make_group(random.Random(seed), SHA, f"t{seed}", rewards)


def with_trajectory(of: RolloutGroup, **changes: Any) -> RolloutGroup:
    first, *rest = of.trajectories
    return replace(of, trajectories=(replace(first, **changes), *rest))


def test_a_sound_bundle_is_accepted() -> None:
    check_bundle([group(0), group(1, (1.0, 1.0))], SHA, SETTINGS, HERE)


def test_exactly_the_sampled_ids_are_trained() -> None:
    one = group()
    found = collect([one], SETTINGS).segments
    for trajectory in one.trajectories:
        (segment,) = [s for s in found if s.k == trajectory.k]
        trained = [
            segment.ids[p] for s in segment.spans for p in range(s.start, s.start + s.length)
        ]
        assert trained == [i for turn in trajectory.turns for i in turn.completion_ids]
        assert segment.sampler_logprobs == tuple(lp for t in trajectory.turns for lp in t.logprobs)
        assert segment.ids == trajectory.turns[-1].prompt_ids + trajectory.turns[-1].completion_ids


def test_a_prompt_that_was_rendered_anew_starts_a_second_segment() -> None:
    rng = random.Random(1)
    turns = tuple(make_turns(rng, 2, prompt=(1, 2, 3)) + make_turns(rng, 1, prompt=(9, 8, 7)))
    found = collect([with_trajectory(group(), turns=turns)], SETTINGS).segments
    mine = [s for s in found if s.k == 0]
    assert [[span.turn for span in s.spans] for s in mine] == [[0, 1], [2]]
    assert sum(s.n_trained for s in mine) == sum(len(t.completion_ids) for t in turns)
    assert {a for s in mine for a in s.advantages} == {-0.5}


def test_turns_that_are_credited_one_by_one_give_their_tokens_their_own_advantage() -> None:
    rng = random.Random(1)
    turns = tuple(make_turns(rng, 2, prompt=(1, 2, 3)) + make_turns(rng, 1, prompt=(9, 8, 7)))
    played = with_trajectory(group(), turns=turns)
    others = [tuple(0.0 for _ in t.turns) for t in played.trajectories[1:]]
    credited = replace(played, turn_advantages=((0.0, 0.5, -0.25), *others))
    check_bundle([credited], SHA, SETTINGS, HERE)
    batch = collect([credited], SETTINGS)
    of_tokens = [a for s in batch.segments if s.k == 0 for a in s.advantages]
    sizes = [len(t.completion_ids) for t in turns]
    assert of_tokens == [0.0] * sizes[0] + [0.5] * sizes[1] + [-0.25] * sizes[2]
    assert batch.n_used == 1
    silent = replace(played, turn_advantages=((0.0, 0.0, 0.0), *others))
    with pytest.raises(BadInput, match="does not agree with advantages"):
        check_bundle([silent], SHA, SETTINGS, HERE)


def test_without_a_kl_only_turns_with_an_advantage_are_scored() -> None:
    turns = tuple(make_turns(random.Random(1), 3, prompt=(1, 2, 3)))
    played = with_trajectory(group(), turns=turns)
    others = [tuple(0.0 for _ in t.turns) for t in played.trajectories[1:]]
    credited = replace(played, turn_advantages=((0.0, 0.5, 0.0), *others))
    without, whole = (
        collect([credited], TrainerSettings(kl_coef=0.0)),
        collect([credited], SETTINGS),
    )
    (segment,) = without.segments
    size = len(turns[1].completion_ids)
    assert segment.ids == turns[1].prompt_ids + turns[1].completion_ids
    assert [span.turn for span in segment.spans] == [1]
    assert segment.sampler_logprobs == turns[1].logprobs
    assert (segment.advantages, segment.n_trained) == ((0.5,) * size, size)
    assert (without.total, without.n_tokens) == (whole.total, whole.n_tokens)
    assert set(segment.shares) == {1.0}
    assert without.has_signal


def test_silent_groups_are_not_scored_but_count_in_n() -> None:
    loud, silent = group(0), group(1, (0.5, 0.5))
    batch = collect([loud, silent], SETTINGS)
    assert {s.task_id for s in batch.segments} == {"t0"}
    assert batch.n_tokens == sum(
        len(turn.completion_ids) for g in (loud, silent) for t in g.trajectories for turn in t.turns
    )
    assert (batch.n_used, batch.n_trajectories) == (2, 4)
    assert batch.groups == {"LEARNABLE": 1, "SATURATED": 1, "STUCK": 0}


def test_a_bundle_in_which_no_attempt_had_room_for_a_turn_has_no_signal() -> None:
    made = group(0, (0.0, 0.0))
    bare = tuple(replace(t, turns=()) for t in made.trajectories)
    batch = collect([replace(made, trajectories=bare, turn_advantages=((), ()))], SETTINGS)
    assert (batch.has_signal, batch.segments, batch.n_tokens) == (False, (), 0)
    assert (batch.n_trajectories, batch.n_used) == (2, 0)


def test_silent_groups_are_scored_for_the_kl_when_asked() -> None:
    settings = TrainerSettings(kl_on_silent_groups=True)
    batch = collect([group(0), group(1, (0.5, 0.5))], settings)
    assert {s.task_id for s in batch.segments} == {"t0", "t1"}
    assert batch.n_scored == batch.n_tokens
    without = TrainerSettings(kl_on_silent_groups=True, kl_coef=0.0)
    assert {s.task_id for s in collect([group(0), group(1, (0.5, 0.5))], without).segments} == {
        "t0"
    }


def test_a_bundle_of_silent_groups_has_no_signal_even_then() -> None:
    settings = TrainerSettings(kl_on_silent_groups=True)
    assert not collect([group(1, (0.5, 0.5))], settings).has_signal


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        (Sampling(0.8, 96, 1.0, 0, 0.0), r"t0 k=0.*temperature 0\.8.*--temperature 0\.8"),
        (Sampling(1.0, 96, 0.9, 0, 0.0), r"top_p 0\.9"),
        (Sampling(1.0, 96, 1.0, 50, 0.0), "top_k 50"),
        (Sampling(1.0, 96, 1.0, 0, 0.05), r"min_p 0\.05"),
    ],
)
def test_a_cut_or_differently_heated_distribution_is_refused(
    sampling: Sampling, named: str
) -> None:
    with pytest.raises(BadInput, match=named):
        check_bundle([with_trajectory(group(), sampling=sampling)], SHA, SETTINGS, HERE)


def test_top_k_minus_one_is_off_too() -> None:
    sampling = Sampling(1.0, 96, 1.0, -1, 0.0)
    check_bundle([with_trajectory(group(), sampling=sampling)], SHA, SETTINGS, HERE)


def test_a_bundle_of_another_adapter_is_refused_with_what_to_give() -> None:
    said = r"bundle\.jsonl:1: task t0 k=0: sampled by adapter aaaa.*as --sampler-adapter$"
    with pytest.raises(BadInput, match=said):
        check_bundle([group()], "b" * 64, SETTINGS, HERE)


def test_a_signal_that_contradicts_the_advantages_is_refused() -> None:
    for wrong in (
        replace(group(), signal=Signal.STUCK),
        replace(group(), advantages=(0.0, 0.0)),
    ):
        with pytest.raises(BadInput, match="does not agree with advantages"):
            check_bundle([wrong], SHA, SETTINGS, HERE)


def test_an_empty_or_mixed_bundle_is_refused() -> None:
    with pytest.raises(BadInput, match="empty"):
        check_bundle([], SHA, SETTINGS, HERE)
    with pytest.raises(BadInput, match="several steps"):
        check_bundle([group(), replace(group(1), step=3)], SHA, SETTINGS, HERE)


def test_a_logprob_above_zero_is_named() -> None:
    one = group()
    turn = replace(one.trajectories[0].turns[0], logprobs=(0.5,), completion_ids=(1,))
    with pytest.raises(BadInput, match=r"turns\.0: logprobs\.0 is 0\.5"):
        check_bundle([with_trajectory(one, turns=(turn,))], SHA, SETTINGS, HERE)


def test_a_trained_token_is_named_by_task_turn_and_place() -> None:
    segment = collect([group(5)], SETTINGS).segments[0]
    first = segment.spans[0].length
    assert segment.where(0) == "task t5 k=0 turn 0 token 0"
    assert segment.where(first) == "task t5 k=0 turn 1 token 0"
    with pytest.raises(IndexError):
        segment.where(segment.n_trained)


def test_a_bundle_of_an_older_adapter_is_taken_where_that_one_is_expected_and_no_other() -> None:
    check_bundle([group()], "b" * 64, SETTINGS, HERE, SHA)
    with pytest.raises(BadInput, match="but the adapter that should have is cccc"):
        check_bundle([group()], SHA, SETTINGS, HERE, "c" * 64)
