"""What the evaluations of a run say: arms by task, their paired differences, and who they are.

Computes every number once from arms that are read already, so that the terminal, the Markdown page,
the JSON and the verdict show the same ones. It reads no file, plays nothing and words nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval import stats
from fieldkit.eval.matched import Arm, ArmRow, MatchedBaseComparison, PairedRow, TaskOutcome
from fieldkit.eval.passk import mean_pass_at_k, pass_at_k_difference
from fieldkit.eval.stats import Estimate
from fieldkit.files.journal import Entry
from fieldkit.records import StopReason, Task, Trajectory
from rollout.yardsticks import YARDSTICKS
from scripts.evidence.played import BASE, WARM_START, PlayedArm
from scripts.run.manifest import sandbox_kind

TAGS = {
    "persona": "persona",
    "difficulty": "difficulty",
    "template": "template",
}
"""Tag → heading of its table."""

ORDER = ("easy", "middle", "hard", "seen", "unseen")
"""Tag values that have an order of their own; others go by the alphabet."""


@dataclass(frozen=True)
class SplitRow:
    """One value of a tag (or one assertion kind): every arm there, and newest − reference."""

    value: str
    n_tasks: int
    rows: Mapping[str, ArmRow]
    """Without bootstrapped intervals: what a table of parts is read for is the difference."""
    paired: PairedRow | None
    """None where no newest arm has been evaluated."""
    holm_p: float | None
    """McNemar's p for task pass, adjusted over the rows of this table."""


@dataclass(frozen=True)
class Evidence:
    """Everything that the evaluations of a run show. Arms in reading order."""

    n_tasks: int
    temperature: float
    samples: int
    reference: str
    newest: str | None
    """The newest adapter's arm; None where only the start has been evaluated."""
    arms: tuple[ArmRow, ...]
    paired: tuple[PairedRow, ...]
    """Every played arm against the reference."""
    late: tuple[PairedRow, ...]
    """The newest arm against each arm evaluated on the way: what the last steps bought."""
    splits: Mapping[str, tuple[SplitRow, ...]]
    kinds: tuple[SplitRow, ...]
    stops: Mapping[str, Mapping[str, int]]
    """Arm → stop reason → attempts."""
    pass_at_k: Mapping[str, Mapping[int, Estimate]]
    """Arm → k → pass@k, where more than one attempt a task was played."""
    pass_at_k_gain: Mapping[int, Estimate]
    """k → pass@k of the newest arm less that of the reference, paired by task."""
    unprotected: tuple[str, ...] = ()
    """The arms that were played without a sandbox."""
    taken_over: Mapping[str, str] = field(default_factory=dict)
    """Arm → the run beside this one that played it, on a server of its own."""

    def arm(self, name: str) -> ArmRow:
        """One arm's row. Raises `BadInput` for an arm that was not evaluated."""
        for row in self.arms:
            if row.name == name:
                return row
        raise BadInput(
            f"no arm is called {name!r}; there are {', '.join(a.name for a in self.arms)}"
        )

    def against_reference(self, name: str) -> PairedRow:
        """One arm's paired row. Raises `BadInput` for the reference itself and yardsticks."""
        for row in self.paired:
            if row.name == name:
                return row
        raise BadInput(f"arm {name!r} is not compared with {self.reference!r}")

    def plain(self) -> dict[str, Any]:
        """JSON-ready plain values."""
        value: dict[str, Any] = asdict(self)
        return value


def collect(
    arms: Mapping[str, PlayedArm],
    tasks: Sequence[Task],
    manifest: Mapping[str, Any] | None,
    journal: Sequence[Entry],
) -> Evidence:
    """The evidence of one run from its arms by name. Raises `BadInput` where they do not match.

    tasks: the held-out set that was played. manifest, journal: what tells how the arms came about;
    where they cannot be read (None, empty) that is left out, and the figures stand.
    """
    # All arms of a run or none: what was played in another kind of sandbox is never mixed in
    # (`check_sandbox`), and taken over from another run only where that was of the same kind.
    bare = manifest is not None and sandbox_kind(manifest) == "none"
    taken = {e.data["arm"]: e.data["run"] for e in journal if e.event == "arm_taken_over"}
    return replace(
        compare(arms, tasks),
        unprotected=tuple(arms) if bare else (),
        taken_over={arm: run for arm, run in taken.items() if arm in arms},
    )


def compare(
    played: Mapping[str, PlayedArm], tasks: Sequence[Task], reference: str = WARM_START
) -> Evidence:
    """The evidence from arms by name, in reading order; the last that is no yardstick is newest."""
    arms = [arm_of(name, p, tasks) for name, p in played.items()]
    comparison = MatchedBaseComparison(arms, reference, {t.task_id: tags_of(t) for t in tasks})
    trained = [n for n in played if n not in (*YARDSTICKS, BASE, reference)]
    newest = trained[-1] if trained else None
    summary = played[reference].summary
    return Evidence(
        n_tasks=len(tasks),
        temperature=summary.temperature,
        samples=summary.samples,
        reference=reference,
        newest=newest,
        arms=comparison.rows(),
        paired=tuple(
            comparison.paired(n) for n in played if n != reference and n not in YARDSTICKS
        ),
        late=_late(arms, trained),
        splits={tag: _split(comparison, tag, newest) for tag in TAGS if _has_tag(tasks, tag)},
        kinds=_rows_of(comparison.kinds(), newest),
        stops={name: stops_of(p.trajectories) for name, p in played.items()},
        pass_at_k={name: _pass_at_k(p) for name, p in played.items() if p.summary.samples > 1},
        pass_at_k_gain=_pass_at_k_gain(played[reference], played[newest]) if newest else {},
    )


def _late(arms: Sequence[Arm], trained: Sequence[str]) -> tuple[PairedRow, ...]:
    on_the_way = trained[:-1]
    if not on_the_way:
        return ()
    chosen = [a for a in arms if a.name in trained]
    return tuple(
        MatchedBaseComparison(chosen, reference).paired(trained[-1]) for reference in on_the_way
    )


def outcome(trajectory: Trajectory) -> TaskOutcome:
    """One attempt as the comparison counts it. Tokens are those that the policy sampled."""
    by_kind: dict[str, tuple[int, int]] = {}
    for result in trajectory.grade.results:
        passed, total = by_kind.get(result.kind, (0, 0))
        by_kind[result.kind] = (passed + result.passed, total + 1)
    return TaskOutcome(
        passed=trajectory.grade.passed,
        stopped=trajectory.stop_reason is StopReason.TASK_COMPLETE,
        assertions_passed=trajectory.grade.n_passed,
        assertions_total=trajectory.grade.n_total,
        turns=len(trajectory.turns),
        tokens=sum(len(t.completion_ids) for t in trajectory.turns),
        seconds=sum(t.seconds for t in trajectory.turns),
        stop_reason=trajectory.stop_reason.value,
        by_kind=by_kind,
    )


def arm_of(name: str, played: PlayedArm, tasks: Sequence[Task]) -> Arm:
    """The first attempt at each task: pairs must be independent, and k = 0 has matched seeds.

    Raises `BadInput` where one of `tasks` was not played.
    """
    first = {t.task_id: outcome(t) for t in played.trajectories if t.k == 0}
    s = played.summary
    settings = {
        "temperature": s.temperature,
        "samples": s.samples,
        "episode settings (hash)": s.settings_sha,
    }
    missing = [t.task_id for t in tasks if t.task_id not in first]
    if missing:
        raise BadInput(
            f"evaluation {s.key} of {name!r} lacks {missing[0]} ({len(missing)} such tasks);"
            " remove its folder and evaluate again"
        )
    return Arm(
        name, {t.task_id: first[t.task_id] for t in tasks}, None if name in YARDSTICKS else settings
    )


def tags_of(task: Task) -> dict[str, str]:
    """The tags that tables are split by, as far as the task has them."""
    tags = {k: str(task.info[k]) for k in ("persona", "difficulty") if task.info.get(k)}
    if isinstance(task.info.get("unseen_template"), bool):
        tags["template"] = "unseen" if task.info["unseen_template"] else "seen"
    return tags


def _has_tag(tasks: Sequence[Task], tag: str) -> bool:
    return all(tag in tags_of(t) for t in tasks)


def _split(comparison: MatchedBaseComparison, tag: str, newest: str | None) -> tuple[SplitRow, ...]:
    parts = comparison.split(tag)
    in_order = sorted(parts, key=lambda v: (ORDER.index(v) if v in ORDER else 0, v))
    return _rows_of({value: parts[value] for value in in_order}, newest)


def _rows_of(
    parts: Mapping[str, MatchedBaseComparison], newest: str | None
) -> tuple[SplitRow, ...]:
    paired = {value: part.paired(newest) if newest else None for value, part in parts.items()}
    p_values = [p.passed.test.p_value for p in paired.values() if p is not None]
    adjusted: Sequence[float | None] = stats.holm(p_values) if newest else [None] * len(parts)
    return tuple(
        SplitRow(
            value=value,
            n_tasks=len(part.task_ids),
            rows={row.name: row for row in part.rows(intervals=False)},
            paired=paired[value],
            holm_p=p,
        )
        for (value, part), p in zip(parts.items(), adjusted, strict=True)
    )


def stops_of(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Stop reason → attempts, in the order of the enum."""
    counts = Counter(t.stop_reason for t in trajectories)
    return {reason.value: counts[reason] for reason in StopReason if counts[reason]}


def _pass_at_k(played: PlayedArm) -> dict[int, Estimate]:
    attempts = _attempts(played)
    return {k: mean_pass_at_k(attempts, k) for k in range(1, played.summary.samples + 1)}


def _pass_at_k_gain(reference: PlayedArm, newest: PlayedArm) -> dict[int, Estimate]:
    samples = newest.summary.samples
    if samples == 1:
        return {}
    before, after = _attempts(reference), _attempts(newest)
    return {k: pass_at_k_difference(before, after, k) for k in range(1, samples + 1)}


def _attempts(played: PlayedArm) -> dict[str, list[bool]]:
    """Task → whether each of its attempts passed."""
    attempts: dict[str, list[bool]] = {}
    for t in played.trajectories:
        attempts.setdefault(t.task_id, []).append(t.grade.passed)
    return attempts
