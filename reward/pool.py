"""What the pool can still teach, derived from the groups that were played.

The state is not stored but derived from the draws of every step, so that a larger pool is no longer
converged. One batch without signal may be chance; convergence is a statement about every task of
the pool. This module must not decide from log text or from a single step.
"""

from __future__ import annotations

import itertools
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveInt

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_raw_lines
from fieldkit.files.json_text import parse_json
from fieldkit.files.sharded import stored
from fieldkit.records import Signal, StepSummary, bundle_groups
from fieldkit.settings import settings
from reward.group_signal import draw_of
from reward.solve_rate import DrawSums

WINDOW_PASSES = 2
"""A task's last group counts as evidence while it is among the last 2 × |pool| groups. Tasks come
in shuffled passes without replacement, so a task drawn first in one pass and last in the next is at
most 2·|pool| − 1 groups old: with regular passes every group counts."""

MIN_PASSES_FOR_FORECAST = 3
"""With fewer points a line always fits."""


@settings("pool")
class PoolSettings:
    """How much evidence makes a pool converged."""

    passes: PositiveInt = 1
    """How many of each task's newest groups must be without signal; 1 means one whole pass."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The figures of one played group that convergence needs."""

    step: int
    task_id: str
    signal: Signal
    """Of the work and of ending by itself: `reward.group_signal.work_signal`."""
    passed: int = 0
    played: int = 0
    """The number of attempts, and how many of them passed."""


@dataclass(frozen=True)
class PoolHistory:
    """Every group that was played, oldest first."""

    drawn: tuple[Drawn, ...] = ()

    @property
    def sums(self) -> DrawSums:
        """What these groups leave for the next draw."""
        found = DrawSums()
        for step, drawn in itertools.groupby(self.drawn, key=lambda d: d.step):
            found = found.plus(step, drawn)
        return found

    def by_task(self) -> dict[str, tuple[tuple[int, Signal], ...]]:
        """(step, signal) of each time a task was drawn, oldest first."""
        out: dict[str, list[tuple[int, Signal]]] = {}
        for d in self.drawn:
            out.setdefault(d.task_id, []).append((d.step, d.signal))
        return {task_id: tuple(seen) for task_id, seen in out.items()}


def read_history(steps: Iterable[StepSummary], bundle_of: Callable[[int], Path]) -> PoolHistory:
    """The history of a run's finished steps, from their summaries.

    Summaries of an older version do not have it, so their bundles are read; a missing bundle is
    skipped. Raises `BadInput` naming file and line.
    """
    found: list[Drawn] = []
    for s in steps:
        draws = s.draws
        if not draws and s.bundle_sha is not None and stored(bundle := bundle_of(s.step)):
            draws = tuple(map(draw_of, bundle_groups(bundle)))
        found += (Drawn(s.step, d.task_id, d.signal, d.passed, d.played) for d in draws)
    return PoolHistory(tuple(found))


@dataclass(frozen=True)
class Convergence:
    """The evidence about one pool. `converged` follows from the rest."""

    converged: bool
    n_pool: int
    saturated: tuple[str, ...]
    """Tasks whose newest group's attempts did not differ in their work, and all passed."""
    stuck: tuple[str, ...]
    """Tasks whose newest group's attempts did not differ in their work, and not all passed."""
    learnable: tuple[str, ...]
    """Tasks with a LEARNABLE group among their newest `passes` groups."""
    stale: tuple[str, ...]
    """Tasks whose newest group is too old to count for the present policy, or that were drawn too
    few times."""
    never_seen: tuple[str, ...]
    """Tasks that were never drawn."""

    @property
    def message(self) -> str:
        """One sentence for a person."""
        counts = (
            f"of {self.n_pool} tasks {len(self.saturated)} saturated (always passes),"
            f" {len(self.stuck)} stuck (never differs), {len(self.learnable)} learnable,"
            f" {len(self.stale)} not seen recently, {len(self.never_seen)} never seen"
        )
        if self.converged:
            return f"the pool has converged: {counts}; add tasks from the reserve to continue"
        return f"the pool still teaches, or is not fully seen: {counts}"


VERDICTS = ("saturated", "stuck", "learnable", "stale", "never_seen")
"""The fields of `Convergence` that hold tasks, in their order."""


def converged(
    history: PoolHistory, pool: Sequence[str], settings: PoolSettings | None = None
) -> Convergence:
    """Whether `pool` (task ids) carries no more signal, and the evidence.

    True only when every task of the pool was drawn at least `passes` times, its newest group lies
    within the last `WINDOW_PASSES` passes' worth of groups, and none of its newest `passes` groups
    is LEARNABLE. A task that joined the pool later is unseen, so growing the pool lifts
    convergence. Groups of tasks that left the pool are ignored. Raises `BadInput` for an empty
    pool, or one that names a task twice.
    """
    settings = settings or PoolSettings()
    _check_pool(pool)
    members = set(pool)
    drawn = [d for d in history.drawn if d.task_id in members]
    window = evidence_window(len(pool), settings)
    recent = PoolHistory(tuple(drawn[-window:])).by_task()
    ever = {d.task_id for d in drawn}
    found: dict[str, list[str]] = {v: [] for v in VERDICTS}
    for task_id in pool:
        verdict = _task_verdict(recent.get(task_id, ()), task_id in ever, settings.passes)
        found[verdict].append(task_id)
    open_questions = any(found[v] for v in ("learnable", "stale", "never_seen"))
    return Convergence(not open_questions, len(pool), *(tuple(found[v]) for v in VERDICTS))


def evidence_window(n_pool: int, settings: PoolSettings) -> int:
    """How many of the newest groups count as evidence about a pool of so many tasks."""
    return WINDOW_PASSES * settings.passes * n_pool


def growth(pool: Path) -> str:
    """The command that doubles a pool file from the reserve.jsonl next to it; "" if there is no
    such file or it has no task that is not in the pool."""
    reserve = pool.with_name("reserve.jsonl")
    if not reserve.is_file():
        return ""
    members = {task_id for _, task_id in _task_ids(pool)}
    fresh = [number for number, task_id in _task_ids(reserve) if task_id not in members]
    if not fresh:
        return ""
    lines = [n for i, n in enumerate(fresh[: len(members)]) if n == fresh[0] + i]
    end = shlex.quote(str(pool))
    open_line = "" if pool.read_bytes().endswith(b"\n") else f"echo >> {end} && "
    return f"{open_line}sed -n {lines[0]},{lines[-1]}p {shlex.quote(str(reserve))} >> {end}"


def _task_ids(path: Path) -> list[tuple[int, str]]:
    """(line, task id) of a task file; a last line without a newline counts, as in `rollout.tasks`.
    Raises `BadInput` naming file and line."""
    found = []
    for number, line in read_raw_lines(path):
        value = parse_json(line, f"{path}:{number}")
        try:
            found.append((number, str(value["task_id"])))
        except (KeyError, TypeError) as e:
            raise BadInput(f"{path}:{number}: not a task ({type(e).__name__}: {e})") from None
    return found


def _check_pool(pool: Sequence[str]) -> None:
    if not pool:
        raise BadInput("the pool is empty: there is no task to learn from")
    twice = [task_id for task_id, n in Counter(pool).items() if n > 1]
    if twice:
        raise BadInput(f"the pool names {twice[0]} more than once ({len(twice)} such tasks)")


def _task_verdict(recent: Sequence[tuple[int, Signal]], seen: bool, passes: int) -> str:
    if not seen:
        return "never_seen"
    newest = _one_per_step(recent)[-passes:]
    if Signal.LEARNABLE in newest:
        return "learnable"
    if len(newest) < passes:
        return "stale"
    return "saturated" if newest[-1] is Signal.SATURATED else "stuck"


def _one_per_step(seen: Sequence[tuple[int, Signal]]) -> list[Signal]:
    """If a pass ends within a step, a task can be drawn twice in it. The policy is the same, so the
    two groups are one observation, LEARNABLE if either is."""
    strength = (Signal.SATURATED, Signal.STUCK, Signal.LEARNABLE)
    by_step: dict[int, Signal] = {}
    for step, signal in seen:
        by_step[step] = max(by_step.get(step, signal), signal, key=strength.index)
    return [by_step[step] for step in sorted(by_step)]


@dataclass(frozen=True)
class Forecast:
    """When the signal is expected to run out if it keeps falling at the present rate."""

    shares: tuple[tuple[int, float], ...]
    """(last step of the pass, share of its groups that were LEARNABLE), whole passes only."""
    step: int | None
    """The step around which less than half a task is expected to be learnable; None if the share
    does not fall or too few passes were played. A rough guide that decides nothing."""


def forecast(history: PoolHistory, pool: Sequence[str]) -> Forecast:
    """Extrapolate the share of LEARNABLE groups pass by pass, as a straight line in its logarithm.

    The share of a pass of n groups with x learnable is taken as (x + ½)/(n + 1), so that a pass
    without any has a logarithm. Least squares over the whole passes, at least three.
    """
    _check_pool(pool)
    members: Mapping[str, None] = dict.fromkeys(pool)
    drawn = [d for d in history.drawn if d.task_id in members]
    n = len(pool)
    passes = [drawn[i : i + n] for i in range(0, len(drawn) - n + 1, n)]
    learnable = [sum(d.signal is Signal.LEARNABLE for d in p) for p in passes]
    shares = tuple((p[-1].step, x / n) for p, x in zip(passes, learnable, strict=True))
    if len(passes) < MIN_PASSES_FOR_FORECAST:
        return Forecast(shares, None)
    logs = [math.log((x + 0.5) / (n + 1)) for x in learnable]
    line = statistics.linear_regression(range(len(logs)), logs)
    if line.slope >= 0:
        return Forecast(shares, None)
    end_pass = (math.log(0.5 / n) - line.intercept) / line.slope
    steps_per_pass = (passes[-1][-1].step - passes[0][0].step + 1) / len(passes)
    passes_left = max(0.0, end_pass - (len(passes) - 1))
    return Forecast(shares, passes[-1][-1].step + math.ceil(passes_left * steps_per_pass))
