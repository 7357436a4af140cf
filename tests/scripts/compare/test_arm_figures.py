"""One arm by itself."""

from __future__ import annotations

from pathlib import Path

from scripts.compare.arm_figures import arm_figures, single_arm_table
from tests.scripts.evals import arm, tasks, write_eval


def test_what_is_the_same_on_each_task_and_what_counts_all_attempts_is_said_so(
    tmp_path: Path,
) -> None:
    on = tasks(8)
    played = [t for k in range(2) for t in arm("sha", on, passes=8, turns=3, stops=8, k=k)]
    folder = write_eval(tmp_path / "evals", played, on, samples=2)
    rows = {row[0]: row[1:] for row in single_arm_table(arm_figures("mine", folder, on)).rows}
    assert rows["mean turns"] == ("3.0", "on each task")
    assert rows["tasks passed"][0] == "8/8 (100.0 %)"
    assert rows["stops of all attempts"][0] == "TASK_COMPLETE 16"
