"""`grpo sft` refuses words that contradict each other, before it trains or writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import TinyModel
from tests.scripts.cli.in_process import grpo
from tests.scripts.typed import BAD_INPUT


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--fresh", "--demos", "16"], "--demos: not with --fresh"),
        (["--fresh", "--from", "first-night"], "--from: not with --fresh"),
        (["--fresh", "--epochs", "3"], "--epochs: not with --fresh"),
        (["--fresh", "--lr", "2e-4"], "--lr: not with --fresh"),
        (["--fresh", "--per-task", "9"], "--per-task: only with --from"),
        (["--fresh", "--preset", "spark"], "--preset: only with --oracle"),
        (["--oracle", "data/pool.jsonl", "--model", "smol"], "--model: not with --oracle"),
        (["--oracle", "x", "--run", "y", "--preset", "sql"], "--preset: not with --run"),
        (["--from", "first-night", "--demos", "16"], "--demos: not with --from"),
        (["--from", "first-night", "--stops", "1"], "--stops: not with --from"),
        (["--stops", "1.5"], "less than or equal to 1"),
        (["--set", "rollout.temperature=1"], "--set: only with --oracle"),
        (["--run", "first-night"], "--run: only with --oracle"),
    ],
)
def test_words_that_contradict_each_other_are_refused(
    tmp_path: Path, words: list[str], names: str
) -> None:
    ended = grpo("sft", tmp_path / "warm", *words)
    assert ended.code == BAD_INPUT
    assert names in ended.error, ended
    assert not list(tmp_path.iterdir())


def test_the_line_for_run_toml_is_right_wherever_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: TinyModel
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = grpo("sft", ".", "--fresh", "--model", tiny.folder)
    assert ended.code == BAD_INPUT
    assert ".: name a new folder, as in `" in ended.error
    ended = grpo("sft", "mine", "--fresh", "--model", tiny.folder)
    assert ended.code == 0, ended.error
    named = f'[model] path = "{tiny.folder}", adapter = "{tmp_path}/mine" in a run.toml'
    assert f"next: {named}" in ended.out
