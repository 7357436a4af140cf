"""`grpo compare A B [C …]`: compares arms of any runs on the same held-out tasks.

The first arm is the reference. Everything is read from finished evaluations: nothing is played, and
arms with different conditions are refused. fieldkit computes tests and intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.matched import ArmRow, MatchedArms, PairedRow, holm_adjusted
from fieldkit.files.journal import Journal
from scripts.compare.mean_change import Changes, changes
from scripts.compare.near_copies import held_out_tasks, on_tasks, without_near_copies
from scripts.evidence import collect
from scripts.evidence.collect import Evidence, TaskSet, arm_of, stops_of
from scripts.evidence.conditions import conditions, refuse_unmatched, remarks
from scripts.evidence.stored_arm import SYNTAX, StoredArm, read_arm


@dataclass(frozen=True)
class Compared:
    """One arm against the reference."""

    row: PairedRow
    """The paired differences, with unadjusted p-values."""
    adjusted: PairedRow
    """The row with p-values adjusted over the compared arms (Holm), for tables and claims."""
    won: tuple[str, ...]
    """Tasks that only this arm passed, in the order of the held-out set."""
    lost: tuple[str, ...]
    """Tasks that only the reference passed."""

    @property
    def passed_p(self) -> float:
        """McNemar's p for tasks passed, adjusted."""
        return self.adjusted.passed.test.p_value

    @property
    def stopped_p(self) -> float:
        """The same for tasks ended by itself."""
        return self.adjusted.stopped.test.p_value


@dataclass(frozen=True)
class Comparison:
    """Matched arms by label, the reference first, with all computed numbers."""

    arms: Mapping[str, StoredArm]
    n_tasks: int
    played_on: TaskSet
    conditions: Mapping[str, Any]
    """The conditions of every arm, by key of run.toml."""
    rows: tuple[ArmRow, ...]
    compared: tuple[Compared, ...]
    stops: Mapping[str, Mapping[str, int]]
    """Arm → stop reason → attempts."""
    pair: Evidence | None
    """Evidence with the split tables; None if more than two arms are compared."""
    remarks: tuple[str, ...]
    mean: Changes | None = None
    """The mean of all other arms by task, against the reference; None if it was not asked for."""

    @property
    def reference(self) -> str:
        """The label of the reference."""
        return self.rows[0].name


def compare_arms(
    names: Sequence[str], *, mean: bool = False, unlike: Path | None = None
) -> Comparison:
    """Compare the named arms.

    mean: also the mean of all but the first with the first, as for nights that differ by their
    seed. unlike: a task file; held-out tasks whose prompts are much like one of its are left out.
    Raises as `matched_arms`, and `BadInput` for a mean of one arm, and for `unlike` where prompts
    are not known or no task is left.
    """
    if mean and len(names) < 3:
        raise BadInput(f"--mean: name at least two arms after the reference; {SYNTAX}")
    arms = matched_arms(names)
    reference, first = next(iter(arms.items()))
    tasks, told = held_out_tasks(arms)
    if unlike is not None:
        tasks, left_out = without_near_copies(tasks, unlike)
        told = (*told, left_out)
        kept = {task.task_id for task in tasks}
        arms = {label: on_tasks(arm, kept) for label, arm in arms.items()}
    played = {label: arm.played for label, arm in arms.items()}
    found = [arm_of(label, p, tasks) for label, p in played.items()]
    matched = MatchedArms(found, reference)
    first_outcomes, *others = [arm.outcomes for arm in found]
    origins = [(arm.manifest, Journal(arm.folder.journal).read()) for arm in arms.values()]
    on = collect.played_on(*origins[0])
    opened_before = [*dict.fromkeys(run for of in origins for run in collect.opened_before(*of))]
    return Comparison(
        arms=arms,
        n_tasks=len(tasks),
        played_on=on,
        conditions=conditions(first),
        rows=matched.rows(),
        compared=_compared(matched),
        stops={label: stops_of(p.trajectories) for label, p in played.items()},
        pair=collect.compare(played, tasks, reference) if len(arms) == 2 else None,
        remarks=(*remarks(arms), *collect.about_tasks(on, opened_before), *told),
        mean=changes([first_outcomes], others) if mean else None,
    )


def matched_arms(names: Sequence[str]) -> dict[str, StoredArm]:
    """Read the named arms (`stored_arm.SYNTAX`), by label and in the given order.

    Raises `BadInput` if an arm does not exist or is not evaluated, if fewer than two arms or one
    arm twice are named, and if conditions do not match.
    """
    if len(names) < 2:
        raise BadInput(f"name at least two arms to compare; {SYNTAX}")
    arms = _labelled([read_arm(name) for name in names])
    refuse_unmatched(arms)
    return arms


def _labelled(arms: Sequence[StoredArm]) -> dict[str, StoredArm]:
    """Label the arms; runs of the same name in different folders are labelled by path."""
    places: dict[str, set[str]] = {}
    for arm in arms:
        places.setdefault(arm.folder.name, set()).add(str(arm.folder.path))
    labelled: dict[str, StoredArm] = {}
    for arm in arms:
        alone = len(places[arm.folder.name]) == 1
        label = arm.label if alone else arm.label_behind(str(arm.folder.path))
        if label in labelled:
            raise BadInput(f"{label} is named twice; {SYNTAX}")
        labelled[label] = arm
    return labelled


def _compared(matched: MatchedArms) -> tuple[Compared, ...]:
    rows = matched.paired_rows()
    before = [o.passed for o in matched.outcomes(matched.reference)]
    found = []
    for row, adjusted in zip(rows, holm_adjusted(rows), strict=True):
        after = [o.passed for o in matched.outcomes(row.name)]
        both = list(zip(matched.task_ids, before, after, strict=True))
        won = tuple(task for task, then, now in both if now and not then)
        lost = tuple(task for task, then, now in both if then and not now)
        found.append(Compared(row, adjusted, won, lost))
    return tuple(found)
