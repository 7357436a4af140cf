from __future__ import annotations

import pytest

from fieldkit.client.address import host_of, proxied


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://box:8000/v1", "box"),
        ("https://box", "box"),
        ("http://[::1]:80", "::1"),
        ("ws://127.0.0.1", "127.0.0.1"),
        ("http://", ""),
        ("http://:80", ""),
        ("box:80", ""),
        ("http://box:80a", ""),
        ("http://box:99999", ""),
        ("http://box:0", ""),
        ("http://[::1", ""),
        ("http://bücher.example/v1", "bücher.example"),
        ("http://my_box.:1", "my_box."),
        ("http://☃.example/v1", ""),
        ("http://gpu..box:8000", ""),
        ("http://gpu box:8000", ""),
        (f"http://{'a' * 64}/v1", ""),
        ("http://box/v1\0", ""),
    ],
)
def test_an_address_names_a_host_unless_host_or_port_cannot_be(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    ("url", "through"),
    [
        ("http://localhost:8000/v1", False),
        ("http://127.0.0.1:1", False),
        ("ws://[::1]:1/ws", False),
        ("http://localhost.org", True),
        ("https://box:1", True),
    ],
)
def test_the_proxy_is_for_other_machines(url: str, through: bool) -> None:
    assert proxied(url) is through
