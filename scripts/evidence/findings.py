"""Everything the morning page is made from, read once from a run folder.

A night that broke half-way has to be readable in the morning too, so each part is read on its own:
what cannot be read becomes a gap that the page names, and the rest is shown. Nothing here words or
draws anything, and no number is computed that another module has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fieldkit.errors import FieldkitError
from fieldkit.files.journal import Entry, Journal
from fieldkit.records import StepSummary, Task
from reward.pool import Convergence, Forecast, PoolHistory, converged, forecast, read_history
from rollout.arm import SUMMARY, EvalSummary, read_eval
from rollout.tasks import decode_tasks
from scripts.base.checkout import from_checkout
from scripts.evidence.collect import Evidence, collect, read_steps
from scripts.evidence.flips import Flips, read_flips
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest, typed_to_play
from scripts.run.next_phase import Phase
from scripts.run.state import as_told, look
from scripts.run.timings import StepTimings, read_timings

T = TypeVar("T")


@dataclass(frozen=True)
class Gap:
    """A part of the page that is missing, and why."""

    what: str
    why: str


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
class Material:
    """One run as the page needs it. None, or empty, where `gaps` says why."""

    name: str
    path: Path
    config: RunConfig
    steps: tuple[StepSummary, ...]
    timings: tuple[StepTimings, ...]
    evidence: Evidence | None
    summaries: tuple[EvalSummary, ...]
    """Every finished evaluation's own sums: what is left to show where `evidence` is None."""
    flips: Flips | None
    pool: Pool | None
    plan: Plan | None
    manifest: Mapping[str, Any]
    journal: tuple[Entry, ...]
    gaps: tuple[Gap, ...]

    @property
    def typed(self) -> str:
        """What a person types for RUN."""
        return RunFolder(self.path).typed

    @property
    def to_play(self) -> str:
        """The same for a command that plays."""
        return typed_to_play(self.typed, self.manifest)

    @property
    def played(self) -> tuple[StepSummary, ...]:
        """The steps that have rollouts: all but step-000."""
        return tuple(s for s in self.steps if s.mean_turns is not None)


class _Reader:
    """Reads part after part and keeps what was missing."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []

    def read(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        """What `call` returns; `otherwise`, and a gap, where it raises a foreseen failure."""
        try:
            return call()
        except FieldkitError as e:
            self.gaps.append(Gap(what, str(e)))
            return otherwise


def read_material(
    folder: RunFolder, config: RunConfig, evidence: Evidence | None = None
) -> Material:
    """Read the run. `evidence`: where the caller has it already, which saves most of the time."""
    r = _Reader()
    no_steps: tuple[StepSummary, ...] = ()
    no_tasks: tuple[Task, ...] = ()
    steps = r.read("steps", lambda: read_steps(folder), no_steps)
    heldout = r.read("held-out tasks", lambda: _heldout(config), no_tasks)
    manifest = r.read("manifest", lambda: read_manifest(folder), None)
    if manifest is None and not r.gaps:
        r.gaps.append(Gap("the night", f"it has not started: `grpo run {folder.typed}` starts it"))
    if evidence is None and heldout and steps:
        evidence = r.read("matched tables", lambda: collect(folder.evals, heldout, steps), None)
    no_entries: tuple[Entry, ...] = ()
    journal = r.read("journal", Journal(folder.journal).read, no_entries)
    return Material(
        name=folder.name,
        path=folder.path,
        config=config,
        steps=steps,
        timings=r.read("wall time", lambda: _timings(folder, len(steps)), ()),
        evidence=evidence,
        summaries=_summaries(folder.evals, r),
        flips=_flips(folder.evals, evidence, steps, heldout, r),
        pool=r.read("pool", lambda: _pool(folder, config), None),
        plan=_plan(folder, config, journal),
        manifest=manifest or {},
        journal=journal,
        gaps=tuple(r.gaps),
    )


def _heldout(config: RunConfig) -> tuple[Task, ...]:
    return config.eval.of(decode_tasks(from_checkout(config.data.heldout)))


def _timings(folder: RunFolder, n_steps: int) -> tuple[StepTimings, ...]:
    return tuple(read_timings(folder.timings(n), n) for n in range(n_steps))


def _summaries(evals: Path, r: _Reader) -> tuple[EvalSummary, ...]:
    found = []
    for folder in sorted(file.parent for file in evals.glob(f"*/{SUMMARY}")):
        found.append(r.read(f"evaluation {folder.name}", partial(read_eval, folder), None))
    return tuple(s for s in found if s is not None)


def _flips(
    evals: Path,
    evidence: Evidence | None,
    steps: Sequence[StepSummary],
    heldout: Sequence[Task],
    r: _Reader,
) -> Flips | None:
    if evidence is None or evidence.newest is None:
        return None
    found = evidence
    return r.read("flipped tasks", lambda: read_flips(evals, found, steps, heldout), None)


def _pool(folder: RunFolder, config: RunConfig) -> Pool:
    ids = [t.task_id for t in decode_tasks(from_checkout(config.data.pool))]
    history = read_history(folder.path)
    return Pool(history, converged(history, ids, config.pool), forecast(history, ids))


def _plan(folder: RunFolder, config: RunConfig, journal: Sequence[Entry]) -> Plan | None:
    """What the newest loop was told to do: `--steps 3` is done after three, whatever run.toml says.

    None on another host, after run.toml was changed, where data are gone, or where an older
    version's manifest lacks a key: the page can be read all the same."""
    try:
        night, deadline = as_told(config.run, journal)
        phase, steps = look(folder, replace(config, run=night), deadline)
    except (FieldkitError, OSError, KeyError):
        return None
    return Plan(phase, steps)
