"""Waits for the end of processes that are nobody's children any more."""

from __future__ import annotations

import time

import psutil


def wait_until_gone(process: psutil.Process) -> None:
    """It may stay as a zombie for as long as nobody asks for its exit code."""
    deadline = time.monotonic() + 20
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.02)
