"""Everything known about a run, read once: the input of the tables, the page and the picture.

A broken night must stay readable, so each part is read on its own: an unreadable part becomes a gap
that the page names, and the rest is shown. Verdict, milestones and warnings are computed only here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from fieldkit.codec import from_plain
from fieldkit.errors import BadInput, FieldkitError
from fieldkit.files.atomic import read_json
from fieldkit.files.journal import Entry, Journal
from fieldkit.records import StepSummary, Task
from reward.pool import PoolState, TaskState
from reward.pool_history import Forecast, PoolHistory, forecast, read_history
from rollout.arm import EvalSummary, read_eval
from rollout.draw.rules import WEIGHTS
from rollout.tasks import decode_tasks
from scripts.base.checkout import from_checkout
from scripts.evidence.collect import Evidence, collect
from scripts.evidence.flips import Flips, find_flips
from scripts.evidence.health import Warning_, warnings
from scripts.evidence.learning import Sampled, Training, read_sampled, sampled, trend, trends
from scripts.evidence.milestones import Milestones, milestones
from scripts.evidence.played import (
    PlayedArm,
    finished,
    read_named,
    read_summaries,
    reading_order,
    step_name,
)
from scripts.evidence.step_figures import REWARD, TURNS
from scripts.evidence.stored import HELD_OUT, absent_episodes, has_bundles, read_stored
from scripts.evidence.verdict import REWARD_TREND, SIGNIFICANT, Verdict, judge
from scripts.run.config import RunConfig, read_config
from scripts.run.folder import RunFolder
from scripts.run.manifest import typed_to_play
from scripts.run.next_phase import Phase
from scripts.run.reader import RunReader
from scripts.run.run_pool import last_growth, pool_now
from scripts.run.state import as_told, last_word, look, of_the_night
from scripts.run.timings import StepTimings
from scripts.words.quantities import counted

T = TypeVar("T")


STEPS = "steps"
"""What a gap says of a run with a step.json that cannot be read."""


@dataclass(frozen=True)
class Gap:
    """A missing part of the findings, and why."""

    what: str
    why: str
    needed: bool = False
    """The evidence cannot be computed without this part; evidence.json may still have it."""


@dataclass(frozen=True)
class Pool:
    """The history of the pool, its present state, and the forecast."""

    history: PoolHistory
    state: PoolState
    forecast: Forecast

    @property
    def ranked(self) -> list[str]:
        """The tasks, learnable ones first and fresh ones last, otherwise in the pool's order."""
        shown = (
            TaskState.LEARNABLE,
            TaskState.REVIVED,
            TaskState.SATURATED,
            TaskState.STUCK,
            TaskState.FRESH,
        )
        return [task for state in shown for task in self.state.of(state)]


@dataclass(frozen=True)
class Plan:
    """The loop's next phase, and the planned number of steps in all."""

    phase: Phase
    steps: int


@dataclass(frozen=True)
class Findings:
    """One run. A part that is None or empty does not exist yet, or `gaps` says why."""

    folder: RunFolder
    config: RunConfig = field(default_factory=RunConfig)
    steps: tuple[StepSummary, ...] = ()
    """Every finished step, step-000 first."""
    evidence: Evidence | None = None
    flips: Flips | None = None
    summaries: tuple[EvalSummary, ...] = ()
    """The sums of every finished evaluation: shown if `evidence` is None."""
    sampled: Sampled | None = None
    """The newest evaluated adapter on a few held-out tasks at the training temperature."""
    timings: tuple[StepTimings, ...] = ()
    pool: Pool | None = None
    plan: Plan | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    journal: tuple[Entry, ...] = ()
    gaps: tuple[Gap, ...] = ()
    stored_verdict: Verdict | None = None
    """That of evidence.json, where `evidence` is: not all episodes that it rests on are here."""
    absent: tuple[str, ...] = ()
    """Episodes that were played and are not in this copy of the run, as in one that was committed:
    what is made from them is not as whole as it was."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def typed(self) -> str:
        """RUN as a person types it."""
        return self.folder.typed

    @property
    def is_copy(self) -> bool:
        """The newest adapter is not in this copy of the run, so the run cannot go on here."""
        return bool(self.absent) and not self.folder.adapter(len(self.steps) - 1).is_dir()

    @property
    def to_play(self) -> str:
        """RUN as a person types it in a command that plays episodes."""
        return typed_to_play(self.typed, self.manifest)

    @property
    def played(self) -> tuple[StepSummary, ...]:
        """The steps that have rollouts: all except step-000."""
        return tuple(s for s in self.steps if s.mean_turns is not None)

    @property
    def is_untrained(self) -> bool:
        """Steps were played, and none had a signal: the newest adapter is that of the start."""
        return len(self.steps) > 1 and self.steps[-1].adapter_sha == self.steps[0].adapter_sha

    @property
    def _paid_alike(self) -> bool:
        return not self.config.reward.schedule

    @property
    def drawn_alike(self) -> bool:
        """Whether a trend of the steps' figures is one of the policy. With weights, and with a pool
        that grew, a draw moves on to tasks that pass more or less often, and that end so."""
        return self.config.rollout.draw not in WEIGHTS and not last_growth(self.manifest)

    @cached_property
    def verdict(self) -> Verdict | None:
        """The verdict on the newest adapter; None if no trained adapter is evaluated."""
        e = self.evidence
        if e is None or e.newest is None:
            return None
        if self.stored_verdict is not None:
            return self.stored_verdict
        found = judge(
            e.arm(e.reference),
            e.arm(e.newest),
            e.against_reference(e.newest),
            Training(
                len(self.played),
                trends(self.played, self.drawn_alike, self._paid_alike),
                self.sampled,
            ),
        )
        return replace(found, headline=" ".join((found.headline, *self._unjudged, *e.caution)))

    @property
    def judged_step(self) -> int | None:
        """The step whose adapter the verdict is about; None if no trained one is evaluated."""
        newest = self.evidence.newest if self.evidence is not None else None
        return next((s.step for s in self.steps if step_name(s.step) == newest), None)

    @property
    def _unjudged(self) -> tuple[str, ...]:
        """What was trained since the adapter that is judged, in a sentence; else empty."""
        shas = [s.adapter_sha for s in self.steps]
        if self.judged_step is None or shas[-1] == shas[self.judged_step]:
            return ()
        later = len(shas) - 1 - self.judged_step
        return (
            f"This is of step {self.judged_step}; {counted(later, 'later step')} not evaluated.",
        )

    @cached_property
    def milestones(self) -> Milestones:
        """The steps at which a goal was first reached."""
        moved = (trend(self.played, figure) for figure in (TURNS, REWARD))
        proven = {t.figure for t in moved if t and t.p_value < SIGNIFICANT and t.sign}
        if self.verdict is not None:  # whose tests of trends are corrected for each other
            tested = {t.what: t.sign for t in self.verdict.tests}
            proven -= {REWARD.key} if not tested.get(REWARD_TREND) else set()
        return milestones(self.steps, self._paid_alike, proven if self.drawn_alike else None)

    @cached_property
    def warnings(self) -> tuple[Warning_, ...]:
        """Possible problems of a night whose steps all succeeded."""
        return warnings(self.played, self.milestones, self.config, self.manifest, self.evidence)

    def require_evidence(self) -> Evidence:
        """Return the evidence. Raises `BadInput` with the reason if there is none."""
        if self.evidence is not None:
            return self.evidence
        nothing = f"{self.path}: no step is finished yet; `grpo run {self.to_play}` goes on"
        raise BadInput(next((gap.why for gap in self.gaps if gap.needed), nothing))


class _Parts:
    """Reads the parts one by one and collects the gaps."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []

    def read(self, what: str, call: Callable[[], T], otherwise: T, needed: bool = False) -> T:
        """Return the result of `call`; on a `FieldkitError`, add a gap and return `otherwise`."""
        try:
            return call()
        except FieldkitError as e:
            self.gaps.append(Gap(what, str(e), needed))
            return otherwise


def read_findings(folder: RunFolder, config: RunConfig) -> Findings:
    """Read the run. Raises no `FieldkitError`: an unreadable part becomes a gap."""
    parts, reader = _Parts(), RunReader(folder)
    no_steps: tuple[StepSummary, ...] = ()
    no_tasks: tuple[Task, ...] = ()
    no_entries: tuple[Entry, ...] = ()
    no_evidence: Evidence | None = None
    nothing_matched: tuple[dict[str, PlayedArm], Evidence | None] = ({}, None)
    steps = parts.read(STEPS, lambda: reader.steps, no_steps, needed=True)
    manifest = parts.read("manifest", lambda: reader.manifest, None)
    heldout = parts.read("held-out tasks", lambda: _heldout(config, manifest), no_tasks, True)
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
    summaries = _summaries(folder.evals, parts)
    stored_verdict = None
    if evidence is None and steps:
        evidence = parts.read(
            "evidence.json", lambda: read_stored(folder, steps, summaries), no_evidence
        )
        stored_verdict = _stored_verdict(folder) if evidence else None

    return Findings(
        folder=folder,
        config=config,
        steps=steps,
        evidence=evidence,
        flips=find_flips(evidence, arms, heldout) if evidence and arms else None,
        timings=parts.read("wall time", lambda: reader.timings[: len(steps)], ()),
        summaries=summaries,
        sampled=parts.read(
            "arms at the training temperature", lambda: _sampled(folder, steps, evidence), None
        ),
        pool=parts.read("pool", lambda: _pool(reader, config, steps), None),
        plan=_plan(config, journal, reader),
        manifest=manifest or {},
        journal=journal,
        gaps=tuple(parts.gaps),
        absent=absent_episodes(folder, len(steps)),
        stored_verdict=stored_verdict,
    )


def read_stored_findings(folder: RunFolder) -> Findings:
    """What the verdict rests on, with the numbers of evidence.json: without the held-out episodes,
    whose reading takes a second or two.

    Raises `BadInput` where a part cannot be read, and as `read_stored`.
    """
    reader = RunReader(folder)
    steps = reader.steps
    evidence = read_stored(folder, steps, read_summaries(folder.evals))
    is_whole = HELD_OUT not in absent_episodes(folder, len(steps))
    return Findings(
        folder=folder,
        config=read_config(folder.config),
        steps=steps,
        evidence=evidence,
        sampled=_sampled(folder, steps, evidence),
        manifest=reader.manifest or {},
        stored_verdict=None if is_whole else _stored_verdict(folder),
    )


def _sampled(
    folder: RunFolder, steps: Sequence[StepSummary], evidence: Evidence | None
) -> Sampled | None:
    """The newest evaluated adapter and that of the start, at the training temperature."""
    played = {step_name(s.step): s.adapter_sha for s in steps}
    newest = played.get((evidence.newest or "") if evidence else "")
    if newest is None:
        return None
    start = steps[0].adapter_sha
    return sampled(read_sampled(folder, (start, newest)), start, newest)


def _heldout(config: RunConfig, manifest: Mapping[str, Any] | None) -> tuple[Task, ...]:
    tasks = decode_tasks(from_checkout(config.data.heldout))
    return config.eval.settled(manifest).of(tasks)


def _stored_verdict(folder: RunFolder) -> Verdict | None:
    """The verdict in evidence.json; None if there is none, or an older version's other fields."""
    try:
        return from_plain(Verdict, read_json(folder.evidence).get("verdict"), str(folder.evidence))
    except BadInput:
        return None


def _summaries(evals: Path, parts: _Parts) -> tuple[EvalSummary, ...]:
    found = [
        parts.read(f"evaluation {folder.name}", partial(read_eval, folder), None)
        for folder in finished(evals)
    ]
    whole = [s for s in found if s is not None]
    return tuple(sorted(whole, key=lambda s: reading_order(s.arm)))


def _pool(reader: RunReader, config: RunConfig, steps: Sequence[StepSummary]) -> Pool:
    folder = reader.folder
    if not (all(s.draws for s in steps[1:]) or has_bundles(folder, len(steps))):
        raise BadInput(
            f"{folder.bundle(1)}: no such file: this copy of the run does not have the episodes of"
            " training, so the history of its pool is not known"
        )
    history = read_history(steps, folder.bundle)
    return Pool(history, pool_now(reader, config), forecast(history, config.pool.bound))


def _plan(config: RunConfig, journal: Sequence[Entry], reader: RunReader) -> Plan | None:
    """The plan of the newest loop; its options (`--steps 3`) take precedence over run.toml.

    As it was when the night was last heard of: a deadline that has gone by since then completes
    nothing. None on another host, after run.toml was changed, if data files are gone, or if the
    manifest of an older version lacks a key; the page does not need a plan."""
    try:
        night, deadline = as_told(config.run, journal)
        if deadline is not None and (last := last_word(of_the_night(journal))) is not None:
            deadline += time.time() - last.time
        phase, steps = look(reader.folder, replace(config, run=night), deadline, reader)
    except (FieldkitError, OSError, KeyError):
        return None
    return Plan(phase, steps)
