"""Which of several servers answers a request, and what becomes of the requests of a lost one.

The K attempts of a task share a prompt, and the turns of an attempt share all before them: so they
go to the same server, whose cache has that prefix, unless its queue is long. A server whose request
fails for a few seconds is lost: its requests are sent to the others, with the same ids and seeds,
so an attempt goes on from its last turn and nothing is played twice. One that answers again proves
its adapter before it is used again. Nothing here starts or ends a server.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

from fieldkit.errors import BadInput, FieldkitError, Unavailable
from fieldkit.process.owned import start_time
from fieldkit.records import Sampling
from rollout.engine.client import (
    OUTSIDE_REMEDY,
    OWN_REMEDY,
    ClientSettings,
    Completion,
    EngineClient,
    NoAnswer,
    NotServed,
    Sampler,
)
from rollout.engine.proof import Verdict, proof_of
from rollout.engine.target import Served

SampledFor = Callable[[str], Sampler]
"""The sampler of one attempt at the task with this id."""

_FAILING_SECONDS = 5.0
"""How long a request to one of several servers may fail before the server counts as lost."""
_MOST_LOSSES = 3
"""A server that is lost so often in one phase is not used again in it."""
_LOOK_SECONDS = 2.0
"""Between two looks whether a lost server answers again, which no event tells."""

# An attempt leaves its server where that server's expected wait is more than `_LONGER` times that
# of the best one, and by more than `_QUEUE` of the best one's requests besides: the other has to
# read the whole prefix.
_LONGER = 2.0
_QUEUE = 4
_SOME_IDS = (1, 2)
_NEWEST = 0.3
"""Weight of the newest request in a server's pace."""


@dataclass(frozen=True)
class _InOrder:
    """The sampler of one attempt at the only server. order: the attempt's number."""

    client: EngineClient
    order: int

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        return await self.client.sample(prompt_ids, sampling, seed, self.order)


@dataclass(eq=False)
class _Server:
    """One server in a phase.

    requests: those in flight there. pace: seconds a sampled token would take if it had one request,
    None before the first answer. lost: why it is not used; None while it is.
    """

    served: Served
    client: EngineClient
    requests: set[asyncio.Task[Completion]] = field(default_factory=set)
    pace: float | None = None
    lost: Unavailable | None = None
    losses: int = 0

    @property
    def may_return(self) -> bool:
        return self.losses < _MOST_LOSSES and is_alive(self.served)


@dataclass(eq=False)
class _Attempt:
    """The sampler of one attempt. order: its number. server: the one that answered its last
    turn."""

    router: Router
    task_id: str
    order: int
    server: _Server | None = None

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        return await self.router.sample(self, prompt_ids, sampling, seed)


class Router:
    """Several servers of one policy. Use as an async context manager.

    on_change: hears in a line that a server is lost, or that it is back. clock: seconds.
    """

    def __init__(
        self,
        servers: Sequence[tuple[Served, EngineClient]],
        on_change: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        policies = {(s.version, s.adapter_sha) for s, _ in servers}
        if len(policies) != 1:
            raise ValueError(f"the servers do not serve one policy, but {policies}")
        self._servers = [_Server(served, client) for served, client in servers]
        self._homes: dict[str, _Server] = {}
        self._orders = itertools.count()
        self._on_change = on_change
        self._patience = ClientSettings().patience_seconds
        self._clock = clock
        self._looking: set[asyncio.Task[None]] = set()
        self._back = asyncio.Event()
        self._last_loss = NoAnswer("no server was lost")
        self._none_since = 0.0  # when the last server was lost

    async def __aenter__(self) -> Router:
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)

    def attempt(self, task_id: str) -> Sampler:
        """The sampler of a new attempt at this task."""
        return _Attempt(self, task_id, next(self._orders))

    async def sample(
        self, attempt: _Attempt, prompt_ids: Sequence[int], sampling: Sampling, seed: int
    ) -> Completion:
        """As `EngineClient.sample`, from a server that is not lost. Raises `NoAnswer` with the last
        one's reason where all are lost for longer than the patience."""
        while True:
            server = await self._choose(attempt)
            try:
                return await self._ask(server, prompt_ids, sampling, seed, attempt.order)
            except Unavailable as e:
                self._lose(server, e)

    async def _ask(
        self,
        server: _Server,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        seed: int,
        order: int,
    ) -> Completion:
        """Raises `Unavailable` at once where the server is lost meanwhile."""
        began, before = self._clock(), len(server.requests)
        asked = server.client.sample(prompt_ids, sampling, seed, order)
        request = asyncio.create_task(asked)
        server.requests.add(request)
        try:
            await asyncio.wait({request})
            if request.cancelled():  # by `_lose`
                raise self._last_loss
            completion = request.result()
            # Requests share the server, so each takes as much longer as there are others.
            shared = (before + len(server.requests) + 1) / 2
            pace = (self._clock() - began) / len(completion.ids) / shared
            old = pace if server.pace is None else server.pace
            server.pace = old + _NEWEST * (pace - old)
            return completion
        except asyncio.CancelledError:  # the attempt is given up
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            raise
        finally:
            server.requests.discard(request)

    # -- the choice ------------------------------------------------------------------------------

    async def _choose(self, attempt: _Attempt) -> _Server:
        """The server for the attempt's next request. Waits where all are lost and one may return;
        raises its failure where none does."""
        while not (there := [s for s in self._servers if s.lost is None]):
            left = self._patience - (self._clock() - self._none_since)
            if left <= 0 or not self._some_may_return():
                raise self._last_loss
            with suppress(TimeoutError):
                await asyncio.wait_for(self._back.wait(), left)
        best = min(there, key=self._wait)
        home = attempt.server or self._homes.get(attempt.task_id)
        if home is None or home.lost is not None:
            home = self._homes[attempt.task_id] = best
        elif self._has_long_queue(home, best):
            home = best
        attempt.server = home
        return home

    def _wait(self, server: _Server) -> float:
        """How long one more request would take there, as a multiple of what is the same for all."""
        return (len(server.requests) + 1) * self._pace(server)

    def _pace(self, server: _Server) -> float:
        """Its pace; of one that has not answered yet, the fastest that is known."""
        if server.pace is not None:
            return server.pace
        return min((s.pace for s in self._servers if s.pace is not None), default=1.0)

    def _has_long_queue(self, home: _Server, best: _Server) -> bool:
        return self._wait(home) > _LONGER * self._wait(best) + _QUEUE * self._pace(best)

    # -- lost servers ----------------------------------------------------------------------------

    def _lose(self, server: _Server, why: Unavailable) -> None:
        """Use it no more, until it answers again; its other requests are to go elsewhere."""
        if server.lost is not None:
            return
        server.lost = self._last_loss = why if isinstance(why, NoAnswer) else NoAnswer(str(why))
        server.losses += 1
        for request in server.requests:
            request.cancel()
        self._back.clear()
        others = sum(s.lost is None for s in self._servers)
        self._none_since = self._clock()
        self._on_change(f"{server.served.name} is lost, {others} left: {self._last_loss.what}")
        if server.may_return:
            looking = asyncio.create_task(self._look(server))
            self._looking.add(looking)
            looking.add_done_callback(self._looking.discard)
        self._wake_if_none_returns()

    async def _look(self, server: _Server) -> None:
        """Look now and then whether it answers and serves what it should; take it back then."""
        while server.may_return:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self._require_policy(server)
            except BadInput:
                break  # it refuses what every server of this policy answers
            except NotServed:
                self._on_change(
                    f"{server.served.name} answers, but without the adapter, as a server does that "
                    "was started anew; the next phase gives it the adapter again"
                )
                break
            except FieldkitError:
                continue
            server.lost, server.pace = None, None
            self._on_change(f"{server.served.name} answers again")
            self._back.set()
            return
        server.losses = _MOST_LOSSES
        self._wake_if_none_returns()

    def _wake_if_none_returns(self) -> None:
        """Let the waiting requests see that no server is left."""
        if not self._some_may_return():
            self._back.set()

    def _some_may_return(self) -> bool:
        return any(s.lost is None or s.may_return for s in self._servers)

    async def _require_policy(self, server: _Server) -> None:
        """Raise `Unavailable` where it does not answer with the phase's policy."""
        adapter = server.served.adapter
        if adapter is not None:
            proof = await proof_of(server.client, adapter.path, adapter.sha)
            if proof.verdict is not Verdict.NO_CANARY:
                return
        await server.client.logprobs(_SOME_IDS)


@asynccontextmanager
async def samplers(
    servers: Sequence[Served],
    stop_token_ids: Sequence[int],
    on_change: Callable[[str], None],
) -> AsyncIterator[SampledFor]:
    """Connections to the servers of one policy; use it inside an event loop.

    stop_token_ids: as in `EngineClient`. on_change: as in `Router`. Where requests wait, those of
    the attempts whose samplers were asked for first go first.
    """
    several = len(servers) > 1
    settings = ClientSettings(_FAILING_SECONDS, least_failures=1) if several else ClientSettings()
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                EngineClient(
                    served.base_url,
                    served.api_key,
                    served.model_name,
                    stop_token_ids=stop_token_ids,
                    alive=lambda served=served: is_alive(served),  # type: ignore[misc]
                    remedy=OUTSIDE_REMEDY if served.pid is None else OWN_REMEDY,
                    settings=replace(settings, connections=served.connections),
                )
            )
            for served in servers
        ]
        if not several:
            orders = itertools.count()
            yield lambda task_id: _InOrder(clients[0], next(orders))
            return
        pairs = list(zip(servers, clients, strict=True))
        yield (await stack.enter_async_context(Router(pairs, on_change))).attempt


def is_alive(served: Served) -> bool:
    """Whether its process lives; of a server that is not the run's nobody knows."""
    if served.pid is None:
        return True
    now = start_time(served.pid)
    return now is not None and now == served.start_time
