"""`grpo sft` refuses words that contradict each other, before it trains or writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts.cli.in_process import grpo
from tests.scripts.typed import BAD_INPUT


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--fresh", "--demos", "16"], "--fresh: not with --oracle, --from or --demos"),
        (["--oracle", "data/pool.jsonl", "--model", "smol"], "--oracle: not with --from"),
        (["--from", "first-night", "--demos", "16"], "--demos: not with --from"),
        (["--fresh", "--stops", "1"], "--stops: not with --fresh, --oracle or --from"),
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
