"""Changes clock and timeout of every Python program started with this folder on its PYTHONPATH.

GRPO_TEST_CLOCK names a file that holds the wall clock's error in seconds; without the file the
clock is right. GRPO_TEST_REQUEST_SECONDS is the client's timeout for one answer. A test can neither
set the machine's clock nor wait for the default of five minutes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

if "GRPO_TEST_CLOCK" in os.environ:
    clock, right = Path(os.environ["GRPO_TEST_CLOCK"]), time.time

    def wrong() -> float:
        """The wall clock with its error."""
        try:
            return right() + float(clock.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return right()

    time.time = wrong

if "GRPO_TEST_REQUEST_SECONDS" in os.environ:
    from rollout.engine import client

    @dataclass(frozen=True)
    class Impatient(client.ClientSettings):
        request_seconds: float = float(os.environ["GRPO_TEST_REQUEST_SECONDS"])

    client.ClientSettings = Impatient  # type: ignore[misc]
