"""The state of a run folder, and a pure function from that state to the next phase.

Only the files decide. A killed phase leaves either nothing or its whole output, so after a crash
the function returns the phase that must run again. Nothing here runs a phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum

from rollout.arm import BASE_ADAPTER
from rollout.yardsticks import evaluated_yardsticks


class Phase(StrEnum):
    """One program of the loop, or an ending."""

    START = "start"
    """Check everything, write the manifest and step-000, play the preflight."""
    EVAL = "eval"
    """Play the arms that are due on the held-out set."""
    ROLLOUT = "rollout"
    """Play the next step's episodes and write its bundle."""
    TRAIN = "train"
    """Turn the bundle into the next adapter and finish the step."""
    GROW = "grow"
    """Add tasks of the reserve to the pool, which carries no more signal."""
    DONE = "done"
    """Every step that was asked for is finished and evaluated."""
    CONVERGED = "converged"
    """The pool carries no more signal; finished and evaluated before the last step."""


FLAT = "The reward has risen and hardly rises any more: run.stop_when_flat ended the night"
"""The sentence about a night that ended before its last step."""


@dataclass(frozen=True)
class RunFiles:
    """What is on disk, as far as the order of phases depends on it.

    started: manifest and step-000 are there and fit run.toml.
    adapters: hash of every finished step's adapter; entry n belongs to step-n.
    bundle_ready: the step after those has its whole bundle.
    evaluated: arms with a finished evaluation: adapters by their hashes, the base model and the
        yardsticks by their names.
    yardsticks: those that its evaluation plays.
    converged: the groups that were played say that the pool carries no more signal, and it does
        not grow.
    grows: they say so, and tasks of the reserve are to be added.
    flat: the reward has risen and hardly rises any more, and the night is to end for it.
    second_bundle_ready: the step after the next one has its whole bundle too.
    """

    started: bool
    adapters: Sequence[str]
    bundle_ready: bool
    evaluated: AbstractSet[str]
    converged: bool
    grows: bool = False
    flat: bool = False
    second_bundle_ready: bool = False
    yardsticks: tuple[str, ...] = field(default_factory=evaluated_yardsticks)

    @property
    def newest(self) -> int:
        """The newest finished step; -1 before step-000."""
        return len(self.adapters) - 1

    @property
    def ran_dry(self) -> bool:
        """Whether no step is to follow, however many are left."""
        return (self.converged or self.flat) and not self.bundle_ready


def next_phase(files: RunFiles, steps: int, eval_every: int, *, base: bool = True) -> Phase:
    """The phase to run now. `steps`: GRPO steps in all; `eval_every`: 0 means start and end only;
    `base`: the base model's arm is wanted now.

    A bundle under way is trained on before anything else is decided, and an evaluation that is due
    is played before the next rollout, so that a curve has no hole where the loop was stopped.
    """
    if not files.started or files.newest < 0:
        return Phase.START
    if due_arms(files, steps, eval_every, base=base):
        return Phase.EVAL
    if files.newest >= steps:
        return Phase.DONE
    if files.bundle_ready:
        return Phase.TRAIN
    if files.flat:
        return Phase.DONE
    if files.grows:
        return Phase.GROW
    return Phase.CONVERGED if files.converged else Phase.ROLLOUT


def sampled_from(step: int, overlap: int) -> int:
    """The step whose adapter samples this step's bundle, from 1. overlap: run.overlap.

    It depends on nothing else, so a bundle is the same whether the step before it is trained while
    it is played, or before, or again after a kill.
    """
    return max(0, step - 1 - overlap)


def phase_beside(phase: Phase, files: RunFiles, steps: int, overlap: int) -> Phase | None:
    """The phase that may run at the same time as `phase`, or None.

    With an overlap, the bundle of the next step is played while this one is trained, where it would
    be played anyway: it is not there, it is within the planned steps, and what was played before
    does not end the night or make the pool grow. Its adapter is there (`sampled_from`).
    """
    if not overlap or phase is not Phase.TRAIN or files.second_bundle_ready:
        return None
    ends = files.converged or files.grows or files.flat
    return None if ends or files.newest + 2 > steps else Phase.ROLLOUT


def due_arms(files: RunFiles, steps: int, eval_every: int, *, base: bool = True) -> tuple[str, ...]:
    """The arms to play now, cheapest first; none where everything due is there already."""
    wanted = [*files.yardsticks, *([BASE_ADAPTER] if base else []), files.adapters[0]]
    if _newest_is_due(files, steps, eval_every):
        wanted.append(files.adapters[files.newest])
    return tuple(arm for arm in dict.fromkeys(wanted) if arm not in files.evaluated)


def is_over(files: RunFiles, steps: int) -> bool:
    """Whether there is no step left to take, and the newest adapter is evaluated."""
    no_more = files.newest >= steps or files.ran_dry
    return no_more and files.adapters[files.newest] in files.evaluated


def _newest_is_due(files: RunFiles, steps: int, eval_every: int) -> bool:
    at_cadence = eval_every > 0 and files.newest % eval_every == 0
    at_the_end = files.newest >= steps
    return at_cadence or at_the_end or files.ran_dry


def drive(
    look: Callable[[], Phase], do: Callable[[Phase], None], stop_asked: Callable[[], bool]
) -> Phase:
    """Ask, do, ask again, until an ending; return it, or the phase that was left undone.

    `stop_asked` is looked at between phases: a step whose bundle is there is still trained on, so
    that "finish the step" holds, and nothing new is begun. Where bundles are played ahead (with an
    overlap), a step that was just trained is the one that was to be finished.
    """
    last = None
    while True:
        phase = look()
        goes_on = not stop_asked() or (phase is Phase.TRAIN and last is not Phase.TRAIN)
        if phase in (Phase.DONE, Phase.CONVERGED) or not goes_on:
            return phase
        do(phase)
        last = phase
