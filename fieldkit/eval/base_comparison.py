"""A policy against its base on the same tasks, from the records of both: the table, and how sure
its differences are.

`fieldkit.eval.matched` compares any number of arms that the loop has played; this reads two files
or lists of plain dicts, as a script has them. The statistics are the same (`fieldkit.eval.stats`
and `fieldkit.eval.resampling`).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fieldkit.eval import resampling, stats
from fieldkit.eval.stats import Estimate, PairedProportions
from fieldkit.eval.task_record import Rows, TaskRecord, paired, read_records


@dataclass(frozen=True, slots=True)
class GroupStats:
    """One policy's results, counted.

    by_group: group → {"n", "passed", "n_assertions_passed", "n_assertions_total"}; by_kind:
    assertion kind → {"n", "passed"}; stops: stop reason → tasks; mean_wall: seconds.
    """

    n: int
    n_passed: int
    n_assertions_passed: int
    n_assertions_total: int
    by_group: dict[str, dict[str, int]]
    by_kind: dict[str, dict[str, int]]
    stops: dict[str, int]
    mean_turns: float
    mean_wall: float

    def task_pass_pct(self) -> float:
        """Percentage of tasks passed; 0 where there is none."""
        return _percent(self.n_passed, self.n)

    def assertion_pass_pct(self) -> float:
        """Percentage of assertions that hold; 0 where there is none."""
        return _percent(self.n_assertions_passed, self.n_assertions_total)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, percentages and means to two decimals."""
        return {
            "n": self.n,
            "n_passed": self.n_passed,
            "n_assertions_passed": self.n_assertions_passed,
            "n_assertions_total": self.n_assertions_total,
            "task_pass_pct": round(self.task_pass_pct(), 2),
            "assertion_pass_pct": round(self.assertion_pass_pct(), 2),
            "by_group": {k: dict(v) for k, v in sorted(self.by_group.items())},
            "by_kind": {k: dict(v) for k, v in sorted(self.by_kind.items())},
            "stops": dict(sorted(self.stops.items())),
            "mean_turns": round(self.mean_turns, 2),
            "mean_wall": round(self.mean_wall, 2),
        }


@dataclass(frozen=True, slots=True)
class MatchedBaseComparisonResult:
    """Candidate minus baseline. Deltas of rates are in percentage points.

    overall_delta: delta_task_pp, delta_assertion_pp, delta_mean_turns, delta_mean_wall; per_group
    and per_kind: a row for each. The tests and intervals are paired by task.
    """

    baseline: GroupStats
    candidate: GroupStats
    overall_delta: dict[str, float]
    per_group: list[dict[str, Any]]
    per_kind: list[dict[str, Any]]
    task_test: PairedProportions
    """McNemar's exact test of the tasks passed, and the difference with Newcombe's interval."""
    assertion_delta: Estimate | None
    """Difference of the share of assertions that hold; None where no task has one."""
    turns_delta: Estimate
    wall_delta: Estimate

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; numbers for people to two decimals, those of tests in full."""
        return {
            "baseline": self.baseline.to_dict(),
            "candidate": self.candidate.to_dict(),
            "overall_delta": {k: round(v, 2) for k, v in self.overall_delta.items()},
            "per_group": [dict(r) for r in self.per_group],
            "per_kind": [dict(r) for r in self.per_kind],
            "paired": {
                "task": asdict(self.task_test),
                "assertion": asdict(self.assertion_delta) if self.assertion_delta else None,
                "turns": asdict(self.turns_delta),
                "wall": asdict(self.wall_delta),
            },
        }

    def report(self) -> str:
        """The comparison in Markdown: overall, by group, by kind, and what the test says. Groups
        of one task each are left out: they would list the tasks."""
        b, c, delta = self.baseline, self.candidate, self.overall_delta
        test = self.task_test.test
        rows = [
            (
                "task pass",
                f"{b.n_passed}/{b.n} ({b.task_pass_pct():.1f}%)",
                f"{c.n_passed}/{c.n} ({c.task_pass_pct():.1f}%)",
                f"{delta['delta_task_pp']:+.1f} pp",
                _span(self.task_test.difference, 100, 1, " pp"),
            ),
            (
                "per-assertion",
                f"{b.n_assertions_passed}/{b.n_assertions_total} ({b.assertion_pass_pct():.1f}%)",
                f"{c.n_assertions_passed}/{c.n_assertions_total} ({c.assertion_pass_pct():.1f}%)",
                f"{delta['delta_assertion_pp']:+.1f} pp",
                _span(self.assertion_delta, 100, 1, " pp"),
            ),
            (
                "mean turns",
                f"{b.mean_turns:.2f}",
                f"{c.mean_turns:.2f}",
                f"{delta['delta_mean_turns']:+.2f}",
                _span(self.turns_delta, 1, 2, ""),
            ),
            (
                "mean wall (s)",
                f"{b.mean_wall:.2f}",
                f"{c.mean_wall:.2f}",
                f"{delta['delta_mean_wall']:+.2f}",
                _span(self.wall_delta, 1, 2, ""),
            ),
        ]
        lines = ["### Matched-base comparison", ""]
        lines += _table(("metric", "baseline", "candidate", "Δ", "95 % interval"), rows)
        lines += [
            "",
            f"Tasks only the candidate passed: {test.second_only}; only the baseline: "
            f"{test.first_only}; McNemar's exact p {test.p_value:.3g}.",
        ]
        if any(row["n"] > 1 for row in self.per_group):
            heads = ("group", "n", "base task", "cand task", "Δ", "base asrt", "cand asrt", "Δ")
            lines += ["", "**Per group**", "", *_table(heads, map(_group_cells, self.per_group))]
        if self.per_kind:
            lines += ["", "**Per assertion kind**", ""]
            lines += _table(("kind", "base", "candidate", "Δ"), map(_kind_cells, self.per_kind))
        return "\n".join(lines)


def _persona(task_id: str) -> str:
    """`synth-<persona>-NN` → persona, which may hold hyphens; a shorter id as it is."""
    parts = task_id.split("-")
    return "-".join(parts[1:-1]) if len(parts) > 2 else task_id


@dataclass
class MatchedBaseComparison:
    """Compares two policies on the same tasks.

    A record is {"task_id", "final_grade": {"passed", "n_passed", "n_total", "assertions": [{"kind",
    "passed"}]}, "stopped", "n_turns", "wall_seconds"}. group_extractor: a task's group from its id,
    by default the persona of `synth-<persona>-NN`; None makes no groups.

    >>> def record(task_id, passed):
    ...     grade = {"passed": passed, "n_passed": int(passed), "n_total": 1}
    ...     return {"task_id": task_id, "final_grade": grade}
    >>> before = [record("a", False), record("b", True)]
    >>> after = [record("a", True), record("b", True)]
    >>> MatchedBaseComparison().compare(before, after).overall_delta["delta_task_pp"]
    50.0
    """

    group_extractor: Callable[[str], str] | None = field(default=_persona)

    def stats(self, rows: Rows) -> GroupStats:
        """One policy's results. Raises `BadInput`, with the line of a file, for a record that is
        not in order."""
        return self._counted(list(read_records(rows)))

    def compare(self, baseline: Rows, candidate: Rows) -> MatchedBaseComparisonResult:
        """Candidate minus baseline, with tests and intervals.

        Raises `BadInput` naming the task where the two did not play the same tasks, or where a
        task's number of assertions differs: such differences are not the policy's.
        """
        first, second = list(read_records(baseline)), list(read_records(candidate))
        pairs = paired(first, second)
        a, b = self._counted(first), self._counted(second)
        asserted = [(x, y) for x, y in pairs if x.n_total]
        return MatchedBaseComparisonResult(
            baseline=a,
            candidate=b,
            overall_delta={
                "delta_task_pp": b.task_pass_pct() - a.task_pass_pct(),
                "delta_assertion_pp": b.assertion_pass_pct() - a.assertion_pass_pct(),
                "delta_mean_turns": b.mean_turns - a.mean_turns,
                "delta_mean_wall": b.mean_wall - a.mean_wall,
            },
            per_group=[_group_row(g, a.by_group[g], b.by_group[g]) for g in sorted(a.by_group)],
            per_kind=[
                _kind_row(k, a.by_kind.get(k), b.by_kind.get(k))
                for k in sorted({*a.by_kind, *b.by_kind})
            ],
            task_test=stats.paired_proportions(
                [x.passed for x, _ in pairs], [y.passed for _, y in pairs]
            ),
            assertion_delta=stats.with_width(
                resampling.ratio_difference(
                    [x.n_passed for x, _ in asserted],
                    [y.n_passed for _, y in asserted],
                    [x.n_total for x, _ in asserted],
                )
            )
            if asserted
            else None,
            turns_delta=stats.with_width(
                resampling.mean_difference([x.turns for x, _ in pairs], [y.turns for _, y in pairs])
            ),
            wall_delta=stats.with_width(
                resampling.mean_difference(
                    [x.seconds for x, _ in pairs], [y.seconds for _, y in pairs]
                )
            ),
        )

    def _counted(self, records: Sequence[TaskRecord]) -> GroupStats:
        by_group: dict[str, dict[str, int]] = {}
        by_kind: dict[str, dict[str, int]] = {}
        for r in records:
            if self.group_extractor is not None:
                group = by_group.setdefault(
                    self.group_extractor(r.task_id),
                    {"n": 0, "passed": 0, "n_assertions_passed": 0, "n_assertions_total": 0},
                )
                group["n"] += 1
                group["passed"] += r.passed
                group["n_assertions_passed"] += r.n_passed
                group["n_assertions_total"] += r.n_total
            for kind, held in r.assertions:
                counts = by_kind.setdefault(kind, {"n": 0, "passed": 0})
                counts["n"] += 1
                counts["passed"] += held
        return GroupStats(
            n=len(records),
            n_passed=sum(r.passed for r in records),
            n_assertions_passed=sum(r.n_passed for r in records),
            n_assertions_total=sum(r.n_total for r in records),
            by_group=by_group,
            by_kind=by_kind,
            stops=dict(Counter(r.stopped for r in records)),
            mean_turns=statistics.fmean(r.turns for r in records) if records else 0.0,
            mean_wall=statistics.fmean(r.seconds for r in records) if records else 0.0,
        )


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole else 0.0


def _group_row(group: str, a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, Any]:
    def rates(of: Mapping[str, int]) -> tuple[float, float]:
        return (
            _percent(of["passed"], of["n"]),
            _percent(of["n_assertions_passed"], of["n_assertions_total"]),
        )

    (task_a, held_a), (task_b, held_b) = rates(a), rates(b)
    return {
        "group": group,
        "n": a["n"],
        "baseline_task_pct": round(task_a, 2),
        "candidate_task_pct": round(task_b, 2),
        "delta_task_pp": round(task_b - task_a, 2),
        "baseline_assertion_pct": round(held_a, 2),
        "candidate_assertion_pct": round(held_b, 2),
        "delta_assertion_pp": round(held_b - held_a, 2),
    }


def _kind_row(
    kind: str, a: Mapping[str, int] | None, b: Mapping[str, int] | None
) -> dict[str, Any]:
    n_a, n_b = (a["n"] if a else 0), (b["n"] if b else 0)
    before = _percent(a["passed"], n_a) if a else 0.0
    after = _percent(b["passed"], n_b) if b else 0.0
    return {
        "kind": kind,
        "baseline_pct": round(before, 2),
        "candidate_pct": round(after, 2),
        "delta_pp": round(after - before, 2),
        "n": max(n_a, n_b),
    }


def _span(estimate: Estimate | None, times: float, digits: int, unit: str) -> str:
    if estimate is None or estimate.interval is None:
        return "—"
    low, high = estimate.interval.low * times, estimate.interval.high * times
    return f"{low:+.{digits}f} to {high:+.{digits}f}{unit}"


def _group_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["group"],
        str(row["n"]),
        *(f"{row[k]:.1f}%" for k in ("baseline_task_pct", "candidate_task_pct")),
        f"{row['delta_task_pp']:+.1f} pp",
        *(f"{row[k]:.1f}%" for k in ("baseline_assertion_pct", "candidate_assertion_pct")),
        f"{row['delta_assertion_pp']:+.1f} pp",
    )


def _kind_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    before, after = f"{row['baseline_pct']:.1f}%", f"{row['candidate_pct']:.1f}%"
    return (row["kind"], before, after, f"{row['delta_pp']:+.1f} pp")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(heads) - 1)
    return [f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(r)} |" for r in rows)]
