from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from fieldkit.errors import BadInput
from fieldkit.eval import MatchedBaseComparison

COMPARE = MatchedBaseComparison().compare


def record(task_id: str, passed: bool, held: int = 0, total: int = 2) -> dict[str, Any]:
    grade = {"passed": passed, "n_passed": held, "n_total": total}
    return {"task_id": task_id, "final_grade": grade, "n_turns": 3, "wall_seconds": 1.5}


def arm(passes: list[bool]) -> list[dict[str, Any]]:
    return [record(f"synth-a-{i:02}", p, 2 * p) for i, p in enumerate(passes)]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_the_test_is_scipys_binomial_over_the_tasks_that_differ(
    pairs: list[tuple[bool, bool]],
) -> None:
    result = COMPARE(arm([a for a, _ in pairs]), arm([b for _, b in pairs]))
    won, lost = sum(b > a for a, b in pairs), sum(a > b for a, b in pairs)
    expected = binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert result.task_test.test.p_value == pytest.approx(expected)
    delta = result.task_test.difference
    assert 100 * delta.value == pytest.approx(result.overall_delta["delta_task_pp"])
    assert delta.interval is not None
    assert delta.interval.low <= delta.value <= delta.interval.high


def test_the_order_of_the_records_does_not_matter() -> None:
    before, after = arm([True, False, False, True]), arm([True, True, False, True])
    assert COMPARE(before, after[::-1]).to_dict() == COMPARE(before, after).to_dict()


def test_the_report_says_how_sure_the_differences_are() -> None:
    report = COMPARE(arm([False] * 6), arm([True] * 6)).report()
    assert "only the candidate passed: 6; only the baseline: 0" in report
    assert "p 0.0312" in report
    assert "| +100.0 pp | +" in report


def test_a_difference_that_is_the_same_for_every_task_has_no_interval() -> None:
    result = COMPARE(arm([True] * 4), arm([True] * 4))
    deltas = (result.assertion_delta, result.turns_delta, result.wall_delta)
    assert [d and (d.interval, d.sign) for d in deltas] == [(None, 0)] * 3
    assert result.report().count("| — |") == 3


def test_the_result_is_json() -> None:
    result = COMPARE(arm([False, True]), arm([True, True]))
    assert json.loads(json.dumps(result.to_dict()))["paired"]["task"]["test"]["second_only"] == 1


def test_other_tasks_are_refused_and_named() -> None:
    with pytest.raises(BadInput, match="synth-a-01 is in the baseline only"):
        COMPARE(arm([True, True]), arm([True]))


def test_a_task_played_twice_is_refused() -> None:
    with pytest.raises(BadInput, match=r"^record 1: the candidate has task synth-a-00 more than"):
        COMPARE(arm([True]), arm([True]) * 2)


def test_a_task_that_changed_is_refused() -> None:
    with pytest.raises(BadInput, match="2 assertions in the baseline and 3 in the candidate"):
        COMPARE([record("a", True)], [record("a", True, total=3)])


def test_a_task_with_as_many_other_assertions_is_refused() -> None:
    def played(kind: str) -> dict[str, Any]:
        task = record("a", True, 1, 1)
        task["final_grade"]["assertions"] = [{"kind": kind, "passed": True}]
        return task

    with pytest.raises(BadInput, match="task a has other assertions in the candidate than in the"):
        COMPARE([played("file_exists")], [played("file_unchanged")])
    COMPARE([played("file_exists")], [played("file_exists")])


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(BadInput, match="nothing to compare"):
        COMPARE([], [])


def test_tasks_without_assertions_have_no_interval_for_them() -> None:
    result = COMPARE([record("a", True, total=0)], [record("a", True, total=0)])
    assert result.assertion_delta is None
    assert "| +0.0 pp | — |" in result.report()


def test_a_report_has_a_table_of_groups_and_none_where_every_group_is_one_task() -> None:
    grouped = COMPARE(arm([False, True]), arm([True, True])).report()
    assert "| a | 2 | 50.0% | 100.0% | +50.0 pp |" in grouped
    single = [[record(f"task-{i}", passed) for i in range(3)] for passed in (False, True)]
    result = COMPARE(*single)
    assert "Per group" not in result.report()
    assert len(result.per_group) == 3
