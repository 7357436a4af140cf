"""Arms that were played with several seeds: each against where it started, and against the first.

One night says nothing about the next one, so an arm here is all its nights: of every held-out task
the mean over them, and tests over the tasks. These speak of other tasks, for these very nights; how
far nights differ is asked with the nights as observations (Student's t, Welch 1947). The arms are
those of a sweep, or one that a person names night by night. Everything is read from finished
evaluations.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.stats import Estimate, holm
from fieldkit.files.journal import Journal
from fieldkit.records import StepSummary
from scripts.compare.by_nights import student, welch
from scripts.compare.compare import matched_arms
from scripts.compare.mean_change import MEASURES, Changes, Outcomes, adjusted, by_task, changes
from scripts.compare.near_copies import held_out_tasks, on_tasks, without_near_copies
from scripts.evidence.collect import TaskSet, opened_before, outcome, played_on
from scripts.evidence.conditions import refuse_unmatched, remarks
from scripts.evidence.milestones import milestones
from scripts.evidence.stored_arm import WARM, StoredArm, read_arm
from scripts.run.config import flat
from scripts.run.folder import RunFolder
from scripts.run.manifest import FOLLOWERS, FREE_KEYS, KEPT_KEYS
from scripts.run.reader import RunReader
from scripts.words.quantities import listed

_NOT_COMPARED = frozenset(
    {"run.seed", "data.heldout", "model.path", *FREE_KEYS, *KEPT_KEYS, *FOLLOWERS}
)
"""The seed, what does not change a result or has the value of another key, and what has to be alike
(held-out tasks) or has a remark of its own (the base model)."""


@dataclass(frozen=True)
class SeedNight:
    """A night with the adapter that counts, and the one that it started from. steps: up to it."""

    name: str
    start: Outcomes
    end: Outcomes
    steps: tuple[StepSummary, ...]

    def total(self, at: Outcomes, measure: str) -> float:
        """The sum of a measure over the tasks."""
        return sum(map(MEASURES[measure], at.values()))

    def passed(self, at: Outcomes) -> float:
        """The share of tasks passed."""
        return self.total(at, "passed") / len(at)

    @property
    def stops_90(self) -> int | None:
        """The first step in which 90 % of the attempts ended by themselves."""
        return milestones(self.steps).stops_90


@dataclass(frozen=True)
class SeedsArm:
    """One arm. gain: of its end against its start, by measure; against: of its end against the
    first arm's, None for that one itself. p_by_nights: of the shares of tasks that its nights pass
    at their ends against those of the first arm, by Welch's test and Holm over the arms; None with
    fewer than two nights in one of them, and where no night differs from another of its arm."""

    name: str
    nights: tuple[SeedNight, ...]
    gain: Changes
    against: Changes | None
    p_by_nights: float | None = None

    @property
    def gain_over_nights(self) -> Estimate:
        """The mean change in the share of tasks passed, with Student's interval over the nights:
        for other nights of this arm, with other seeds."""
        return student(
            [night.passed(night.end) - night.passed(night.start) for night in self.nights]
        )

    def means(self, measure: str) -> tuple[float, float]:
        """A measure's mean over tasks and nights, at the start and at the end."""
        starts, ends = [n.start for n in self.nights], [n.end for n in self.nights]
        return statistics.fmean(by_task(starts, measure)), statistics.fmean(by_task(ends, measure))


@dataclass(frozen=True)
class SeedsComparison:
    """Arms over the same held-out tasks. unplayed: the nights that are not over, or whose newest
    adapter has no evaluation yet, and that are left out. opened_before: as
    `collect.opened_before`. remarks: what else a reader should know."""

    n_tasks: int
    played_on: TaskSet
    opened_before: tuple[str, ...]
    arms: tuple[SeedsArm, ...]
    unplayed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """The arm that the others are held against."""
        return self.arms[0].name

    def plain(self) -> dict[str, Any]:
        """Every number, JSON-ready."""
        return {
            "schema": 1,
            "n_tasks": self.n_tasks,
            "played_on": self.played_on.value,
            "opened_before": list(self.opened_before),
            "reference": self.reference,
            "unplayed": list(self.unplayed),
            "remarks": list(self.remarks),
            "arms": [_plain(arm) for arm in self.arms],
        }


@dataclass(frozen=True)
class _Played:
    """The two evaluated adapters of a night."""

    name: str
    start: StoredArm
    end: StoredArm


def compare_over_seeds(
    arms: Mapping[str, Sequence[Path]], is_over: Callable[[Path], bool] = lambda night: True
) -> SeedsComparison:
    """Compare the arms of a sweep by name, each with its nights' run folders.

    is_over: whether a night has come to its end; the newest adapter of one that has not may be
    evaluated all the same. Nights that are not over, have not evaluated their newest adapter or
    cannot be read are left out, and so is an arm that has no other, with a remark. Raises
    `BadInput` where no arm is left, and where evaluations were not played alike.
    """
    nights: dict[str, list[_Played]] = {name: [] for name in arms}
    unplayed = []
    for name, folders in arms.items():
        for folder in folders:
            played = _played(folder)
            if played is None or not is_over(folder):
                unplayed.append(folder.name)
            else:
                nights[name].append(played)
    empty = [name for name, found in nights.items() if not found]
    sweeps = {RunFolder(folder.parent).typed for folders in arms.values() for folder in folders}
    plays = f"is finished and evaluated yet; `grpo sweep run {min(sweeps)}` plays them"
    if len(empty) == len(arms):
        raise BadInput(f"no night {plays}")
    told = (f"Left out: no night of {', '.join(empty)} {plays}.",) if empty else ()
    found = _compared({name: own for name, own in nights.items() if own})
    ends = {night.name: night.end for own in nights.values() for night in own}
    said = (*_changed_files(ends), *remarks(ends), *told)
    return replace(found, unplayed=tuple(unplayed), remarks=said)


def _played(folder: Path) -> _Played | None:
    """A night of a sweep; None where its newest adapter is not evaluated, or its steps cannot be
    read, which is told where it is played. Raises `BadInput` for a broken evaluation."""
    try:
        evaluated = _is_evaluated(RunReader(RunFolder(folder)))
    except BadInput:
        return None
    if not evaluated:
        return None
    return _Played(folder.name, read_arm(f"{folder}@{WARM}"), read_arm(str(folder)))


def compare_nights(words: Sequence[str], *, unlike: Path | None = None) -> SeedsComparison:
    """Compare the named arms (`stored_arm.SYNTAX`), one of each night, with their own starts: the
    nights of one setting that differ by their seed.

    unlike: as in `compare.compare_arms`. Raises as `compare.matched_arms` and for `unlike`, and
    `BadInput` for an arm that is the start of its night or no step of it.
    """
    ends = matched_arms(words)
    for word, end in zip(words, ends.values(), strict=True):
        if end.word != word.rstrip("/") and not end.arm.isdecimal():  # an arm was typed
            raise BadInput(
                f"{word}: --seeds compares what a night came to with its own start; name the"
                f" night alone, as in `grpo compare {end.word} … --seeds`"
            )
    for end in ends.values():
        _require_end(end)
    told = (*_differing_settings(ends.values()), *remarks(ends))
    starts = {label: read_arm(f"{end.word}@{WARM}") for label, end in ends.items()}
    if unlike is not None:
        tasks, left_out = without_near_copies(held_out_tasks(ends)[0], unlike)
        told = (*told, left_out)
        kept = {task.task_id for task in tasks}
        starts, ends = (
            {label: on_tasks(arm, kept) for label, arm in arms.items()} for arms in (starts, ends)
        )
    nights = [_Played(label.rpartition("@")[0], starts[label], end) for label, end in ends.items()]
    if len({night.name for night in nights}) < len(nights):
        raise BadInput("--seeds: two of these are steps of one night; name each night once")
    return replace(_compared({listed(words): nights}), remarks=told)


def _require_end(end: StoredArm) -> None:
    """Raise `BadInput` for the start's evaluation of a night whose later adapters have none: as a
    night that gained nothing it would draw the mean to zero."""
    steps = RunReader(end.folder).steps
    trained = {step.adapter_sha for step in steps[1:]}
    if end.arm.isdecimal() or trained == {steps[0].adapter_sha}:
        return
    raise BadInput(
        f"{end.folder.path}: only what the night began with is evaluated, which says nothing of"
        f" what it came to; leave it out, or play it: `grpo eval {end.folder.typed}`"
        if trained
        else f"{end.folder.path}: an evaluation of one adapter and no night, so it has no end of"
        " its own; name it without --seeds"
    )


def _compared(arms: Mapping[str, Sequence[_Played]]) -> SeedsComparison:
    """Compare arms that have a night each. Raises `BadInput` where they were not played alike."""
    every = [night for nights in arms.values() for night in nights]
    refuse_unmatched(
        {
            label: arm
            for n in every
            for label, arm in ((f"{n.name}@{WARM}", n.start), (n.name, n.end))
        }
    )
    played = {name: tuple(map(_night, nights)) for name, nights in arms.items()}
    starts = [[night.start for night in own] for own in played.values()]
    ends = [[night.end for night in own] for own in played.values()]
    gains = adjusted([changes(*arm) for arm in zip(starts, ends, strict=True)])
    against = [None, *adjusted([changes(ends[0], other) for other in ends[1:]])]
    shares = [[night.passed(night.end) for night in own] for own in played.values()]
    by_nights = [None, *_holm_where_told([welch(shares[0], other) for other in shares[1:]])]
    rows = zip(played, played.values(), gains, against, by_nights, strict=True)
    origins = [(n.end.manifest, Journal(n.end.folder.journal).read()) for n in every]
    before = dict.fromkeys(run for origin in origins for run in opened_before(*origin))
    return SeedsComparison(
        n_tasks=len(ends[0][0]),
        played_on=played_on(*origins[0]),
        opened_before=tuple(before),
        arms=tuple(SeedsArm(*row) for row in rows),
    )


def _holm_where_told(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm over the p-values that there are; None stays."""
    corrected = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(corrected) for p in p_values]


def _differing_settings(arms: Iterable[StoredArm]) -> Iterator[str]:
    """A remark where nights differ in more than their seed and what no result depends on."""
    first, *others = map(_settings, arms)
    keys = sorted({*first}.union(*others) - _NOT_COMPARED)
    if differing := [key for key in keys if any(o.get(key) != first.get(key) for o in others)]:
        yield f"The nights differ in more than their seed: {', '.join(differing)}."


def _changed_files(arms: Mapping[str, StoredArm]) -> Iterator[str]:
    """A remark where nights of one sweep began with other tasks or another adapter, although their
    settings name the same."""
    for key, what in (("data.pool", "tasks"), ("model.adapter", "an adapter")):
        held: dict[str, set[str]] = {}
        for arm in arms.values():
            named = flat(arm.manifest["config"])[key]
            held.setdefault(named, set()).add(_settings(arm)[key])
        for named, found in held.items():
            if len(found) > 1:
                yield f"The nights did not begin alike: {key}, {named}, held other {what} in some."


def _settings(arm: StoredArm) -> dict[str, Any]:
    """A night's settings by dotted key. Files count by what they hold, wherever they lie."""
    files = {
        "data.pool": arm.manifest["data"]["pool"]["sha256"],
        "model.adapter": RunReader(arm.folder).steps[0].adapter_sha,
    }
    return flat(arm.manifest["config"]) | files


def _is_evaluated(night: RunReader) -> bool:
    """Whether the adapter of the newest step has a finished evaluation."""
    return len(night.steps) > 1 and night.steps[-1].adapter_sha in night.evaluations


def _night(night: _Played) -> SeedNight:
    before, after = (
        {task: outcome(t) for task, t in arm.played.first_attempts.items()}
        for arm in (night.start, night.end)
    )
    steps, arm = RunReader(night.end.folder).steps, night.end.arm
    # A night that learned nothing ends with the adapter of its start.
    to = int(arm) + 1 if arm.isdecimal() else None
    return SeedNight(night.name, before, after, steps[:to])


def _plain(arm: SeedsArm) -> dict[str, Any]:
    nights = [
        {
            "run": night.name,
            "steps": len(night.steps) - 1,
            "stops_90": night.stops_90,
            "start": {m: night.total(night.start, m) for m in MEASURES},
            "end": {m: night.total(night.end, m) for m in MEASURES},
        }
        for night in arm.nights
    ]
    plain = {"gain": arm.gain, "against": arm.against}
    compared = {
        key: None if found is None else {m: asdict(c) for m, c in found.items()}
        for key, found in plain.items()
    }
    over = {"gain_over_nights": asdict(arm.gain_over_nights), "p_by_nights": arm.p_by_nights}
    return {"arm": arm.name, "nights": nights, **compared, **over}
