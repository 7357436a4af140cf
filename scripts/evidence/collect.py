"""The numbers of a run's evaluations: the arms, their paired differences, and the split tables.

Every number is computed once, from arms already in memory, so the terminal, the Markdown page, the
JSON and the verdict all show the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.assertions import each_fact_once
from fieldkit.eval.matched import Arm, ArmRow, MatchedArms, PairedRow, TaskOutcome, holm_adjusted
from fieldkit.eval.passk import mean_pass_at_k, pass_at_k_difference
from fieldkit.eval.stats import Estimate
from fieldkit.files.journal import Entry
from fieldkit.records import StopReason, Task, Trajectory
from reward.idleness import ByNeed, by_need
from reward.part_means import PartRow, part_rows
from rollout.yardsticks import DO_NOTHING, YARDSTICKS
from scripts.base.checkout import from_checkout
from scripts.evidence.played import BASE, WARM_START, PlayedArm, taken_from
from scripts.run.config import DEVELOPMENT
from scripts.run.manifest import FEWER, sandbox_kind
from scripts.words.quantities import counted

TAGS = ("environment", "persona", "difficulty", "template")
"""The tags by which tables are split; each is its table's heading."""

ORDER = ("easy", "middle", "hard", "seen", "unseen")
"""Tag values in their own order; all other values are sorted alphabetically."""


class TaskSet(StrEnum):
    """Which tasks an evaluation was played on: what its figures may be used for."""

    HELD_OUT = "held-out"
    """Never trained on."""
    DEVELOPMENT = "development"
    """Never trained on, but settings are chosen on them."""
    FINAL = "final"
    """Looked at when nothing is left to choose."""

    @property
    def heading(self) -> str:
        return f"{self.value.capitalize()} tasks"


@dataclass(frozen=True)
class SplitRow:
    """One value of a tag (or one assertion kind): every arm on it, and newest − reference."""

    value: str
    n_tasks: int
    rows: Mapping[str, ArmRow]
    """Without bootstrap intervals: split tables show intervals only for differences."""
    paired: PairedRow | None
    """Newest − reference, its p-values corrected over the rows of this table (Holm); None if no
    trained adapter is evaluated."""


@dataclass(frozen=True)
class Evidence:
    """Every number of a run's evaluations. Arms are in reading order."""

    n_tasks: int
    temperature: float
    samples: int
    reference: str
    newest: str | None
    """The newest adapter's arm; None if no trained adapter is evaluated."""
    arms: tuple[ArmRow, ...]
    paired: tuple[PairedRow, ...]
    """Every arm except the yardsticks against the reference."""
    late: tuple[PairedRow, ...]
    """The newest arm against each trained arm before it: the gain of the last steps."""
    splits: Mapping[str, tuple[SplitRow, ...]]
    kinds: tuple[SplitRow, ...]
    stops: Mapping[str, Mapping[str, int]]
    """Arm → stop reason → attempts."""
    pass_at_k: Mapping[str, Mapping[int, Estimate]]
    """Arm → k → pass@k, for arms with more than one attempt per task."""
    pass_at_k_gain: Mapping[int, Estimate]
    """k → pass@k of the newest arm minus pass@k of the reference, paired by task."""
    unprotected: tuple[str, ...] = ()
    """The arms that were played without a sandbox."""
    taken_over: Mapping[str, str] = field(default_factory=dict)
    """Arm → the neighbouring run that played it on its own server."""
    reward_parts: tuple[PartRow, ...] = ()
    """The means of each part of the reward; none where no environment gives rewards."""
    by_need: ByNeed | None = None
    """The assertions by whether doing nothing meets them; None where that arm was not played."""
    played_on: TaskSet = TaskSet.HELD_OUT
    opened_before: tuple[str, ...] = ()
    """Earlier evaluations on the final set, if that was played."""
    usual_tasks: int = 0
    """Held-out tasks of a night with more time, where this one gave some up for steps; else 0."""

    def arm(self, name: str) -> ArmRow:
        """Return one arm's row. Raises `BadInput` if the arm was not evaluated."""
        for row in self.arms:
            if row.name == name:
                return row
        raise BadInput(
            f"no arm is called {name!r}; there are {', '.join(a.name for a in self.arms)}"
        )

    def against_reference(self, name: str) -> PairedRow:
        """Return one arm's paired row. Raises `BadInput` for the reference and for yardsticks."""
        for row in self.paired:
            if row.name == name:
                return row
        raise BadInput(f"arm {name!r} is not compared with {self.reference!r}")

    @property
    def caution(self) -> tuple[str, ...]:
        """Why the figures prove less than those of ordinary held-out tasks, for a headline; else
        empty. `about_tasks` has the details."""
        if self.opened_before:
            return (_opened(self.opened_before),)
        return about_tasks(self.played_on, ()) if self.played_on is TaskSet.DEVELOPMENT else ()

    @property
    def about_tasks(self) -> tuple[str, ...]:
        """What a reader of the figures has to know of the tasks."""
        about = about_tasks(self.played_on, self.opened_before)
        if self.usual_tasks:
            about += (
                f"The night was short, so {self.n_tasks} tasks were played of the usual"
                f" {self.usual_tasks}, to leave time for steps.",
            )
        return about

    def plain(self) -> dict[str, Any]:
        """The evidence as JSON-ready values, without what only some runs have."""
        absent: dict[str, object] = {"reward_parts": (), "opened_before": (), "usual_tasks": 0}
        absent |= {"played_on": TaskSet.HELD_OUT, "by_need": None}
        return {k: v for k, v in asdict(self).items() if k not in absent or v != absent[k]}


def collect(
    arms: Mapping[str, PlayedArm],
    tasks: Sequence[Task],
    manifest: Mapping[str, Any] | None,
    journal: Sequence[Entry],
) -> Evidence:
    """Compute the evidence of one run from its arms by name. Raises `BadInput` if they mismatch.

    tasks: the held-out tasks that every arm played. manifest, journal: the origin of the arms; if
    unreadable (None, empty), `unprotected` and `taken_over` stay empty.
    """
    # One kind of sandbox holds for all arms: `check_sandbox` refuses to mix kinds in a run, and
    # arms are taken over only from a run with the same kind.
    bare = manifest is not None and sandbox_kind(manifest) == "none"
    taken = taken_from(journal)
    return replace(
        compare(arms, tasks),
        unprotected=tuple(arms) if bare else (),
        taken_over={n: taken[key] for n, a in arms.items() if (key := a.summary.key) in taken},
        played_on=played_on(manifest, journal),
        opened_before=opened_before(manifest, journal),
        usual_tasks=(manifest or {}).get(FEWER, {}).get("usual", 0),
    )


def played_on(manifest: Mapping[str, Any] | None, journal: Sequence[Entry]) -> TaskSet:
    """The set that a run's evaluations were played on, as far as its files tell."""
    known = manifest or {}
    if _openings(known, journal):
        return TaskSet.FINAL
    file = known.get("data", {}).get("heldout", {}).get("path", "")
    is_development = from_checkout(file) == from_checkout(DEVELOPMENT)
    return TaskSet.DEVELOPMENT if is_development else TaskSet.HELD_OUT


def opened_before(manifest: Mapping[str, Any] | None, journal: Sequence[Entry]) -> tuple[str, ...]:
    """The runs that saw the final set before the newest evaluation of this one."""
    found = _openings(manifest or {}, journal)
    earlier = found[-1].data.get("earlier") if found else None
    return tuple(map(str, earlier)) if isinstance(earlier, list) else ()


def about_tasks(on: TaskSet, opened_before: Sequence[str]) -> tuple[str, ...]:
    """What a reader has to know of the set that was played; nothing of ordinary held-out tasks."""
    if on is TaskSet.DEVELOPMENT:
        return ("Settings are chosen on the development tasks, so these figures prove nothing.",)
    if on is TaskSet.HELD_OUT:
        return ()
    if not opened_before:
        return ("The final set had not been opened before.",)
    return (
        f"{_opened(opened_before).removesuffix('.')}: {'; '.join(opened_before)}. A setting chosen"
        " after such a look was chosen on these tasks too.",
    )


def _opened(before: Sequence[str]) -> str:
    return f"The final set had been opened before, by {counted(len(before), 'run')}."


def _openings(manifest: Mapping[str, Any], journal: Sequence[Entry]) -> list[Entry]:
    """When the run opened the final set; not with other tasks, before run.toml was changed."""
    tasks = manifest.get("evaluation", {}).get("tasks_sha")
    return [
        e for e in journal if e.event == "final_set_opened" and e.data.get("tasks_sha") == tasks
    ]


def compare(
    played: Mapping[str, PlayedArm], tasks: Sequence[Task], reference: str = WARM_START
) -> Evidence:
    """Compute the evidence from arms by name, in reading order; the last trained arm is newest."""
    arms = {name: arm_of(name, p, tasks) for name, p in played.items()}
    tags = _tags(tasks)
    comparison = MatchedArms([*arms.values()], reference, tags)
    trained = [n for n in played if n not in (*YARDSTICKS, BASE, reference)]
    newest = trained[-1] if trained else None
    summary = played[reference].summary
    rows, paired, late = [], [], []
    # Arm by arm: the resampled sums behind the three are remembered for a dozen arms only.
    for name in played:
        rows.append(comparison.row(name))
        if name != reference and name not in YARDSTICKS:
            paired.append(comparison.paired(name))
        if name in trained[:-1]:
            late.append(MatchedArms([arms[name], arms[trained[-1]]], name).paired(trained[-1]))
    return Evidence(
        n_tasks=len(tasks),
        temperature=summary.temperature,
        samples=summary.samples,
        reference=reference,
        newest=newest,
        arms=tuple(rows),
        paired=tuple(paired),
        late=tuple(late),
        splits={tag: _split(comparison, tag, newest) for tag in TAGS if _has_tag(tags, tag)},
        kinds=_rows_of(comparison.kinds(), newest),
        stops={name: stops_of(p.trajectories) for name, p in played.items()},
        pass_at_k={name: _pass_at_k(p) for name, p in played.items() if p.summary.samples > 1},
        pass_at_k_gain=_pass_at_k_gain(played[reference], played[newest]) if newest else {},
        reward_parts=part_rows({name: p.trajectories for name, p in played.items()}, tasks),
        by_need=_by_need(played, reference, newest),
    )


def _by_need(played: Mapping[str, PlayedArm], reference: str, newest: str | None) -> ByNeed | None:
    firsts = {name: p.first_attempts for name, p in played.items()}
    if DO_NOTHING not in firsts:
        return None
    return by_need(firsts[DO_NOTHING], firsts, reference, newest)


def outcome(trajectory: Trajectory) -> TaskOutcome:
    """Convert one attempt to the form the comparison counts. Only sampled tokens count."""
    by_kind: dict[str, tuple[int, int]] = {}
    for result in trajectory.grade.results:
        passed, total = by_kind.get(result.kind, (0, 0))
        by_kind[result.kind] = (passed + result.passed, total + 1)
    once = each_fact_once(trajectory.grade)
    return TaskOutcome(
        passed=trajectory.grade.passed,
        stopped=trajectory.stop_reason.by_itself,
        assertions_passed=trajectory.grade.n_passed,
        assertions_total=trajectory.grade.n_total,
        turns=len(trajectory.turns),
        tokens=sum(len(t.completion_ids) for t in trajectory.turns),
        seconds=sum(t.seconds for t in trajectory.turns),
        stop_reason=trajectory.stop_reason.value,
        by_kind=by_kind,
        reward=trajectory.reward,
        once=(once.n_passed, once.n_total),
    )


def arm_of(name: str, played: PlayedArm, tasks: Sequence[Task]) -> Arm:
    """Make an arm of the first attempts: they have matched seeds, and pairs stay independent.

    Raises `BadInput` if one of `tasks` was not played.
    """
    first = {task_id: outcome(t) for task_id, t in played.first_attempts.items()}
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
    """The task's tags by which tables are split."""
    persona = task.info.get("persona")  # ClawGym's own files have {"role", "context"}
    named = {**task.info, "persona": persona.get("role") if isinstance(persona, dict) else persona}
    tags = {k: str(named[k]) for k in ("persona", "difficulty") if named.get(k)}
    if isinstance(task.info.get("unseen_template"), bool):
        tags["template"] = "unseen" if task.info["unseen_template"] else "seen"
    return tags


def _tags(tasks: Sequence[Task]) -> dict[str, dict[str, str]]:
    """Every task's tags by its id, its environment among them where there are several."""
    several = len({t.env for t in tasks}) > 1
    return {t.task_id: ({"environment": t.env} if several else {}) | tags_of(t) for t in tasks}


def _has_tag(tags: Mapping[str, Mapping[str, str]], tag: str) -> bool:
    return all(tag in found for found in tags.values())


def _split(comparison: MatchedArms, tag: str, newest: str | None) -> tuple[SplitRow, ...]:
    parts = comparison.split(tag)
    in_order = sorted(parts, key=lambda v: (ORDER.index(v) if v in ORDER else 0, v))
    return _rows_of({value: parts[value] for value in in_order}, newest)


def _rows_of(parts: Mapping[str, MatchedArms], newest: str | None) -> tuple[SplitRow, ...]:
    paired: Sequence[PairedRow | None] = [None] * len(parts)
    if newest:
        paired = holm_adjusted([part.paired(newest) for part in parts.values()])
    return tuple(
        SplitRow(
            value=value,
            n_tasks=len(part.task_ids),
            rows={row.name: row for row in part.rows(intervals=False)},
            paired=row,
        )
        for (value, part), row in zip(parts.items(), paired, strict=True)
    )


def stops_of(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Count attempts by stop reason, in the order of the enum."""
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
    """Task → for each of its attempts, whether it passed."""
    attempts: dict[str, list[bool]] = {}
    for t in played.trajectories:
        attempts.setdefault(t.task_id, []).append(t.grade.passed)
    return attempts
