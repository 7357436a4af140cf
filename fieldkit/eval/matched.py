"""Arms played on the same tasks under the same settings, compared task by task.

A number for one policy says little; the difference to a matched base says something, if nothing but
the policy differs. So this refuses arms whose tasks, assertions or settings do not match, and gives
every difference with its test and interval. It plays nothing and prints nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval import resampling, stats
from fieldkit.eval.stats import Estimate, PairedProportions


@dataclass(frozen=True)
class TaskOutcome:
    """What one arm did on one task."""

    passed: bool
    """Every assertion holds."""
    stopped: bool
    """The policy ended the attempt by its own word."""
    assertions_passed: int
    assertions_total: int
    turns: int
    tokens: int
    """Tokens that the policy sampled."""
    seconds: float
    """Wall time of the attempt, others playing beside it."""
    stop_reason: str = ""
    by_kind: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Assertion kind → (passed, total)."""
    reward: float = 0.0
    once: tuple[int, int] | None = None
    """(passed, total) without assertions that another one implies; None: not counted."""


@dataclass(frozen=True)
class Arm:
    """One policy's outcomes by task id.

    `settings` are what must be equal between arms (temperature, turn limit, …); None marks a
    yardstick that samples nothing (doing nothing, the oracle) and matches any.
    """

    name: str
    outcomes: Mapping[str, TaskOutcome]
    settings: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ArmRow:
    """One arm in numbers. Rates lie in [0, 1] and carry 95% intervals."""

    name: str
    n_tasks: int
    passed: int
    pass_rate: Estimate
    stopped: int
    stop_rate: Estimate
    stopped_and_passed: int
    """Of the attempts that the policy ended itself, those whose work was complete."""
    assertions_passed: int
    assertions_total: int
    assertion_rate: Estimate
    mean_turns: Estimate
    mean_tokens: Estimate
    mean_seconds: float
    median_turns: float | None = None
    mean_reward: float | None = None
    reward_sd: float | None = None
    """Standard deviation of the reward over the tasks, with n in the denominator. These three are
    None in evidence that was stored before they were counted."""
    once: tuple[int, int] | None = None
    """Assertions (passed, total) without those that another one implies; None as above."""

    @property
    def has_parts(self) -> bool:
        """Whether a task has several assertions, so that they say more than the passes do."""
        return self.assertions_total > self.n_tasks


@dataclass(frozen=True)
class PairedRow:
    """An arm minus the reference, task by task; positive is more than the reference."""

    name: str
    reference: str
    n_tasks: int
    passed: PairedProportions
    stopped: PairedProportions
    assertion_rate: Estimate
    turns: Estimate
    tokens: Estimate
    seconds: Estimate | None = None
    """None in evidence that was stored before it was counted."""
    once: Estimate | None = None
    """As `assertion_rate`, without assertions that another one implies; None as above."""
    reward: Estimate | None = None
    """None as above."""


def holm_adjusted(rows: Sequence[PairedRow]) -> tuple[PairedRow, ...]:
    """The rows with the p-values of their passes, and of their stops, corrected over the rows by
    Holm's method. Their signs then say what is beyond luck though there were several to look at."""
    passed = stats.holm([row.passed.test.p_value for row in rows])
    stopped = stats.holm([row.stopped.test.p_value for row in rows])
    return tuple(
        replace(row, passed=row.passed.with_p(p), stopped=row.stopped.with_p(q))
        for row, p, q in zip(rows, passed, stopped, strict=True)
    )


class MatchedArms:
    """Arms over the same tasks, and their paired differences to one of them.

    tags: task id → {tag: value}, such as persona or difficulty, for `split`. Raises `BadInput`
    naming what differs when arms do not share their tasks, assertion counts or settings, when two
    share a name, or when the reference is not among them.
    """

    def __init__(
        self,
        arms: Sequence[Arm],
        reference: str,
        tags: Mapping[str, Mapping[str, str]] | None = None,
        seed: int = 0,
    ) -> None:
        self.arms = tuple(arms)
        self.reference = reference
        self.tags = dict(tags or {})
        self.seed = seed
        _check_names(self.arms, reference)
        self.task_ids = tuple(self.arms[0].outcomes)
        for arm in self.arms[1:]:
            _check_matched(self.arms[0], arm)
        _check_settings(self.arms)
        _check_tags(self.tags, self.task_ids)

    @property
    def names(self) -> tuple[str, ...]:
        """Arm names in the given order."""
        return tuple(a.name for a in self.arms)

    def outcomes(self, name: str) -> tuple[TaskOutcome, ...]:
        """One arm's outcomes in the order of `task_ids`."""
        arm = next((a for a in self.arms if a.name == name), None)
        if arm is None:
            raise BadInput(f"no arm is called {name!r}; there are {', '.join(self.names)}")
        return tuple(arm.outcomes[t] for t in self.task_ids)

    def row(self, name: str, *, intervals: bool = True) -> ArmRow:
        """One arm's own numbers.

        intervals: False leaves those out that are bootstrapped, which is nearly all of the time.
        """
        out = self.outcomes(name)
        n = len(out)
        passed, stopped = sum(o.passed for o in out), sum(o.stopped for o in out)
        once = _once(out)
        return ArmRow(
            name=name,
            n_tasks=n,
            passed=passed,
            pass_rate=stats.wilson(passed, n),
            stopped=stopped,
            stop_rate=stats.wilson(stopped, n),
            stopped_and_passed=sum(o.stopped and o.passed for o in out),
            assertions_passed=sum(o.assertions_passed for o in out),
            assertions_total=sum(o.assertions_total for o in out),
            assertion_rate=self._ratio(
                [o.assertions_passed for o in out], [o.assertions_total for o in out], intervals
            ),
            mean_turns=self._ratio([o.turns for o in out], [1] * n, intervals),
            mean_tokens=self._ratio([o.tokens for o in out], [1] * n, intervals),
            mean_seconds=sum(o.seconds for o in out) / n,
            median_turns=statistics.median(o.turns for o in out),
            mean_reward=statistics.fmean(o.reward for o in out),
            reward_sd=statistics.pstdev(o.reward for o in out),
            once=(sum(p for p, _ in once), sum(n for _, n in once)) if once else None,
        )

    def _ratio(
        self, parts: Sequence[float], totals: Sequence[float], intervals: bool
    ) -> stats.Estimate:
        if not intervals:
            return stats.Estimate(sum(parts) / sum(totals), None)
        return resampling.ratio(parts, totals, seed=self.seed)

    def rows(self, *, intervals: bool = True) -> tuple[ArmRow, ...]:
        """Every arm's own numbers, in the given order; see `row`."""
        return tuple(self.row(name, intervals=intervals) for name in self.names)

    def paired(self, name: str) -> PairedRow:
        """One arm against the reference."""
        ref, arm = self.outcomes(self.reference), self.outcomes(name)
        ref_once, arm_once = _once(ref), _once(arm)
        return PairedRow(
            name=name,
            reference=self.reference,
            n_tasks=len(ref),
            passed=stats.paired_proportions([o.passed for o in ref], [o.passed for o in arm]),
            stopped=stats.paired_proportions([o.stopped for o in ref], [o.stopped for o in arm]),
            assertion_rate=resampling.ratio_difference(
                [o.assertions_passed for o in ref],
                [o.assertions_passed for o in arm],
                [o.assertions_total for o in ref],
                seed=self.seed,
            ),
            turns=resampling.mean_difference(
                [o.turns for o in ref], [o.turns for o in arm], seed=self.seed
            ),
            tokens=resampling.mean_difference(
                [o.tokens for o in ref], [o.tokens for o in arm], seed=self.seed
            ),
            seconds=resampling.mean_difference(
                [o.seconds for o in ref], [o.seconds for o in arm], seed=self.seed
            ),
            once=resampling.ratio_difference(
                [p for p, _ in ref_once],
                [p for p, _ in arm_once],
                [n for _, n in ref_once],
                seed=self.seed,
            )
            if ref_once and arm_once
            else None,
            reward=resampling.mean_difference(
                [o.reward for o in ref], [o.reward for o in arm], seed=self.seed
            ),
        )

    def paired_rows(self) -> tuple[PairedRow, ...]:
        """Every other arm against the reference, in the given order."""
        return tuple(self.paired(name) for name in self.names if name != self.reference)

    def split(self, tag: str) -> dict[str, MatchedArms]:
        """One comparison for each value of a tag, values sorted; every task must carry the tag."""
        by_value: dict[str, list[str]] = {}
        for task_id in self.task_ids:
            value = self.tags.get(task_id, {}).get(tag)
            if value is None:
                raise BadInput(f"task {task_id} has no {tag!r} tag")
            by_value.setdefault(value, []).append(task_id)
        return {value: self.subset(by_value[value]) for value in sorted(by_value)}

    def subset(self, task_ids: Sequence[str]) -> MatchedArms:
        """The same arms over some of the tasks, which must be among `task_ids`."""
        arms = [replace(a, outcomes={t: a.outcomes[t] for t in task_ids}) for a in self.arms]
        tags = {t: self.tags[t] for t in task_ids if t in self.tags}
        return MatchedArms(arms, self.reference, tags, self.seed)

    def kinds(self) -> dict[str, MatchedArms]:
        """One comparison for each assertion kind, sorted: its assertions alone are counted.

        Tasks without that kind are left out. Only the assertion columns of its rows mean something.
        """
        kinds = sorted({k for arm in self.arms for o in arm.outcomes.values() for k in o.by_kind})
        return {kind: self._only_kind(kind) for kind in kinds}

    def _only_kind(self, kind: str) -> MatchedArms:
        arms = [
            replace(
                a,
                outcomes={
                    t: replace(
                        o,
                        assertions_passed=o.by_kind[kind][0],
                        assertions_total=o.by_kind[kind][1],
                        once=None,
                    )
                    for t, o in a.outcomes.items()
                    if kind in o.by_kind
                },
            )
            for a in self.arms
        ]
        task_ids = arms[0].outcomes
        tags = {t: self.tags[t] for t in task_ids if t in self.tags}
        return MatchedArms(arms, self.reference, tags, self.seed)


def _once(outcomes: Sequence[TaskOutcome]) -> list[tuple[int, int]]:
    """`once` of every outcome; empty where one was not counted."""
    counted = [o.once for o in outcomes if o.once is not None]
    return counted if len(counted) == len(outcomes) else []


def _check_names(arms: Sequence[Arm], reference: str) -> None:
    if not arms:
        raise BadInput("there is no arm to compare")
    names = [a.name for a in arms]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise BadInput(f"two arms are called {twice[0]!r}")
    if reference not in names:
        raise BadInput(f"the reference {reference!r} is not among the arms {', '.join(names)}")
    if not arms[0].outcomes:
        raise BadInput(f"arm {arms[0].name!r} has no outcome")
    for task_id, outcome in arms[0].outcomes.items():
        if outcome.assertions_total < 1:
            raise BadInput(f"task {task_id} has no assertion: it cannot be compared")


def _check_matched(base: Arm, arm: Arm) -> None:
    odd = sorted(base.outcomes.keys() ^ arm.outcomes.keys())
    if odd:
        has, lacks = (base, arm) if odd[0] in base.outcomes else (arm, base)
        raise BadInput(
            f"not the same tasks: {odd[0]} is in arm {has.name!r} and not in {lacks.name!r}"
            f" ({len(odd)} such tasks); evaluate both arms on the same file"
        )
    for task_id, outcome in base.outcomes.items():
        other = arm.outcomes[task_id]
        if outcome.assertions_total != other.assertions_total:
            raise BadInput(
                f"task {task_id} has {outcome.assertions_total} assertions in arm {base.name!r} and"
                f" {other.assertions_total} in {arm.name!r}: the task changed between evaluations"
            )


def _check_settings(arms: Sequence[Arm]) -> None:
    played = [a for a in arms if a.settings is not None]
    for arm in played[1:]:
        base, mine = played[0].settings or {}, arm.settings or {}
        for key in sorted({*base, *mine}):
            if base.get(key) != mine.get(key):
                raise BadInput(
                    f"not the same settings: {key} is {base.get(key)!r} in arm {played[0].name!r}"
                    f" and {mine.get(key)!r} in {arm.name!r}; evaluate both the same way"
                )


def _check_tags(tags: Mapping[str, Mapping[str, str]], task_ids: Sequence[str]) -> None:
    strangers = sorted(tags.keys() - set(task_ids))
    if strangers:
        raise BadInput(f"tags are given for {strangers[0]}, which no arm has played")
