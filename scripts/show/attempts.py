"""Finds one attempt in the rollouts of a run's steps or in its evaluations.

A person names a step, an arm, a task, or none of them. Only files that are written atomically are
read, so this works while the run is active.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fieldkit.codec import read_bundle
from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup, Trajectory
from rollout.arm import BASE_ADAPTER, EvalSummary, transcripts
from scripts.evidence.played import WARM_START, read_played, read_summaries
from scripts.run.folder import RunFolder
from scripts.run.manifest import evaluated_adapter, read_manifest
from scripts.words.quantities import counted
from scripts.words.visible import visible

NEAREST = 3
"""Most task ids that an error suggests."""


@dataclass(frozen=True)
class Played:
    """One attempt, and its group; None for an attempt of an evaluation."""

    trajectory: Trajectory
    group: RolloutGroup | None = None

    @property
    def advantage(self) -> float | None:
        """The advantage of the episode; None for an evaluation."""
        return self.group.advantages[self.trajectory.k] if self.group else None

    @property
    def turn_advantages(self) -> tuple[float, ...] | None:
        """The advantage of each turn; None for an evaluation or if an older bundle has none."""
        if self.group is None or self.group.turn_advantages is None:
            return None
        return self.group.turn_advantages[self.trajectory.k]


@dataclass(frozen=True)
class Place:
    """The rollouts of one step or the evaluation of one arm.

    option: the option that selects it, for example `--step 5`. path: the file it was read from.
    """

    name: str
    option: str
    path: Path
    attempts: tuple[Played, ...]

    @property
    def task_ids(self) -> tuple[str, ...]:
        """The ids of the played tasks, each once, in file order."""
        return tuple(dict.fromkeys(p.trajectory.task_id for p in self.attempts))

    def of(self, task_id: str) -> tuple[Played, ...]:
        """The attempts at one task, sorted by k."""
        found = [p for p in self.attempts if p.trajectory.task_id == task_id]
        return tuple(sorted(found, key=lambda p: p.trajectory.k))


@dataclass(frozen=True)
class Archive:
    """All attempts of a run."""

    folder: RunFolder

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps that have a bundle; the newest may not be trained yet."""
        newest = self.folder.finished_steps()
        return tuple(n for n in range(1, newest + 1) if self.folder.has_bundle(n))

    @cached_property
    def evals(self) -> tuple[EvalSummary, ...]:
        """The finished evaluations, in reading order: the newest adapter last."""
        return tuple(read_summaries(self.folder.evals))

    @cached_property
    def _evaluated(self) -> str:
        """The adapter of a folder that `grpo eval` made; empty for a run."""
        return evaluated_adapter(read_manifest(self.folder))

    def _name(self, summary: EvalSummary) -> str:
        """The arm's name; in a folder of `grpo eval` the adapter's path, which is no warm start."""
        return (self._evaluated if summary.arm == WARM_START else "") or summary.arm

    def command(self, *words: str) -> str:
        """The command `grpo show RUN …`."""
        return " ".join(["grpo show", self.folder.typed, *words])

    def contents(self) -> str:
        """The available steps and arms, in one line."""
        named = [f"--step {self.steps[0]} … {self.steps[-1]}"] if self.steps else []
        return ", ".join(named + [self._option(s) for s in self.evals]) or "nothing yet"

    def step(self, n: int) -> Place:
        """Read the rollouts of step `n`. Raises `BadInput` if there is no bundle."""
        path = self.folder.bundle(n)
        if n not in self.steps and n < self.folder.finished_steps():
            raise BadInput(
                f"{path}: no such file: this copy of the run does not have the episodes of training"
                f" (only held-out ones are committed); `{self.command()}` lists what it has:"
                f" {self.contents()}"
            )
        if n not in self.steps:
            raise BadInput(f"{path}: step {n} has no rollouts; there are: {self.contents()}")
        attempts = [Played(t, group) for group in read_bundle(path) for t in group.trajectories]
        return Place(f"step {n}", f"--step {n}", path, tuple(attempts))

    def arm(self, wanted: str) -> Place:
        """Read an evaluation by its arm's name, with or without dashes, or by its key.

        Raises `BadInput` if there is no such evaluation or if several have the name.
        """
        named = [
            s
            for s in self.evals
            if wanted in (s.key, self._name(s)) or _spelt(wanted) == _spelt(s.arm)
        ]
        if not named:
            raise BadInput(
                f"{self.folder.evals}: no finished evaluation is called {wanted!r}; there are:"
                f" {self.contents()}"
            )
        if len(named) > 1:
            keys = ", ".join(s.key for s in named)
            raise BadInput(
                f"{self.folder.evals}: {wanted!r} was evaluated {len(named)} times, on other tasks"
                f" or settings; name its key instead: --eval {keys}"
            )
        return self._read(named[0])

    def newest(self) -> Place:
        """Read the newest adapter's evaluation, or the newest step without any evaluation."""
        for place in self._newest_first():
            return place
        raise BadInput(
            f"{self.folder.path}: nothing has been played to its end yet;"
            f" `grpo run {self.folder.typed}` plays"
        )

    def holding(self, task_id: str) -> Place:
        """Find the newest place with the task. Raises `BadInput` naming similar ids."""
        seen: dict[str, None] = {}
        for place in self._newest_first():
            if place.of(task_id):
                return place
            seen.update(dict.fromkeys(place.task_ids))
        raise BadInput(
            f"{self.folder.path}: task {task_id!r} was not played{_near(task_id, seen)};"
            f" `{self.command()}` lists the newest tasks; there are: {self.contents()}"
        )

    def attempt(self, place: Place, task_id: str, k: int) -> Played:
        """Find attempt `k` at a task. Raises `BadInput` naming what exists."""
        attempts = place.of(task_id)
        if not attempts:
            ids = place.task_ids
            raise BadInput(
                f"{place.path}: {place.name} has no task {task_id!r} among its"
                f" {len(ids)}{_near(task_id, ids)}; `{self.command(place.option)}` lists them"
            )
        for played in attempts:
            if played.trajectory.k == k:
                return played
        raise BadInput(
            f"{place.path}: {task_id} was played {counted(len(attempts), 'time')} in {place.name}:"
            f" --k {', '.join(str(p.trajectory.k) for p in attempts)}; there is no --k {k}"
        )

    def base_attempt(self, task_id: str, k: int) -> Played | None:
        """The base model's stored attempt; None if it was not evaluated on the task."""
        for summary in self.evals:
            if summary.adapter_sha == BASE_ADAPTER:
                for played in self._read(summary).of(task_id):
                    if played.trajectory.k == k:
                        return played
        return None

    def _newest_first(self) -> Iterator[Place]:
        for summary in reversed(self.evals):
            yield self._read(summary)
        for n in reversed(self.steps):
            yield self.step(n)

    def _read(self, summary: EvalSummary) -> Place:
        folder = self.folder.evals / summary.key
        attempts = tuple(map(Played, read_played(folder).trajectories))
        name = f"{visible(self._name(summary))} on the held-out set"
        return Place(name, self._option(summary), transcripts(folder), attempts)

    def _option(self, summary: EvalSummary) -> str:
        alike = [s for s in self.evals if _spelt(s.arm) == _spelt(summary.arm)]
        name = self._name(summary)
        word = _spelt(name) if name == summary.arm else name
        return f"--eval {shlex.quote(word) if len(alike) == 1 else summary.key}"


def _near(wanted: str, known: Iterable[str]) -> str:
    """The known ids most similar to `wanted`, as the end of a sentence; empty if there are none."""
    close = difflib.get_close_matches(wanted, list(known), n=NEAREST, cutoff=0.4)
    return f"; nearest: {', '.join(map(visible, close))}" if close else ""


def _spelt(name: str) -> str:
    """An arm's name as one word, so it needs no quotes."""
    return "-".join(name.casefold().replace("_", " ").replace("-", " ").split())
