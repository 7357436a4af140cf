"""The TCP port that a server is to listen on: any free one, or the one in engine.port.

Checked just before the server starts, so that a busy port is an error of one sentence. It keeps no
socket open: between the choice and the server's own bind lie the seconds in which Python loads
vLLM. A free port is therefore one that the kernel gives to no outgoing connection.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from pathlib import Path

import psutil

from fieldkit.errors import BadInput, Unavailable

HOST = "127.0.0.1"
"""Loopback only: the server cannot be reached from outside this machine."""

EVERYWHERE = ("0.0.0.0", "::")
"""All addresses of this machine, loopback among them."""

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that the kernel gives to a socket which asked for none."""

_LOWEST = 16384
_ATTEMPTS = 64


def free_port(asked: int, host: str = HOST) -> int:
    """`asked` if nobody listens there, or any free port for 0. Raises `Unavailable`.

    host: the address of this machine at which the server is to listen. Raises `BadInput` where it
    is none.
    """
    try:
        return _bound(asked, host) if asked else _any_free(host)
    except OSError as e:
        if e.errno == errno.EADDRNOTAVAIL or isinstance(e, socket.gaierror):
            raise BadInput(f"{host}: no address of this machine ({e.strerror})") from None
        if e.errno != errno.EADDRINUSE:
            raise Unavailable(f"port {asked} on {host}: {e.strerror}") from None
        raise Unavailable(
            f"port {asked} on {host} is busy ({holder(asked)}); end that program if it is yours, or"
            " take another port (of a run: set engine.port to 0 to take any free one)"
        ) from None


def _any_free(host: str) -> int:
    """A free port below those of outgoing connections, or else the one that the kernel gives."""
    first = int(OUTGOING.read_text(encoding="utf-8").split()[0])
    for _ in range(_ATTEMPTS if first > _LOWEST else 0):
        with contextlib.suppress(OSError):  # taken
            return _bound(_LOWEST + secrets.randbelow(first - _LOWEST), host)
    return _bound(0, host)


def _bound(port: int, host: str) -> int:
    """The port that a bind to `port` gets. Raises `OSError`."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((host, port))
        return int(s.getsockname()[1])


def holder(port: int) -> str:
    """The process that listens on a TCP port of this machine, in words."""
    for connection in psutil.net_connections("tcp"):
        at_port = connection.laddr and connection.laddr.port == port
        if at_port and connection.status == psutil.CONN_LISTEN and connection.pid:
            return f"held by pid {connection.pid}, {psutil.Process(connection.pid).name()}"
    return "held by another user's program"


def address(host: str, port: int) -> str:
    """The address of a server at this host and port, as an HTTP client takes it."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
