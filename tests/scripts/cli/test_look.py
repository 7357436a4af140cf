"""The commands that read a run: where their pages may go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.cli.look import require_ordinary
from tests.scripts.cli.in_process import grpo
from tests.scripts.typed import BAD_INPUT


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["report", "first-night"], "--out"), (["compare", "first-night@warm", "x"], "--html")],
)
def test_a_page_does_not_take_the_place_of_a_pipe(
    words: list[str], flag: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    ended = grpo(*words, flag, tmp_path / "pipe")
    assert ended.code == BAD_INPUT
    assert f"error: {tmp_path}/pipe: no ordinary file; name one, as in `{flag} " in ended.error
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["null", "stdout", "fd/1"])
def test_a_name_of_a_device_is_no_place_for_a_page(name: str) -> None:
    with pytest.raises(BadInput, match=f"^/dev/{name}: no ordinary file"):
        require_ordinary(Path("/dev", name), "--out")
