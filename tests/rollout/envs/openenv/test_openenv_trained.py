"""One group of real rollouts and one trained step in each game of docs/openenv: the real engine,
the real trainer, a two-layer model that plays by chance, and one night over all of them.

What differs within a group is what the game pays.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode, read_bundle
from fieldkit.process.ledger import Ledger
from fieldkit.records import Trajectory
from rollout.engine.serve import stop_engine
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from scripts.base.checkout import ROOT
from tests.chaos.night import GRPO_RUN
from tests.rollout.envs.openenv.openenv_local import stopped
from tests.rollout.envs.openenv.tiny_player import TASKS, TURNS, make_tiny_player
from tests.tiny_policy import write_run

pytestmark = [pytest.mark.envs, pytest.mark.engine, pytest.mark.timeout(900)]

SERVERS = {"echo": "echo", "catch": "catch", "games": "textarena", "wordle": "wordle"}
"""The program of docs/openenv behind each environment of `TASKS`."""

PYTHON = ROOT / ".venv-openenv/bin/python"
GROUP = 16


@dataclass(frozen=True)
class Trained:
    """A step: its group, and what the trainer made of it."""

    group: tuple[Trajectory, ...]
    record: dict[str, Any]


@dataclass(frozen=True)
class Night:
    folder: Path
    said: str
    by_env: dict[str, Trained]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """A night of as many steps as there are games, each step a group of one of them."""
    base = tmp_path_factory.mktemp("games")
    settings = {
        name: EnvSettings(
            use="",
            style="openenv",
            serve=f"docs/openenv/{program}_server.py:app",
            python=str(PYTHON),
            passes="reward >= 1",
        )
        for name, program in SERVERS.items()
    }
    with pytest.MonkeyPatch.context() as patch, stopped(patch):
        register_environments(settings, ROOT)
        model, adapter = make_tiny_player(base, times=80, steps=2000)
        register_environments({}, ROOT)
    folder = write_run(
        base / "run",
        model,
        adapter,
        run={"steps": len(TASKS)},
        rollout={
            "tasks_per_step": 1,
            "group_size": GROUP,
            "max_turns": TURNS,
            "max_new_tokens": 16,
        },
        # Small steps: each game is played by chance, not by what was learned in the one before.
        trainer={"lr": 1e-5},
        engine={"max_model_len": 1024, "lifecycle": "hotswap", "start_seconds": 900},
    )
    tables = [
        f'[envs.{name}]\nserve = "{one.serve}"\npython = "{PYTHON}"\npasses = "{one.passes}"\n'
        for name, one in settings.items()
    ]
    with open(folder / "run.toml", "a", encoding="utf-8") as file:
        file.write("\n" + "\n".join(tables))
    (base / "pool.jsonl").write_text("".join(encode(task) + "\n" for task in TASKS))
    held = {"environment": "echo", "prompt": "Speak. ", "word": "milk"}
    (base / "heldout.jsonl").write_text(json.dumps(held) + "\n")
    try:
        done = subprocess.run(
            [*GRPO_RUN, str(folder)], capture_output=True, text=True, check=False, timeout=800
        )
        assert done.returncode == 0, done.stdout + done.stderr
        steps = [folder / f"step-{step:03}" for step in range(1, len(TASKS) + 1)]
        trained = [
            Trained(
                group.trajectories,
                json.loads((step / "step.json").read_text()),
            )
            for step in steps
            for group in read_bundle(step / "trajectory_bundle.jsonl")
        ]
        names = {task.task_id: task.env for task in TASKS}
        by_env = {names[one.group[0].task_id]: one for one in trained}
        yield Night(folder, done.stdout + done.stderr, by_env)
    finally:
        stop_engine(folder)


@pytest.mark.parametrize("name", SERVERS)
def test_a_group_of_every_game_trains_a_step_on_what_the_game_pays(night: Night, name: str) -> None:
    trained = night.by_env[name]
    assert len(trained.group) == GROUP
    paid = [part.value for t in trained.group for part in t.grade.rewards if part.value is not None]
    assert len(paid) >= GROUP / 2  # an episode that ends before the game does may have no reward
    assert len(set(paid)) > 1
    assert all(turn.logprobs for t in trained.group for turn in t.turns)
    record = trained.record
    assert record["outcome"] == "TRAINED"
    assert record["groups"] == {"LEARNABLE": 1}
    assert record["train"]["grad_norm"] > 0
    assert record["adapter_sha"] != record["parent_sha"]


def test_the_games_were_played_to_their_ends(night: Night) -> None:
    turns = {name: {len(t.turns) for t in one.group} for name, one in night.by_env.items()}
    assert max(turns["catch"]) >= 9
    assert max(turns["games"]) > 2
    assert max(turns["wordle"]) > 1
    stops = {name: {str(t.stop_reason) for t in one.group} for name, one in night.by_env.items()}
    assert all("ENV_DONE" in reasons for reasons in stops.values())
    won = {name: any(t.grade.passed for t in one.group) for name, one in night.by_env.items()}
    assert won["echo"]
    assert won["wordle"]


def test_one_engine_served_the_whole_night_and_no_server_is_left(night: Night) -> None:
    started = [entry for entry in (night.folder / "log").iterdir() if "engine" in entry.name]
    assert len(started) == 1
    names = [entry.name for entry in Ledger(night.folder / "ledger.json").entries()]
    assert [name for name in names if name.startswith("env-")] == []
