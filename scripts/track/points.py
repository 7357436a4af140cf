"""A run's figures for trackers, the scalars of every step and evaluation by tag, and what one is.

Everything is read from step.json and eval.json, so the points can be made again at any time.
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
from scripts.evidence.step_figures import FIGURES
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
"""Scalars of an adapter on the held-out tasks by tag. Rates in [0, 1]; turns and tokens a task."""


@dataclass(frozen=True)
class Point:
    """The scalars of one step, or of its adapter's evaluation, by tag.

    time: when that was finished, in Unix seconds.
    """

    step: int
    time: float
    scalars: Mapping[str, float]


def read_points(folder: RunFolder) -> tuple[Point, ...]:
    """Every point of the run by step, a step before its evaluation.

    Only adapters of this run are among the evaluations: base and yardsticks have no step. Raises
    `BadInput` for a file that cannot be read.
    """
    reader = RunReader(folder)
    evals = _evals_by_step(reader)
    return tuple(p for s in reader.steps for p in _points_of(folder, s, evals.get(s.step)))


def _points_of(folder: RunFolder, s: StepSummary, e: EvalSummary | None) -> Iterator[Point]:
    if s.n_trajectories:  # step-000 is only where the run starts
        yield Point(s.step, _finished(folder.summary(s.step)), _step_scalars(s))
    if e is not None:
        scalars = {tag: read(e) for tag, read in HELD_OUT.items()}
        yield Point(s.step, _finished(folder.evals / e.key / SUMMARY), scalars)


def _evals_by_step(reader: RunReader) -> dict[int, EvalSummary]:
    """Evaluations by the first step with that adapter: a step without signal carries it on."""
    first_of = {s.adapter_sha: s.step for s in reversed(reader.steps)}
    return {
        first_of[sha]: read_eval(reader.folder.evals / value["key"])
        for sha, value in reader.evaluations.items()
        if sha in first_of
    }


def _step_scalars(s: StepSummary) -> dict[str, float]:
    """Every figure that is tracked, groups by signal, and seconds by part."""
    read = {figure.tag: figure.read(s) for figure in FIGURES if figure.is_tracked}
    figures = {tag: value for tag, value in read.items() if value is not None}
    groups = {f"groups/{signal.lower()}": float(s.groups.get(signal, 0)) for signal in Signal}
    seconds = {f"seconds/{part}": value for part, value in s.seconds.items()}
    return figures | groups | seconds


def _finished(summary: Path) -> float:
    """When a summary, which is written last, appeared."""
    return summary.stat().st_mtime


class Tracker(ABC):
    """Where a run's figures go besides its own folder.

    name: what a person calls it. module: what has to be installed for it, and the key of [run] that
    asks for it; empty where it comes with the loop and every run has it.
    """

    name: str
    module: str = ""

    def wanted(self, config: RunConfig) -> bool:
        """Whether the run's settings ask for it."""
        return not self.module or bool(getattr(config.run, self.module))

    def require(self) -> None:
        """Raise `BadInput` with the command that installs it where it is missing."""
        if self.module and importlib.util.find_spec(self.module) is None:
            raise BadInput(
                f"run.{self.module} is true, but {self.name} is not installed; `{sys.executable} -m"
                f" pip install --no-build-isolation -e '{ROOT}[{self.module}]'` installs it, or set"
                f" run.{self.module} = false"
            )

    def is_due(self, folder: RunFolder) -> bool:
        """Whether a phase that ends should bother it: not soon after a failure."""
        return True

    @abstractmethod
    def bring(
        self, folder: RunFolder, points: Sequence[Point], stop_asked: Callable[[], bool]
    ) -> str:
        """Send or write what it lacks of the run's points; return a line for a person.

        Raises where that fails. The points may come again and again.
        """
