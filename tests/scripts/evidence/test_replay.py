"""`grpo replay`: what another stop protocol would have meant, told from what a night has stored.

The night is one under the protocol `literal`, whose policy says that it is done with an echo in its
first turn: nobody heard it, so every episode went on to its third.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.records import RolloutGroup, encode_group
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


def replayed(night: Path, *words: str) -> str:
    """What `grpo replay` says of the training rollouts."""
    command = [sys.executable, "-P", "-m", "scripts.cli", "replay", str(night), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("Evaluation ")[0]


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
