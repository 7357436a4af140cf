"""The way of an episode knows a world by its door and nothing of what lies behind it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.base.checkout import ROOT

TOP = sorted((ROOT / "rollout").glob("*.py"))

SHELL = re.compile(
    r"\bbash\b|clawgym|sandbox|\bfences?\b|workspace|(?<!StopReason\.)TASK_COMPLETE"
    r"|exit codes?\b|(?<!step\.)exit_code(?!=)|rollout\.envs\.shell\b|rollout\.sandbox"
)


def test_there_is_something_to_look_at() -> None:
    assert "player.py" in {path.name for path in TOP}
    assert SHELL.search("if turn.exit_code == 124:")


@pytest.mark.parametrize("path", TOP, ids=lambda path: path.name)
def test_no_word_of_the_shell_stands_at_the_top_of_rollout(path: Path) -> None:
    found = [
        f"{path.name}:{n}: {line.strip()}"
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if SHELL.search(line)
    ]
    assert not found
