"""pass@k without bias: the chance that at least one of k attempts passes, from n ≥ k attempts.

Taking the best of the first k attempts wastes the rest and is noisy; the estimator of Chen et al.
(2021), arXiv:2107.03374, equation 1, uses all n. This module only counts; it plays nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fieldkit.errors import BadInput
from fieldkit.eval import stats
from fieldkit.eval.stats import Estimate


def pass_at_k(n: int, passed: int, k: int) -> float:
    """1 − C(n − passed, k) / C(n, k): the share of all k-subsets of n attempts that hold a pass.

    Raises `BadInput` unless 1 ≤ k ≤ n and 0 ≤ passed ≤ n.
    """
    if not (1 <= k <= n):
        raise BadInput(f"pass@{k} needs at least {max(k, 1)} attempts a task, there are {n}")
    if not (0 <= passed <= n):
        raise BadInput(f"{passed} passes of {n} attempts cannot be")
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def mean_pass_at_k(attempts: Mapping[str, Sequence[bool]], k: int, *, seed: int = 0) -> Estimate:
    """pass@k averaged over tasks, with a bootstrap interval that resamples tasks.

    `attempts` maps a task id to whether each attempt passed; every task needs k attempts or more.
    """
    for task_id, passed in attempts.items():
        if len(passed) < k:
            raise BadInput(f"task {task_id}: pass@{k} needs {k} attempts, there are {len(passed)}")
    return stats.mean([pass_at_k(len(a), sum(a), k) for a in attempts.values()], seed=seed)


def pass_at_k_difference(
    first: Mapping[str, Sequence[bool]],
    second: Mapping[str, Sequence[bool]],
    k: int,
    *,
    seed: int = 0,
) -> Estimate:
    """Mean of second − first pass@k over the same tasks, with a paired bootstrap interval."""
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())
        raise BadInput(f"not the same tasks: {odd[0]} is in one only ({len(odd)} such tasks)")
    return stats.mean_difference(
        [pass_at_k(len(a), sum(a), k) for a in first.values()],
        [pass_at_k(len(second[t]), sum(second[t]), k) for t in first],
        seed=seed,
    )
