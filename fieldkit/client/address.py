"""What the address of a server says before anybody connects to it."""

from __future__ import annotations

from urllib.parse import urlsplit

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def host_of(url: str) -> str:
    """The host that the address names; "" for none, and for a port that cannot be."""
    try:
        parts = urlsplit(url)
        return "" if parts.port == 0 else parts.hostname or ""
    except ValueError:  # a port that is no number or above 65535, half an IPv6 address
        return ""


def proxied(url: str) -> bool:
    """Whether the proxy in the environment variables applies to this address."""
    return host_of(url) not in _LOOPBACK
