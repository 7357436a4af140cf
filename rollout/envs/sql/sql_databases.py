"""All databases of the SQL agent, and where they lie.

What is said of them is in `sql_pool_databases` and `sql_unseen_databases`: where their rows come
from, and what their columns mean. No code there reads a wheel (`sql_build`) or writes a question
(`sql_templates`).
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from fieldkit.files.user_cache import cache_dir
from rollout.envs.sql.sql_pool_databases import POOL_DATABASES
from rollout.envs.sql.sql_unseen_databases import UNSEEN_DATABASES

VERSION = "1"
"""Of the databases' contents: a change of one of their tables needs another one."""

CATALOG = (*POOL_DATABASES, *UNSEEN_DATABASES)
"""In the order in which their questions are written."""


def database_dir() -> Path:
    """Where `python -m rollout.envs.sql` puts the databases."""
    return cache_dir() / "sql" / VERSION


def build_command() -> str:
    """The command that makes them, as it can be typed in this folder with the Python that runs."""
    python, here = Path(sys.executable), Path.cwd()
    shown = python.relative_to(here) if python.is_relative_to(here) else python
    return f"{shlex.quote(str(shown))} -m rollout.envs.sql"
