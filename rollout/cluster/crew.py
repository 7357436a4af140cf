"""The rollout workers of a phase on the nodes of a cluster, and the player that has them play.

The phase stays as it is: its flight, its partial file and its bundle are here, and it alone writes.
Only the playing of an attempt goes to a worker. Where a worker or its node is lost its attempts are
played elsewhere with the same seeds; finished ones are on disk already. The workers end with the
phase, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldkit.codec import decode_trajectory
from fieldkit.errors import BadInput, FieldkitError, Interrupted, Shortage, Unavailable
from fieldkit.records import Task, Trajectory, Turn
from rollout.cluster.cluster_settings import ClusterSettings
from rollout.cluster.ray_cluster import (
    joined,
    lost_errors,
    no_room_now,
    nodes,
    options,
    require_room,
)
from rollout.cluster.rollout_worker import PlayerThere, RolloutWorker, Said
from rollout.engine.router import is_alive
from rollout.engine.target import Served
from rollout.player import Player, TurnSeeds

_KEY, _WHAT = "worker_needs", "a rollout worker"
_OTHERS_SECONDS = 10.0
"""How long the other workers may wait for room once one is ready, and how long they may take to
end."""
_LOOK_SECONDS = 1.0
"""Between two looks whether a server of the run lives, which is a process of this machine."""
_MOST_AT_ONCE = 10_000
"""Calls that Ray lets a worker have at once; rollout.concurrency bounds them."""
_ERRORS = {kind.exit_code: kind for kind in (BadInput, Unavailable, Shortage, Interrupted)}


@dataclass(eq=False)
class _Worker:
    """node: where it was placed; "" until then."""

    actor: Any
    node: str = ""
    in_flight: int = 0
    lost: bool = False


@dataclass(frozen=True)
class RemotePlayer(Player):
    """A player whose attempts are played by a crew. What it knows of its own is used to tell
    whether a stored trajectory is one of its."""

    crew: Crew = field(kw_only=True)

    async def play(
        self,
        task: Task,
        k: int,
        seeds: TurnSeeds,
        on_turn: Callable[[Turn], None] = lambda turn: None,
    ) -> Trajectory:
        """As `Player.play`; the turns are told when the attempt has ended."""
        line = await self.crew.play(task, k, seeds)
        trajectory = decode_trajectory(line, f"task {task.task_id}, k = {k}")
        for turn in trajectory.turns:
            on_turn(turn)
        return trajectory


class Crew:
    """ray: the package. alive: whether a server lives that the workers can ask. on_line: hears of a
    lost worker, and what a worker has to say."""

    def __init__(
        self,
        ray: Any,
        workers: Sequence[_Worker],
        alive: Callable[[], bool],
        on_line: Callable[[str], None],
    ) -> None:
        self._ray = ray
        self._workers = workers
        self._alive = alive
        self._on_line = on_line
        self._no_server = asyncio.Event()

    async def play(self, task: Task, k: int, seeds: TurnSeeds) -> str:
        """The line of the attempt's trajectory. Raises the error that ended it, and `Unavailable`
        where no worker or no server is left."""
        while True:
            there = [w for w in self._workers if not w.lost]
            if not there:
                raise Unavailable(
                    "every rollout worker of the Ray cluster is lost; `ray status` shows its nodes"
                )
            worker = min(there, key=lambda w: w.in_flight)
            worker.in_flight += 1
            try:
                return self._heard(worker, await self._asked(worker, task, k, seeds))
            except lost_errors(self._ray) as e:
                self._lose(worker, e)
            finally:
                worker.in_flight -= 1

    async def _asked(self, worker: _Worker, task: Task, k: int, seeds: TurnSeeds) -> Said:
        answer = asyncio.ensure_future(_awaited(worker.actor.play.remote(task, k, seeds)))
        no_server = asyncio.create_task(self._no_server.wait())
        try:
            await asyncio.wait({answer, no_server}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Unavailable(
                    "the processes of all servers have ended; the engine's log is the newest"
                    " log/engine-*.log of the run folder"
                )
            said: Said = answer.result()
            return said
        finally:
            answer.cancel()
            no_server.cancel()

    def _heard(self, worker: _Worker, said: Said) -> str:
        for line in said.lines:
            self._on_line(f"node {worker.node}: {line}")
        if said.code:
            raise _ERRORS.get(said.code, FieldkitError)(said.text)
        return said.text

    def _lose(self, worker: _Worker, why: Exception) -> None:
        if worker.lost:
            return
        reason = next(iter(str(why).strip().splitlines()), "")
        self._leave_out(worker, f"is lost, {self._left - 1} left: {reason}")

    def _leave_out(self, worker: _Worker, why: str) -> None:
        worker.lost = True
        on = f"on node {worker.node}" if worker.node else "that has no node yet"
        self._on_line(f"the rollout worker {on} {why}")
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)  # where only the network between us was lost

    @property
    def _left(self) -> int:
        return sum(not w.lost for w in self._workers)

    async def begin(self, cluster: ClusterSettings) -> None:
        """Wait until the workers are ready; leave out those that find no room, or do not load, in
        time. Raises what the first one raised that could not begin, and `Unavailable` where none is
        left."""
        waiting = {asyncio.ensure_future(self._begun(w)): w for w in self._workers}
        some_ready = False
        while waiting:
            all_placed = all(w.node for w in waiting.values())
            patient = all_placed or not some_ready
            seconds = cluster.room_seconds if patient else _OTHERS_SECONDS
            done, _ = await asyncio.wait(
                waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            for answer in done:
                worker = waiting.pop(answer)
                try:
                    answer.result()
                    some_ready = True
                except lost_errors(self._ray) as e:
                    self._lose(worker, e)
            late = [] if done else [a for a, w in waiting.items() if all_placed or not w.node]
            for answer in late:
                answer.cancel()
                self._leave_out(waiting.pop(answer), f"is left out: not ready in {seconds:g} s")
        if not any(w.node for w in self._workers):
            raise no_room_now(cluster.worker_needs, _WHAT, _KEY, cluster.room_seconds)
        if not self._left:
            raise Unavailable(
                "no rollout worker of the Ray cluster was ready to play; the lines before this one"
                " say what became of each, and `ray status` shows the nodes"
            )

    async def _begun(self, worker: _Worker) -> None:
        worker.node = await _awaited(worker.actor.place.remote())
        self._heard(worker, await _awaited(worker.actor.begin.remote()))

    async def watch(self) -> None:
        """Notice when the process of the last server has ended. Until cancelled."""
        while self._alive():
            await asyncio.sleep(_LOOK_SECONDS)
        self._no_server.set()

    async def end(self) -> None:
        """Let the workers close what they hold."""
        ends = [_awaited(w.actor.end.remote()) for w in self._workers if not w.lost]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OTHERS_SECONDS):
                await asyncio.gather(*ends, return_exceptions=True)


async def _awaited(ref: Any) -> Any:
    return await ref


@contextlib.asynccontextmanager
async def crew(
    cluster: ClusterSettings,
    make: PlayerThere,
    servers: Sequence[Served],
    on_line: Callable[[str], None],
) -> AsyncIterator[Crew]:
    """The workers of a phase, ready to play; they end with the block.

    make: their players; it has to be importable on the nodes. servers: those that they ask.
    on_line: as in `Crew`.
    """
    with joined(cluster) as ray:
        require_room(ray, cluster.worker_needs, _WHAT, _KEY)
        able = sum(node.can_hold(cluster.worker_needs) for node in nodes(ray))
        worker = ray.remote(RolloutWorker).options(
            **options(cluster.worker_needs),
            max_concurrency=_MOST_AT_ONCE,
            scheduling_strategy="SPREAD",
        )
        count = cluster.workers or able
        there = Crew(
            ray,
            [_Worker(worker.remote(make, number)) for number in range(count)],
            lambda: any(map(is_alive, servers)),
            on_line,
        )
        await there.begin(cluster)
        watching = asyncio.create_task(there.watch())
        try:
            yield there
        finally:
            watching.cancel()
            await there.end()
