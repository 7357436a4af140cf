"""A run with an environment of its own beside the shell: shares, one whole night, changed code."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

from fieldkit.codec import read_bundle
from fieldkit.files.atomic import read_json
from rollout.engine.serve import stop_engine
from tests.chaos.night import GRPO_RUN, SITE
from tests.tiny_policy import tiny_task, write_run

COUNTER = Path(__file__).parent / "counter.py"


def grpo(*words: str) -> subprocess.CompletedProcess[str]:
    """`grpo WORDS` on the scripted engine."""
    env = {**os.environ, "PYTHONPATH": str(SITE)}
    typed = [*GRPO_RUN[:-1], *words]
    return subprocess.run(typed, capture_output=True, text=True, check=False, env=env)


def write_mixed(tmp_path: Path, policy: tuple[Path, Path]) -> tuple[Path, Path]:
    """A run of one step over shell tasks and rows of a counter; and the counter's file."""
    mine = tmp_path / "mine.py"
    mine.write_text(COUNTER.read_text())
    run: dict[str, object] = {"steps": 1, "eval_every": 0, "preflight": False}
    folder = write_run(tmp_path / "mixed", *policy, run=run, engine={"max_model_len": 1024})
    text = (folder / "run.toml").read_text()
    text = text.replace("[data]", "[data]\nmix = { clawgym = 0.5, counter = 0.5 }")
    table = f'[envs.counter]\nuse = "{mine}:Counter"\npasses = "reward >= 1"\n'
    (folder / "run.toml").write_text(f"{text}\n{table}")
    for split, first, n in (("pool", 0, 6), ("heldout", 50, 2)):
        rows = [
            {"environment": "counter", "prompt": "Count.", "target": first + i} for i in range(n)
        ]
        shell = [{"schema": 1, **vars(tiny_task(first + i, split))} for i in range(n)]
        lines = [json.dumps(line) + "\n" for line in (*rows, *shell)]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    return folder, mine


def test_a_night_plays_environments_by_their_shares_and_refuses_changed_code(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, mine = write_mixed(tmp_path, policy)
    try:
        done = grpo("run", str(folder))
        assert done.returncode == 0, done.stdout + done.stderr
        groups = read_bundle(folder / "step-001/trajectory_bundle.jsonl")
        counts = Counter(g.env for g in groups)
        assert counts["counter"] == counts["clawgym"]
        for group in groups:  # a group never crosses
            parts = {bool(t.grade.rewards) for t in group.trajectories}
            assert parts == {group.env == "counter"}
        assert read_json(folder / "manifest.json")["yardsticks"] == ["do-nothing"]
        page = (folder / "evidence.md").read_text()
        assert "By environment" in page
        assert "Parts of the reward" in page

        mine.write_text(mine.read_text().replace("1.0 -", "2.0 -"))
        changed = grpo("run", str(folder), "--steps", "2")
        assert changed.returncode == 2, changed.stdout + changed.stderr
        assert "envs.counter: the code of" in changed.stdout + changed.stderr
    finally:
        stop_engine(folder)
