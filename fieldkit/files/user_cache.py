"""The folder for files that can be made again: built models, compiled kernels.

It belongs to the user and outlives runs and checkouts. Nothing in it is needed to read a run.
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "GRPO_CACHE"
"""The environment variable that names it."""


def cache_dir() -> Path:
    """$GRPO_CACHE, or grpo-loop below the user's cache folder. It may not exist yet."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-loop"
