"""A disk that is full after a few kilobytes, for what writes files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = os.sysconf("SC_PAGE_SIZE")
PAGES = 16
FILES = 4


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of sixteen pages, and of four files with its root."""
    place = tmp_path / "disk"
    place.mkdir()
    size = f"size={PAGES * PAGE},nr_inodes={FILES}"
    line = ["mount", "-t", "tmpfs", "-o", size, "grpo-test", str(place)]
    if subprocess.run(line, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)
