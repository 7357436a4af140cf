"""docs/fieldkit/rl.md: a script for fieldkit.rl 0.34.1, and the same one with the parts of both."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fieldkit.lineage import LineageStore

pytest.importorskip("torch")

ROOT = next(p for p in Path(__file__).parents if (p / "docs/fieldkit/rl.md").is_file())
BROUGHT, THEIRS, PARTS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs/fieldkit/rl.md").read_text("utf-8"), re.M | re.S
)


def ran(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a script leaves, with the rows of its lineage."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    left: dict[str, Any] = {}
    exec(compile(BROUGHT + script, "docs/fieldkit/rl.md", "exec"), left)
    trials = LineageStore("lineage").all_trials()
    left["rows"] = [(t.exp_id, t.parent_exp, t.status.value, t.core_metric) for t in trials]
    return left


def test_the_same_script_picks_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ran(PARTS, tmp_path / "parts", monkeypatch)
    scores = ours["heldout_scores"]
    assert list(scores) == [0, 10, 20, 30]
    assert scores[0] < 0.2 < 0.5 < scores[30]
    assert ours["selected_step"] == 30
    assert [row[:3] for row in ours["rows"][:3]] == [
        ("baseline", "", "baseline"),
        ("rl-000", "baseline", "keep"),
        ("heldout-000", "rl-000", "keep"),
    ]
    if find_spec("fieldkit.rl"):  # on the original
        theirs = ran(THEIRS, tmp_path / "loop", monkeypatch)
        for name in ("heldout_scores", "selected_step", "rows"):
            assert theirs[name] == ours[name], name
