"""Grade, count and compare what a policy did, and say how sure the numbers are.

The public names below are loaded on first use, so that importing this package costs nothing.
docs/fieldkit/differences.md lists where a name behaves otherwise than the 0.34.1 of the index's
project of the same name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldkit.eval.agent_runs import AgentRun, TurnDetail, summarize_agent_runs
    from fieldkit.eval.assertions import ASSERTION_KINDS, AssertionKind
    from fieldkit.eval.base_comparison import (
        GroupStats,
        MatchedBaseComparison,
        MatchedBaseComparisonResult,
    )
    from fieldkit.eval.grade import AssertionResult
    from fieldkit.eval.judge import BUILTIN_RUBRICS, Judge, JudgeError, JudgeResult
    from fieldkit.eval.passk import PassAtK, PassAtKResult, pass_at_k_estimator
    from fieldkit.eval.stats import Estimate, Interval
    from fieldkit.eval.task_grader import AssertionGrader, GradeResult
    from fieldkit.eval.text_match import contains, exact_match, is_refusal, numeric_match
    from fieldkit.eval.timed_calls import Bench, BenchCall, summarize_metric

__all__ = [
    "ASSERTION_KINDS",
    "BUILTIN_RUBRICS",
    "AgentRun",
    "AssertionGrader",
    "AssertionKind",
    "AssertionResult",
    "Bench",
    "BenchCall",
    "Estimate",
    "GradeResult",
    "GroupStats",
    "Interval",
    "Judge",
    "JudgeError",
    "JudgeResult",
    "MatchedBaseComparison",
    "MatchedBaseComparisonResult",
    "PassAtK",
    "PassAtKResult",
    "TurnDetail",
    "contains",
    "exact_match",
    "is_refusal",
    "numeric_match",
    "pass_at_k_estimator",
    "summarize_agent_runs",
    "summarize_metric",
]

_NAMES_OF = {
    "agent_runs": ("AgentRun", "TurnDetail", "summarize_agent_runs"),
    "assertions": ("ASSERTION_KINDS", "AssertionKind"),
    "base_comparison": ("GroupStats", "MatchedBaseComparison", "MatchedBaseComparisonResult"),
    "grade": ("AssertionResult",),
    "judge": ("BUILTIN_RUBRICS", "Judge", "JudgeError", "JudgeResult"),
    "passk": ("PassAtK", "PassAtKResult", "pass_at_k_estimator"),
    "stats": ("Estimate", "Interval"),
    "task_grader": ("AssertionGrader", "GradeResult"),
    "text_match": ("contains", "exact_match", "is_refusal", "numeric_match"),
    "timed_calls": ("Bench", "BenchCall", "summarize_metric"),
}
_HOMES = {name: home for home, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
