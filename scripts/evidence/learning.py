"""Signs of learning at the training temperature, for the verdict.

The held-out arms are sampled at a low temperature. There a habit can look untouched while it
already gives way at the temperature that the night trains at. So the verdict also reads two other
facts: how the figures of the steps' rollouts move, and how the starting and the newest adapter play
a few held-out tasks at the training temperature. Nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from fieldkit.errors import BadInput
from fieldkit.eval.stats import PairedProportions, paired_proportions
from fieldkit.records import StepSummary, Trajectory
from rollout.arm import read_eval
from scripts.evidence.milestones import window
from scripts.evidence.played import PlayedArm, finished, read_played
from scripts.evidence.step_figures import REWARD, STOPS, StepFigure, by_step
from scripts.evidence.stored import has_episodes
from scripts.run.folder import RunFolder
from scripts.words.quantities import percent, plain, with_interval

FEWEST_STEPS = 5
"""With fewer steps, no trend can be significant: four in perfect order have p = 0.083."""


@dataclass(frozen=True)
class Trend:
    """How a figure of the steps' rollouts moved over the night.

    first, last: means over as many steps at either end as `window` says. tau: Kendall's τ of step
    and value. p_value: its two-sided test.
    """

    figure: str
    n_steps: int
    first: float
    last: float
    tau: float
    p_value: float

    @property
    def sign(self) -> int:
        """Of τ, if the ends moved the same way, else 0: a night that rose for most of its steps and
        then fell did neither."""
        rises, moved = (self.tau > 0) - (self.tau < 0), self.last - self.first
        return rises if rises * moved > 0 else 0

    @property
    def words(self) -> str:
        """From where to where it went."""
        if self.figure == REWARD.key:
            return f"the mean reward went from {plain(self.first, 2)} to {plain(self.last, 2)}"
        ends = f"from {percent(self.first)} to {percent(self.last)}"
        return f"attempts that end by themselves went {ends}"


@dataclass(frozen=True)
class Ended:
    """Of the tasks that an arm played: those it ended by itself, and those that passed."""

    stopped: int
    passed: int


@dataclass(frozen=True)
class Sampled:
    """The adapters on a few held-out tasks at the training temperature.

    before: the starting adapter; None if it has not played them. stopped: the paired comparison.
    """

    temperature: float
    n_tasks: int
    after: Ended
    before: Ended | None = None
    stopped: PairedProportions | None = None

    def words(self, before: str, p: str) -> str:
        """In a sentence. before: name of the starting adapter. p: of the comparison, in words."""
        own = (
            f"At the training temperature (T = {self.temperature:g}) it ended {self.after.stopped}"
            f" of the first {self.n_tasks} held-out tasks by itself and passed {self.after.passed}"
        )
        if self.before is None or self.stopped is None:
            return f"{own}."
        return (
            f"{own}; the {before} ended {self.before.stopped} and passed {self.before.passed}"
            f" (ended: {with_interval(self.stopped.difference)}, {p})."
        )


@dataclass(frozen=True)
class Training:
    """What is known at the training temperature. sampled: None if no arm was played there."""

    n_steps: int = 0
    trends: tuple[Trend, ...] = ()
    sampled: Sampled | None = None


def trends(
    steps: Sequence[StepSummary], drawn_alike: bool = True, paid_alike: bool = True
) -> tuple[Trend, ...]:
    """The trends of stops and of the reward, of the steps with rollouts.

    drawn_alike: false where the draw moves to tasks of another difficulty, by which both move
    without the policy; neither is told. paid_alike: false where `reward.schedule` changes what is
    paid, by which the reward moves.
    """
    figures = (STOPS, REWARD) if paid_alike else (STOPS,)
    found = (trend(steps, figure) for figure in figures) if drawn_alike else ()
    return tuple(t for t in found if t is not None)


def trend(steps: Sequence[StepSummary], figure: StepFigure) -> Trend | None:
    """Mann and Kendall's test (Mann 1945). Each step is one observation, because the episodes of a
    step share tasks and policy. None with fewer than `FEWEST_STEPS`."""
    values = [v for _, v in by_step(steps, figure)]
    if len(values) < FEWEST_STEPS:
        return None
    from scipy.stats import kendalltau

    found = kendalltau(range(len(values)), values)
    tau, p = float(found.statistic), float(found.pvalue)
    if math.isnan(tau):  # every step has the same value
        tau, p = 0.0, 1.0
    width = window(len(values))
    return Trend(figure.key, len(values), fmean(values[:width]), fmean(values[-width:]), tau, p)


def read_sampled(folder: RunFolder, adapters: Container[str]) -> dict[str, PlayedArm]:
    """The arms of these adapters that were played at the training temperature and whose episodes
    are in this copy of the run, by adapter hash.

    Raises as `read_played`, and `BadInput` if one adapter was played twice.
    """
    found: dict[str, PlayedArm] = {}
    for path in filter(has_episodes, finished(folder.training_evals)):
        if read_eval(path).adapter_sha not in adapters:
            continue
        arm = read_played(path)
        sha = arm.summary.adapter_sha
        if sha in found:
            raise BadInput(f"{path}: a second evaluation of {arm.summary.arm}; move one away")
        found[sha] = arm
    return found


def sampled(arms: Mapping[str, PlayedArm], start: str, newest: str) -> Sampled | None:
    """Compare two adapters by their hashes; None if `newest` has no arm among `arms`.

    The starting adapter counts only if it played under the same settings, and then the tasks that
    both played, since a run may change how many there are. The first attempts are compared, as
    everywhere: further ones at a task are not independent.
    """
    after = arms.get(newest)
    if after is None:
        return None
    mine, now = after.summary, after.first_attempts
    before = arms.get(start)
    was: Mapping[str, Trajectory] = {}
    if before is not None and before.summary.settings_sha == mine.settings_sha:
        was = before.first_attempts
    if not (both := [task for task in now if task in was]):
        return Sampled(mine.temperature, len(now), _ended(now.values()))
    then, later = [was[task] for task in both], [now[task] for task in both]
    stopped = paired_proportions(list(map(_stopped, then)), list(map(_stopped, later)))
    return Sampled(mine.temperature, len(both), _ended(later), _ended(then), stopped)


def _ended(played: Collection[Trajectory]) -> Ended:
    return Ended(sum(map(_stopped, played)), sum(t.grade.passed for t in played))


def _stopped(trajectory: Trajectory) -> bool:
    return trajectory.stop_reason.by_itself
