"""The API key on every path of the server, by a middleware that the server loads at its start.

vLLM asks for the key below /v1 and a few more prefixes only: any user of the machine gets
completions from /invocations and reads /metrics. This middleware closes those paths too. It runs in
the server's process, so it imports nothing of this project, and it is plain ASGI for speed.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

MIDDLEWARE = f"{__name__}.RequireApiKey"
"""The value of `--middleware`."""

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


class RequireApiKey:
    """Passes requests that carry VLLM_API_KEY as bearer token; answers any other with 401."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        if scope["type"] == "lifespan" or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            body = b'{"error": "this engine belongs to a run of grpo and wants its key"}'
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_key(self, scope: Message) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._expected)
