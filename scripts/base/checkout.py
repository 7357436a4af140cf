"""Where this checkout lies, and how the paths of run.toml are read against it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout: relative paths in run.toml start here, so that a run does not depend on the cwd."""


def from_checkout(path: str) -> Path:
    """A path of run.toml: absolute or ~ as it is, anything else below the checkout."""
    p = from_home(path)
    return p if p.is_absolute() else ROOT / p


def from_home(path: str) -> Path:
    """A path in which ~ is the user's home. ~ with a name that no user has stays."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # Path.expanduser raises for such a name


def in_checkout(path: Path) -> Path:
    """The other way round: a path as run.toml would name it."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
