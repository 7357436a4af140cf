"""What the address of a server says before anybody connects to it."""

from __future__ import annotations

from urllib.parse import urlsplit

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def host_of(url: str) -> str:
    """The host that the address names; "" for none, and for a host or a port that cannot be."""
    import httpx

    if any(c.isspace() for c in url):
        return ""
    try:
        parts = urlsplit(url)
        # As httpx writes it, and as the socket looks it up; either may refuse it.
        httpx.URL(url).raw_host.decode().encode("idna")
        return "" if parts.port == 0 else parts.hostname or ""
    except (ValueError, httpx.InvalidURL):  # such as port 99999, half an IPv6 address, "a..b"
        return ""


def is_http(url: str) -> bool:
    """Whether it is an address of HTTP, with or without TLS, that names a host."""
    return bool(host_of(url)) and urlsplit(url).scheme in ("http", "https")


def proxied(url: str) -> bool:
    """Whether the proxy in the environment variables applies to this address."""
    return host_of(url) not in _LOOPBACK
