"""Each part of a reward is shown apart, by environment and arm."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.records import Task, Trajectory
from reward.part_means import part_rows
from scripts.evidence.run_tables import parts_table
from scripts.evidence.tables import split_table
from tests.scripts.evals import arm, collect, step, tasks, write_eval

ON = [replace(t, env="game" if i < 4 else "clawgym") for i, t in enumerate(tasks(8))]
GAMES = {t.task_id for t in ON if t.env == "game"}


def paid(trajectories: list[Trajectory], won: float, hints: float | None) -> list[Trajectory]:
    parts = (RewardPart("won", won), RewardPart("hints", hints, 0.0))
    return [
        replace(t, grade=Grade(t.grade.results, parts)) if t.task_id in GAMES else t
        for t in trajectories
    ]


def test_a_part_is_averaged_where_it_applies() -> None:
    one, other, *_ = paid(arm("a", ON, passes=2, turns=3, stops=2), 0.5, None)
    other = replace(other, grade=replace(other.grade, rewards=(RewardPart("won", 1.0),)))
    won, hints = part_rows({"a": [one, other]}, ON)
    assert (won.env, won.name, won.weight, won.means) == ("game", "won", 1.0, {"a": 0.75})
    assert (hints.name, hints.weight, hints.means) == ("hints", 0.0, {"a": None})


def test_a_mixed_run_shows_environments_and_parts_at_start_and_end(tmp_path: Path) -> None:
    write_eval(tmp_path, arm("base", ON, passes=0, turns=3, stops=2), ON)
    write_eval(tmp_path, paid(arm("warm", ON, passes=2, turns=3, stops=2), 0.25, None), ON)
    write_eval(tmp_path, paid(arm("new", ON, passes=4, turns=3, stops=8), -0.5, 2.0), ON)
    evidence = collect(tmp_path, ON, [step(0, "warm"), step(1, "new")])
    table = parts_table(evidence)
    assert table is not None
    assert table.columns == ("environment", "part", "weight", "base", "warm start", "step 1")
    assert table.rows == (
        ("game", "won", "1", "–", "0.250", "−0.500"),
        ("game", "hints", "0", "–", "–", "2.000"),
    )
    by_env = split_table(evidence, "environment")
    assert by_env is not None
    assert [row[:2] for row in by_env.rows] == [("clawgym", "4"), ("game", "4")]
    assert "reward_parts" in evidence.plain()


def test_a_run_of_one_environment_without_parts_shows_neither(tmp_path: Path) -> None:
    on: list[Task] = list(tasks(4))
    write_eval(tmp_path, arm("warm", on, passes=2, turns=3, stops=2), on)
    evidence = collect(tmp_path, on, [step(0, "warm")])
    assert parts_table(evidence) is None
    assert split_table(evidence, "environment") is None
    assert "reward_parts" not in evidence.plain()
