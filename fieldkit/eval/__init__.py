"""Grade, count and compare what a policy did, and say how sure the numbers are.

The public names below are loaded on first use, so that importing this package costs nothing.
docs/fieldkit/differences.md lists where a name behaves otherwise than the 0.34.1 of the index's
project of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.eval.agent_runs import AgentRun as AgentRun
    from fieldkit.eval.agent_runs import TurnDetail as TurnDetail
    from fieldkit.eval.agent_runs import summarize_agent_runs as summarize_agent_runs
    from fieldkit.eval.assertions import ASSERTION_KINDS as ASSERTION_KINDS
    from fieldkit.eval.assertions import AssertionKind as AssertionKind
    from fieldkit.eval.assertions import GraderLimits as GraderLimits
    from fieldkit.eval.base_comparison import GroupStats as GroupStats
    from fieldkit.eval.base_comparison import MatchedBaseComparison as MatchedBaseComparison
    from fieldkit.eval.base_comparison import (
        MatchedBaseComparisonResult as MatchedBaseComparisonResult,
    )
    from fieldkit.eval.grade import AssertionResult as AssertionResult
    from fieldkit.eval.judge import BUILTIN_RUBRICS as BUILTIN_RUBRICS
    from fieldkit.eval.judge import RUBRIC_CORRECTNESS as RUBRIC_CORRECTNESS
    from fieldkit.eval.judge import RUBRIC_FAITHFULNESS as RUBRIC_FAITHFULNESS
    from fieldkit.eval.judge import RUBRIC_RELEVANCE as RUBRIC_RELEVANCE
    from fieldkit.eval.judge import Chats as Chats
    from fieldkit.eval.judge import Judge as Judge
    from fieldkit.eval.judge import JudgeError as JudgeError
    from fieldkit.eval.judge import JudgeResult as JudgeResult
    from fieldkit.eval.passk import PassAtK as PassAtK
    from fieldkit.eval.passk import PassAtKResult as PassAtKResult
    from fieldkit.eval.passk import mean_pass_at_k as mean_pass_at_k
    from fieldkit.eval.passk import pass_at_k_difference as pass_at_k_difference
    from fieldkit.eval.passk import pass_at_k_estimator as pass_at_k_estimator
    from fieldkit.eval.power import detectable_change as detectable_change
    from fieldkit.eval.power import tasks_needed as tasks_needed
    from fieldkit.eval.resampling import PairedMeans as PairedMeans
    from fieldkit.eval.resampling import paired_means as paired_means
    from fieldkit.eval.stats import Estimate as Estimate
    from fieldkit.eval.stats import Interval as Interval
    from fieldkit.eval.stats import PairedProportions as PairedProportions
    from fieldkit.eval.stats import PairedTest as PairedTest
    from fieldkit.eval.stats import holm as holm
    from fieldkit.eval.stats import mcnemar as mcnemar
    from fieldkit.eval.stats import paired_proportions as paired_proportions
    from fieldkit.eval.stats import wilson as wilson
    from fieldkit.eval.task_grader import AssertionGrader as AssertionGrader
    from fieldkit.eval.task_grader import GradeResult as GradeResult
    from fieldkit.eval.task_record import Rows as Rows
    from fieldkit.eval.text_match import contains as contains
    from fieldkit.eval.text_match import exact_match as exact_match
    from fieldkit.eval.text_match import is_refusal as is_refusal
    from fieldkit.eval.text_match import numeric_match as numeric_match
    from fieldkit.eval.timed_calls import Bench as Bench
    from fieldkit.eval.timed_calls import BenchCall as BenchCall
    from fieldkit.eval.timed_calls import summarize_metric as summarize_metric
    from fieldkit.eval.tree import Tree as Tree
    from fieldkit.eval.tree import Unmet as Unmet
    from fieldkit.registry import Registry as Registry
else:
    __getattr__, __dir__ = lazily(__name__)
