from __future__ import annotations

from fieldkit.eval.grade import AssertionResult, Grade, RewardPart


def held(*verdicts: bool) -> tuple[AssertionResult, ...]:
    return tuple(AssertionResult("file_exists", str(i), v, "") for i, v in enumerate(verdicts))


def test_an_attempt_passes_only_with_every_assertion_and_at_least_one() -> None:
    assert Grade(held(True, True)).passed
    assert not Grade(held(True, False)).passed
    assert not Grade(()).passed
    assert (Grade(held(True, False)).rate, Grade(()).rate) == (0.5, 0.0)


def test_a_reward_in_parts_is_the_weighted_sum_of_those_that_apply() -> None:
    parts = (
        RewardPart("right", 0.5, 2.0),
        RewardPart("short", None, 1.0),  # does not apply to this attempt
        RewardPart("shown only", 9.0, 0.0),
    )
    assert Grade((), parts).reward == 1.0
    assert not Grade((), parts).unrewarded


def test_an_attempt_that_no_part_applies_to_has_no_reward_at_all() -> None:
    assert Grade((), (RewardPart("short", None, 1.0),)).reward is None
    assert Grade((), (RewardPart("short", None, 1.0),)).unrewarded
    assert not Grade(held(True)).unrewarded  # it is paid by its assertions
