"""Reads the finished evaluations of a run from evals/<key>/, and names their arms.

This is the only reader of evaluations: of summaries alone if sums are enough, and of trajectories
for pairs and transcripts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fieldkit.codec import stored_trajectories
from fieldkit.errors import BadInput
from fieldkit.files.journal import Entry
from fieldkit.records import Action, ActionKind, StepSummary, Task, Trajectory, Turn
from rollout.arm import BASE_ADAPTER, SUMMARY, EvalSummary, read_eval, tasks_sha, transcripts
from rollout.yardsticks import ORACLE, YARDSTICKS

BASE = BASE_ADAPTER
"""The base model's arm has one name: in tables, on the command line and where a hash stands."""
WARM_START = "warm start"


@dataclass(frozen=True)
class PlayedArm:
    """One finished evaluation: its summary and its trajectories, which may be `counted` ones."""

    summary: EvalSummary
    trajectories: tuple[Trajectory, ...]

    @property
    def first_attempts(self) -> dict[str, Trajectory]:
        """By task: the attempt whose seed every arm of the run has too."""
        return {t.task_id: t for t in self.trajectories if t.k == 0}


def finished(evals: Path) -> list[Path]:
    """The folders of the finished evaluations below a run's evals/, sorted by key."""
    return sorted(file.parent for file in evals.glob(f"*/{SUMMARY}"))


def read_summaries(evals: Path) -> list[EvalSummary]:
    """Read the summary of every finished evaluation, in reading order: the newest adapter last.

    Raises as `read_eval`."""
    return sorted(map(read_eval, finished(evals)), key=lambda s: reading_order(s.arm))


def read_arms(
    evals: Path, tasks: Sequence[Task], whole: Callable[[EvalSummary], bool] = lambda summary: True
) -> dict[str, PlayedArm]:
    """Read the finished evaluations on exactly these tasks, by adapter hash; skip all others.

    whole: of which arms the trajectories are kept as they are; of the others, `counted`. Raises
    `BadInput` if one adapter was evaluated under two settings.
    """
    found: dict[str, PlayedArm] = {}
    for folder, summary in _on(evals, tasks):
        if summary.adapter_sha in found:
            other = found[summary.adapter_sha].summary
            raise BadInput(
                f"{folder}: {summary.arm} was evaluated before under other settings in"
                f" {other.key}; move one of the two folders away"
            )
        keep = (lambda t: t) if whole(summary) else counted
        found[summary.adapter_sha] = _with_trajectories(folder, summary, keep)
    return found


def _on(evals: Path, tasks: Sequence[Task]) -> list[tuple[Path, EvalSummary]]:
    """The finished evaluations on exactly these tasks, sorted by key."""
    wanted = tasks_sha(tasks)
    found = ((folder, read_eval(folder)) for folder in finished(evals))
    return [(folder, summary) for folder, summary in found if summary.tasks_sha == wanted]


def counted(trajectory: Trajectory) -> Trajectory:
    """The trajectory for tables: its turns keep how many tokens they sampled and how long they
    took, and lose their ids and texts, which are nearly all of its memory."""
    turns = tuple(
        Turn(
            prompt_ids=(),
            completion_ids=_zeros(len(t.completion_ids)),
            logprobs=_zeros(len(t.completion_ids)),
            text="",
            action=_NOTHING,
            observation=None,
            exit_code=t.exit_code,
            reward=t.reward,
            finish_reason="",
            policy_version="",
            seed=0,
            seconds=t.seconds,
        )
        for t in trajectory.turns
    )
    return replace(trajectory, turns=turns)


_NOTHING = Action(ActionKind.NONE, "")


@cache
def _zeros(n: int) -> tuple[int, ...]:
    return (0,) * n


def read_played(folder: Path) -> PlayedArm:
    """Read one finished evaluation. Raises `BadInput` if summary and trajectories disagree."""
    return _with_trajectories(folder, read_eval(folder))


def _with_trajectories(
    folder: Path, summary: EvalSummary, keep: Callable[[Trajectory], Trajectory] = lambda t: t
) -> PlayedArm:
    file = transcripts(folder)
    with _without_garbage():
        trajectories = tuple(map(keep, stored_trajectories(file)))
    if len(trajectories) != summary.n_trajectories:
        raise BadInput(
            f"{file}: {len(trajectories)} trajectories, but {SUMMARY} speaks of"
            f" {summary.n_trajectories}; remove the folder and evaluate again"
        )
    return PlayedArm(summary, trajectories)


@contextmanager
def _without_garbage() -> Iterator[None]:
    """Exempt all objects created inside from garbage collection, for good.

    Trajectories are many objects that live until the page is written: each full collection would
    walk through all of them and free nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# --- names ----------------------------------------------------------------------------------------


def read_named(
    evals: Path, tasks: Sequence[Task], steps: Sequence[StepSummary], to_play: str
) -> dict[str, PlayedArm]:
    """Read the arms of a run by their names in tables, in reading order.

    Adapters that belong to no step are left out. A step without signal keeps its adapter, so
    several steps can share one: it is named after the last. to_play: RUN in a command that plays.
    Raises as `read_arms`, and `BadInput` if the warm start has no evaluation on these tasks.
    """
    names = arm_names(steps)
    named = [names[s.adapter_sha] for _, s in _on(evals, tasks) if s.adapter_sha in names]
    # The transcripts that a page shows are of two of these (`scripts.evidence.flips`), and those of
    # `grpo transcripts` of all.
    shown = {ORACLE, WARM_START, max(named, key=reading_order, default=WARM_START)}
    found = read_arms(evals, tasks, lambda s: names.get(s.adapter_sha) in shown)
    arms = {names[sha]: arm for sha, arm in found.items() if sha in names}
    if WARM_START not in arms:
        raise BadInput(
            f"{evals}: the warm start has no finished evaluation on these {len(tasks)} tasks; run"
            f" `grpo eval {to_play}`"
        )
    return {name: arms[name] for name in sorted(arms, key=reading_order)}


def arm_names(steps: Sequence[StepSummary]) -> dict[str, str]:
    """Adapter hash, or what stands for it, → the arm's name in tables."""
    names = {sha: sha for sha in YARDSTICKS} | {BASE_ADAPTER: BASE}
    names |= {step.adapter_sha: step_name(step.step) for step in steps}
    if steps:
        names[steps[0].adapter_sha] = WARM_START
    return names


def step_name(step: int) -> str:
    """The name in tables of the adapter that `step` trained."""
    return f"step {step}"


def reading_order(name: str) -> tuple[int, int]:
    """A sort key for arm names: yardsticks, base, warm start, then adapters by step."""
    first = [*YARDSTICKS, BASE, WARM_START]
    number = name.rpartition(" ")[2]
    return (
        first.index(name) if name in first else len(first),
        int(number) if number.isdecimal() else 0,
    )


def taken_from(journal: Iterable[Entry]) -> dict[str, str]:
    """The run that each arm was taken over from, by the arm's key; not of one that was dropped
    since, and so played here."""
    found: dict[str, str] = {}
    for e in journal:
        if e.event == "arm_taken_over":
            found[e.data["key"]] = str(e.data["run"])
        elif e.event == "dropped":
            for path in e.data.get("removed", ()):
                found.pop(Path(path).name, None)
    return found
