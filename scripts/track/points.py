"""The scalars of every step and evaluation by tag, and the base class of trackers.

Points come only from step.json and eval.json, so they can be made again at any time.
"""

from __future__ import annotations

import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import Signal, StepSummary
from rollout.arm import SUMMARY, EvalSummary, read_eval
from scripts.base.checkout import ROOT
from scripts.evidence.step_figures import figures_of
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader

HELD_OUT: Mapping[str, Callable[[EvalSummary], float]] = {
    "heldout/pass_rate": lambda e: e.pass_rate,
    "heldout/assertion_rate": lambda e: e.assertion_rate,
    "heldout/stop_rate": lambda e: e.stop_rate,
    "heldout/turns": lambda e: e.mean_turns,
    "heldout/tokens": lambda e: e.mean_tokens,
}
"""Scalars of an evaluation by tag, over all its attempts. Rates are in [0, 1]; turns and tokens are
per attempt."""


@dataclass(frozen=True)
class Point:
    """The scalars of one step, or of its adapter's evaluation, by tag.

    time: Unix time of its end.
    """

    step: int
    time: float
    scalars: Mapping[str, float]

    @property
    def is_evaluation(self) -> bool:
        """Whether it is an evaluation's point, not its step's."""
        return not self.scalars.keys().isdisjoint(HELD_OUT)


def read_points(folder: RunFolder) -> tuple[Point, ...]:
    """Read every point of the run by step, each step before its evaluation.

    Evaluations of the base model and of yardsticks have no step and are left out. Raises `BadInput`
    for an unreadable file.
    """
    reader = RunReader(folder)
    evals = _evals_by_step(reader)
    return tuple(p for s in reader.steps for p in _points_of(folder, s, evals.get(s.step)))


def read_newest_points(folder: RunFolder, after: Sequence[Point]) -> tuple[Point, ...] | None:
    """The points that come after those of one step, as `read_points` orders them, from the files of
    that step and the later ones. None where the run does not have these points any more."""
    reader = RunReader(folder)
    found: list[Point] = []
    for n in range(after[0].step, reader.n_steps):
        s = reader.step(n)
        is_first = n == 0 or reader.step(n - 1).adapter_sha != s.adapter_sha
        value = reader.evaluations.get(s.adapter_sha) if is_first else None
        e = None if value is None else read_eval(folder.evals / value["key"])
        found += _points_of(folder, s, e)
    n = len(after)
    return tuple(found[n:]) if found[:n] == list(after) else None


def _points_of(folder: RunFolder, s: StepSummary, e: EvalSummary | None) -> Iterator[Point]:
    if s.n_trajectories:  # step-000 has no rollouts
        yield Point(s.step, _finished(folder.summary(s.step)), _step_scalars(s))
    if e is not None:
        scalars = {tag: read(e) for tag, read in HELD_OUT.items()}
        yield Point(s.step, _finished(folder.evals / e.key / SUMMARY), scalars)


def _evals_by_step(reader: RunReader) -> dict[int, EvalSummary]:
    """Evaluations by the first step with their adapter: a step without signal keeps its adapter."""
    first_of = {s.adapter_sha: s.step for s in reversed(reader.steps)}
    return {
        first_of[sha]: read_eval(reader.folder.evals / value["key"])
        for sha, value in reader.evaluations.items()
        if sha in first_of
    }


def _step_scalars(s: StepSummary) -> dict[str, float]:
    """The tracked figures, the groups by signal, and the seconds by part."""
    read = {figure.tag: figure.read(s) for figure in figures_of([s]) if figure.is_tracked}
    figures = {tag: value for tag, value in read.items() if value is not None}
    groups = {f"groups/{signal.lower()}": float(s.groups.get(signal, 0)) for signal in Signal}
    seconds = {f"seconds/{part}": value for part, value in s.seconds.items()}
    return figures | groups | seconds


def _finished(summary: Path) -> float:
    """When a step or evaluation ended: its summary is written last."""
    return summary.stat().st_mtime


class Tracker(ABC):
    """A destination of a run's figures besides its own files.

    name: for people. module: the required Python module, and the key of [run] that turns the
    tracker on; empty if it is installed with the loop and on for every run.
    """

    name: str
    module: str = ""

    def wanted(self, config: RunConfig) -> bool:
        """Whether the run's settings turn it on."""
        return not self.module or bool(getattr(config.run, self.module))

    def require(self) -> None:
        """Raise `BadInput` with the install command if its module is missing."""
        if self.module and importlib.util.find_spec(self.module) is None:
            raise BadInput(
                f"run.{self.module} is true, but {self.name} is not installed; `{sys.executable} -m"
                f" pip install --no-build-isolation -e '{ROOT}[{self.module}]'` installs it, or set"
                f" run.{self.module} = false"
            )

    def is_due(self, folder: RunFolder) -> bool:
        """Whether to update it at the end of a phase: not soon after a failure."""
        return True

    @abstractmethod
    def bring(
        self, folder: RunFolder, points: Sequence[Point], stop_asked: Callable[[], bool]
    ) -> str:
        """Send or write the points that it lacks; return a line for a person.

        Raises on failure. Each call gets all points of the run.
        """

    def bring_newest(self, folder: RunFolder) -> bool:
        """Add the points since the last call, without reading the older ones, so that a step costs
        the same late in a run as early. False where that cannot be done. Raises on failure."""
        return False
