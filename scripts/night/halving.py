"""Successive halving: all arms are played for a few steps; the better half goes on, twice as far.

A budget then goes to the arms that promise most (Jamieson and Talwalkar 2016, arXiv:1502.07943). An
arm that learns late can be dropped for it. Which arms go on follows from the evaluations in their
run folders, so there is no other state, and the same call goes on where the last one stopped. An
arm that fails holds up no other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from fieldkit.errors import BadInput, FieldkitError
from scripts.night.several import NightsFailed
from scripts.run.folder import SWEEP_FILE, RunFolder
from scripts.run.manifest import typed_to_play
from scripts.run.reader import RunReader
from scripts.words.quantities import counted, percent

Arms = Mapping[str, Sequence[RunFolder]]
"""The nights of each arm, one for each seed."""


class ArmsFailed(FieldkitError):
    """Some arms were left out, for the errors in the text. `exit_code` is that of the first."""

    def __init__(self, failed: Mapping[str, FieldkitError]) -> None:
        told = "; ".join(dict.fromkeys(map(str, failed.values())))
        tables = ", ".join(f'[arms."{arm}"]' for arm in failed)
        super().__init__(
            f"{told}; to give up what cannot be mended, take it out of {SWEEP_FILE}: {tables}"
        )
        self.exit_code = next(iter(failed.values())).exit_code


def play_halving(
    arms: Arms,
    first: int,
    last: int,
    play: Callable[[Sequence[str], int], bool],
    say: Callable[[str], None],
) -> bool:
    """Play all arms for `first` steps, and the ones that go on up to `last`; False where `play` did
    not come to its end.

    play: plays every night of the named arms up to a step. An arm of which a night failed, or that
    cannot be compared, is told and left out, and the others go on; at the end raises `ArmsFailed`.
    The next call begins with all arms again, so one that was mended since is compared too. Raises
    `NightsFailed` where no arm is left out and `play` stopped before the other nights were over.
    """
    going, steps = list(arms), first
    failed: dict[str, FieldkitError] = {}
    whole = True
    while going:
        is_last = len(going) == 1 or steps >= last
        try:
            whole = play(going, last if is_last else steps)
        except NightsFailed as e:
            if not (e.whole or failed):
                raise
            whole = e.whole
            failed |= {arm: e for arm in going if e.names & {night.name for night in arms[arm]}}
        if is_last or not whole:
            break
        share = _shares({arm: arms[arm] for arm in going if arm not in failed}, steps, failed)
        if lost := [arm for arm in going if arm not in share]:
            say(
                f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} left out: {failed[lost[0]]}"
            )
        going = better_half(share)
        if going:
            told = ", ".join(f"{arm} {percent(share[arm])}" for arm in share)
            say(f"held-out tasks passed after {counted(steps, 'step')}: {told}")
            say(f"{', '.join(going)} {'go' if len(going) > 1 else 'goes'} on")
        steps *= 2
    if failed:
        raise ArmsFailed(failed)
    return whole


def _shares(arms: Arms, steps: int, failed: dict[str, FieldkitError]) -> dict[str, float]:
    """What each arm passes after so many steps; one that cannot be compared is put into `failed`
    instead."""
    share = {}
    for arm, nights in arms.items():
        try:
            share[arm] = passed(nights, steps)
        except BadInput as e:
            failed[arm] = e
    return share


def up_to(nights: Sequence[RunFolder], steps: int) -> list[RunFolder]:
    """Those that have not gone beyond so many steps, or cannot be read. One that has was evaluated
    on its way there, and the adapter at which it was stopped since is of no step that arms are
    compared at."""
    return [night for night in nights if not _is_beyond(night, steps)]


def _is_beyond(night: RunFolder, steps: int) -> bool:
    try:
        return night.finished_steps() - 1 > steps
    except BadInput:  # to be told where it is played
        return False


def is_at_rung(night: RunFolder, first: int, last: int) -> bool:
    """Whether a night has come to a number of steps at which arms are compared."""
    steps, done = first, night.finished_steps() - 1
    while steps < min(done, last):
        steps *= 2
    return done == min(steps, last)


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
            f" compared; `grpo eval {typed_to_play(night.folder.typed, night.manifest)} --step"
            f" {step.step}` plays it"
        )
    return float(found["n_passed"] / found["n_trajectories"])
