"""The TCP port that a server is to listen on: any free one, or one that is asked for.

Asked just before the server starts, so that a busy port is told in a sentence and not found in a
server's log. Nothing is opened for longer than the question takes.
"""

from __future__ import annotations

import socket

import psutil

from fieldkit.errors import Unavailable

HOST = "127.0.0.1"
"""Loopback only: nobody outside this machine reaches the server."""


def free_port(asked: int) -> int:
    """`asked` if nobody listens there, or any free port for 0. Raises `Unavailable`."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((HOST, asked))
        except OSError as e:
            raise Unavailable(
                f"port {asked} on {HOST} is busy ({_listener(asked)}; {e.strerror}); end that "
                "program if it is yours, or set engine.port to 0 to take any free port"
            ) from None
        return int(s.getsockname()[1])


def _listener(port: int) -> str:
    """Who listens on a TCP port, for a person to read."""
    for connection in psutil.net_connections("tcp"):
        at_port = connection.laddr and connection.laddr.port == port
        if at_port and connection.status == psutil.CONN_LISTEN and connection.pid:
            return f"held by pid {connection.pid}, {psutil.Process(connection.pid).name()}"
    return "held by another user's program"
