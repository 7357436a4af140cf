"""What the step of a tool environment is played on: a game in TRL's style, and a reward function.

A phase that plays imports this file, so it imports nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GAME = "docs/styles/guess_trl.py:Guess"
REWARD = "tests/bench/letters.py:letters"
"""As run.toml names them."""


def letters(completions: Sequence[Sequence[dict[str, Any]]], **columns: Any) -> list[float]:
    """The share of the letter e in the first reply. Attempts of a task differ in it, so that there
    is something to train on, whatever an untrained model does with the tool."""
    replies = [str(c[0].get("content") or "") if c else "" for c in completions]
    return [reply.count("e") / max(1, len(reply)) for reply in replies]
