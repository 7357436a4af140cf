"""A descriptor is waited for whatever its number."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from fieldkit.process.descriptor import READ, WRITE, is_ready

ABOVE = 1100
"""What select(2) cannot be asked about."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe whose ends have high numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * ABOVE), hard))
    low = os.pipe()
    high = (fcntl.fcntl(low[0], fcntl.F_DUPFD, ABOVE), fcntl.fcntl(low[1], fcntl.F_DUPFD, ABOVE))
    for end in low:
        os.close(end)
    yield high
    for end in high:
        os.close(end)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_of_any_number_is_ready_once_something_is_there(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    assert not is_ready(reading, READ)
    assert not is_ready(reading, READ, -1.0)
    assert is_ready(writing, WRITE)
    os.write(writing, b"x")
    assert is_ready(reading, READ, 60.0)
