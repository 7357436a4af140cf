"""The administrative calls of a server's API: readiness, list of models, load, unload, sleep.

Synchronous, because it is used while no request is in flight. It reports what the server answers;
`rollout.engine.server` and `.proof` decide whether that is right.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from fieldkit.errors import Unavailable
from rollout.engine.client import authorization, certificates

_SECONDS = 120.0  # of one administrative call; loading an adapter took 0.02-0.3 s when idle
_BODY_SHOWN = 300
_REFUSALS = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)


class Refused(Unavailable):
    """A server that answers that the key is not its own, which no waiting changes."""


class Admin(AbstractContextManager["Admin"]):
    """Administrative calls to the server at `base_url`. Use as a context manager.

    seconds: how long one call may take.
    """

    def __init__(self, base_url: str, api_key: str, seconds: float = _SECONDS) -> None:
        self.base_url = base_url
        self._http = httpx.Client(
            base_url=base_url,
            headers=authorization(api_key),
            timeout=seconds,
            verify=certificates(base_url),
            trust_env=False,
        )

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def models(self) -> dict[str, str] | None:
        """Served name -> folder it was loaded from; None while the server is not ready."""
        try:
            if self._http.get("/health").status_code != httpx.codes.OK:
                return None
            response = self._http.get("/v1/models")
            if response.status_code != httpx.codes.OK:
                return None
            return {str(card["id"]): str(card["root"]) for card in response.json()["data"]}
        except httpx.TransportError:
            return None
        except (ValueError, KeyError, TypeError):  # another program has the port
            return None

    def cards(self) -> list[dict[str, Any]]:
        """What /v1/models tells of each name. Raises `Unavailable` where it tells nothing, and
        `Refused` where it does not take the key."""
        try:
            response = self._http.get("/v1/models")
            if response.status_code == httpx.codes.OK:
                return list(response.json()["data"])
        except httpx.TransportError as e:
            raise Unavailable(f"{self.base_url}: {type(e).__name__}: {e}") from e
        except (ValueError, KeyError, TypeError) as e:
            raise Unavailable(f"{self.base_url}/v1/models: no list of models ({e!r})") from e
        answer = f"HTTP {response.status_code}: {response.text[:_BODY_SHOWN]}"
        kind = Refused if response.status_code in _REFUSALS else Unavailable
        raise kind(f"{self.base_url}/v1/models: {answer}")

    def can_swap(self) -> bool:
        """Whether this server has the calls that load and unload adapters.

        An empty request is refused where the route exists (400 or 422) and unknown (404) where not.
        """
        return self.post("/v1/load_lora_adapter", {}).status_code != httpx.codes.NOT_FOUND

    def post(self, route: str, body: dict[str, Any]) -> httpx.Response:
        """The server's answer, of any status. Raises `Unavailable` where there is none."""
        try:
            return self._http.post(route, json=body)
        except httpx.TransportError as e:
            raise Unavailable(f"{self.base_url}{route}: {type(e).__name__}: {e}") from e

    def load(self, name: str, path: Path) -> None:
        """Load an adapter folder under a name that is not in use."""
        body = {"lora_name": name, "lora_path": str(path)}
        self._expect_ok(self.post("/v1/load_lora_adapter", body), f"loading {path} as {name}")

    def unload(self, name: str) -> None:
        """Stop serving an adapter."""
        answer = self.post("/v1/unload_lora_adapter", {"lora_name": name})
        self._expect_ok(answer, f"unloading {name}")

    def can_sleep(self) -> bool:
        """Whether this server has the calls that put it to sleep and wake it."""
        return self._is_sleeping().status_code != httpx.codes.NOT_FOUND

    def sleep(self) -> None:
        """Move the weights to host memory and drop the KV cache (vLLM's level 1)."""
        self._expect_ok(self.post("/sleep?level=1", {}), "putting it to sleep")

    def wake(self) -> None:
        """Bring the weights back, if it sleeps."""
        answer = self._is_sleeping()
        self._expect_ok(answer, "asking whether it sleeps")
        if answer.json()["is_sleeping"]:
            self._expect_ok(self.post("/wake_up", {}), "waking it")

    def _is_sleeping(self) -> httpx.Response:
        try:
            return self._http.get("/is_sleeping")
        except httpx.TransportError as e:
            raise Unavailable(f"{self.base_url}/is_sleeping: {type(e).__name__}: {e}") from e

    def _expect_ok(self, answer: httpx.Response, what: str) -> None:
        if answer.status_code != httpx.codes.OK:
            raise Unavailable(
                f"{self.base_url}: {what} failed: HTTP {answer.status_code}: "
                f"{answer.text[:_BODY_SHOWN]}"
            )
