"""Many episodes at once, and a file that keeps every finished one.

The engine is the bottleneck, so all episodes of a phase run concurrently. An episode counts as
finished when it is on disk. When one fails for good, the others are cancelled and the phase fails;
the next start uses what is on disk. An episode that ran out of time because this process was
suspended is played again. Nothing here knows what the episodes are for.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fieldkit.codec import encode_trajectory, read_trajectories
from fieldkit.errors import Unavailable
from fieldkit.files.atomic import append_line, write_text
from fieldkit.limits import allow_open_files
from fieldkit.records import StopReason, Task, Trajectory, Turn, ended_by_themselves
from reward.group_signal import is_paid, was_late
from rollout.envs.registry import environment_of
from rollout.player import Player, TurnSeeds

STANDSTILL_SECONDS = 2.0
"""A pause of the event loop this long means that the process was suspended (a frozen container, a
paused virtual machine, Ctrl-Z) or starved of CPU, while every time limit ran on."""
_BEAT_SECONDS = 0.5
_REPLAYS = 2
"""How often such an episode is played again. One that runs out of time three times does so by
itself."""

_FILES_AN_EPISODE = 10
"""File descriptors that one episode holds at most: nine of its world, and one connection."""
_FILES_BESIDE = 64
"""File descriptors of the process itself: libraries, logs, the event loop."""


Key = tuple[str, int]
"""(task_id, k), which identifies a trajectory."""


class Attempt(NamedTuple):
    """Attempt number `k` at a task."""

    task: Task
    k: int

    @property
    def key(self) -> Key:
        return self.task.task_id, self.k


SeedsOf = Callable[[Attempt], TurnSeeds]
"""The seeds of an attempt's turns."""

More = Callable[[Attempt, Trajectory], Awaitable[Sequence[Attempt]]]
"""Gives the further attempts to play after this one has ended."""


@dataclass(frozen=True)
class RolloutProgress:
    """How far a phase is. Counts include what an earlier start had finished; rates do not."""

    finished: int
    total: int
    kept: int
    """Finished episodes that an earlier start had played."""
    turns: int
    """Turns taken, including those of episodes under way."""
    tokens: int
    """Tokens sampled by this start."""
    seconds: float
    """Since the start of this process."""
    mean_reward: float | None
    """Of finished episodes; None before the first."""
    mean_turns: float | None
    """The same, so without the turns of episodes under way, which are short so far."""
    stops: Mapping[StopReason, int]
    """Finished episodes by stop reason."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def stop_rate(self) -> float | None:
        """Share of finished episodes that no limit ended."""
        if not self.finished:
            return None
        return ended_by_themselves(self.stops) / self.finished


OnProgress = Callable[[RolloutProgress], None]


def ignore_progress(progress: RolloutProgress) -> None:
    """Does nothing; for callers without a display."""


class _Tally:
    """Adds up the figures of progress events."""

    def __init__(self, total: int, on_progress: OnProgress, clock: Callable[[], float]) -> None:
        self.total = total
        self._on_progress, self._clock = on_progress, clock
        self._began = clock()
        self._finished = self._paid = self._kept = self._turns = self._tokens = 0
        self._reward, self._finished_turns = 0.0, 0
        self._stops: Counter[StopReason] = Counter()

    def keep(self, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            self._add(trajectory)
            self._kept += 1
            self._turns += len(trajectory.turns)
        self._tell()

    def turn(self, turn: Turn) -> None:
        self._turns += 1
        self._tokens += len(turn.completion_ids)
        self._tell()

    def finish(self, trajectory: Trajectory) -> None:
        self._add(trajectory)
        self._tell()

    def _add(self, trajectory: Trajectory) -> None:
        self._finished += 1
        if is_paid(trajectory):
            self._paid += 1
            self._reward += trajectory.reward
        self._finished_turns += len(trajectory.turns)
        self._stops[trajectory.stop_reason] += 1

    def _tell(self) -> None:
        """Called for every turn, so nothing is added up here."""
        self._on_progress(
            RolloutProgress(
                finished=self._finished,
                total=self.total,
                kept=self._kept,
                turns=self._turns,
                tokens=self._tokens,
                seconds=self._clock() - self._began,
                mean_reward=self._reward / self._paid if self._paid else None,
                mean_turns=self._finished_turns / self._finished if self._finished else None,
                stops=dict(self._stops),
            )
        )


class PartialFile:
    """The finished trajectories of a phase under way, one a line, each on disk when it is
    written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Held by the writing thread, so that after a cancellation no second writer starts while the
        # first is in the middle of a line.
        self._writing = threading.Lock()

    def load(
        self, attempts: Sequence[Attempt], player: Player, seeds: SeedsOf
    ) -> dict[Key, Trajectory]:
        """The trajectories of an earlier start that still count. The others are removed from the
        file."""
        if not self.path.is_file():
            return {}
        wanted = {a.key: a for a in attempts}
        stored = read_trajectories(self.path)
        kept: dict[Key, Trajectory] = {}
        for trajectory in stored:
            attempt = wanted.get((trajectory.task_id, trajectory.k))
            own = player.take_over(trajectory, attempt.task, seeds(attempt)) if attempt else None
            if own is not None:
                kept[trajectory.task_id, trajectory.k] = own
        if len(kept) < len(stored):
            write_text(self.path, "".join(encode_trajectory(t) + "\n" for t in kept.values()))
        return kept

    async def append(self, trajectory: Trajectory) -> None:
        """Write one trajectory; it is on disk when this returns. Uses a thread, because an fsync
        may take longer than a turn."""
        await asyncio.to_thread(self._append, trajectory)

    def _append(self, trajectory: Trajectory) -> None:
        with self._writing:
            append_line(self.path, encode_trajectory(trajectory))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class _Pulse:
    """Notices pauses of this process."""

    def __init__(self) -> None:
        self._standstills = 0
        self._last = time.monotonic()

    def beat(self) -> int:
        """The number of pauses so far."""
        now = time.monotonic()
        self._standstills += now - self._last > STANDSTILL_SECONDS
        self._last = now
        return self._standstills

    async def keep(self) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            self.beat()


def _ran_out_of_time(trajectory: Trajectory, task: Task) -> bool:
    """Whether a turn or the episode ran out of time. If this process was suspended meanwhile, the
    policy had less time than its limit."""
    return trajectory.stop_reason is StopReason.TIME_LIMIT or any(
        map(environment_of(task).timed_out, trajectory.turns)
    )


def allow_episodes(at_once: int) -> None:
    """Have this process open as many files as so many episodes need. Raises `Shortage`."""
    allow_open_files(_FILES_BESIDE + _FILES_AN_EPISODE * at_once)


async def fly(
    attempts: Sequence[Attempt],
    player: Player,
    seeds: SeedsOf,
    *,
    partial: PartialFile | None = None,
    on_progress: OnProgress = ignore_progress,
    spare: Sequence[Attempt] = (),
    more: More | None = None,
) -> list[Trajectory]:
    """Play every attempt that the partial file does not hold; return all trajectories in order.

    The player's `concurrency` bounds the episodes in flight; 0 means all. `more` is called when an
    attempt has ended, or was in the file; the attempts of `spare` that it names are played too.
    Raises what the first failing episode raised. The finished trajectories stay in the partial
    file, and an `Unavailable` says so. Without a partial file nothing is kept.
    """
    done = partial.load((*attempts, *spare), player, seeds) if partial else {}
    tally = _Tally(len(attempts), on_progress, player.clock)
    tally.keep(done[a.key] for a in attempts if a.key in done)
    at_once = player.settings.concurrency or max(1, len(attempts))
    allow_episodes(at_once)
    seats = asyncio.Semaphore(at_once)
    pulse = _Pulse()

    async def play_one(attempt: Attempt) -> None:
        async with seats:
            for replays_left in reversed(range(1 + _REPLAYS)):
                before = pulse.beat()
                trajectory = await player.play(*attempt, seeds(attempt), tally.turn)
                again = replays_left and pulse.beat() != before
                if not (again and _ran_out_of_time(trajectory, attempt.task)):
                    break
                if was_late(trajectory):
                    player.late.take_back()
            if partial:
                await partial.append(trajectory)
        done[attempt.key] = trajectory
        tally.finish(trajectory)
        await ask_for_more(attempt)

    async def ask_for_more(attempt: Attempt) -> None:
        if more:
            further = await more(attempt, done[attempt.key])
            tally.total += len(further)
            tally.keep(done[a.key] for a in further if a.key in done)
            begin(further)

    def begin(attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            known = attempt.key in done
            group.create_task(ask_for_more(attempt) if known else play_one(attempt))

    beating = asyncio.create_task(pulse.keep())
    try:
        async with asyncio.TaskGroup() as group:
            begin(attempts)
    except BaseExceptionGroup as failures:
        first = failures.exceptions[0]
        if partial and isinstance(first, Unavailable):
            raise Unavailable(
                f"{first}; {len(done)} of {tally.total} episodes are finished and kept in"
                f" {partial.path}; the same command continues from there"
            ) from first
        raise first from None
    finally:
        beating.cancel()
    return [done[a.key] for a in attempts]
