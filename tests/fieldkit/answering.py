"""A real HTTP server on this machine that answers chats as told, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DRIP_SECONDS = 0.05


@dataclass
class Endpoint:
    """base_url, and every chat request in order with its headers."""

    base_url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


def said(text: str, **more: str) -> tuple[int, str]:
    """The answer of a model that says `text`. more: beside the message, such as finish_reason."""
    return 200, json.dumps({"choices": [{"message": {"content": text}, **more}]})


@contextmanager
def answering(
    answers: Sequence[tuple[int, str]],
    models: int | Sequence[int] = 200,
    listed: str = "{}",
    retry_after: str | None = None,
    drips: int = 0,
    headers: Mapping[str, str] | None = None,
    hangs: bool = False,
) -> Iterator[Endpoint]:
    """Serves `answers` (status, body) in order, the last one again and again; at /models, `listed`
    with the status `models`, or with each of them. retry_after: that header, with every answer.
    drips: spaces that come before an answer's text, one every `DRIP_SECONDS`. headers: more
    of them. hangs: it takes a request and says nothing until the end."""
    over = threading.Event()
    statuses = [models] if isinstance(models, int) else list(models)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            self._send(status if self.path == "/v1/models" else 404, listed)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            endpoint.asked.append(json.loads(body))
            endpoint.keys.append(self.headers["Authorization"])
            self._send(*answers[min(len(endpoint.asked), len(answers)) - 1])

        def _send(self, status: int, text: str) -> None:
            if hangs:
                over.wait()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(drips + len(text.encode())))
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # it hangs up
                for _ in range(drips):
                    self.wfile.write(b" ")
                    over.wait(DRIP_SECONDS)
                self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Keeps the test's output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
