"""An arm that another run played is taken over under the same conditions, and only then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollout.arm import BASE_ADAPTER, read_eval
from rollout.tasks import read_tasks
from scripts.base.signals import Wish
from scripts.phases.context import Context
from scripts.phases.shared_arms import take_over
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch
from tests.scripts.evals import trajectory, write_eval
from tests.tiny_policy import write_run

NOTHING = Path("/none")
MODEL = {"model.safetensors": "aa"}


def folder(path: Path, files: dict[str, str], **tables: dict[str, object]) -> Context:
    """A run with a manifest, as far as an arm depends on one. files: of the model."""
    talk = tables.pop("model", {})
    run = RunFolder(write_run(path, NOTHING, NOTHING, **tables))
    config = read_config(run.config)
    plain = config.plain()
    plain["model"] |= talk
    manifest = {"schema": 1, "model": {"files": files}, "config": plain}
    run.manifest.write_text(json.dumps(manifest))
    return Context(run, config, lambda event: None, Wish(lambda text: None), Stopwatch(0.0))


def play_base(ctx: Context) -> None:
    """Leave the base's finished arm in the run: every task in two turns, half of it done."""
    settings = ctx.config.rollout.at(ctx.config.eval.temperature)
    on = read_tasks(ctx.heldout_file)
    played = [trajectory(t.task_id, BASE_ADAPTER, 2, 2, False) for t in on]
    write_eval(ctx.folder.evals, played, on, arm="base", settings=settings)


def test_the_same_arm_is_taken_over_and_said_so_in_the_journal(tmp_path: Path) -> None:
    play_base(folder(tmp_path / "old", MODEL))
    now = folder(tmp_path / "new", MODEL)
    taken = take_over(now, "base", BASE_ADAPTER)
    assert taken is not None
    assert read_eval(now.folder.evals / taken.key) == taken
    assert '"run": "old"' in now.folder.journal.read_text()
    assert take_over(now, "base", BASE_ADAPTER) is None, "it is there now"


def test_rewards_are_made_again_with_this_runs_settings(tmp_path: Path) -> None:
    play_base(folder(tmp_path / "old", MODEL, reward={"turn_penalty": 0.2}))
    now = folder(tmp_path / "new", MODEL, reward={"turn_penalty": 0.5})
    taken = take_over(now, "base", BASE_ADAPTER)
    assert taken is not None
    assert taken.mean_reward == pytest.approx(0.5 - 0.5)  # two turns of two


def test_an_arm_that_an_older_version_of_the_program_played_is_left_alone(tmp_path: Path) -> None:
    old, now = folder(tmp_path / "old", MODEL), folder(tmp_path / "new", MODEL)
    play_base(old)
    manifest = json.loads(old.folder.manifest.read_text())
    old.folder.manifest.write_text(json.dumps({**manifest, "versions": {"grpo-loop": "0.0.1"}}))
    assert take_over(now, "base", BASE_ADAPTER) is None


@pytest.mark.parametrize(
    ("model", "tables"),
    [
        ({"model.safetensors": "bb"}, {}),
        (MODEL, {"engine": {"dtype": "bfloat16"}}),
        (MODEL, {"sandbox": {"command_seconds": 3.0}}),
        (MODEL, {"eval": {"temperature": 0.7}}),
        (MODEL, {"eval": {"tasks": 2}}),
        (MODEL, {"rollout": {"max_new_tokens": 8}}),
        (MODEL, {"model": {"tool_form": "text"}}),
        (MODEL, {"model": {"chat_template_kwargs": {"enable_thinking": False}}}),
        (MODEL, {"envs": {"game": {"use": "game.py:Game", "passes": "reward > 1"}}}),
    ],
)
def test_an_arm_that_was_played_otherwise_is_left_alone(
    tmp_path: Path, model: dict[str, str], tables: dict[str, Any]
) -> None:
    play_base(folder(tmp_path / "old", MODEL))
    now = folder(tmp_path / "new", model, **tables)
    assert take_over(now, "base", BASE_ADAPTER) is None
    assert not now.folder.evals.exists()


def test_where_an_engine_listens_and_how_much_it_holds_is_no_condition(tmp_path: Path) -> None:
    play_base(folder(tmp_path / "old", MODEL))
    now = folder(tmp_path / "new", MODEL, engine={"port": 8123, "kv_cache_gib": 2.0})
    assert take_over(now, "base", BASE_ADAPTER) is not None


@pytest.mark.parametrize("lost", ["all of it", "its last line"])
def test_an_arm_whose_transcripts_are_not_there_is_played_here(tmp_path: Path, lost: str) -> None:
    """A committed night comes without them; so the README's own could not be played again."""
    old = folder(tmp_path / "old", MODEL)
    play_base(old)
    (played,) = old.folder.evals.glob("*/trajectories.jsonl")
    if lost == "all of it":
        played.unlink()
    else:
        played.write_text(played.read_text()[:-1])
    now = folder(tmp_path / "new", MODEL)
    assert take_over(now, "base", BASE_ADAPTER) is None
    assert not now.folder.evals.exists()
