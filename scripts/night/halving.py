"""Successive halving: all arms are played for a few steps; the better half goes on, twice as far.

A budget then goes to the arms that promise most (Jamieson and Talwalkar 2016, arXiv:1502.07943). An
arm that learns late can be dropped for it. Which arms go on follows from the evaluations in their
run folders, so there is no other state, and the same call goes on where the last one stopped.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from fieldkit.errors import BadInput
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader
from scripts.words.quantities import counted, percent

Arms = Mapping[str, Sequence[RunFolder]]
"""The nights of each arm, one for each seed."""


def play_halving(
    arms: Arms,
    first: int,
    last: int,
    play: Callable[[Sequence[str], int], bool],
    say: Callable[[str], None],
) -> bool:
    """Play all arms for `first` steps, and the ones that go on up to `last`; False where `play` did
    not come to its end.

    play: plays every night of the named arms up to a step.
    """
    going, steps = list(arms), first
    while len(going) > 1 and steps < last:
        if not play(going, steps):
            return False
        share = {arm: passed(arms[arm], steps) for arm in going}
        going = better_half(share)
        told = ", ".join(f"{arm} {percent(share[arm])}" for arm in share)
        say(f"held-out tasks passed after {counted(steps, 'step')}: {told}")
        say(f"{', '.join(going)} {'go' if len(going) > 1 else 'goes'} on")
        steps *= 2
    return play(going, last)


def up_to(nights: Sequence[RunFolder], steps: int) -> list[RunFolder]:
    """Those that have not gone beyond so many steps. One that has was evaluated on its way there,
    and the adapter at which it was stopped since is of no step that arms are compared at."""
    return [night for night in nights if night.finished_steps() - 1 <= steps]


def better_half(share: Mapping[str, float]) -> list[str]:
    """The half of the arms with the larger values, rounded up, in the order of the mapping.

    Of equal ones the earlier stays."""
    ranked = sorted(share, key=lambda arm: -share[arm])
    kept = set(ranked[: -(-len(ranked) // 2)])
    return [arm for arm in share if arm in kept]


def passed(nights: Sequence[RunFolder], steps: int) -> float:
    """The share of held-out tasks that an arm passes after so many steps, its mean over its nights.

    A night that ended before counts with its newest adapter. Raises `BadInput` for a night that has
    not evaluated that adapter.
    """
    return statistics.fmean(_passed(RunReader(night), steps) for night in nights)


def _passed(night: RunReader, steps: int) -> float:
    step = night.step(min(steps, night.n_steps - 1))
    if (found := night.evaluations.get(step.adapter_sha)) is None:
        raise BadInput(
            f"{night.folder.path}: step {step.step} has no evaluation, so its arm cannot be"
            f" compared; `grpo eval {night.folder.typed} --step {step.step}` plays it"
        )
    return float(found["n_passed"] / found["n_trajectories"])
