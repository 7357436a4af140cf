"""Ask a model over HTTP, at any endpoint that has `/chat/completions` as OpenAI's API does.

A request is sent again where the server is busy or out of reach, and only then: a request that is
wrong stays wrong. httpx is imported on first use. The loop's own client
(`rollout/engine/client.py`) asks for token ids and is not built on this one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fieldkit.errors import FieldkitError
from fieldkit.files.json_text import parse_json

if TYPE_CHECKING:
    import httpx

BUSY = frozenset((408, 429, 500, 502, 503, 504))
"""Status codes after which the same request may succeed."""

LONGEST_WAIT_S = 30.0
"""The longest wait between two tries, whatever the server's Retry-After asks for."""


class ChatError(FieldkitError):
    """A request failed. Base of the two below; raised itself for an answer that is not JSON."""

    exit_code = 4


class ChatHTTPError(ChatError):
    """The server refused the request, or was still failing at the last try."""

    def __init__(self, message: str, *, status_code: int, body: str = "") -> None:
        super().__init__(message)
        self.status_code = status_code
        self.body = body


class ChatTimeout(ChatError):
    """The server could not be reached, or did not answer in time, at every try."""


@dataclass
class ChatClient:
    """One model at one endpoint.

    base_url: up to and with the version, as in "http://localhost:8000/v1". timeout: seconds for one
    try. max_retries: further tries after the first. backoff: seconds before the second try; it
    doubles from try to try. Use it as a context manager, or `close` it.
    """

    base_url: str
    model: str
    api_key: str = field(default="local", repr=False)
    timeout: float = 60.0
    max_retries: int = 4
    backoff: float = 0.5
    _http: httpx.Client | None = field(default=None, init=False, repr=False)
    _closed: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/")

    def __enter__(self) -> ChatClient:
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
            return self._client().get(f"{self.base_url}/models").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = 512,
        temperature: float = 0.0,
        **extra: Any,
    ) -> dict[str, Any]:
        """The server's whole answer: {"choices": [{"message": {"content": …}}], …}.

        extra: further keys of the request, such as `response_format` or `seed`. Raises
        `ChatHTTPError`, `ChatTimeout` or `ChatError`.
        """
        payload = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            **extra,
        }
        for attempt in range(self.max_retries + 1):
            answer = self._try(payload, last=attempt == self.max_retries)
            if isinstance(answer, dict):
                return answer
            time.sleep(min(max(answer, self.backoff * 2**attempt), LONGEST_WAIT_S))
        raise ValueError(f"max_retries is {self.max_retries}; it has to be 0 or more")

    def _try(self, payload: Mapping[str, Any], last: bool) -> dict[str, Any] | float:
        """The answer, or how many seconds the server asks to wait before the next try."""
        import httpx

        url = f"{self.base_url}/chat/completions"
        try:
            response = self._client().post(url, json=payload)
        except (httpx.TimeoutException, httpx.TransportError) as e:
            if not last:
                return 0.0
            tries = self.max_retries + 1
            raise ChatTimeout(f"{url}: no answer in {tries} tries ({e!r})") from None
        if response.status_code in BUSY and not last:
            return _seconds(response.headers.get("retry-after"))
        if response.is_error:
            raise ChatHTTPError(
                f"{url}: HTTP {response.status_code}: {response.text[:300]}",
                status_code=response.status_code,
                body=response.text,
            )
        try:
            answer = parse_json(response.content, url)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ChatError(f"{url}: the answer is not a JSON object: {response.text[:300]}")
        return answer

    def _client(self) -> httpx.Client:
        import httpx

        if self._closed:
            raise ChatError(f"the client of {self.base_url} is closed")
        if self._http is None:
            key = {"Authorization": f"Bearer {self.api_key}"}
            self._http = httpx.Client(headers=key, timeout=self.timeout)
        return self._http


def _seconds(retry_after: str | None) -> float:
    """A Retry-After header in seconds; 0 where there is none or it names a date."""
    try:
        return max(0.0, float(retry_after or 0))
    except ValueError:
        return 0.0


def wait_for_warm(
    base_url: str, *, timeout: float = 120.0, poll_interval: float = 2.0, api_key: str = "local"
) -> bool:
    """Wait until the endpoint lists its models; False where it does not within `timeout` seconds.

    It is asked at least once, and every `poll_interval` seconds.
    """
    deadline = time.monotonic() + timeout
    with ChatClient(base_url, "", api_key, timeout=max(poll_interval, 0.1)) as client:
        while not client.health():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(poll_interval, left))
    return True
