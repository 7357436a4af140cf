"""A bug is one line for the person, and its traceback is kept whatever characters it has."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest

from scripts.cli.bugs import reporting_bugs


def test_a_bug_about_text_that_is_no_utf_8_is_kept_with_its_traceback(tmp_path: Path) -> None:
    said = io.StringIO()
    with (
        pytest.raises(SystemExit, match="1"),
        contextlib.redirect_stderr(said),
        reporting_bugs(f"{tmp_path}/night", None),
    ):
        raise RuntimeError("caf\udce9, λ")
    (log,) = (tmp_path / "night/log").iterdir()
    assert said.getvalue().endswith(f"its traceback: {log}\n")
    assert "RuntimeError: caf\\udce9, λ" in log.read_text(encoding="utf-8")
