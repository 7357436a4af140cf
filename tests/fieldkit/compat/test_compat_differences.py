"""Where fieldkit.eval, .lineage and .reward differ from the index's 0.34.1: what each of the two
does. docs/fieldkit/differences.md has the reasons."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fieldkit.eval import (
    ASSERTION_KINDS,
    AgentRun,
    AssertionGrader,
    Judge,
    MatchedBaseComparison,
    PassAtK,
    exact_match,
    is_refusal,
    numeric_match,
    pass_at_k_estimator,
    summarize_metric,
)
from fieldkit.lineage import FailureLabel, LineageStore, RecipeEdit, Trial
from fieldkit.reward import RewardAdapter

OURS = find_spec("fieldkit.records") is not None


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call gives, or the class of what it raises, a `ValueError` as such."""
    try:
        return function(*args, **kwargs)
    except ValueError:
        return ValueError
    except Exception as e:
        return type(e)


def passes(task: Any, root: Path, **kwargs: Any) -> Any:
    return outcome(lambda: AssertionGrader().grade(task, root, **kwargs).passed)


def one(kind: str, path: str = "a.txt", **keys: Any) -> list[dict[str, Any]]:
    return [{"kind": kind, "path": path, **keys}]


def test_an_unknown_assertion_kind(tmp_path: Path) -> None:
    assert passes(one("file_exist"), tmp_path) is (ValueError if OURS else False)


def test_a_path_that_leaves_the_folder(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("s")
    asked = one("file_exists", "../secret")
    assert passes(asked, tmp_path / "work") is (ValueError if OURS else True)


def test_a_link_in_the_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to("/etc/passwd")
    assert passes(one("file_contents_contain", must_contain=["root"]), tmp_path) is not OURS


def test_an_unchanged_file_without_its_seed(tmp_path: Path) -> None:
    assert passes(one("file_unchanged"), tmp_path) is (ValueError if OURS else True)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xffyes")
    assert passes(one("file_contents_contain", must_contain=["yes"]), tmp_path) is not OURS


def test_a_task_without_assertions(tmp_path: Path) -> None:
    assert passes({"task_id": "t"}, tmp_path) is (ValueError if OURS else True)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    found = passes(one("file_not_exists"), tmp_path / "gone")
    assert found is (FileNotFoundError if OURS else True)


def test_a_pattern_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    found = passes(one("file_contents_match_regex", regex="("), tmp_path)
    assert found is (ValueError if OURS else False)


def test_the_kinds_are_a_mapping_that_can_grow() -> None:
    assert isinstance(ASSERTION_KINDS, tuple) is not OURS
    assert hasattr(ASSERTION_KINDS, "register") is OURS


def test_a_k_above_the_samples() -> None:
    assert outcome(pass_at_k_estimator, 3, 0, 5) == (ValueError if OURS else 1.0)


def test_a_count_that_is_not_whole() -> None:
    found = outcome(lambda: PassAtK([1]).from_rows([{"n": 1, "passed": 0.5}]).pass_at[1])
    assert found == (ValueError if OURS else 0.0)


def test_two_rows_of_one_task() -> None:
    rows = [{"task_id": "a", "n": 2, "passed": passed} for passed in (2, 0)]
    found = outcome(lambda: PassAtK([2]).from_rows(rows).pass_at[2])
    assert found == (ValueError if OURS else 0.5)


def test_no_k_for_no_rows() -> None:
    found = outcome(lambda: PassAtK(()).from_rows([]).pass_at)
    assert found == (ValueError if OURS else {})


def test_a_metric_that_is_not_finite() -> None:
    found = outcome(lambda: math.isnan(summarize_metric([1.0, math.nan])["mean"]))
    assert found is (ValueError if OURS else True)


def test_a_torn_line_of_agent_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"inference_results": []}\n{"torn')
    found = outcome(lambda: len(AgentRun.from_jsonl(path)))
    assert found == (ValueError if OURS else 1)


def test_a_negative_tolerance() -> None:
    assert outcome(numeric_match, "1", "1", rel_tolerance=-1) == (ValueError if OURS else 0.0)


@pytest.mark.parametrize(("text", "number"), [(".5", "0.5"), ("1e5", "100000"), ("−5", "-5")])
def test_a_number_that_does_not_begin_or_end_with_plain_digits(text: str, number: str) -> None:
    assert numeric_match(text, number) == float(OURS)


def test_who_is_able_to_answer() -> None:
    found = [is_refusal(f"I am {able} to answer") for able in ("able", "unable")]
    assert found == ([False, True] if OURS else [True, False])


def record(task_id: str, n_total: int = 1) -> dict[str, Any]:
    grade = {"passed": True, "n_passed": n_total, "n_total": n_total}
    return {"task_id": task_id, "final_grade": grade}


@pytest.mark.parametrize(
    ("baseline", "candidate"),
    [
        ([record("a"), record("b")], [record("a")]),
        ([record("a")], [record("a"), record("a")]),
        ([record("a", 1)], [record("a", 2)]),
        ([], []),
    ],
)
def test_two_policies_that_did_not_play_the_same_tasks(
    baseline: list[dict[str, Any]], candidate: list[dict[str, Any]]
) -> None:
    found = outcome(MatchedBaseComparison().compare, baseline, candidate)
    assert (found is ValueError) is OURS


def test_a_record_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "base.jsonl"
    path.write_text(json.dumps(record("a")) + '\n{"torn\n')
    assert outcome(lambda: MatchedBaseComparison().stats(path).n) == (ValueError if OURS else 1)
    found = outcome(lambda: MatchedBaseComparison().stats([{"task_id": "a"}]).n_passed)
    assert found == (ValueError if OURS else 0)


def test_the_report_of_a_comparison_has_intervals() -> None:
    rows = [record("a"), record("b")]
    report = MatchedBaseComparison().compare(rows, rows).report()
    assert ("95 % interval" in report) is OURS
    assert ("McNemar" in report) is OURS


class Nine:
    model = "m"

    def chat(self, messages: Any, **options: Any) -> dict[str, Any]:
        return {"choices": [{"message": {"content": '{"score": 9}'}}]}


def test_a_judges_score_off_the_scale() -> None:
    client: Any = Nine()
    found = outcome(lambda: Judge(client).grade(prediction="a").score)
    assert (found == 9.0) is not OURS


def test_a_reply_with_several_scores_or_in_another_form() -> None:
    replies = ('{"score": 1} then {"score": 5}', '{"score": "4"}', "**Score:** 4")
    found = [Judge.parse(raw).score for raw in replies]
    assert found == ([5.0, 4.0, 4.0] if OURS else [1.0, None, None])


def trial(exp_id: str, parent: str = "", **more: Any) -> Trial:
    empty = Trial(*[""] * 8, FailureLabel.KEEP, *[None] * 5, *[""] * 3)  # type: ignore[arg-type, call-arg]
    return replace(empty, exp_id=exp_id, parent_exp=parent, **more)


def test_a_row_that_a_crash_tore(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    for name in ("0", "1"):
        store.append(trial(name, notes="n"))
    whole = store.results_path.read_bytes()
    store.results_path.write_bytes(whole[:-3])
    found = outcome(lambda: [t.exp_id for t in store.all_trials()])
    assert (found == ["0"]) is OURS
    outcome(store.append, trial("2"))
    assert (outcome(lambda: [t.exp_id for t in store.all_trials()]) == ["0", "2"]) is OURS


def test_a_carriage_return_in_a_text(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    store.append(trial("0", notes="a\rb"))
    assert (outcome(lambda: [t.notes for t in store.all_trials()]) == ["a\rb"]) is OURS


def test_a_metric_that_is_no_number(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    found = outcome(store.append, trial("0", core_metric=math.nan))
    assert found is (ValueError if OURS else None)


def test_a_trial_without_a_name(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    for exp_id, parent in (("", ""), ("a", "a")):
        found = outcome(store.append, trial(exp_id, parent))
        assert found is (ValueError if OURS else None)


def test_a_trial_that_is_its_own_ancestor(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    store.append(trial("a", "b"))
    store.append(trial("b", "a"))
    assert (outcome(store.chain_to, "a") is ValueError) is OURS


def test_a_trial_that_was_not_kept(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    store.append(trial("0", core_metric=0.5))
    store.append(trial("1", "0", core_metric=0.1, status=FailureLabel.DISQUALIFIED))
    best = store.best()
    assert best is not None
    assert best.exp_id == ("0" if OURS else "1")


def test_a_file_that_the_parent_had(tmp_path: Path) -> None:
    (tmp_path / "parent").mkdir()
    (tmp_path / "child").mkdir()
    (tmp_path / "parent" / "gone.txt").write_text("gone\n")
    diff = RecipeEdit(trial("1"), tmp_path / "child", tmp_path / "parent").diff()
    assert ("-gone" in diff) is OURS


def test_an_expected_answer_of_zero() -> None:
    found = RewardAdapter(exact_match).score({"prediction": "0", "expected": 0})
    assert found.success is OURS


def test_a_score_that_is_no_number() -> None:
    found = RewardAdapter(lambda prediction, expected: math.nan).score({"prediction": "x"})
    assert found.failure_class is (FailureLabel.CRASH if OURS else FailureLabel.DISCARD)
