from __future__ import annotations

from dataclasses import replace

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval.matched import Arm, MatchedArms, TaskOutcome, holm_adjusted

SETTINGS = {"temperature": 0.2, "max_tokens": 96}


def outcome(passed: int, total: int = 4, turns: int = 12, stopped: bool = False) -> TaskOutcome:
    return TaskOutcome(
        passed=passed == total,
        stopped=stopped,
        assertions_passed=passed,
        assertions_total=total,
        turns=turns,
        tokens=20 * turns,
        seconds=2.0 * turns,
        stop_reason="TASK_COMPLETE" if stopped else "MAX_TURNS",
        by_kind={"file_exists": (min(passed, 2), 2), "file_unchanged": (max(passed - 2, 0), 2)},
    )


def warm() -> Arm:
    return Arm("warm", {"a": outcome(4), "b": outcome(2), "c": outcome(0)}, SETTINGS)


def new() -> Arm:
    return Arm(
        "new",
        {
            "c": outcome(1, turns=2, stopped=True),
            "b": outcome(4, turns=3, stopped=True),
            "a": outcome(4, turns=4, stopped=True),
        },
        SETTINGS,
    )


TAGS = {"a": {"level": "easy"}, "b": {"level": "easy"}, "c": {"level": "hard"}}


def compare(*arms: Arm) -> MatchedArms:
    return MatchedArms(arms or (warm(), new()), "warm", TAGS)


def test_an_arms_own_numbers_are_counted() -> None:
    row = compare().row("new")
    assert (row.passed, row.stopped, row.stopped_and_passed, row.n_tasks) == (2, 3, 2, 3)
    assert (row.assertions_passed, row.assertions_total) == (9, 12)
    assert row.assertion_rate.value == 0.75
    assert row.mean_turns.value == 3
    assert row.mean_tokens.value == 60


def test_a_row_knows_whether_its_tasks_have_parts() -> None:
    whole = Arm("warm", {"a": outcome(1, 1), "b": outcome(0, 1)}, SETTINGS)
    assert compare().row("warm").has_parts
    assert not MatchedArms((whole,), "warm").row("warm").has_parts


def test_assertions_are_counted_both_ways_where_every_outcome_knows_both() -> None:
    """Without what another assertion implies: 2 of 4 against 3 of 4, where 6 of 8 became 8 of 8."""
    before = {"a": replace(outcome(4), once=(2, 2)), "b": replace(outcome(2), once=(0, 2))}
    after = {"a": replace(outcome(4), once=(2, 2)), "b": replace(outcome(4), once=(1, 2))}
    both = MatchedArms((Arm("warm", before, SETTINGS), Arm("new", after, SETTINGS)), "warm")
    assert (both.row("warm").once, both.row("new").once) == ((2, 4), (3, 4))
    change = both.paired("new").once
    assert change is not None
    assert change.value == 0.25
    assert both.paired("new").assertion_rate.value == 0.25
    assert both.kinds()["file_exists"].row("new").once is None
    assert compare().row("new").once is None
    assert compare().paired("new").once is None


def test_differences_are_paired_by_task_whatever_the_order_of_the_file() -> None:
    row = compare().paired("new")
    assert (row.passed.test.first_only, row.passed.test.second_only) == (0, 1)
    assert row.passed.test.both == 1
    assert row.passed.difference.value == pytest.approx(1 / 3)
    assert row.assertion_rate.value == pytest.approx(3 / 12)
    assert row.turns.value == -9


def test_every_arm_but_the_reference_has_a_paired_row() -> None:
    base = replace(warm(), name="base")
    rows = compare(base, warm(), new()).paired_rows()
    assert [r.name for r in rows] == ["base", "new"]
    assert rows[0].passed.test.p_value == 1.0


def test_one_row_of_several_needs_more_than_a_row_alone() -> None:
    """Six tasks won and none lost, p = 0.03: beyond luck alone, and not as the best of two."""
    before = {str(i): outcome(0) for i in range(12)}
    won = before | {str(i): outcome(4) for i in range(6)}
    arms = (Arm("warm", before), Arm("won", won), Arm("same", before))
    row, same = MatchedArms(arms, "warm").paired_rows()
    (alone,) = holm_adjusted([row])
    assert (alone.passed.sign, row.passed.test.p_value) == (1, 2 / 2**6)
    best, other = holm_adjusted([row, same])
    assert (best.passed.sign, best.passed.test.p_value) == (0, 4 / 2**6)
    assert best.passed.difference == row.passed.difference
    assert other.stopped.test.p_value == 1.0


def test_a_split_by_tag_compares_within_each_value() -> None:
    parts = compare().split("level")
    assert list(parts) == ["easy", "hard"]
    assert parts["easy"].row("new").passed == 2
    assert parts["hard"].paired("new").assertion_rate.value == 0.25


def test_a_task_without_the_tag_is_named() -> None:
    with pytest.raises(BadInput, match="task a has no 'persona' tag"):
        compare().split("persona")


def test_each_assertion_kind_is_counted_on_its_own() -> None:
    kinds = compare().kinds()
    assert list(kinds) == ["file_exists", "file_unchanged"]
    assert kinds["file_unchanged"].row("warm").assertions_passed == 2
    assert kinds["file_exists"].row("new").assertions_passed == 5


def test_tasks_without_a_kind_are_left_out_of_its_table() -> None:
    only_exists = {"file_exists": (1, 4)}
    arms = [
        replace(a, outcomes={**a.outcomes, "c": replace(a.outcomes["c"], by_kind=only_exists)})
        for a in (warm(), new())
    ]
    assert compare(*arms).kinds()["file_unchanged"].task_ids == ("a", "b")


def test_arms_over_other_tasks_are_refused_and_the_task_is_named() -> None:
    fewer = replace(new(), outcomes={k: v for k, v in new().outcomes.items() if k != "b"})
    with pytest.raises(BadInput, match="b is in arm 'warm' and not in 'new'"):
        compare(warm(), fewer)


def test_a_task_that_changed_between_evaluations_is_refused() -> None:
    changed = replace(new(), outcomes={**new().outcomes, "b": outcome(4, total=5)})
    with pytest.raises(BadInput, match="task b has 4 assertions"):
        compare(warm(), changed)


def test_other_settings_are_refused_and_the_key_is_named() -> None:
    hotter = replace(new(), settings={**SETTINGS, "temperature": 1.0})
    with pytest.raises(BadInput, match=r"temperature is 0\.2 in arm 'warm' and 1\.0 in 'new'"):
        compare(warm(), hotter)


def test_a_yardstick_without_settings_matches_any() -> None:
    nothing = Arm("do nothing", {t: outcome(0, turns=0) for t in "abc"})
    assert compare(nothing, warm(), new()).row("do nothing").passed == 0


def test_arms_with_one_name_are_refused() -> None:
    with pytest.raises(BadInput, match="two arms are called 'warm'"):
        compare(warm(), warm())


def test_an_unknown_reference_or_arm_names_the_known_ones() -> None:
    with pytest.raises(BadInput, match="warm, new"):
        MatchedArms([warm(), new()], "base")
    with pytest.raises(BadInput, match="warm, new"):
        compare().row("base")


def test_an_empty_comparison_is_refused() -> None:
    with pytest.raises(BadInput, match="no arm"):
        MatchedArms([], "warm")
    with pytest.raises(BadInput, match="no outcome"):
        MatchedArms([Arm("warm", {})], "warm")


def test_a_task_without_assertions_is_refused() -> None:
    with pytest.raises(BadInput, match="task a has no assertion"):
        MatchedArms([Arm("warm", {"a": outcome(0, total=0)})], "warm")


def test_tags_of_a_task_that_was_not_played_are_refused() -> None:
    with pytest.raises(BadInput, match="zzz"):
        MatchedArms([warm()], "warm", {"zzz": {"level": "easy"}})


def test_every_arms_numbers_in_their_order_and_without_intervals_the_same_values() -> None:
    rows, quick = compare().rows(), compare().rows(intervals=False)
    assert [row.name for row in rows] == ["warm", "new"]
    for row, without in zip(rows, quick, strict=True):
        for name in ("assertion_rate", "mean_turns", "mean_tokens"):
            estimate, plain = getattr(row, name), getattr(without, name)
            assert estimate.interval is not None
            assert (plain.value, plain.interval) == (pytest.approx(estimate.value), None)
