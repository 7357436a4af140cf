"""What the evaluations of a run say: arms by task, their paired differences, and who they are.

Reads evals/<key>/ and computes every number once, so that the terminal, the Markdown page, the JSON
and the verdict show the same ones. It plays nothing and words nothing.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval import stats
from fieldkit.eval.matched import Arm, ArmRow, MatchedBaseComparison, PairedRow, TaskOutcome
from fieldkit.eval.passk import mean_pass_at_k, pass_at_k_difference
from fieldkit.eval.stats import Estimate
from fieldkit.files.journal import Journal
from fieldkit.records import StepSummary, StopReason, Task, Trajectory, decode, read_trajectories
from rollout.arm import (
    BASE_ADAPTER,
    SUMMARY,
    TRAJECTORIES,
    EvalSummary,
    read_eval,
    tasks_sha,
)
from rollout.tasks import read_tasks
from rollout.yardsticks import ReferenceArm
from scripts.base.checkout import from_checkout
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest, sandbox_kind, typed_to_play

BASE = "base"
WARM_START = "warm start"
YARDSTICKS = tuple(arm.value for arm in ReferenceArm)

TAGS = {
    "persona": "persona",
    "difficulty": "difficulty",
    "template": "template",
}
"""Tag → heading of its table."""

ORDER = ("easy", "middle", "hard", "seen", "unseen")
"""Tag values that have an order of their own; others go by the alphabet."""


@dataclass(frozen=True)
class PlayedArm:
    """One finished evaluation: its summary and its trajectories."""

    summary: EvalSummary
    trajectories: tuple[Trajectory, ...]


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


def collect(evals: Path, tasks: Sequence[Task], steps: Sequence[StepSummary]) -> Evidence:
    """The evidence of one run.

    evals: the run's evals/ folder. tasks: the held-out set that was played. steps: every finished
    step, step-000 first; they say which adapter is the warm start and which is the newest. Raises
    `BadInput` where the warm start has no evaluation on these tasks, or arms do not match.
    """
    played = read_arms(evals, tasks)
    names = _arm_names(played, steps)
    if WARM_START not in names.values():
        run = RunFolder(evals.parent)
        raise BadInput(
            f"{evals}: the warm start has no finished evaluation on these {len(tasks)} tasks; run"
            f" `grpo eval {typed_to_play(run.typed, read_manifest(run))}`"
        )
    arms = {names[sha]: arm for sha, arm in played.items() if sha in names}
    found = compare({n: arms[n] for n in sorted(arms, key=reading_order)}, tasks)
    try:
        return replace(
            found,
            unprotected=_unprotected(evals, found.arms),
            taken_over=_taken_over(evals, found.arms),
        )
    except BadInput:  # of manifest or journal: who opens the page is told, and the figures stand
        return found


def _unprotected(evals: Path, arms: Sequence[ArmRow]) -> tuple[str, ...]:
    """All arms of a run or none: what was played in another kind of sandbox is never mixed in
    (`check_sandbox`), and taken over from another run only where that was of the same kind."""
    manifest = read_manifest(RunFolder(evals.parent))
    bare = manifest is not None and sandbox_kind(manifest) == "none"
    return tuple(arm.name for arm in arms) if bare else ()


def _taken_over(evals: Path, arms: Sequence[ArmRow]) -> dict[str, str]:
    there = {arm.name for arm in arms}
    entries = Journal(RunFolder(evals.parent).journal).read()
    taken = {e.data["arm"]: e.data["run"] for e in entries if e.event == "arm_taken_over"}
    return {arm: run for arm, run in taken.items() if arm in there}


def read_arms(evals: Path, tasks: Sequence[Task]) -> dict[str, PlayedArm]:
    """Adapter hash → finished evaluation on exactly these tasks; others are passed over.

    Raises `BadInput` where one adapter was evaluated twice under other settings.
    """
    wanted = tasks_sha(tasks)
    found: dict[str, PlayedArm] = {}
    for file in sorted(evals.glob(f"*/{SUMMARY}")):
        summary = read_eval(file.parent)
        if summary.tasks_sha != wanted:
            continue
        if summary.adapter_sha in found:
            other = found[summary.adapter_sha].summary
            raise BadInput(
                f"{file.parent}: {summary.arm} was evaluated before under other settings in"
                f" {other.key}; move one of the two folders away"
            )
        found[summary.adapter_sha] = read_played(file.parent)
    return found


@contextmanager
def _without_garbage() -> Iterator[None]:
    """For what makes many objects that live until the page is written: the collector, which would
    walk through them again and again to find nothing, leaves them alone, now and later (statsmodels
    calls it each time)."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def read_played(folder: Path) -> PlayedArm:
    """One finished evaluation. Raises `BadInput` where summary and trajectories do not agree."""
    summary = read_eval(folder)
    with _without_garbage():
        trajectories = read_trajectories(folder / TRAJECTORIES)
    if len(trajectories) != summary.n_trajectories:
        raise BadInput(
            f"{folder / TRAJECTORIES}: {len(trajectories)} trajectories, but {SUMMARY} speaks of"
            f" {summary.n_trajectories}; remove the folder and evaluate again"
        )
    return PlayedArm(summary, trajectories)


def _arm_names(played: Mapping[str, PlayedArm], steps: Sequence[StepSummary]) -> dict[str, str]:
    """Adapter hash → the name a reader knows it by. Adapters of no step are left out."""
    names = {sha: sha for sha in YARDSTICKS} | {BASE_ADAPTER: BASE}
    for step in steps:  # a step without signal carries its adapter on: the last step names it
        names[step.adapter_sha] = step_name(step.step)
    if steps:
        names[steps[0].adapter_sha] = WARM_START
    return {sha: name for sha, name in names.items() if sha in played}


def step_name(step: int) -> str:
    """What the adapter that `step` made is called in tables."""
    return f"step {step}"


def reading_order(name: str) -> tuple[int, int]:
    """Sorts arms by name: yardsticks, base, warm start, then adapters by step."""
    first = [*YARDSTICKS[::-1], BASE, WARM_START]
    number = name.rpartition(" ")[2]
    return (
        first.index(name) if name in first else len(first),
        int(number) if number.isdecimal() else 0,
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


def read_steps(folder: RunFolder) -> tuple[StepSummary, ...]:
    """step.json of every finished step, step-000 first."""
    files = [folder.summary(n) for n in range(folder.finished_steps())]
    return tuple(decode(StepSummary, f.read_text(), f"{f}:1") for f in files)


def read_evidence(folder: RunFolder, config: RunConfig) -> Evidence:
    """What the run's evaluations show. Raises `BadInput` where the warm start has none."""
    heldout = config.eval.of(read_tasks(from_checkout(config.data.heldout)))
    return collect(folder.evals, heldout, read_steps(folder))
