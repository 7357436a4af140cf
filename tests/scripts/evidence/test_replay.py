"""`grpo replay`: what another stop protocol would have meant, told from what a night has stored.

The night is one under the protocol `literal`, whose policy says that it is done with an echo in its
first turn: nobody heard it, so every episode went on to its third.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.codec import encode_group
from fieldkit.records import RolloutGroup
from reward.shaping import RewardSettings
from scripts.evidence.replay import replay_run
from scripts.run.assignments import assigned, parse
from tests.scripts.cli.in_process import grpo
from tests.scripts.evals import trajectory
from tests.scripts.made_night import group, make_night, turn

STEPS, PAIRS = 3, 2
ECHO = 'echo "Task complete"'


def unheard_group(n: int, task_id: str) -> RolloutGroup:
    """Two rollouts of which one does more of the work, and neither all of it."""
    turns = (turn(f"```bash\n{ECHO}\n```", command=ECHO), *[turn("Hm.")] * 2)
    pair = [trajectory(task_id, f"sha-{n - 1}", 3 - k, 3, False, k) for k in range(2)]
    return replace(group(n, task_id), trajectories=tuple(replace(t, turns=turns) for t in pair))


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder: three steps of two groups of two."""
    made = make_night(tmp_path_factory.mktemp("nights"), n_steps=STEPS)
    for n in range(1, STEPS + 1):
        groups = [unheard_group(n, task_id) for task_id in ("p000", "p001")]
        made.folder.bundle(n).write_text("".join(encode_group(g) + "\n" for g in groups))
    return made.folder.path


def whole(night: Path, *words: str) -> str:
    """What `grpo replay` prints."""
    command = [sys.executable, "-P", "-m", "scripts.cli", "replay", str(night), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def replayed(night: Path, *words: str) -> str:
    """What it says of the training rollouts."""
    return whole(night, *words).partition("Evaluation ")[0]


def figures(said: str, row: str) -> list[int]:
    (line,) = re.findall(rf"{row} +([\d ]+)\n", said)
    return [int(word) for word in line.split()]


def test_another_protocol_says_who_would_have_stopped_earlier_and_what_it_saves(
    night: Path,
) -> None:
    said = replayed(night, "--protocol", "sentinel")
    assert "protocol sentinel" in said
    played = STEPS * PAIRS * 2
    assert figures(said, "trajectories") == [played, played]
    assert figures(said, "would stop earlier") == [played]
    assert figures(said, "turns") == [3 * played, played]
    assert figures(said, "turns saved") == [2 * played]
    seconds = turn("").seconds
    assert figures(said, "seconds saved") == [round(2 * played * seconds)]
    assert "rewards are estimates" not in said, "the turns after the echo ran nothing"


def test_the_protocol_that_it_was_played_under_changes_nothing(night: Path) -> None:
    said = replayed(night, "--protocol", "literal")
    assert figures(said, "would stop earlier") == [0]
    assert figures(said, "would go on") == [0]
    assert figures(said, "groups") == [STEPS * PAIRS] * 2
    assert figures(said, "without signal") == [0, 0]


def test_another_reward_says_how_many_groups_would_carry_no_signal(night: Path) -> None:
    said = replayed(night, "--reward", "binary")
    assert figures(said, "rewards of zero") == [0, STEPS * PAIRS * 2]
    assert figures(said, "without signal") == [0, STEPS * PAIRS]


def test_a_run_of_another_reward_is_replayed_under_its_own(night: Path, tmp_path: Path) -> None:
    own = shutil.copytree(night, tmp_path / "night")
    text = (own / "run.toml").read_text()
    (own / "run.toml").write_text(assigned(text, parse(["reward.kind=binary"]), "run.toml"))
    assert "under reward binary" in whole(own, "--protocol", "literal")


def test_the_rewards_of_two_arms_are_compared_task_by_task(night: Path) -> None:
    """The third document's r_sft − r_base with its spread: here four assertions in three turns for
    the tasks that it passes, two for the others, against two assertions in twelve turns."""
    said = whole(night, "--turn-penalty", "0")
    rows = said.partition("Differences of the reward")[2]
    (row,) = re.findall(r"step 3 − base +(.*)\n", rows)
    before = [two_of_four(12)] * 24
    after = [two_of_four(3) + (0.5 if 2 <= i < 14 else 0) for i in range(24)]
    changes = [b - a for a, b in zip(before, after, strict=True)]
    stored, deviation = f"{statistics.fmean(changes):+.3f}", f"{statistics.stdev(changes):.3f}"
    without_penalty = [0.5 if 2 <= i < 14 else 0.0 for i in range(24)]
    replay = f"{statistics.fmean(without_penalty):+.3f}", f"{statistics.stdev(without_penalty):.3f}"
    assert row.split() == [stored, deviation, *replay]
    assert "step 3 − warm start" in rows


def two_of_four(turns: int) -> float:
    return 0.5 - 0.2 * turns / 12


@pytest.mark.parametrize(
    ("flag", "value"),
    [("--reward", "binary"), ("--turn-penalty", "0.9"), ("--protocol", "literal")],
)
def test_what_environments_pay_is_replayed_under_no_other_reward(flag: str, value: str) -> None:
    ended = grpo("replay", "sql-0", flag, value)
    assert ended.code == 2
    assert "its environments pay every episode themselves" in ended.error
    assert "grpo reward explain sql-0` shows what they pay" in ended.error


def test_what_environments_pay_is_not_called_a_reward_of_shell_tasks() -> None:
    said = " ".join(grpo("replay", "sql-0").out.split())
    assert "Evaluation step 12 under the environment's own reward" in said
    assert "λ" not in said


@pytest.mark.parametrize(
    ("turn_penalty", "title", "mean"),
    [(None, "λ of its schedule", 0.75 - 0.25 * 0.6), (0.4, "λ 0.4", 0.75 - 0.25 * 0.4)],
)
def test_training_is_paid_by_its_schedule_and_an_evaluation_and_what_is_typed_are_not(
    turn_penalty: float | None, title: str, mean: float, tmp_path: Path
) -> None:
    """λ is 0, 0.6 and 1.2 at the steps. Half of the attempts hold four of four assertions, half of
    them two, after three of twelve turns; the base holds two after twelve."""
    made = make_night(tmp_path, n_steps=STEPS)
    schedule = {"turn_penalty": [[1, 0.0], [3, 1.2]]}
    config = replace(made.config, reward=RewardSettings(schedule=schedule))
    told: list[tuple[str, int, int]] = []
    tables, _ = replay_run(
        made.folder, config, "shaped", turn_penalty, None, lambda *far: told.append(far)
    )
    assert told == [("steps scored again", n, STEPS) for n in range(1, STEPS + 1)]
    means = {t.title: {row[0]: row[2] for row in t.rows} for t in tables if len(t.rows) > 5}
    assert means[f"Training rollouts under reward shaped, {title}"]["mean reward"] == f"{mean:.3f}"
    held = 0.2 if turn_penalty is None else turn_penalty
    base = means[f"Evaluation base under reward shaped, λ {held:g}"]
    assert base["mean reward"] == f"{0.5 - held:.3f}"


def test_an_evaluation_has_the_mean_and_the_median_of_its_rewards(night: Path) -> None:
    said = whole(night, "--reward", "binary").partition("Evaluation step 3")[2]
    (mean,) = re.findall(r"mean reward +\S+ +(\S+)", said)
    (median,) = re.findall(r"median reward +\S+ +(\S+)", said)
    assert (mean, median) == ("0.500", "0.500")
