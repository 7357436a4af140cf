"""Everything that is known of a run, read once: what tables, page, picture and verdict are made of.

A night that broke half-way has to be readable in the morning too, so each part is read on its own:
what cannot be read becomes a gap that the page names, and the rest is shown. What is judged
(verdict, milestones, warnings) is judged here and nowhere else; nothing is written or drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from fieldkit.errors import BadInput, FieldkitError
from fieldkit.files.journal import Entry, Journal
from fieldkit.records import StepSummary, Task
from reward.pool import Convergence, Forecast, PoolHistory, converged, forecast, read_history
from rollout.arm import EvalSummary, read_eval
from rollout.tasks import decode_tasks
from scripts.base.checkout import from_checkout
from scripts.evidence.collect import Evidence, collect
from scripts.evidence.flips import Flips, find_flips
from scripts.evidence.health import Warning_, warnings
from scripts.evidence.milestones import Milestones, milestones
from scripts.evidence.played import PlayedArm, finished, read_named, reading_order
from scripts.evidence.verdict import Verdict, judge
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.manifest import typed_to_play
from scripts.run.next_phase import Phase
from scripts.run.reader import RunReader
from scripts.run.state import as_told, look
from scripts.run.timings import StepTimings

T = TypeVar("T")


@dataclass(frozen=True)
class Gap:
    """A part of the findings that is missing, and why. needed: no evidence can be had without."""

    what: str
    why: str
    needed: bool = False


@dataclass(frozen=True)
class Pool:
    """What the pool was played, and what it can still teach."""

    history: PoolHistory
    state: Convergence
    forecast: Forecast


@dataclass(frozen=True)
class Plan:
    """What the loop would do next, and how many steps are planned in all."""

    phase: Phase
    steps: int


@dataclass(frozen=True)
class Findings:
    """One run. What is None, or empty, is not there yet, or `gaps` says why."""

    folder: RunFolder
    config: RunConfig = field(default_factory=RunConfig)
    steps: tuple[StepSummary, ...] = ()
    """Every finished step, step-000 first."""
    evidence: Evidence | None = None
    flips: Flips | None = None
    summaries: tuple[EvalSummary, ...] = ()
    """Every finished evaluation's own sums: what is left to show where `evidence` is None."""
    timings: tuple[StepTimings, ...] = ()
    pool: Pool | None = None
    plan: Plan | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    journal: tuple[Entry, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def typed(self) -> str:
        """What a person types for RUN."""
        return self.folder.typed

    @property
    def to_play(self) -> str:
        """The same for a command that plays."""
        return typed_to_play(self.typed, self.manifest)

    @property
    def played(self) -> tuple[StepSummary, ...]:
        """The steps that have rollouts: all but step-000."""
        return tuple(s for s in self.steps if s.mean_turns is not None)

    @cached_property
    def verdict(self) -> Verdict | None:
        """On the newest adapter; None where only the start has been evaluated, or nothing."""
        e = self.evidence
        if e is None or e.newest is None:
            return None
        return judge(e.arm(e.reference), e.arm(e.newest), e.against_reference(e.newest))

    @cached_property
    def milestones(self) -> Milestones:
        """The steps at which something was first reached."""
        return milestones(self.steps)

    @cached_property
    def warnings(self) -> tuple[Warning_, ...]:
        """What the night may have done wrong although every step succeeded."""
        return warnings(self.played, self.milestones, self.config, self.manifest, self.evidence)

    def require_evidence(self) -> Evidence:
        """The evidence. Raises `BadInput` with the reason where there is none."""
        if self.evidence is not None:
            return self.evidence
        nothing = f"{self.path}: no step is finished yet; `grpo run {self.to_play}` goes on"
        raise BadInput(next((gap.why for gap in self.gaps if gap.needed), nothing))


class _Parts:
    """Reads part after part and keeps what was missing."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []

    def read(self, what: str, call: Callable[[], T], otherwise: T, needed: bool = False) -> T:
        """What `call` returns; `otherwise`, and a gap, where it raises a foreseen failure."""
        try:
            return call()
        except FieldkitError as e:
            self.gaps.append(Gap(what, str(e), needed))
            return otherwise


def read_findings(folder: RunFolder, config: RunConfig) -> Findings:
    """Read the run. Raises nothing that is foreseen: what cannot be read is among the gaps."""
    parts, reader = _Parts(), RunReader(folder)
    no_steps: tuple[StepSummary, ...] = ()
    no_tasks: tuple[Task, ...] = ()
    no_entries: tuple[Entry, ...] = ()
    nothing_matched: tuple[dict[str, PlayedArm], Evidence | None] = ({}, None)
    steps = parts.read("steps", lambda: reader.steps, no_steps, needed=True)
    heldout = parts.read("held-out tasks", lambda: _heldout(config), no_tasks, needed=True)
    manifest = parts.read("manifest", lambda: reader.manifest, None)
    if manifest is None and not parts.gaps:
        why = f"it has not started: `grpo run {folder.typed}` starts it"
        parts.gaps.append(Gap("the night", why))
    journal = parts.read("journal", Journal(folder.journal).read, no_entries)

    def matched() -> tuple[dict[str, PlayedArm], Evidence | None]:
        to_play = typed_to_play(folder.typed, manifest)
        arms = read_named(folder.evals, heldout, steps, to_play)
        return arms, collect(arms, heldout, manifest, journal)

    arms, evidence = nothing_matched
    if heldout and steps:
        arms, evidence = parts.read("matched tables", matched, nothing_matched, needed=True)
    return Findings(
        folder=folder,
        config=config,
        steps=steps,
        evidence=evidence,
        flips=find_flips(evidence, arms, heldout) if evidence else None,
        timings=parts.read("wall time", lambda: reader.timings[: len(steps)], ()),
        summaries=_summaries(folder.evals, parts),
        pool=parts.read("pool", lambda: _pool(folder, config), None),
        plan=_plan(config, journal, reader),
        manifest=manifest or {},
        journal=journal,
        gaps=tuple(parts.gaps),
    )


def _heldout(config: RunConfig) -> tuple[Task, ...]:
    return config.eval.of(decode_tasks(from_checkout(config.data.heldout)))


def _summaries(evals: Path, parts: _Parts) -> tuple[EvalSummary, ...]:
    found = [
        parts.read(f"evaluation {folder.name}", partial(read_eval, folder), None)
        for folder in finished(evals)
    ]
    whole = [s for s in found if s is not None]
    return tuple(sorted(whole, key=lambda s: reading_order(s.arm)))


def _pool(folder: RunFolder, config: RunConfig) -> Pool:
    ids = [t.task_id for t in decode_tasks(from_checkout(config.data.pool))]
    history = read_history(folder.path)
    return Pool(history, converged(history, ids, config.pool), forecast(history, ids))


def _plan(config: RunConfig, journal: Sequence[Entry], reader: RunReader) -> Plan | None:
    """What the newest loop was told to do: `--steps 3` is done after three, whatever run.toml says.

    None on another host, after run.toml was changed, where data are gone, or where an older
    version's manifest lacks a key: the page can be read all the same."""
    try:
        night, deadline = as_told(config.run, journal)
        phase, steps = look(reader.folder, replace(config, run=night), deadline, reader)
    except (FieldkitError, OSError, KeyError):
        return None
    return Plan(phase, steps)
