"""Requests go where their prefix is, past a long queue, and away from a server that is lost.

The servers are simulated: time is what they need, so nothing depends on this machine.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import Unavailable
from fieldkit.process.owned import start_time
from fieldkit.records import Sampling
from fieldkit.training.adapter import AdapterInfo
from rollout.engine import router
from rollout.engine.client import Completion, NoAnswer, NotServed, Sampler
from rollout.engine.lifecycle import HOTSWAP
from rollout.engine.router import Router, is_alive, samplers
from rollout.engine.target import Served
from tests.rollout.engine.test_client import answer, flaky_server, reply

SAMPLING = Sampling(1.0, 8, 1.0, 0, 0.0)
K, TURNS = 4, 6
TIMES_OUT = 300.0
HANGS_SECONDS = 60.0  # far more than a simulation takes, and less than the router's patience


@dataclass
class Clock:
    """Simulated seconds, which pass when every task waits for one."""

    now: float = 0.0
    _waiting: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)

    def __call__(self) -> float:
        return self.now

    async def pass_(self, seconds: float) -> None:
        due = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self.now + seconds, next(self._numbers), due))
        await due

    async def run(self, main: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(main)
        began = time.monotonic()
        while not task.done():
            assert time.monotonic() - began < HANGS_SECONDS, "nobody wakes what waits"
            for _ in range(50):  # until every task has gone as far as it can now
                await asyncio.sleep(0)
            while self._waiting and self._waiting[0][2].cancelled():
                heapq.heappop(self._waiting)
            if self._waiting and not task.done():
                self.now, _, due = heapq.heappop(self._waiting)
                due.set_result(None)
        return task.result()


@dataclass
class Server:
    """A client of a server that takes `seconds` for a token, shared by its requests.

    down: every request fails while it is set. anew: it was started anew, without the adapter.
    hangs: the first request from then on fails after `TIMES_OUT` seconds, and no other one ends.
    asked: the prompts of its requests.
    """

    clock: Clock
    seconds: float = 1.0
    down: bool = False
    anew: bool = False
    hangs: bool = False
    hung: int = 0
    asked: list[tuple[int, ...]] = field(default_factory=list)
    proven: int = 0
    in_flight: int = 0
    most_in_flight: int = 0

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, seed: int, order: int
    ) -> Completion:
        if self.down:
            raise Unavailable("no answer")
        if self.anew:
            raise NotServed("HTTP 404")
        self.asked.append(tuple(prompt_ids))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await self._take_time()
        finally:
            self.in_flight -= 1
        if self.down:
            raise Unavailable("connection reset")
        return Completion((seed,), (-1.0,), "stop")

    async def _take_time(self) -> None:
        if not self.hangs:
            return await self.clock.pass_(self.seconds * self.in_flight)
        self.hung += 1
        if self.hung > 1:
            await asyncio.Event().wait()
        await self.clock.pass_(TIMES_OUT)
        raise Unavailable("no whole answer")

    async def logprobs(self, prompt_ids: Sequence[int]) -> tuple[float, ...]:
        if self.down or self.hangs:
            raise Unavailable("no answer")
        if self.anew:
            raise NotServed("HTTP 404")
        self.proven += 1
        return (-1.0,)


def served(n: int, sha: str = "a" * 64, pid: int | None = None) -> Served:
    adapter = AdapterInfo(Path("nowhere"), 8, 16.0, ("q_proj",), "base", sha)
    return Served(
        "", "", "run-v1", "run-v1", adapter, pid, HOTSWAP.name, "", None, 0.0, f"engine {n}"
    )


def fleet(
    clock: Clock, *seconds: float, pid: int | None = None
) -> tuple[Router, list[Server], list[str]]:
    servers, said = [Server(clock, s) for s in seconds], list[str]()
    pairs: Any = [(served(i, pid=pid), s) for i, s in enumerate(servers, 1)]
    return Router(pairs, said.append, clock=clock), servers, said


async def episode(routed: Router, group: int, k: int, turns: int = TURNS) -> list[int]:
    """The turns of attempt k: each prompt extends the one before; the ids that were sampled."""
    sampler, prompt, sampled = routed.attempt(f"task-{group}"), [group, k], list[int]()
    for turn in range(turns):
        completion = await sampler.sample(prompt, SAMPLING, seed=100 * group + 10 * k + turn)
        prompt += [*completion.ids, 0]
        sampled += completion.ids
    return sampled


async def step(routed: Router, groups: int) -> list[list[int]]:
    async with routed:
        episodes = [episode(routed, g, k) for g in range(groups) for k in range(K)]
        return await asyncio.gather(*episodes)


EVERY = [[100 * g + 10 * k + t for t in range(TURNS)] for g in range(4) for k in range(K)]
"""What the attempts of four groups sample, wherever they are played."""


def where(servers: Sequence[Server], part: Callable[[tuple[int, ...]], Any]) -> dict[Any, set[int]]:
    """The servers at which the prompts with an equal part were."""
    found: dict[Any, set[int]] = {}
    for i, server in enumerate(servers):
        for prompt in server.asked:
            found.setdefault(part(prompt), set()).add(i)
    return found


async def test_the_attempts_of_a_task_and_their_turns_go_to_one_server() -> None:
    clock = Clock()
    routed, servers, said = fleet(clock, 1.0, 1.0)
    assert await clock.run(step(routed, 4)) == EVERY
    assert {len(at) for at in where(servers, lambda prompt: prompt[0]).values()} == {1}
    assert Counter(len(s.asked) for s in servers) == {2 * K * TURNS: 2}
    assert said == []


async def test_a_server_ten_times_slower_holds_nobody_up() -> None:
    alone, both = Clock(), Clock()
    routed, _, _ = fleet(alone, 1.0, 1.0)
    await alone.run(step(routed, 4))
    routed, (fast, slow), _ = fleet(both, 1.0, 10.0)
    assert await both.run(step(routed, 4)) == EVERY
    assert len(slow.asked) <= len(fast.asked) / 4
    # Half of the first requests went there before anybody knew; nothing more is lost to it.
    first = 10.0 * 2 * K
    assert both.now <= first + 2 * alone.now


async def test_a_long_queue_sends_an_attempt_elsewhere_and_a_short_one_does_not() -> None:
    clock = Clock()
    routed, servers, _ = fleet(clock, 1.0, 1.0)

    async def one_large_group() -> None:
        async with routed:
            await asyncio.gather(*(episode(routed, 0, k) for k in range(4)))
            assert [len(s.asked) > 0 for s in servers] == [True, False]
            await asyncio.gather(*(episode(routed, 0, k) for k in range(32)))

    await clock.run(one_large_group())
    assert servers[1].asked, "all went to the one with the prefix"
    assert max(s.most_in_flight for s in servers) <= 24


async def test_the_requests_of_a_lost_server_go_to_the_others_and_nothing_is_sampled_twice() -> (
    None
):
    clock = Clock()
    routed, servers, said = fleet(clock, 1.0, 1.0, pid=_ended())

    async def lose_one() -> None:
        await clock.pass_(5.0)
        servers[0].down = True

    whole, _ = await clock.run(asyncio.gather(step(routed, 4), lose_one()))
    assert whole == EVERY
    assert [text.partition(":")[0] for text in said] == ["engine 1 is lost, 1 left"]
    answered = Counter(len(prompt) for s in servers for prompt in s.asked)
    assert sum(answered.values()) <= len(EVERY) * TURNS + servers[0].most_in_flight


async def test_the_first_request_that_a_hanging_server_fails_frees_all_others_there() -> None:
    clock = Clock()
    routed, servers, said = fleet(clock, 1.0, 1.0)

    async def hang() -> None:
        await clock.pass_(5.0)
        servers[0].hangs = True

    whole, _ = await clock.run(asyncio.gather(step(routed, 4), hang()))
    assert whole == EVERY
    assert servers[0].hung > 1
    assert servers[0].in_flight == 0, "its requests were ended there"
    assert [text.partition(":")[0] for text in said] == ["engine 1 is lost, 1 left"]
    assert clock.now < 2 * TIMES_OUT


async def test_an_attempt_that_is_given_up_ends_its_request() -> None:
    clock = Clock()
    routed, servers, said = fleet(clock, 1.0, 1.0)

    async def give_up() -> None:
        async with routed:
            playing = asyncio.create_task(episode(routed, 0, 0))
            await asyncio.sleep(0)  # it begins
            await asyncio.sleep(0)  # its request is sent
            assert servers[0].in_flight == 1
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing
            assert servers[0].in_flight == 0

    await clock.run(give_up())
    assert said == []


async def test_a_server_that_answers_again_proves_itself_and_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "_LOOK_SECONDS", 0)
    clock = Clock()
    routed, servers, said = fleet(clock, 1.0, 1.0)

    async def cut_off_for_a_while() -> None:
        await clock.pass_(5.0)
        servers[0].down = True
        await clock.pass_(20.0)
        assert servers[0].proven == 0
        servers[0].down = False
        n = len(servers[0].asked)
        await clock.pass_(40.0)
        assert len(servers[0].asked) > n

    whole, _ = await clock.run(asyncio.gather(step(routed, 4), cut_off_for_a_while()))
    assert whole == EVERY
    assert [text.partition(":")[0] for text in said] == [
        "engine 1 is lost, 1 left",
        "engine 1 answers again",
    ]
    assert servers[0].proven == 1


async def test_a_server_that_was_started_anew_is_left_to_the_next_phase_and_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "_LOOK_SECONDS", 0)
    clock = Clock()
    routed, servers, said = fleet(clock, 1.0, 1.0)
    servers[0].anew = True
    assert await clock.run(step(routed, 4)) == EVERY
    assert said == [
        "engine 1 is lost, 1 left: HTTP 404",
        "engine 1 answers, but without the adapter, as a server does that was started anew; the "
        "next phase gives it the adapter again",
    ]


async def test_where_all_were_started_anew_the_phase_fails_at_once_and_can_load_the_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "_LOOK_SECONDS", 0)
    clock = Clock()
    routed, servers, _ = fleet(clock, 1.0, 1.0)
    for server in servers:
        server.anew = True
    with pytest.raises(NoAnswer, match="HTTP 404"):
        await clock.run(step(routed, 1))


async def test_where_all_are_gone_for_good_the_request_fails_at_once_with_the_last_reason() -> None:
    clock = Clock()
    routed, servers, said = fleet(clock, 1.0, 1.0, pid=_ended())
    for server in servers:
        server.down = True
    with pytest.raises(NoAnswer, match="no answer"):
        await clock.run(step(routed, 4))
    assert clock.now == 0.0
    assert [text.partition(":")[0] for text in said] == [
        "engine 1 is lost, 1 left",
        "engine 2 is lost, 0 left",
    ]


async def test_all_servers_lost_for_a_while_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "_LOOK_SECONDS", 0)
    clock = Clock()
    routed, servers, _ = fleet(clock, 1.0, 1.0)

    async def cut_off_for_a_while() -> None:
        await clock.pass_(5.0)
        for server in servers:
            server.down = True
        await clock.pass_(60.0)
        for server in servers:
            server.down = False

    whole, _ = await clock.run(asyncio.gather(step(routed, 4), cut_off_for_a_while()))
    assert whole == EVERY


async def test_they_are_waited_for_from_when_the_last_was_lost_whenever_the_first_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "_LOOK_SECONDS", 0)
    clock = Clock()
    routed, servers, said = fleet(clock, 1.0, 200.0)

    async def one_after_the_other() -> None:
        await clock.pass_(0.5)
        servers[0].down = True
        while len(said) < 1:
            await clock.pass_(0.1)
        await clock.pass_(150.0)  # longer than a request is patient
        servers[1].down = True
        while len(said) < 2:
            await clock.pass_(1.0)
        await clock.pass_(60.0)
        servers[0].down = False

    whole, _ = await clock.run(asyncio.gather(step(routed, 1), one_after_the_other()))
    assert whole == EVERY[:K]
    assert [text.partition(":")[0] for text in said] == [
        "engine 1 is lost, 1 left",
        "engine 2 is lost, 0 left",
        "engine 1 answers again",
    ]


async def test_servers_of_different_policies_are_never_taken_together() -> None:
    pairs: Any = [(served(1), Server(Clock())), (served(2, "b" * 64), Server(Clock()))]
    with pytest.raises(ValueError, match="do not serve one policy"):
        Router(pairs, lambda text: None)


def test_a_process_that_has_a_servers_pid_and_began_at_another_time_is_not_the_server() -> None:
    began = start_time(os.getpid())
    assert began is not None
    one = replace(served(1, pid=os.getpid()), start_time=began)
    assert is_alive(one)
    assert not is_alive(replace(one, start_time=began - 1))


def _ended() -> int:
    """The pid of no process: the largest that the kernel gives is smaller."""
    return 2**22 + 1


async def test_attempts_that_the_cache_does_not_hold_together_read_their_prefixes_once() -> None:
    attempts, seats, held = 40, 4, 3 * 4
    cache: OrderedDict[int, None] = OrderedDict()  # the last prefixes, as vLLM keeps blocks
    read_anew = 0

    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        nonlocal read_anew
        attempt = bodies[n]["prompt"][0]
        read_anew += attempt not in cache
        cache[attempt] = None
        cache.move_to_end(attempt)
        if len(cache) > held:
            cache.popitem(last=False)
        await reply(writer, "200 OK", answer())

    async def play(sampler: Sampler, attempt: int) -> None:
        for turn in range(TURNS):
            await sampler.sample([attempt, *range(turn)], SAMPLING, seed=turn)

    async with flaky_server(respond) as (url, bodies):
        server = replace(served(1), base_url=url, connections=seats)
        async with samplers([server], (), lambda text: None) as sampler_of:
            await asyncio.gather(*(play(sampler_of("task"), n) for n in range(attempts)))
    assert len(bodies) == attempts * TURNS
    assert read_anew < 2 * attempts, "first come, first served reads nearly every prompt anew"
