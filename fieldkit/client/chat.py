"""Ask a model over HTTP, at any endpoint that has `/chat/completions` as OpenAI's API does.

A request is sent again where the server is busy or out of reach, and only then: a request that is
wrong stays wrong. `ChatClient` waits for its answer, `AsyncChatClient` has many requests in flight
in one event loop. httpx is imported on first use. The loop's own client
(`rollout/engine/client.py`) asks for token ids and is not built on these.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from fieldkit.client.address import is_http, proxied
from fieldkit.errors import BadInput, FieldkitError
from fieldkit.files.json_text import parse_json, whole_text

if TYPE_CHECKING:
    import httpx

BUSY = frozenset((408, 429, 500, 502, 503, 504))
"""Status codes after which the same request may succeed."""

LONGEST_WAIT_S = 30.0
"""The longest wait between two tries, whatever the server's Retry-After asks for."""

_MOST_DOUBLINGS = 60  # of the wait between two tries: more than any wait, less than a float holds
_SHORTEST_TRY_S = 0.1  # of `wait_for_warm`
_JSON = {"Content-Type": "application/json"}


class ChatError(FieldkitError):
    """A request failed. Base of the two below; raised itself for an answer that is not JSON or
    cannot be unpacked."""

    exit_code = 4


class ChatHTTPError(ChatError):
    """The server refused the request, sent it elsewhere, or was still failing at the last try."""

    def __init__(self, message: str, *, status_code: int, body: str | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.body = body


class ChatTimeout(ChatError):
    """The server could not be reached, or did not answer in time, at every try."""


@dataclass
class _Endpoint:
    """What both clients are given, which `ChatClient` describes, and what they make of it."""

    base_url: str
    model: str
    api_key: str = field(default="local", repr=False)
    timeout: float = 60.0
    max_retries: int = 4
    backoff: float = 0.5
    _closed: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")
        if not is_http(self.base_url):
            raise BadInput(
                f"base_url {self.base_url!r} names no server; it is like http://localhost:8000/v1"
            )
        self.api_key = self.api_key.strip()  # a key that is read from a file ends with its line
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise BadInput("api_key holds a character that no HTTP header takes; copy it again")

    @property
    def _url(self) -> str:
        return f"{self.base_url}/chat/completions"

    @property
    def _headers(self) -> dict[str, str]:
        if self._closed:
            raise ChatError(f"the client of {self.base_url} is closed")
        # An empty key is no header: HTTP has none that ends with a space.
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @property
    def _limits(self) -> httpx.Limits:
        """A request must not time out because it waits for a connection of the client's own."""
        import httpx

        return httpx.Limits(max_connections=None)

    def _body(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int | None,
        temperature: float | None,
        extra: Mapping[str, Any],
    ) -> str:
        if self.max_retries < 0:
            raise BadInput(f"max_retries is {self.max_retries}; it has to be 0 or more")
        if isinstance(messages, str):
            raise BadInput('messages is a text; a message is {"role": "user", "content": TEXT}')
        limits = {"max_tokens": max_tokens, "temperature": temperature}
        payload = {
            "model": self.model,
            "messages": list(messages),
            **{key: value for key, value in limits.items() if value is not None},
            **extra,
        }
        return whole_text(json.dumps(payload, allow_nan=False, ensure_ascii=False))

    def _read(
        self, got: httpx.Response | httpx.HTTPError, attempt: int, url: str = ""
    ) -> dict[str, Any] | float:
        """The answer, or how many seconds to wait before the next try. got: what the try number
        `attempt`, from 0, came to. url: that of the chats by default."""
        import httpx

        url = url or self._url
        last = attempt == self.max_retries
        wait = self.backoff * 2.0 ** min(attempt, _MOST_DOUBLINGS)
        if isinstance(got, httpx.TransportError):
            if last:
                tries = attempt + 1
                raise ChatTimeout(f"{url}: no answer in {tries} tries ({got!r})") from None
            return min(wait, LONGEST_WAIT_S)
        if isinstance(got, httpx.HTTPError):
            raise ChatError(f"{url}: the answer cannot be read ({got!r})") from None
        if got.status_code in BUSY and not last:
            return min(max(_seconds(got.headers.get("retry-after")), wait), LONGEST_WAIT_S)
        if not got.is_success:
            to = got.headers.get("location")
            elsewhere = f" to {to}, where base_url has to lead" if to else ""
            raise ChatHTTPError(
                f"{url}: HTTP {got.status_code}{elsewhere}: {got.text[:300]}",
                status_code=got.status_code,
                body=got.text,
            )
        try:
            answer: Any = parse_json(got.content, url)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ChatError(f"{url}: the answer is not a JSON object: {got.text[:300]}")
        return dict(answer)


@dataclass
class ChatClient(_Endpoint):
    """One model at one endpoint. Use it as a context manager, or `close` it.

    base_url: up to and with the version, as in "http://localhost:8000/v1". api_key: "" sends none.
    timeout: seconds for one try; until the answer has its headers, for each step of it.
    max_retries: further tries after the first. backoff: seconds before the second try; it doubles
    from try to try.
    """

    _http: httpx.Client | None = field(default=None, init=False, repr=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End its connections; a second call does nothing."""
        self._closed = True
        if self._http is not None:
            self._http.close()
            self._http = None

    def health(self) -> bool:
        """Whether the endpoint lists its models now."""
        import httpx

        try:
            return self._sent("GET", f"{self.base_url}/models").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def models(self) -> list[dict[str, Any]]:
        """What the endpoint lists at /models, asked once: an object with at least "id" for each.

        Raises `ChatHTTPError`, `ChatTimeout` or `ChatError`.
        """
        import httpx

        url = f"{self.base_url}/models"
        try:
            got = self._sent("GET", url)
        except httpx.TransportError as e:
            raise ChatTimeout(f"{url}: no answer ({e!r})") from None
        except httpx.HTTPError as e:
            raise ChatError(f"{url}: the answer cannot be read ({e!r})") from None
        answer = self._read(got, self.max_retries, url)
        listed = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(listed, list):
            raise ChatError(f"{url}: the answer has no list of models under 'data'")
        return [m for m in listed if isinstance(m, dict) and "id" in m]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = 512,
        temperature: float | None = 0.0,
        **extra: Any,
    ) -> dict[str, Any]:
        """The server's whole answer: {"choices": [{"message": {"content": …}}], …}.

        max_tokens, temperature: None leaves the key out, as for a model that refuses it and takes
        `max_completion_tokens`. extra: further keys of the request, such as that one,
        `response_format` or `seed`. Raises `ChatHTTPError`, `ChatTimeout` or `ChatError`, and
        `BadInput` for a negative `max_retries`.
        """
        body = self._body(messages, max_tokens, temperature, extra)
        attempt = 0
        while not isinstance(answer := self._read(self._tried(body), attempt), dict):
            time.sleep(answer)
            attempt += 1
        return answer

    def _tried(self, body: str) -> httpx.Response | httpx.HTTPError:
        import httpx

        try:
            return self._sent("POST", self._url, content=body, headers=_JSON)
        except httpx.HTTPError as e:
            return e

    def _sent(self, method: str, url: str, **content: Any) -> httpx.Response:
        """The whole answer. Raises `httpx.HTTPError`, and that too where the answer takes longer
        than `timeout`: httpx limits each read, and a body may come in any number of them."""
        import httpx

        deadline = time.monotonic() + self.timeout
        pieces = []
        with self._client().stream(method, url, timeout=self.timeout, **content) as got:
            for piece in got.iter_raw():
                pieces.append(piece)
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout(f"the answer is not whole after {self.timeout:g} s")
        whole = b"".join(pieces)
        return httpx.Response(got.status_code, headers=got.headers, content=whole)

    def _client(self) -> httpx.Client:
        import httpx

        headers = self._headers
        if self._http is None:
            self._http = httpx.Client(
                headers=headers, limits=self._limits, trust_env=proxied(self.base_url)
            )
        return self._http


@dataclass
class AsyncChatClient(_Endpoint):
    """The same for one event loop. Use it as an asynchronous context manager, or `aclose` it.

    As many requests are in flight as are asked for; a cancelled one ends at once.
    """

    _http: httpx.AsyncClient | None = field(default=None, init=False, repr=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End its connections; a second call does nothing."""
        self._closed = True
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = 512,
        temperature: float | None = 0.0,
        **extra: Any,
    ) -> dict[str, Any]:
        """As `ChatClient.chat`."""
        body = self._body(messages, max_tokens, temperature, extra)
        attempt = 0
        while not isinstance(answer := self._read(await self._tried(body), attempt), dict):
            await asyncio.sleep(answer)
            attempt += 1
        return answer

    async def _tried(self, body: str) -> httpx.Response | httpx.HTTPError:
        import httpx

        try:
            async with asyncio.timeout(self.timeout):  # httpx limits each read
                return await self._client().post(self._url, content=body, headers=_JSON)
        except TimeoutError:
            return httpx.ReadTimeout(f"the answer is not whole after {self.timeout:g} s")
        except httpx.HTTPError as e:
            return e

    def _client(self) -> httpx.AsyncClient:
        import httpx

        headers = self._headers
        if self._http is None:
            self._http = httpx.AsyncClient(
                headers=headers,
                timeout=self.timeout,
                limits=self._limits,
                trust_env=proxied(self.base_url),
            )
        return self._http


def _seconds(retry_after: str | None) -> float:
    """A Retry-After header, seconds or a date, in seconds from now; 0 for none of the two."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(retry_after or 0))
    with contextlib.suppress(ValueError, OverflowError):  # a zone may be years away
        until = email.utils.parsedate_to_datetime(str(retry_after))
        return max(0.0, until.timestamp() - time.time())
    return 0.0


def wait_for_warm(
    base_url: str, *, timeout: float = 120.0, poll_interval: float = 2.0, api_key: str = "local"
) -> bool:
    """Wait until the endpoint lists its models; False where it does not within `timeout` seconds.

    It is asked at least once, and every `poll_interval` seconds, which is also how long it may take
    to answer.
    """
    deadline, longest = time.monotonic() + timeout, max(poll_interval, _SHORTEST_TRY_S)
    left = timeout or longest  # without time it is asked once, and may answer
    with ChatClient(base_url, "", api_key) as client:
        while True:
            client.timeout = min(longest, max(left, _SHORTEST_TRY_S))
            if client.health():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(poll_interval, left))
            left = deadline - time.monotonic()
