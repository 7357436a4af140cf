"""What is known at the training temperature: the trend of the steps, and a few held-out tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollout.settings import EpisodeSettings
from scripts.evidence.findings import read_findings
from scripts.evidence.learning import FEWEST_STEPS, Ended, trends
from tests.scripts.evals import arm, step, write_eval
from tests.scripts.made_night import HELD_OUT, Night, make_night, tasks

TRAINING = EpisodeSettings(temperature=1.0)


def test_a_trend_is_kendalls_test_of_steps_and_values() -> None:
    """Six steps in perfect order: two of 720 orders are as extreme."""
    rising = [step(n, "sha", stop_rate=n / 10, turns=3.0) for n in range(1, 7)]
    (found, *_) = trends(rising)
    assert (found.figure, found.n_steps) == ("stop_rate", 6)
    assert found.tau == pytest.approx(1.0)
    assert found.p_value == pytest.approx(2 / 720)
    assert [found.first, found.last] == pytest.approx([0.2, 0.5])


def test_the_ends_of_a_long_night_are_means_of_a_tenth_of_its_steps() -> None:
    rising = [step(n, "sha", stop_rate=n / 100, turns=3.0) for n in range(1, 51)]
    (found, *_) = trends(rising)
    assert [found.first, found.last] == pytest.approx([0.03, 0.48])  # of steps 1-5 and 46-50


def test_a_figure_that_never_changes_has_no_trend() -> None:
    still = [step(n, "sha", stop_rate=0.0, turns=12.0) for n in range(1, 9)]
    assert (trends(still)[0].tau, trends(still)[0].p_value) == (0.0, 1.0)


def test_too_few_steps_are_not_tested() -> None:
    few = [step(n, "sha", stop_rate=n / 10, turns=3.0) for n in range(1, FEWEST_STEPS)]
    assert trends(few) == ()


def test_a_reward_that_a_schedule_pays_by_has_no_trend() -> None:
    """A policy that stays as it is, while a turn costs less from step to step."""
    paid_more = [step(n, "sha", stop_rate=0.5, turns=6.0, reward=n / 10) for n in range(1, 9)]
    assert [t.figure for t in trends(paid_more)] == ["stop_rate", "reward"]
    assert [t.figure for t in trends(paid_more, paid_alike=False)] == ["stop_rate"]


def test_a_draw_that_moves_to_other_tasks_has_no_trend_at_all() -> None:
    drawn = [step(n, "sha", stop_rate=n / 10, turns=6.0, reward=n / 10) for n in range(1, 9)]
    assert trends(drawn, drawn_alike=False) == ()


def play(night: Night, sha: str, stops: int, n: int = 16) -> None:
    on = tasks(HELD_OUT)[:n]
    played = arm(sha, on, passes=4, turns=6, stops=stops)
    write_eval(night.folder.training_evals, played, on, arm=f"{sha} at T = 1", settings=TRAINING)


def test_both_adapters_are_compared_on_the_tasks_that_both_played(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    play(night, "sha-0", stops=1)
    play(night, "sha-8", stops=12)
    found = read_findings(night.folder, night.config)
    assert not found.gaps
    assert found.sampled is not None
    assert (found.sampled.temperature, found.sampled.n_tasks) == (1.0, 16)
    assert (found.sampled.before, found.sampled.after) == (Ended(1, 4), Ended(12, 4))
    assert found.sampled.stopped is not None
    assert found.sampled.stopped.test.second_only == 11


def test_several_attempts_at_a_task_count_once(tmp_path: Path) -> None:
    night, on = make_night(tmp_path), tasks(HELD_OUT)[:16]
    for sha, stops in (("sha-0", 1), ("sha-8", 12)):
        played = [t for k in range(3) for t in arm(sha, on, passes=4, turns=6, stops=stops, k=k)]
        evals = night.folder.training_evals
        write_eval(evals, played, on, arm=f"{sha} at T = 1", settings=TRAINING, samples=3)
    found = read_findings(night.folder, night.config).sampled
    assert found is not None
    assert (found.n_tasks, found.before, found.after) == (16, Ended(1, 4), Ended(12, 4))
    assert found.stopped is not None
    assert (found.stopped.test.n, found.stopped.test.second_only) == (16, 11)


def test_arms_at_the_training_temperature_stand_in_no_other_table(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    before = read_findings(night.folder, night.config)
    play(night, "sha-8", stops=12, n=HELD_OUT)
    after = read_findings(night.folder, night.config)
    assert (after.evidence, after.summaries) == (before.evidence, before.summaries)
    assert after.sampled is not None
    assert after.sampled.before is None


def test_where_a_run_changed_how_many_they_are_those_that_both_played_are_compared(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path)
    play(night, "sha-0", stops=1, n=8)
    play(night, "sha-8", stops=12)
    found = read_findings(night.folder, night.config).sampled
    assert found is not None
    assert (found.n_tasks, found.before, found.after) == (8, Ended(1, 4), Ended(8, 4))
    assert found.stopped is not None
    assert found.stopped.test.n == 8


def test_an_arm_under_other_limits_is_not_compared(tmp_path: Path) -> None:
    night, on = make_night(tmp_path), tasks(HELD_OUT)[:16]
    played = arm("sha-0", on, passes=4, turns=6, stops=1)
    other = replace(TRAINING, max_turns=TRAINING.max_turns + 1)
    write_eval(night.folder.training_evals, played, on, arm="sha-0 at T = 1", settings=other)
    play(night, "sha-8", stops=12)
    found = read_findings(night.folder, night.config).sampled
    assert found is not None
    assert (found.n_tasks, found.before, found.stopped) == (16, None, None)


def test_an_arm_that_cannot_be_read_is_a_gap_and_the_verdict_stays(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    play(night, "sha-8", stops=12)
    (torn,) = night.folder.training_evals.glob("*/trajectories.jsonl")
    torn.write_text("")
    found = read_findings(night.folder, night.config)
    assert [gap.what for gap in found.gaps] == ["arms at the training temperature"]
    assert found.verdict is not None
