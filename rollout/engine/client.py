"""Sampling from the engine over its OpenAI-style API, token ids in and token ids out.

One client serves all episodes in flight. It sends the exact ids of the transcript, asks for the
exact ids back, and checks the answer: training on a completion whose ids and logprobs do not match
would be wrong without an error. It repeats a failed request for a bounded time, and one with an
unusable answer a few times; neither becomes an empty completion.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx

from fieldkit.errors import BadInput, Unavailable
from fieldkit.records import Sampling

FINISH_REASONS = ("stop", "length")

# vLLM closes idle connections after 5 s. A connection that is used again just then ends in a
# ReadError, so ours are given up well before.
_KEEPALIVE_SECONDS = 2.0
_CONNECT_SECONDS = 10.0
# A host that has gone without a word is noticed by the kernel after 45 s, not by the time limit of
# an answer. A network that is cut for 30 s costs a retransmission.
_SILENCE_SECONDS, _PROBES, _PROBE_SECONDS = 15, 6, 5
_SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENCE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
    (
        socket.IPPROTO_TCP,
        socket.TCP_USER_TIMEOUT,
        1000 * (_SILENCE_SECONDS + _PROBES * _PROBE_SECONDS),
    ),
]
# vLLM takes what is left out from the model folder's generation config, unless it was told not to.
_NO_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_FIRST_BACKOFF_SECONDS = 0.5  # doubles with every attempt, up to the longest
_LONGEST_BACKOFF_SECONDS = 10.0
_TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)
_BAD_REQUEST_STATUS = (400, 413, 422)
_LOGPROB_SLACK = 1e-4  # a sampled token's logprob may exceed 0 by rounding only
_BODY_SHOWN = 300  # characters of an error body that reach a message
_TOKENS = 300  # that an answer has at most for which `request_seconds` are enough
_UNUSABLE_ANSWERS = 4  # to one request: an engine that answers is up, and goes on answering so

T = TypeVar("T")


@dataclass(frozen=True)
class Completion:
    """A sampled completion. ids: C of them, a sampled end of turn included; logprobs: C, natural
    log, of the distribution that was sampled from; finish_reason: "stop" or "length"."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str


class Sampler(Protocol):
    """The part of an engine that an episode uses: a server's client, or a script in its place."""

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, seed: int
    ) -> Completion: ...


@dataclass(frozen=True)
class ClientSettings:
    """How patient the client is."""

    patience_seconds: float = 120.0
    """How long a request that fails is repeated, counted from where the first that failed was
    sent."""
    least_failures: int = 2
    """How often it fails at least before it is given up: a first one may have run out of time while
    this process stood still."""
    request_seconds: float = 300.0
    """How long one answer of up to 300 tokens may take, to its last byte, its turn in the engine's
    queue included; one that may be longer has as much more time."""
    connections: int = 256
    """Requests in flight at most; more wait in the client, in the order of their attempts."""


class _Seats:
    """Lets so many requests through at a time; of those that wait, an earlier attempt's first.

    First come, first served would give every attempt a turn before any gets its next one. A KV
    cache that does not hold them all would then have lost each prefix by the time it is needed.
    """

    def __init__(self, n: int) -> None:
        self._free = n
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def taken(self, order: int) -> AsyncIterator[None]:
        """A seat for the request of attempt number `order`, from when one is free."""
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (order, next(self._arrivals), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # the seat was given in the same moment
                    self._give_back()
                raise
        try:
            yield
        finally:
            self._give_back()

    def _give_back(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():  # it still waits
                turn.set_result(None)
                return
        self._free += 1


OWN_REMEDY = (
    "The engine's log is the newest log/engine-*.log of the run folder; the same command starts it "
    "anew and goes on."
)
OUTSIDE_REMEDY = (
    "It is not a server of this run: look at it where it runs; the same command goes on."
)


class NoAnswer(Unavailable):
    """A server did not answer for as long as its client was patient. what: that, without remedy."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what} {remedy}".rstrip())
        self.what = what


class NotServed(NoAnswer):
    """A server answers that it has no such adapter: it was started anew, or the adapter was
    unloaded. Only who loads adapters can change that."""


class _Unusable(Unavailable):
    """An answer that could not be trained on."""


class _Failed(Exception):
    """A request without an answer, which may get one when it is repeated; the text says why.
    since: from when on there is none, on the client's clock: where nothing came, when it was sent;
    where an error came, when it did, because until then the server may have been at work."""

    def __init__(self, why: str, since: float) -> None:
        super().__init__(why)
        self.since = since


class EngineClient(AbstractAsyncContextManager["EngineClient"]):
    """A connection to one server, sampling from one of the names it serves.

    model_name: "base" or an adapter's versioned name; it is the policy version of every turn.
    stop_token_ids: end-of-turn ids that end a completion (as its last id), besides the model's own
    end-of-sequence id. alive: whether the server's process lives; where it does not, a failed
    request is not repeated. remedy: what to do where it does not answer, in a sentence. clock and
    sleep: seconds, and how to let some pass between attempts. Use as an async context manager.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        model_name: str,
        *,
        stop_token_ids: Sequence[int] = (),
        alive: Callable[[], bool] = lambda: True,
        remedy: str = OWN_REMEDY,
        settings: ClientSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.model_name = model_name
        self._stop_token_ids = list(stop_token_ids)
        self._alive = alive
        self.remedy = remedy
        self._settings = settings or ClientSettings()
        self._clock = clock
        self._sleep = sleep
        self._seats = _Seats(self._settings.connections)
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=authorization(api_key),
            # httpx limits each read, which a slow trickle of bytes never exceeds; `_post` limits
            # the whole answer.
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            transport=httpx.AsyncHTTPTransport(
                verify=certificates(base_url),
                limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_SECONDS),
                trust_env=False,
                socket_options=_SOCKET_OPTIONS,
            ),
            trust_env=False,  # no proxy from the environment on loopback
        )

    async def __aexit__(self, *error: object) -> None:
        await self._http.aclose()

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, seed: int, order: int = 0
    ) -> Completion:
        """Sample one completion of at most `sampling.max_tokens` ids.

        order: the attempt's place among the others, from 0; where requests wait, the lowest goes
        first. The answer to equal arguments may differ between calls: batching changes the
        rounding. Raises `Unavailable` when the engine does not answer or does not serve
        `model_name`, and `BadInput` when it finds the request wrong (a prompt beyond its context).
        """
        body = {
            "model": self.model_name,
            "prompt": list(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            **_NO_PENALTIES,
            "seed": seed,
            "logprobs": 0,  # of the sampled id only
            "return_token_ids": True,
            "stop_token_ids": self._stop_token_ids,
        }
        return await self._complete(
            body, lambda answer: completion_of(answer, sampling.max_tokens), order
        )

    async def logprobs(self, prompt_ids: Sequence[int]) -> tuple[float, ...]:
        """Logprobs (natural log, at temperature 1) of `prompt_ids[1:]`, each given those before.

        Raises as `sample` does.
        """
        body = {
            "model": self.model_name,
            "prompt": list(prompt_ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
        }
        return await self._complete(body, lambda answer: prompt_logprobs_of(answer, prompt_ids))

    async def _complete(self, body: dict[str, Any], read: Callable[[Any], T], order: int = 0) -> T:
        """POST until `read` can use the answer; return its result."""
        failed_at: float | None = None
        attempt = unusable = failures = 0
        while True:
            attempt += 1
            try:
                return read(self._of_the_policy(await self._post(body, order)))
            except _Unusable:
                unusable += 1
                if unusable == _UNUSABLE_ANSWERS:
                    raise
            except _Failed as e:
                failures += 1
                failed_at = e.since if failed_at is None else failed_at
                seconds, alive = self._clock() - failed_at, self._alive()
                enough = failures >= self._settings.least_failures
                if (enough and seconds >= self._settings.patience_seconds) or not alive:
                    raise self._gave_up(attempt, seconds, str(e), alive) from e
            await self._sleep(_backoff(attempt))

    def _of_the_policy(self, answer: Any) -> Any:
        """The answer, unless it says that another model gave it."""
        by = answer.get("model", self.model_name) if isinstance(answer, dict) else self.model_name
        if by != self.model_name:
            raise _unusable(f"it is by model {by!r}, and {self.model_name!r} was asked")
        return answer

    async def _post(self, body: dict[str, Any], order: int) -> Any:
        """POST once; the JSON of the answer. Raises `_Failed` where another attempt may help."""
        limit = self._settings.request_seconds * max(1.0, body["max_tokens"] / _TOKENS)
        async with self._seats.taken(order):
            sent_at = self._clock()
            try:
                async with asyncio.timeout(limit):
                    response = await self._http.post("/v1/completions", json=body)
                if response.status_code == httpx.codes.OK:
                    return response.json()
            except TimeoutError:
                raise _Failed(f"no whole answer within {limit:g} s", sent_at) from None
            except (httpx.RequestError, ValueError) as e:  # ValueError: a body that is no JSON
                raise _Failed(f"{type(e).__name__}: {e}", self._clock()) from e
        reason = f"HTTP {response.status_code}: {response.text[:_BODY_SHOWN]}"
        if response.status_code in _TRANSIENT_STATUS:
            raise _Failed(reason, self._clock())
        refused = f"{self.base_url}: {self.model_name} refused a request: {reason}"
        if response.status_code == httpx.codes.NOT_FOUND:
            raise NotServed(f"{refused}.", "The same command loads it there again.")
        raise (BadInput if response.status_code in _BAD_REQUEST_STATUS else Unavailable)(refused)

    def _gave_up(self, attempts: int, seconds: float, reason: str, alive: bool) -> Unavailable:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        why = f"in {times} over {seconds:.0f} s" if alive else "any more"
        state = "" if alive else " The server's process has ended."
        what = f"{self.base_url}: no answer for {self.model_name} {why}; the last: {reason}.{state}"
        return NoAnswer(what, self.remedy)


def authorization(api_key: str) -> dict[str, str]:
    """The header that carries a key; none without one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def certificates(base_url: str) -> ssl.SSLContext | bool:
    """What a server's certificate is held against, for httpx: the environment's SSL_CERT_FILE or
    SSL_CERT_DIR, or else the usual authorities. Raises `BadInput` for a file that is none."""
    if not base_url.startswith("https:"):
        return True
    try:
        return httpx.create_ssl_context()
    except OSError as e:
        raise BadInput(
            f"the environment variable SSL_CERT_FILE: {os.environ.get('SSL_CERT_FILE')}: "
            f"{e.strerror or e}"
        ) from e


_jitter = random.Random()
"""Not Python's own generator, from which an environment may be drawing at this moment."""


def _backoff(attempt: int) -> float:
    """Seconds before the next attempt: exponential, half of it random, so that requests that failed
    together are not repeated together."""
    doubled = _FIRST_BACKOFF_SECONDS * 2.0 ** (attempt - 1)
    return min(_LONGEST_BACKOFF_SECONDS, doubled) * _jitter.uniform(0.5, 1.0)


def completion_of(answer: Any, max_tokens: int) -> Completion:
    """The completion in a server's answer, checked. Raises `Unavailable` for an answer that could
    not be trained on: ids and logprobs of different number, a logprob that is none, fewer or more
    ids than were asked for, or nothing.

    A prompt must leave room for `max_tokens` in the engine's context; otherwise the engine cuts the
    reply.
    """
    choice = _choice(answer)
    ids = choice.get("token_ids")
    if not isinstance(ids, list) or not ids or not all(isinstance(i, int) for i in ids):
        raise _unusable(f"token_ids is {ids!r:.80}: the server does not return sampled ids")
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if not isinstance(logprobs, list) or len(logprobs) != len(ids):
        n = len(logprobs) if isinstance(logprobs, list) else "no"
        raise _unusable(f"{len(ids)} sampled ids but {n} logprobs")
    if len(ids) > max_tokens:
        raise _unusable(f"{len(ids)} ids where at most {max_tokens} were asked for")
    finish = choice.get("finish_reason")
    if finish not in FINISH_REASONS:
        raise _unusable(f"finish_reason is {finish!r}, not one of {', '.join(FINISH_REASONS)}")
    if finish == "length" and len(ids) < max_tokens:
        raise _unusable(f"{len(ids)} ids, cut for their length, where {max_tokens} were allowed")
    return Completion(tuple(ids), _checked(logprobs), str(finish))


def prompt_logprobs_of(answer: Any, prompt_ids: Sequence[int]) -> tuple[float, ...]:
    """The logprobs of `prompt_ids[1:]` in a server's answer, checked as in `completion_of`."""
    rows = _choice(answer).get("prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(prompt_ids):
        n = len(rows) if isinstance(rows, list) else "no"
        raise _unusable(f"{len(prompt_ids)} prompt ids but {n} prompt logprobs")
    values = []
    for token, row in zip(prompt_ids[1:], rows[1:], strict=True):
        if not isinstance(row, dict) or str(token) not in row:
            raise _unusable(f"no logprob for prompt id {token}")
        values.append(row[str(token)].get("logprob"))
    return _checked(values)


def _choice(answer: Any) -> dict[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise _unusable(f"expected one choice, got {answer!r:.80}")
    return choices[0]


def _checked(logprobs: Sequence[Any]) -> tuple[float, ...]:
    for i, value in enumerate(logprobs):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value > _LOGPROB_SLACK:
            raise _unusable(f"logprob {i} is {value!r} (NaN weights in an adapter do this)")
    return tuple(min(0.0, float(v)) for v in logprobs)


def _unusable(why: str) -> _Unusable:
    return _Unusable(
        f"the engine's answer cannot be used: {why}. Check with `grpo doctor` that the installed "
        "vLLM is the pinned one (requirements/)."
    )
