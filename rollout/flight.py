"""Many episodes in flight at once, and a file that keeps every one that finished.

The engine is the bottleneck, so nothing waits for a neighbour: all episodes of a phase run
together, and a finished one is on disk before it counts. When one fails for good the rest are let
go and the phase fails; what is on disk is used by the next start. What ran out of time because this
process was stopped is played again. Nothing here knows what the episodes are for.
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

from fieldkit.errors import Unavailable
from fieldkit.files.atomic import append_line, write_text
from fieldkit.limits import allow_open_files
from fieldkit.records import (
    StopReason,
    Task,
    Trajectory,
    Turn,
    encode_trajectory,
    ended_by_themselves,
    read_trajectories,
)
from rollout.envs.registry import environment_of
from rollout.player import Player, TurnSeeds

STANDSTILL_SECONDS = 2.0
"""An event loop that was not served for so long was stopped (a frozen container, a paused virtual
machine, Ctrl-Z) or starved. The clock of every time limit went on meanwhile."""
_BEAT_SECONDS = 0.5
_REPLAYS = 2
"""How often such an episode is played again: what runs out three times does so by itself."""

_FILES_AN_EPISODE = 10
"""Descriptors that one episode holds at most: nine of its world, and one connection."""
_FILES_BESIDE = 64
"""Those of the process itself: libraries, logs, the event loop."""


Key = tuple[str, int]
"""(task_id, k): what a trajectory is found by."""


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
"""Which attempts to play besides, now that this one has ended."""


@dataclass(frozen=True)
class RolloutProgress:
    """How far a phase is. Counts hold what an earlier start had finished, rates do not."""

    finished: int
    total: int
    kept: int
    """Of the finished, those that an earlier start had played."""
    turns: int
    """Turns taken, by episodes under way as well."""
    tokens: int
    """Tokens sampled by this start."""
    seconds: float
    """Since this start."""
    mean_reward: float | None
    """Of the finished; None before the first."""
    stops: Mapping[StopReason, int]
    """Finished episodes by stop reason."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def stop_rate(self) -> float | None:
        """Share of the finished that no limit ended."""
        if not self.finished:
            return None
        return ended_by_themselves(self.stops) / self.finished


OnProgress = Callable[[RolloutProgress], None]


def ignore_progress(progress: RolloutProgress) -> None:
    """For callers without a display."""


class _Tally:
    """Adds up what a progress event tells."""

    def __init__(self, total: int, on_progress: OnProgress, clock: Callable[[], float]) -> None:
        self.total = total
        self._on_progress, self._clock = on_progress, clock
        self._began = clock()
        self._kept = self._turns = self._tokens = 0
        self._finished: list[Trajectory] = []

    def keep(self, trajectories: Iterable[Trajectory]) -> None:
        kept = list(trajectories)
        self._finished += kept
        self._kept += len(kept)
        self._turns += sum(len(t.turns) for t in kept)
        self._tell()

    def turn(self, turn: Turn) -> None:
        self._turns += 1
        self._tokens += len(turn.completion_ids)
        self._tell()

    def finish(self, trajectory: Trajectory) -> None:
        self._finished.append(trajectory)
        self._tell()

    def _tell(self) -> None:
        finished = self._finished
        self._on_progress(
            RolloutProgress(
                finished=len(finished),
                total=self.total,
                kept=self._kept,
                turns=self._turns,
                tokens=self._tokens,
                seconds=self._clock() - self._began,
                mean_reward=sum(t.reward for t in finished) / len(finished) if finished else None,
                stops=Counter(t.stop_reason for t in finished),
            )
        )


class PartialFile:
    """The finished trajectories of a phase under way, one a line, durable one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Held by the writing thread itself: a cancelled phase must not let a second writer in
        # while a first one is in the middle of its line.
        self._writing = threading.Lock()

    def load(
        self, attempts: Sequence[Attempt], player: Player, seeds: SeedsOf
    ) -> dict[Key, Trajectory]:
        """What an earlier start left that still counts; the rest is dropped from the file."""
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
        """On disk when this returns. In a thread: an fsync may take longer than a turn."""
        await asyncio.to_thread(self._append, trajectory)

    def _append(self, trajectory: Trajectory) -> None:
        with self._writing:
            append_line(self.path, encode_trajectory(trajectory))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


class _Pulse:
    """Notices that this process stood still."""

    def __init__(self) -> None:
        self._standstills = 0
        self._last = time.monotonic()

    def beat(self) -> int:
        """How often it has stood still so far."""
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
    """Whether a turn or the episode had too little time: less than the policy is promised, where
    this process stood still meanwhile."""
    return trajectory.stop_reason is StopReason.TIME_LIMIT or any(
        map(environment_of(task).timed_out, trajectory.turns)
    )


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
    """Play every attempt that the partial file does not hold; return all, in attempts' order.

    The player's `concurrency` bounds the episodes in flight; 0 is all. `more` is asked whenever an
    attempt has ended, also one that the file held; what it names of `spare` is played too. Raises
    what the first failing episode raised; the finished trajectories stay in the partial file, and
    an `Unavailable` says so. Without a partial file nothing is kept.
    """
    done = partial.load((*attempts, *spare), player, seeds) if partial else {}
    tally = _Tally(len(attempts), on_progress, player.clock)
    tally.keep(done[a.key] for a in attempts if a.key in done)
    at_once = player.settings.concurrency or max(1, len(attempts))
    allow_open_files(_FILES_BESIDE + _FILES_AN_EPISODE * at_once)
    seats = asyncio.Semaphore(at_once)
    pulse = _Pulse()

    async def play_one(attempt: Attempt) -> None:
        async with seats:
            for _ in range(1 + _REPLAYS):
                before = pulse.beat()
                trajectory = await player.play(*attempt, seeds(attempt), tally.turn)
                if pulse.beat() == before or not _ran_out_of_time(trajectory, attempt.task):
                    break
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
                f" {partial.path}; the same command goes on from there"
            ) from first
        raise first from None
    finally:
        beating.cancel()
    return [done[a.key] for a in attempts]
