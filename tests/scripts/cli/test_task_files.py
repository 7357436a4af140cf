"""`grpo synth`: where its files go."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.base.checkout import ROOT
from tests.scripts.cli.in_process import grpo


def test_the_default_files_are_the_checkouts_from_wherever_the_command_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs read, and what messages advise `grpo synth` for, lies there."""
    folders: list[Path] = []

    def write(seed: int, folder: Path, *_: object) -> dict[str, int]:
        folders.append(folder)
        return {"pool": 1}

    monkeypatch.setattr("scripts.prepare.task_sets.write_splits", write)
    monkeypatch.chdir(tmp_path)
    for words, folder in (([], ROOT / "data"), (["--out", "more"], Path("more"))):
        ended = grpo("synth", *words)
        assert ended.out == f"{folder}/pool.jsonl: 1 tasks\n"
        assert folders.pop() == folder
