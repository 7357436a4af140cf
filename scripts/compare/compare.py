"""Arms of any runs, compared on the same held-out tasks: `grpo compare A B [C …]`.

The first that is named is what the others are compared with. Everything is read from finished
evaluations: arms that do not match are refused, and nothing is played. Tests and intervals are
fieldkit's; how they are shown is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval import stats
from fieldkit.eval.matched import ArmRow, MatchedBaseComparison, PairedRow
from fieldkit.records import Task
from rollout.arm import tasks_sha
from rollout.tasks import decode_tasks
from scripts.base.checkout import from_checkout
from scripts.evidence import collect
from scripts.evidence.collect import Evidence, arm_of, stops_of
from scripts.evidence.conditions import conditions, refuse_unmatched, remarks
from scripts.evidence.stored_arm import SYNTAX, StoredArm, read_arm


@dataclass(frozen=True)
class Compared:
    """One arm against the first."""

    row: PairedRow
    """Its p-values are those of each test alone."""
    passed_p: float
    """McNemar's p for passing, Holm-adjusted over the arms that are compared."""
    stopped_p: float
    """The same for ending by itself."""
    won: tuple[str, ...]
    """Tasks that only this arm passed, in the order of the held-out set."""
    lost: tuple[str, ...]
    """Tasks that only the first passed."""

    @property
    def adjusted(self) -> PairedRow:
        """The row with the adjusted p-values in place: what is shown and what claims rest on."""
        passed, stopped = self.row.passed, self.row.stopped
        return replace(
            self.row,
            passed=replace(passed, test=replace(passed.test, p_value=self.passed_p)),
            stopped=replace(stopped, test=replace(stopped.test, p_value=self.stopped_p)),
        )


@dataclass(frozen=True)
class Comparison:
    """Matched arms by label, the reference first, with everything computed."""

    arms: Mapping[str, StoredArm]
    n_tasks: int
    conditions: Mapping[str, Any]
    """What every arm was played under, by key of run.toml."""
    rows: tuple[ArmRow, ...]
    compared: tuple[Compared, ...]
    stops: Mapping[str, Mapping[str, int]]
    """Arm → stop reason → attempts."""
    pair: Evidence | None
    """By persona, difficulty, template and assertion kind; only where two arms are compared."""
    remarks: tuple[str, ...]

    @property
    def reference(self) -> str:
        """The label of the arm that the others are compared with."""
        return self.rows[0].name


def compare_arms(names: Sequence[str]) -> Comparison:
    """Compare the arms that a person named. Raises as `matched_arms`."""
    arms = matched_arms(names)
    reference, first = next(iter(arms.items()))
    tasks, missing_tags = _tasks(arms)
    played = {label: arm.played for label, arm in arms.items()}
    matched = MatchedBaseComparison(
        [arm_of(label, p, tasks) for label, p in played.items()], reference
    )
    return Comparison(
        arms=arms,
        n_tasks=len(tasks),
        conditions=conditions(first),
        rows=matched.rows(),
        compared=_compared(matched),
        stops={label: stops_of(p.trajectories) for label, p in played.items()},
        pair=collect.compare(played, tasks, reference) if len(arms) == 2 else None,
        remarks=(*remarks(arms), *missing_tags),
    )


def matched_arms(names: Sequence[str]) -> dict[str, StoredArm]:
    """The arms that a person named (`stored_arm.SYNTAX`), by label and in their order.

    Raises `BadInput` where a name is no arm's or has no evaluation, where fewer than two arms or
    one arm twice are named, and where conditions do not match.
    """
    if len(names) < 2:
        raise BadInput(f"name at least two arms to compare; {SYNTAX}")
    arms = _labelled([read_arm(name) for name in names])
    refuse_unmatched(arms)
    return arms


def _labelled(arms: Sequence[StoredArm]) -> dict[str, StoredArm]:
    """Runs of one name in different folders go by their paths."""
    places: dict[str, set[str]] = {}
    for arm in arms:
        places.setdefault(arm.folder.name, set()).add(str(arm.folder.path))
    labelled: dict[str, StoredArm] = {}
    for arm in arms:
        alone = len(places[arm.folder.name]) == 1
        label = arm.label if alone else f"{arm.folder.path}@{arm.arm}"
        if label in labelled:
            raise BadInput(f"{label} is named twice; {SYNTAX}")
        labelled[label] = arm
    return labelled


def _tasks(arms: Mapping[str, StoredArm]) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """The held-out tasks, as the first run that still has them gives them.

    Where none has, tasks without tags, because evaluations hold all but these; and a remark.
    """
    first = next(iter(arms.values()))
    for arm in arms.values():
        path = from_checkout(arm.manifest["data"]["heldout"]["path"])
        try:
            tasks = decode_tasks(path)
        except BadInput:
            continue
        tasks = tasks[: arm.manifest["config"]["eval"].get("tasks") or len(tasks)]
        if tasks_sha(tasks) == first.played.summary.tasks_sha:
            return tasks, ()
    ids = dict.fromkeys(t.task_id for t in first.played.trajectories)
    path = from_checkout(first.manifest["data"]["heldout"]["path"])
    return tuple(Task(task_id, "", "", {}) for task_id in ids), (
        f"{path} is gone or has changed, so nothing is shown by persona, difficulty or template.",
    )


def _compared(matched: MatchedBaseComparison) -> tuple[Compared, ...]:
    rows = matched.paired_rows()
    passed = stats.holm([row.passed.test.p_value for row in rows])
    stopped = stats.holm([row.stopped.test.p_value for row in rows])
    before = [o.passed for o in matched.outcomes(matched.reference)]
    found = []
    for row, passed_p, stopped_p in zip(rows, passed, stopped, strict=True):
        after = [o.passed for o in matched.outcomes(row.name)]
        both = list(zip(matched.task_ids, before, after, strict=True))
        won = tuple(task for task, then, now in both if now and not then)
        lost = tuple(task for task, then, now in both if then and not now)
        found.append(Compared(row, passed_p, stopped_p, won, lost))
    return tuple(found)
