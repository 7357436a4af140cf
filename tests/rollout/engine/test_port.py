"""The engine's port, which is free until the server has it (a busy one: test_serve.py)."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fieldkit.errors import Unavailable
from rollout.engine import port
from rollout.engine.port import OUTGOING, free_port


def test_a_free_port_is_one_that_no_outgoing_connection_gets() -> None:
    first = int(OUTGOING.read_text().split()[0])
    chosen = {free_port(0) for _ in range(50)}
    assert len(chosen) > 40  # two programs that choose at once choose apart
    assert max(chosen) < first
    assert min(chosen) > 1024


def test_where_every_port_is_for_outgoing_connections_any_free_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = tmp_path / "ip_local_port_range"
    everything.write_text("1024\t65535\n")
    monkeypatch.setattr(port, "OUTGOING", everything)
    assert 1024 <= free_port(0) <= 65535


def test_a_port_is_free_or_busy_at_the_address_of_the_server() -> None:
    elsewhere = "127.0.0.2"
    with socket.create_server((elsewhere, 0)) as held:
        asked = held.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"port {asked} on 127\.0\.0\.2 is busy"):
            free_port(asked, elsewhere)
        assert free_port(asked, "127.0.0.3") == asked
