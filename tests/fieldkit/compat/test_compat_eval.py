"""What a script written for fieldkit.eval 0.34.1 relies on. Passes on that package and on ours."""

# ruff: noqa: PT011 (the texts of the two packages differ, only the class is shared)
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fieldkit.eval import (
    ASSERTION_KINDS,
    BUILTIN_RUBRICS,
    RUBRIC_CORRECTNESS,
    RUBRIC_FAITHFULNESS,
    RUBRIC_RELEVANCE,
    AgentRun,
    AssertionGrader,
    AssertionResult,
    Bench,
    BenchCall,
    GradeResult,
    GroupStats,
    Judge,
    JudgeError,
    JudgeResult,
    MatchedBaseComparison,
    MatchedBaseComparisonResult,
    PassAtK,
    PassAtKResult,
    TurnDetail,
    contains,
    exact_match,
    is_refusal,
    numeric_match,
    pass_at_k_estimator,
    summarize_agent_runs,
    summarize_metric,
)

KINDS = (
    *("file_exists", "file_not_exists", "file_contents_contain"),
    *("file_contents_match_regex", "file_unchanged"),
)

TASK: dict[str, Any] = {
    "task_id": "synth-editor-01",
    "workspace_seed": {"files": [{"path": "keep.txt", "kind": "text", "content": "kept\n"}]},
    "verifiable_assertions": [
        {"kind": "file_exists", "path": "out/a.txt"},
        {"kind": "file_not_exists", "path": "draft.txt"},
        {"kind": "file_contents_contain", "path": "out/a.txt", "must_contain": ["one", "two"]},
        {"kind": "file_contents_match_regex", "path": "out/a.txt", "regex": r"t\w+"},
        {"kind": "file_unchanged", "path": "keep.txt"},
    ],
}


@pytest.fixture
def done(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("one two\n")
    (tmp_path / "keep.txt").write_text("kept\n")
    return tmp_path


def test_the_kinds_are_these_five() -> None:
    assert tuple(ASSERTION_KINDS) == KINDS
    assert AssertionGrader.supported_kinds() == KINDS


def test_a_finished_task_passes_with_its_id_and_counts(done: Path) -> None:
    result = AssertionGrader().grade(TASK, done)
    assert (result.task_id, result.passed) == ("synth-editor-01", True)
    assert (result.n_passed, result.n_total) == (5, 5)
    assert [a.kind for a in result.assertions] == list(KINDS)
    assert result.to_dict()["assertions"][0] == {
        **{"kind": "file_exists", "path": "out/a.txt"},
        **{"passed": True, "detail": ""},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_can_fail_and_says_why(done: Path, kind: str) -> None:
    (done / "out" / "a.txt").unlink()
    (done / "keep.txt").write_text("changed\n")
    (done / "draft.txt").write_text("still here\n")
    result = AssertionGrader().grade(TASK, str(done))
    verdict = {a.kind: a for a in result.assertions}[kind]
    assert not result.passed
    assert not verdict.passed
    assert verdict.detail


def test_a_bare_list_is_graded_with_seeds_and_an_id_given_beside_it(done: Path) -> None:
    asked = [{"kind": "file_unchanged", "path": "keep.txt"}]
    grader = AssertionGrader()
    assert grader.grade(asked, done, seed_files={"keep.txt": "kept\n"}, task_id="x").passed
    other = grader.grade(asked, done, seed_files={"keep.txt": "other\n"}, task_id="x")
    assert (other.task_id, other.passed) == ("x", False)


def test_pass_at_k_is_the_share_of_subsets_with_a_pass() -> None:
    assert pass_at_k_estimator(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k_estimator(4, 3, 2) == 1.0
    assert pass_at_k_estimator(4, 0, 4) == 0.0
    with pytest.raises(ValueError):
        pass_at_k_estimator(0, 0, 1)
    with pytest.raises(ValueError):
        pass_at_k_estimator(4, 5, 1)


def test_samples_are_graded_and_averaged_over_problems() -> None:
    problems = [{"task_id": "a", "want": "1"}, {"task_id": "b", "want": "2"}]
    samples = [["1", "0"], ["0", "0"]]
    result = PassAtK(ks=(1, 2)).score(
        problems,
        samples,
        lambda text, problem: text == problem["want"],
        extras_fn=lambda problem, texts: {"longest": max(map(len, texts))},
    )
    assert result.pass_at == {1: 0.25, 2: 0.5}
    assert (result.n_problems, result.samples_per_problem) == (2, 2)
    assert result.per_task[0] == {"task_id": "a", "n": 2, "passed": 1, "longest": 1}
    assert result.to_dict()["pass_at"] == {"pass@1": 0.25, "pass@2": 0.5}


def test_rows_graded_elsewhere_give_the_same() -> None:
    rows = [{"task_id": "a", "n": 4, "passed": 1}, {"task_id": "b", "n": 4, "passed": 4}]
    assert PassAtK((2,)).from_rows(rows).pass_at[2] == pytest.approx(0.75)
    assert PassAtK((2,)).from_rows([]).pass_at == {2: 0.0}


@pytest.mark.parametrize(
    ("ks", "problems", "samples"),
    [
        ((1,), [{"task_id": "a"}], []),
        ((), [{"task_id": "a"}], [["x"]]),
        ((2,), [{"task_id": "a"}], [["x"]]),
        ((1,), [{"task_id": "a"}, {"task_id": "b"}], [["x"], ["x", "y"]]),
    ],
)
def test_samples_that_do_not_fit_are_a_value_error(
    ks: tuple[int, ...], problems: list[dict[str, str]], samples: list[list[str]]
) -> None:
    with pytest.raises(ValueError):
        PassAtK(ks).score(problems, samples, lambda text, problem: True)


def test_a_metric_is_summed_up_without_its_gaps() -> None:
    found = summarize_metric([4.0, None, 1.0, 3.0, 2.0])
    assert found == {"n": 4, "mean": 2.5, "median": 3.0, "min": 1.0, "max": 4.0}
    assert summarize_metric([None]) == {"n": 0}


def record(question: str, status: str, n_candidates: int, *actions: str) -> dict[str, Any]:
    turns = [
        {"turn": i, "action": a, "duration": 1.5, "input_tokens": 10, "output_tokens": 2, "x": i}
        for i, a in enumerate(actions, start=1)
    ]
    attempt = {"status": status, "total_time": 2.0 * len(actions), "turn_details": turns}
    attempt["final_candidates"] = list(range(n_candidates))
    return {"input_data": {"arxiv_id": question}, "inference_results": [attempt]}


def test_agent_runs_are_read_from_lines_and_summed_up(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    records = [record("q1", "finished", 2, "tool", "tool", "synthesis"), record("q2", "died", 0)]
    path.write_text("\n".join(map(json.dumps, records)) + "\n\n")
    first, second = AgentRun.from_jsonl(path)
    assert (first.question_id, first.n_turns, first.n_candidates) == ("q1", 3, 2)
    assert (first.tool_calls(), first.tool_format_errors()) == (2, 0)
    assert (first.total_input_tokens(), first.total_output_tokens()) == (30, 6)
    assert first.turns[0].extras == {"x": 1}
    assert first.turns[0].duration_s == 1.5
    assert (first.succeeded(), second.succeeded()) == (True, False)
    assert "raw" not in first.to_dict()
    found = summarize_agent_runs([first, second], label="m")
    assert (found["n_questions"], found["n_succeeded"]) == (2, 1)
    assert found["status_counts"] == {"died": 1, "finished": 1}
    assert found["wall_seconds"]["max"] == 6.0
    assert summarize_agent_runs([], label="m")["n_questions"] == 0


def test_an_agent_run_of_another_layout_is_read_by_its_own_keys() -> None:
    raw = {"id": 7, "runs": {"state": "finished", "steps": [{"action": "error"}]}}
    run = AgentRun.from_record(
        raw,
        question_id_field="id",
        question_id_path=(),
        inference_path=("runs",),
        status_field="state",
        turns_field="steps",
    )
    assert (run.question_id, run.status, run.tool_format_errors()) == ("7", "finished", 1)
    assert (run.wall_seconds, run.turns[0].turn) == (0.0, 1)


def test_a_bench_times_calls_and_keeps_their_numbers(tmp_path: Path) -> None:
    def slow(x: int) -> dict[str, Any]:
        if x == 0:
            raise RuntimeError("zero")
        return {"inner": {"tokens": x, "flag": True, "text": "t"}}

    with Bench("b", metrics=["tokens", "flag"], metrics_key="inner") as bench:
        assert bench.run(slow, [3, 0, 5], tag_fn=lambda x: {"odd": x % 2}) is bench
    found = bench.summary()
    assert (found["n"], found["n_success"], found["n_failure"]) == (3, 2, 1)
    assert found["tokens"] == {"n": 2, "mean": 4.0, "median": 5.0, "min": 3.0, "max": 5.0}
    assert found["flag"] == {"n": 0}
    assert bench.calls[1].error == "RuntimeError: zero"
    assert bench.calls[2].tags == {"odd": 1}
    assert bench.wall_seconds > 0
    assert "| tokens | 4.0 | 5.0 | 3.0 | 5.0 |" in bench.report()
    dumped = json.loads(bench.dump(tmp_path / "bench.json").read_text())
    assert "output" not in dumped["calls"][0]
    assert Bench("empty").summary() == {"name": "empty", "n": 0}


def test_a_bench_takes_calls_timed_elsewhere_and_can_raise() -> None:
    bench = Bench("b", metrics=["tokens"])
    bench.record(latency_ms=10.0, tokens=3)
    assert bench.summary()["latency_ms"]["mean"] == 10.0
    with pytest.raises(ZeroDivisionError):
        bench.run(lambda x: 1 / x, [0], on_error="raise")
    with pytest.raises(ValueError):
        bench.run(lambda x: x, [1], on_error="other")  # type: ignore[arg-type, unused-ignore]


@pytest.mark.parametrize(
    ("score", "predicted", "expected", "value"),
    [
        (exact_match, " YES\n", "yes", 1.0),
        (exact_match, "yes.", "yes", 0.0),
        (contains, "It is Paris, of course", "paris", 1.0),
        (contains, "anything", " ", 0.0),
        (numeric_match, "1,234.5 or so", "$1234", 1.0),
        (numeric_match, "98", "100", 0.0),
        (numeric_match, "no number", "1", 0.0),
        (numeric_match, "0.005", "0", 1.0),
        (numeric_match, "-3", "-3.0", 1.0),
    ],
)
def test_text_scores(score: Any, predicted: str, expected: str, value: float) -> None:
    assert score(predicted, expected) == value


def test_a_wider_tolerance_accepts_more() -> None:
    assert numeric_match("98", "100", rel_tolerance=0.02) == 1.0


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("", True),
        (None, True),
        ("I don't know.", True),
        ("The provided context does not mention it.", True),
        ("I cannot determine that.", True),
        ("There is insufficient data.", True),
        ("Paris", False),
    ],
)
def test_refusals(text: str | None, refuses: bool) -> None:
    assert is_refusal(text) is refuses


def played(task_id: str, held: int, total: int = 2, turns: int = 4) -> dict[str, Any]:
    kinds = ("file_exists", "file_unchanged")
    assertions = [{"kind": kinds[i % 2], "passed": i < held} for i in range(total)]
    grade = {"passed": held == total, "n_passed": held, "n_total": total, "assertions": assertions}
    return {
        "task_id": task_id,
        "final_grade": grade,
        "stopped": "task_complete" if held == total else "max_turns",
        "n_turns": turns,
        "wall_seconds": 2.0 * turns,
    }


BEFORE = [played("synth-a-b-01", 1), played("synth-a-b-02", 0), played("synth-c-01", 2)]
AFTER = [played("synth-a-b-01", 2, turns=2), played("synth-a-b-02", 1), played("synth-c-01", 2)]


def test_a_candidate_is_compared_with_its_base() -> None:
    result = MatchedBaseComparison().compare(BEFORE, AFTER)
    assert result.overall_delta["delta_task_pp"] == pytest.approx(100 / 3)
    assert result.overall_delta["delta_assertion_pp"] == pytest.approx(200 / 6)
    assert result.overall_delta["delta_mean_turns"] == pytest.approx(-2 / 3)
    assert result.per_group[0] == {
        **{"group": "a-b", "n": 2, "baseline_task_pct": 0.0, "candidate_task_pct": 50.0},
        **{"delta_task_pp": 50.0, "baseline_assertion_pct": 25.0},
        **{"candidate_assertion_pct": 75.0, "delta_assertion_pp": 50.0},
    }
    assert result.per_kind[1] == {
        **{"kind": "file_unchanged", "baseline_pct": 33.33, "candidate_pct": 66.67},
        **{"delta_pp": 33.33, "n": 3},
    }
    assert result.to_dict()["baseline"]["stops"] == {"max_turns": 2, "task_complete": 1}
    for text in ("1/3 (33.3%)", "2/3 (66.7%)", "+33.3 pp", "a-b", "file_unchanged"):
        assert text in result.report()


def test_records_are_read_from_lines_and_grouped_as_asked(tmp_path: Path) -> None:
    path = tmp_path / "base.jsonl"
    path.write_text("\n".join(map(json.dumps, BEFORE)) + "\n")
    stats = MatchedBaseComparison(group_extractor=lambda task_id: task_id[-2:]).stats(path)
    assert sorted(stats.by_group) == ["01", "02"]
    assert stats.task_pass_pct() == pytest.approx(100 / 3)
    assert stats.assertion_pass_pct() == pytest.approx(50.0)
    assert MatchedBaseComparison(group_extractor=None).stats(str(path)).by_group == {}
    assert MatchedBaseComparison().stats([]).task_pass_pct() == 0.0


@pytest.mark.parametrize(
    ("raw", "score"),
    [
        ('{"score": 4, "rationale": "close"}', 4.0),
        ('```json\n{"score": 0.5, "rationale": "half"}\n```', 0.5),
        ('Here: {"score": 3, "rationale": "part"} - done', 3.0),
        ('{"score": 2, "rationale": "cut o', 2.0),
        ("no grade", None),
    ],
)
def test_a_judges_reply_is_read(raw: str, score: float | None) -> None:
    found = Judge.parse(raw)
    assert found.score == score
    assert found.raw == raw


class Recited:
    """A client that answers with one text."""

    model = "m"

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[Any] = []

    def chat(self, messages: Any, **options: Any) -> dict[str, Any]:
        self.asked.append(messages)
        return {"choices": [{"message": {"content": self.text}}]}


def test_the_built_in_rubrics_are_there_by_name_and_as_constants() -> None:
    for kind, text in (
        ("correctness", RUBRIC_CORRECTNESS),
        ("faithfulness", RUBRIC_FAITHFULNESS),
        ("relevance", RUBRIC_RELEVANCE),
    ):
        assert BUILTIN_RUBRICS[kind] == text
        client: Any = Recited('{"score": 1, "rationale": ""}')
        assert Judge(client, rubric=text).grade(prediction="x").score == 1.0
        assert client.asked[0][0]["content"] == text


def test_a_judge_asks_by_its_rubric_and_gives_a_result() -> None:
    client: Any = Recited('{"score": 5, "rationale": "same"}')
    found = Judge.builtin(client, "correctness").grade(
        prediction="Paris", question="Capital?", reference="Paris"
    )
    assert (found.score, found.rationale) == (5.0, "same")
    roles = [m["role"] for m in client.asked[0]]
    assert roles == ["system", "user"]
    for text in ("Paris", "Capital?"):
        assert text in client.asked[0][1]["content"]
    with pytest.raises(ValueError):
        Judge.builtin(client, "beauty")


def test_every_result_is_of_its_public_class_which_a_script_makes_by_hand(done: Path) -> None:
    grade = AssertionGrader().grade(TASK, done)
    verdicts = [
        AssertionResult(kind, a.path, True) for kind, a in zip(KINDS, grade.assertions, strict=True)
    ]
    assert grade == GradeResult("synth-editor-01", True, 5, 5, verdicts)

    passk = PassAtK(ks=(1,)).from_rows([{"task_id": "a", "n": 2, "passed": 1}])
    assert isinstance(passk, PassAtKResult)

    (turn,) = AgentRun.from_record(record("q", "finished", 1, "tool")).turns
    assert isinstance(turn, TurnDetail)
    assert TurnDetail(1, "tool", 0.5).to_dict()["duration_s"] == 0.5

    comparison = MatchedBaseComparison()
    assert isinstance(comparison.stats([played("t-a-0", 2)]), GroupStats)
    compared = comparison.compare([played("t-a-0", 1)], [played("t-a-0", 2)])
    assert isinstance(compared, MatchedBaseComparisonResult)

    call = Bench("b").record(input="in", output="out", latency_ms=1.0)
    assert call == BenchCall("in", "out", 1.0)

    client: Any = Recited('{"score": 1, "rationale": "same"}')
    given = Judge(client).grade(prediction="x")
    assert given == JudgeResult(1.0, "same", '{"score": 1, "rationale": "same"}')


def test_a_judge_whose_answer_has_no_text_is_an_error() -> None:
    class Empty:
        model = "m"

        def chat(self, messages: Any, **options: Any) -> dict[str, Any]:
            return {"choices": []}

    client: Any = Empty()
    with pytest.raises(JudgeError):
        Judge(client).grade(prediction="x")
