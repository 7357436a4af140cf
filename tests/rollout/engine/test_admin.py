"""What answers at a server's port may be another program."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rollout.engine.admin import Admin


class _Stranger(BaseHTTPRequestHandler):
    """A development server: the same page under every address."""

    said = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.said)))
        self.end_headers()
        self.wfile.write(self.said)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stranger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("said", [b"<html>welcome</html>", b"[]", b'{"data": [{"id": "x"}]}'])
def test_a_stranger_at_the_port_is_no_server_that_is_ready(
    said: bytes, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Stranger, "said", said)
    with Admin(stranger, "key") as admin:
        assert admin.models() is None
