"""pass@k without bias: the chance that at least one of k attempts passes, from n ≥ k attempts.

Taking the best of the first k attempts wastes the rest and is noisy; the estimator of Chen et al.
(2021), arXiv:2107.03374, equation 1, uses all n. This module only counts; it plays nothing.
`PassAtK` is the same for samples that a caller holds as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval import resampling, stats
from fieldkit.eval.stats import Estimate


def whole_number(value: Any) -> int:
    """A count, also one that is written as 3.0. Raises `ValueError` for anything else."""
    try:
        return index(value)
    except TypeError:
        if isinstance(value, float) and value.is_integer():
            return int(value)
    raise ValueError(f"{value!r} is not a whole number")


def pass_at_k(n: int, passed: int, k: int) -> float:
    """1 − C(n − passed, k) / C(n, k): the share of all k-subsets of n attempts that hold a pass.

    Raises `BadInput` unless 1 ≤ k ≤ n and 0 ≤ passed ≤ n.
    """
    if k < 1:
        raise BadInput(f"pass@{k}: k has to be 1 or more")
    if k > n:
        raise BadInput(f"pass@{k} needs at least {k} attempts a task, there are {n}")
    if not (0 <= passed <= n):
        raise BadInput(f"{passed} passes of {n} attempts cannot be")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def mean_pass_at_k(attempts: Mapping[str, Sequence[bool]], k: int, *, seed: int = 0) -> Estimate:
    """pass@k averaged over tasks, with a bootstrap interval that resamples tasks.

    `attempts` maps a task id to whether each attempt passed. No interval where all tasks have the
    same value. Raises `BadInput` for a task with fewer than k attempts.

    >>> mean_pass_at_k({"a": [True, False], "b": [True, True]}, k=1).value
    0.75
    """
    for task_id, passed in attempts.items():
        if len(passed) < k:
            raise BadInput(f"task {task_id}: pass@{k} needs {k} attempts, there are {len(passed)}")
    values = [pass_at_k(len(a), sum(a), k) for a in attempts.values()]
    return stats.with_width(resampling.mean(values, seed=seed))


def pass_at_k_difference(
    first: Mapping[str, Sequence[bool]],
    second: Mapping[str, Sequence[bool]],
    k: int,
    *,
    seed: int = 0,
) -> Estimate:
    """Mean of second − first pass@k over the same tasks, with a paired bootstrap interval. No
    interval where all tasks have the same difference. Raises `BadInput` for other tasks."""
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())
        raise BadInput(f"not the same tasks: {odd[0]} is in one only ({len(odd)} such in all)")
    before = [pass_at_k(len(a), sum(a), k) for a in first.values()]
    after = [pass_at_k(len(second[t]), sum(second[t]), k) for t in first]
    return stats.with_width(resampling.mean_difference(before, after, seed=seed))


def pass_at_k_estimator(n: int, c: int, k: int) -> float:
    """The chance that k of n samples, c of them correct, hold a correct one, without bias.

    1 − C(n − c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374). Raises `BadInput` unless
    1 ≤ k ≤ n and 0 ≤ c ≤ n.

    >>> pass_at_k_estimator(4, 1, 2)
    0.5
    """
    return pass_at_k(n, c, k)


@dataclass(frozen=True, slots=True)
class PassAtKResult:
    """pass@k of one policy on one set of problems.

    per_task: {"task_id", "n", "passed"} of each problem, with what `extras_fn` added; pass_at: k →
    the mean over problems.
    """

    n_problems: int
    samples_per_problem: int
    per_task: list[dict[str, Any]]
    pass_at: dict[int, float]

    def estimate(self, k: int, *, seed: int = 0) -> Estimate:
        """pass@k with a 95 % bootstrap interval that resamples problems; none where all problems
        have the same value.

        Raises `BadInput` for a k above the samples, and where there is no problem.
        """
        if not self.per_task:
            raise BadInput("there is no problem: pass@k has no estimate")
        values = [pass_at_k(int(r["n"]), int(r["passed"]), k) for r in self.per_task]
        return stats.with_width(resampling.mean(values, seed=seed))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; pass@k to four decimals."""
        return {
            "n_problems": self.n_problems,
            "samples_per_problem": self.samples_per_problem,
            "pass_at": {f"pass@{k}": round(v, 4) for k, v in self.pass_at.items()},
            "per_task": list(self.per_task),
        }


@dataclass
class PassAtK:
    """pass@k for each k of `ks`.

    >>> problems = [{"task_id": "a"}, {"task_id": "b"}]
    >>> samples = [["1", "2"], ["2", "2"]]
    >>> PassAtK([1, 2]).score(problems, samples, lambda text, problem: text == "2").pass_at
    {1: 0.75, 2: 1.0}
    """

    ks: Sequence[int] = (1,)

    def score(
        self,
        problems: Sequence[Mapping[str, Any]],
        samples: Sequence[Sequence[str]],
        grader: Callable[[str, Any], bool],
        *,
        extras_fn: Callable[[Any, Sequence[str]], Mapping[str, Any]] | None = None,
        task_id_field: str = "task_id",
    ) -> PassAtKResult:
        """Grade `samples[i]`, the same number for every problem, against `problems[i]`.

        grader: of (sample, problem), whether it passes. extras_fn: of (problem, its samples), what
        else to keep in the problem's row. Raises `BadInput` where the lengths do not agree, and
        where two problems have one id.
        """
        if len(problems) != len(samples):
            raise BadInput(f"{len(problems)} problems but samples for {len(samples)}")
        rows = []
        for problem, texts in zip(problems, samples, strict=True):
            passed = sum(bool(grader(text, problem)) for text in texts)
            named = problem.get(task_id_field)
            row = {"task_id": "" if named is None else str(named), "n": len(texts)}
            extras = extras_fn(problem, texts) if extras_fn else {}
            rows.append({**extras, **row, "passed": passed})
        return self.from_rows(rows)

    def from_rows(self, rows: Sequence[Mapping[str, Any]]) -> PassAtKResult:
        """The same from problems that are graded already: {"task_id", "n", "passed"} of each.

        The task_id may be left out. Raises `BadInput` where two rows have the same, because the
        attempts at one problem are one row, where the problems differ in n, a k is above it, or a
        row lacks a count or has something else there.
        """
        if not self.ks:
            raise BadInput("ks is empty: there is no k to estimate pass@k for")
        row_of: dict[str, int] = {}
        for i, row in enumerate(rows):
            task_id = row.get("task_id")
            if task_id not in (None, "") and (j := row_of.setdefault(str(task_id), i)) != i:
                raise BadInput(
                    f"row {i}: task {task_id!r} is in row {j} too; add up n and passed of its"
                    " attempts in one row"
                )
            for key in ("n", "passed"):
                if key not in row:
                    raise BadInput(f"row {i}: the key {key!r} is missing")
                try:
                    whole_number(row[key])
                except ValueError as e:
                    raise BadInput(f"row {i}: {key}: {e}") from None
        if not rows:
            return PassAtKResult(0, 0, [], dict.fromkeys(self.ks, 0.0))
        counts = sorted({int(r["n"]) for r in rows})
        if len(counts) > 1:
            raise BadInput(f"every problem needs as many samples as the others; found {counts}")
        pass_at = {
            k: sum(pass_at_k(int(r["n"]), int(r["passed"]), k) for r in rows) / len(rows)
            for k in self.ks
        }
        return PassAtKResult(len(rows), counts[0], [dict(r) for r in rows], pass_at)
