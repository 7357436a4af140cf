"""Which class a file means, and with which prompt its rewards are computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.environments.order import only_class

CLASS = "class Game:\n    def reset(self, **row): ...\n"


def test_a_class_inside_a_function_is_named_with_what_to_do(tmp_path: Path) -> None:
    """As in most of TRL's examples."""
    file = tmp_path / "script.py"
    inner = "".join(f"    {line}\n" for line in CLASS.splitlines())
    file.write_text(f"def main():\n{inner}")
    with pytest.raises(BadInput, match=r"Game is inside a function.*move it out"):
        only_class(file)
    file.write_text(f"{CLASS}def main():\n{inner.replace('Game', 'Other')}")
    assert only_class(file) == "Game"
