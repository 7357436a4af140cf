"""The client: exact ids both ways, answers checked, failures repeated and then said."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.records import Sampling
from rollout.engine.client import (
    ClientSettings,
    Completion,
    EngineClient,
    NoAnswer,
    NotServed,
    _Seats,
    completion_of,
    prompt_logprobs_of,
)
from tests.conftest import SharedEngine
from tests.rollout.engine.order_price import prompt_ids

SAMPLING = Sampling(temperature=1.0, max_tokens=8, top_p=1.0, top_k=0, min_p=0.0)
PROMPT = (1, 2683, 198, 504, 2365, 6354, 16438)


def answer(ids: Any = (5, 6), logprobs: Any = (-0.5, -1.5), finish: Any = "stop") -> dict[str, Any]:
    """A server's answer to a completion request."""
    choice = {
        "index": 0,
        "text": "never looked at",
        "token_ids": list(ids) if isinstance(ids, tuple) else ids,
        "logprobs": None if logprobs is None else {"token_logprobs": list(logprobs)},
        "finish_reason": finish,
    }
    return {"choices": [choice]}


def test_a_completion_is_the_ids_and_logprobs_of_the_answer() -> None:
    completion = completion_of(answer(), max_tokens=8)
    assert completion.ids == (5, 6)
    assert completion.logprobs == (-0.5, -1.5)
    assert completion.finish_reason == "stop"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (answer(ids=None), "does not return sampled ids"),
        (answer(ids=()), "does not return sampled ids"),
        (answer(logprobs=None), "2 sampled ids but no logprobs"),
        (answer(logprobs=(-0.5,)), "2 sampled ids but 1 logprobs"),
        (answer(logprobs=(-0.5, float("nan"))), "logprob 1 is nan"),
        (answer(logprobs=(-0.5, float("-inf"))), "logprob 1 is -inf"),
        (answer(logprobs=(-0.5, None)), "logprob 1 is None"),
        (answer(logprobs=(0.5, -1.0)), "logprob 0 is 0.5"),
        (answer(ids=tuple(range(9)), logprobs=(-1.0,) * 9), "9 ids where at most 8"),
        (answer(finish="length"), "2 ids, cut for their length, where 8 were allowed"),
        (answer(finish="abort"), "finish_reason is 'abort'"),
        ({"choices": []}, "expected one choice"),
        ({"error": "x"}, "expected one choice"),
    ],
)
def test_an_answer_that_could_not_be_trained_on_is_refused(bad: Any, reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        completion_of(bad, max_tokens=8)


def prompt_answer(rows: Any) -> dict[str, Any]:
    return {"choices": [{"prompt_logprobs": rows}]}


def test_prompt_logprobs_are_those_of_the_prompts_own_ids() -> None:
    rows = [None, {"7": {"logprob": -0.1}, "8": {"logprob": -2.0}}, {"9": {"logprob": -3.0}}]
    assert prompt_logprobs_of(prompt_answer(rows), (1, 8, 9)) == (-2.0, -3.0)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (None, "3 prompt ids but no prompt logprobs"),
        ([None, {"8": {"logprob": -1.0}}], "3 prompt ids but 2 prompt logprobs"),
        ([None, {"8": {"logprob": -1.0}}, {"7": {"logprob": -1.0}}], "no logprob for prompt id 9"),
        ([None, {"8": {"logprob": None}}, {"9": {"logprob": -1.0}}], "logprob 0 is None"),
    ],
)
def test_prompt_logprobs_that_do_not_fit_the_prompt_are_refused(rows: Any, reason: str) -> None:
    with pytest.raises(Unavailable, match=reason):
        prompt_logprobs_of(prompt_answer(rows), (1, 8, 9))


# -- failures, on a loopback server that fails on purpose --------------------------------------

Respond = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def flaky_server(
    respond: Respond, port: int = 0, *, keep: bool = False
) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server that hands its n-th request (from 0) to `respond`; yields URL and bodies seen.

    keep: a connection stays open after an answer, until `respond` closes it.
    """
    bodies: list[dict[str, Any]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                bodies.append(await read_request(reader))
                await respond(len(bodies) - 1, writer)
                if not keep:
                    break
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", bodies


async def read_request(reader: asyncio.StreamReader) -> Any:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    )
    return json.loads(await reader.readexactly(length))


async def reply(
    writer: asyncio.StreamWriter, status: str, value: Any, connection: str = "close"
) -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: {connection}"
    writer.write(head.encode() + b"\r\n\r\n" + body)
    await writer.drain()


class FakeTime:
    """A clock that only `sleep` moves on; `slept` is how long each time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.slept.append(seconds)


async def nothing(n: int, writer: asyncio.StreamWriter) -> None:
    """Closes the connection without a word."""


async def test_an_answer_that_names_the_policy_that_was_asked_is_taken() -> None:
    async with (
        flaky_server(says("200 OK", {**answer(), "model": "v0"})) as (url, _),
        EngineClient(url, "key", "v0") as client,
    ):
        assert (await client.sample(PROMPT, SAMPLING, seed=3)).ids == (5, 6)


async def test_an_engine_that_stays_away_is_unavailable_after_a_bounded_time() -> None:
    settings = ClientSettings(patience_seconds=1.0)
    async with (
        flaky_server(nothing) as (url, bodies),
        EngineClient(url, "key", "v0", settings=settings) as client,
    ):
        with pytest.raises(Unavailable, match=r"no answer for v0 in \d attempts.*log/engine-"):
            await client.sample(PROMPT, SAMPLING, seed=3)
    assert len(bodies) >= 2


async def test_an_engine_whose_process_has_ended_is_not_asked_again() -> None:
    async with (
        flaky_server(nothing) as (url, bodies),
        EngineClient(url, "key", "v0", alive=lambda: False) as client,
    ):
        with pytest.raises(Unavailable, match="The server's process has ended"):
            await client.sample(PROMPT, SAMPLING, seed=3)
    assert len(bodies) == 1


async def test_an_engine_that_refuses_connections_for_a_while_is_waited_for() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        await reply(writer, "200 OK", answer())

    async with EngineClient(f"http://127.0.0.1:{port}", "key", "v0") as client:
        waiting = asyncio.create_task(client.sample(PROMPT, SAMPLING, seed=3))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done, "a refused connection ended the request"
        async with flaky_server(respond, port):
            assert (await waiting).ids == (5, 6)


async def fine(n: int, writer: asyncio.StreamWriter) -> None:
    await reply(writer, "200 OK", answer())


def says(status: str, value: Any = None) -> Respond:
    """Answers so each time."""

    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        await reply(writer, status, value)

    return respond


def sends(raw: bytes) -> Respond:
    """Writes so much of an answer, and closes."""

    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return respond


async def hangs(n: int, writer: asyncio.StreamWriter) -> None:
    """Says nothing and does not close."""
    await asyncio.Event().wait()


async def trickles(n: int, writer: asyncio.StreamWriter) -> None:
    """Sends a byte now and then for as long as somebody listens."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


FAULTS: dict[str, tuple[Respond, str]] = {
    "500": (says("500 Internal Server Error"), "HTTP 500"),
    "502": (says("502 Bad Gateway"), "HTTP 502"),
    "503": (says("503 Service Unavailable"), "HTTP 503"),
    "504": (says("504 Gateway Timeout"), "HTTP 504"),
    "408": (says("408 Request Timeout"), "HTTP 408"),
    "429": (says("429 Too Many Requests"), "HTTP 429"),
    "no word": (nothing, "RemoteProtocolError"),
    "hangs": (hangs, "no whole answer within 0.3 s"),
    "trickles": (trickles, "no whole answer within 0.3 s"),
    "breaks off": (
        sends(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{"),
        "without sending complete",
    ),
    "half a JSON": (sends(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{"), "JSONDecodeError"),
    "no text": (sends(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\xff\xfe"), "Error"),
    "no gzip": (
        sends(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 9\r\n\r\nnot gzip!"),
        "DecodingError",
    ),
    "no HTTP": (sends(b"\0" * 100), "RemoteProtocolError"),
    "fewer ids": (says("200 OK", answer(finish="length")), "2 ids, cut for their length"),
    "fewer logprobs": (says("200 OK", answer(logprobs=(-0.5,))), "2 sampled ids but 1 logprobs"),
    "NaN": (says("200 OK", answer(logprobs=(-0.5, float("nan")))), "logprob 1 is nan"),
    "nothing sampled": (says("200 OK", answer(ids=(), logprobs=())), "does not return sampled"),
    "no choice": (says("200 OK", {}), "expected one choice"),
    "another policy": (says("200 OK", {**answer(), "model": "v1"}), "it is by model 'v1'"),
}
each_fault = pytest.mark.parametrize(("fault", "reason"), FAULTS.values(), ids=FAULTS)


def settings_for(reason: str) -> ClientSettings:
    """Impatient with one answer only where the fault is that none comes."""
    return ClientSettings(
        patience_seconds=5, request_seconds=0.3 if "no whole answer" in reason else 300
    )


@each_fault
async def test_a_fault_that_passes_is_met_by_the_same_request_again(
    fault: Respond, reason: str
) -> None:
    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        await (fault if n < 2 else fine)(n, writer)

    settings = settings_for(reason)
    time = FakeTime()
    async with (
        flaky_server(respond) as (url, bodies),
        EngineClient(url, "key", "v0", settings=settings, clock=time, sleep=time.sleep) as client,
    ):
        assert (await client.sample(PROMPT, SAMPLING, seed=3)).ids == (5, 6)
    assert len(bodies) >= 3
    assert bodies == [bodies[0]] * len(bodies)


@each_fault
async def test_a_fault_that_stays_is_unavailable_after_a_bounded_time_and_no_completion(
    fault: Respond, reason: str
) -> None:
    settings = settings_for(reason)
    time = FakeTime()
    async with (
        flaky_server(fault) as (url, bodies),
        EngineClient(url, "key", "v0", settings=settings, clock=time, sleep=time.sleep) as client,
    ):
        with pytest.raises(Unavailable, match=reason):
            await client.sample(PROMPT, SAMPLING, seed=3)
    assert 2 < len(bodies) < 10
    assert time.seconds < 15


@pytest.mark.parametrize("idle", [True, False], ids=["while it is idle", "when it is used again"])
async def test_a_kept_connection_that_the_engine_drops_costs_nothing(idle: bool) -> None:
    peers: list[Any] = []

    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        peers.append(writer.get_extra_info("peername"))
        if n == 1 and not idle:
            writer.close()
            return
        await reply(writer, "200 OK", answer(), connection="keep-alive")
        if idle:
            writer.close()

    async with (
        flaky_server(respond, keep=True) as (url, _),
        EngineClient(url, "key", "v0") as client,
    ):
        for _ in range(3):
            assert (await client.sample(PROMPT, SAMPLING, seed=3)).ids == (5, 6)
    used_again = [before == after for before, after in itertools.pairwise(peers)]
    assert used_again == ([False, False] if idle else [True, False, True])


async def test_an_engine_that_refuses_connections_for_90_seconds_is_waited_for() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    time = FakeTime()
    async with contextlib.AsyncExitStack() as restarted:

        async def sleep(seconds: float) -> None:
            await time.sleep(seconds)
            if time.seconds >= 90 > time.seconds - seconds:
                await restarted.enter_async_context(flaky_server(fine, port))

        url = f"http://127.0.0.1:{port}"
        async with EngineClient(url, "key", "v0", clock=time, sleep=sleep) as client:
            assert (await client.sample(PROMPT, SAMPLING, seed=3)).ids == (5, 6)
    assert 90 <= time.seconds < 105
    assert max(time.slept) <= 10
    assert len(time.slept) < 20


async def test_requests_that_failed_together_do_not_come_back_together() -> None:
    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        await (fine if n % 2 else nothing)(n, writer)

    waits: list[float] = []
    async with flaky_server(respond) as (url, _):
        for _ in range(20):
            time = FakeTime()
            async with EngineClient(url, "key", "v0", clock=time, sleep=time.sleep) as client:
                await client.sample(PROMPT, SAMPLING, seed=3)
            waits += time.slept
    assert len(waits) == 20
    assert 0.25 <= min(waits) < max(waits) <= 0.5
    assert max(waits) - min(waits) > 0.05


async def test_a_request_that_waits_for_its_turn_in_the_client_does_not_run_out_of_time() -> None:
    async def slow(n: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        await fine(n, writer)

    settings = ClientSettings(request_seconds=1.5, connections=1)
    async with (
        flaky_server(slow) as (url, bodies),
        EngineClient(url, "key", "v0", settings=settings) as client,
    ):
        await asyncio.gather(*(client.sample(PROMPT, SAMPLING, seed=i) for i in range(4)))
    assert len(bodies) == 4, "none was asked for again"


@pytest.mark.parametrize(
    ("least", "sent"), [({}, 2), ({"least_failures": 1}, 1)], ids=["the only", "one of several"]
)
async def test_a_server_that_hangs_is_given_up_after_so_many_failures(
    least: dict[str, int], sent: int
) -> None:
    """The time in which a request is not answered counts."""
    settings = ClientSettings(patience_seconds=0.2, request_seconds=0.3, **least)
    async with (
        flaky_server(hangs) as (url, bodies),
        EngineClient(url, "key", "v0", settings=settings) as client,
    ):
        with pytest.raises(NoAnswer, match="no whole answer within"):
            await client.sample(PROMPT, SAMPLING, seed=3)
    assert len(bodies) == sent


async def test_a_long_reply_has_as_much_more_time_as_it_may_be_longer() -> None:
    """2,048 tokens at 5 a second are no hanging engine."""

    async def slow(n: int, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1.0)
        await fine(n, writer)

    settings = ClientSettings(patience_seconds=0.1, request_seconds=0.5, least_failures=1)
    long = replace(SAMPLING, max_tokens=1200)
    async with (
        flaky_server(slow) as (url, _),
        EngineClient(url, "key", "v0", settings=settings) as client,
    ):
        assert (await client.sample(PROMPT, long, seed=3)).ids == (5, 6)
        with pytest.raises(NoAnswer, match=r"no whole answer within 0\.5 s"):
            await client.sample(PROMPT, SAMPLING, seed=3)


async def test_the_time_that_a_server_worked_before_an_error_does_not_count_as_failing() -> None:
    """One reply of 25 s that is lost loses no healthy server."""
    time = FakeTime()

    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        time.seconds += 25.0
        await (nothing if n == 0 else fine)(n, writer)

    settings = ClientSettings(patience_seconds=5.0, least_failures=1)
    async with (
        flaky_server(respond) as (url, bodies),
        EngineClient(url, "key", "v0", settings=settings, clock=time, sleep=time.sleep) as client,
    ):
        assert (await client.sample(PROMPT, SAMPLING, seed=3)).ids == (5, 6)
    assert len(bodies) == 2


async def test_the_time_before_a_request_is_sent_does_not_count_as_failing() -> None:
    time, waits = FakeTime(), asyncio.Event()

    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        if n == 0:
            await waits.wait()
            time.seconds += 1000.0
        await (nothing if n == 1 else fine)(n, writer)

    settings = ClientSettings(patience_seconds=5.0, least_failures=1, connections=1)
    async with (
        flaky_server(respond) as (url, bodies),
        EngineClient(url, "key", "v0", settings=settings, clock=time, sleep=time.sleep) as client,
        asyncio.TaskGroup() as group,
    ):
        for seed in range(2):
            group.create_task(client.sample(PROMPT, SAMPLING, seed))
        await asyncio.sleep(0)  # both have asked
        waits.set()
    assert len(bodies) == 3


async def test_of_the_requests_that_wait_the_earliest_attempts_goes_first() -> None:
    asked = asyncio.Event()

    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        await asked.wait()  # so that all others wait for the first
        await fine(n, writer)

    settings = ClientSettings(connections=1)
    async with (
        flaky_server(respond) as (url, bodies),
        EngineClient(url, "key", "v0", settings=settings) as client,
        asyncio.TaskGroup() as group,
    ):
        for seed, order in enumerate((5, 9, 2, 7, 2)):
            group.create_task(client.sample(PROMPT, SAMPLING, seed, order))
        await asyncio.sleep(0)  # every task has asked
        asked.set()
    assert [body["seed"] for body in bodies] == [0, 2, 4, 3, 1]


@pytest.mark.parametrize("given", [False, True], ids=["that waits", "that is just let through"])
async def test_a_request_that_is_given_up_takes_no_seat(given: bool) -> None:
    seats = _Seats(1)
    taken = asyncio.Event()

    async def take() -> None:
        async with seats.taken(0):
            taken.set()

    async with seats.taken(0):
        waiting = asyncio.create_task(take())
        await asyncio.sleep(0)
        if not given:
            waiting.cancel()
    waiting.cancel()  # with `given`, in the moment that the seat became its own
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not taken.is_set()
    await asyncio.wait_for(take(), timeout=30)


async def test_a_refused_request_is_not_repeated() -> None:
    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        await reply(writer, "404 Not Found", {"error": "no such model"})

    async with flaky_server(respond) as (url, bodies), EngineClient(url, "key", "v0") as client:
        said = r"v0 refused a request: HTTP 404.*no such model.*The same command loads it there"
        with pytest.raises(NotServed, match=said):
            await client.sample(PROMPT, SAMPLING, seed=3)
    assert len(bodies) == 1


async def test_the_request_carries_the_exact_ids_the_seed_and_neutral_sampling() -> None:
    async def respond(n: int, writer: asyncio.StreamWriter) -> None:
        await reply(writer, "200 OK", answer())

    async with (
        flaky_server(respond) as (url, bodies),
        EngineClient(url, "key", "v0", stop_token_ids=(2,)) as client,
    ):
        await client.sample(PROMPT, SAMPLING, seed=3)
    assert bodies[0] == {
        "model": "v0",
        "prompt": list(PROMPT),
        "max_tokens": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": 3,
        "logprobs": 0,
        "return_token_ids": True,
        "stop_token_ids": [2],
    }


# -- the real server ---------------------------------------------------------------------------


@pytest.fixture
async def client(engine: SharedEngine) -> AsyncIterator[EngineClient]:
    """A client of the tiny model with its adapter 1."""
    served = await asyncio.to_thread(engine.ensure, engine.model.adapter(1), "client-v1")
    async with EngineClient(served.base_url, served.api_key, served.model_name) as client:
        yield client


@pytest.mark.engine
async def test_the_same_seed_samples_the_same_ids_and_another_seed_others(
    client: EngineClient,
) -> None:
    one, again, other = [await client.sample(PROMPT, SAMPLING, seed) for seed in (7, 7, 8)]
    assert one.ids == again.ids
    assert one.ids != other.ids


@pytest.mark.engine
async def test_a_sampled_end_of_turn_is_among_the_ids(client: EngineClient) -> None:
    whole = await client.sample(PROMPT, SAMPLING, seed=7)
    assert whole.finish_reason == "length"
    assert len(whole.ids) == SAMPLING.max_tokens
    end_of_turn = whole.ids[3]
    stopping = EngineClient(
        client.base_url, client.api_key, client.model_name, stop_token_ids=(end_of_turn,)
    )
    async with stopping:
        stopped = await stopping.sample(PROMPT, SAMPLING, seed=7)
    assert stopped.finish_reason == "stop"
    assert stopped.ids == whole.ids[: whole.ids.index(end_of_turn) + 1]
    assert len(stopped.logprobs) == len(stopped.ids)


@pytest.mark.engine
async def test_a_conversations_next_turn_reads_what_is_new_and_has_the_logprobs_of_a_whole_one(
    engine: SharedEngine,
) -> None:
    served = await asyncio.to_thread(engine.ensure, engine.model.adapter(1), "client-v1")
    async with EngineClient(served.base_url, served.api_key, served.model_name) as client:
        turns = list[tuple[tuple[int, ...], Completion]]()
        prompt = tuple(range(300, 340))
        for seed in range(4):
            _, before = await asyncio.to_thread(prompt_ids, served)
            reply = await client.sample(prompt, SAMPLING, seed)
            _, after = await asyncio.to_thread(prompt_ids, served)
            if turns:  # three new ids, and the one that was sampled last
                assert after - before == 4
            turns.append((prompt, reply))
            prompt = (*prompt, *reply.ids, 7, 8, 9)
        for prompt, reply in turns:
            whole = await client.logprobs(prompt + reply.ids)  # for which no cache is read
            assert reply.logprobs == pytest.approx(whole[-len(reply.ids) :], abs=1e-4)


@pytest.mark.engine
async def test_many_requests_at_once_are_all_answered(client: EngineClient) -> None:
    every = await asyncio.gather(
        *(client.sample((*PROMPT, 400 + i), SAMPLING, seed=i) for i in range(40))
    )
    assert len(every) == 40
    assert len({c.ids for c in every}) > 1


@pytest.mark.engine
async def test_a_name_that_is_not_served_is_refused_and_never_answered_by_the_base(
    client: EngineClient,
) -> None:
    async with EngineClient(client.base_url, client.api_key, "client-v9") as wrong:
        with pytest.raises(Unavailable, match="client-v9 refused a request: HTTP 404"):
            await wrong.sample(PROMPT, SAMPLING, seed=7)


@pytest.mark.engine
async def test_a_prompt_beyond_the_context_is_refused(client: EngineClient) -> None:
    with pytest.raises(BadInput, match="HTTP 400"):
        await client.sample([5] * 5000, SAMPLING, seed=7)


@pytest.mark.engine
async def test_without_the_runs_key_the_server_answers_nobody(client: EngineClient) -> None:
    async with EngineClient(client.base_url, "guessed", client.model_name) as stranger:
        with pytest.raises(Unavailable, match="HTTP 401"):
            await stranger.sample(PROMPT, SAMPLING, seed=7)
