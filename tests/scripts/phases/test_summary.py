"""A finished step: its bundle and train.json as one record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldkit.codec import decode, encode
from fieldkit.records import AtStop, RolloutGroup, StepSummary
from rollout.envs.env_settings import EnvSettings
from scripts.phases.summary import several_envs, step_summary
from scripts.run.config import DataSettings, RunConfig
from scripts.run.timings import StepTimings
from tests.scripts.evals import trajectory
from tests.scripts.made_night import group, tasks, write_tasks

TRAINED = {
    "outcome": "TRAINED",
    "parent_sha": "a",
    "adapter_sha": "b",
    "optimizer_sha": None,
    "bundle_sha": "c",
    "train": {"loss": 0.5},
}


def summary(groups: Sequence[RolloutGroup], **more: Any) -> StepSummary:
    return step_summary(1, groups, TRAINED, StepTimings(1), **more)


def game(task_id: str = "g1") -> RolloutGroup:
    """Two attempts that pass and stop by themselves after two turns."""
    pair = tuple(trajectory(task_id, "sha-0", 4, 2, True, k) for k in range(2))
    return replace(group(1, task_id), env="game", trajectories=pair)


def test_each_environment_of_a_step_has_its_own_means_and_all_have_theirs() -> None:
    found = summary([group(1, "p1"), game(), game("g2")], by_env=True)
    assert list(found.environments) == ["clawgym", "game"]
    shell, games = found.environments.values()
    assert (shell.n_trajectories, games.n_trajectories, found.n_trajectories) == (2, 4, 6)
    assert (shell.pass_rate, games.pass_rate, found.pass_rate) == (0.5, 1.0, 5 / 6)
    assert (shell.mean_turns, games.mean_turns) == (3.0, 2.0)
    assert decode(StepSummary, encode(found), "step.json:1") == found


def test_a_step_that_drew_one_of_several_environments_says_which() -> None:
    found = summary([game()], by_env=True)
    assert list(found.environments) == ["game"]
    assert found.in_env("clawgym") is None
    assert found.in_env("game") == replace(
        found, groups={}, train={}, seconds={}, draws=(), environments={}
    )


def test_the_record_of_a_run_with_one_environment_has_no_key_for_it() -> None:
    assert "environments" not in json.loads(encode(summary([group(1, "p1")])))


def test_what_stops_had_done_is_counted_where_the_world_tells() -> None:
    assert "at_stop" not in json.loads(encode(summary([group(1, "p1")])))
    told = tuple(
        replace(t, turns=tuple(replace(turn, reward=0.0) for turn in t.turns))
        for t in group(1, "p1").trajectories
    )
    found = summary([replace(group(1, "p1"), trajectories=told)])
    assert found.at_stop == AtStop(n=2, passed=1, idle=1)
    assert decode(StepSummary, encode(found), "step.json:1") == found


def test_a_run_has_several_environments_by_its_mix_or_by_its_pool(tmp_path: Path) -> None:
    shell, game = tasks(2)
    one = write_tasks(tmp_path / "one.jsonl", [shell])
    two = write_tasks(tmp_path / "two.jsonl", [shell, replace(game, env="game")])
    config = RunConfig(envs={"game": EnvSettings("game.py:Game", "reward >= 1")})
    assert [several_envs(config, pool) for pool in (one, two)] == [False, True]
    mixed = replace(config, data=DataSettings(mix={"clawgym": 0.5, "game": 0.5}))
    alone = replace(config, data=DataSettings(mix={"game": 1.0}))
    assert [several_envs(c, tmp_path / "unread") for c in (mixed, alone, RunConfig())] == [
        True,
        False,
        False,
    ]
