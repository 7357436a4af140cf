"""One run over environments of every style, on the default model and a real engine: a group of real
rollouts in each, a step on all of them together, and a step on each group alone.

The model is taught what it may say in each environment and says it by chance, so attempts differ,
and with them what the environment pays.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fieldkit.codec import decode, encode, encode_group, read_bundle
from fieldkit.process.ledger import Ledger
from fieldkit.records import Task
from rollout.engine.serve import stop_engine
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from scripts.base.checkout import ROOT
from scripts.environments.foreign_venv import add_environment
from scripts.prepare.model import default_model_dir
from scripts.prepare.presets import run_text
from scripts.prepare.sft import SftSettings, fit
from scripts.run.assignments import toml_value
from scripts.run.config import config_of
from tests.chaos.night import GRPO_RUN
from tests.rollout.envs.openenv.openenv_local import stopped
from tests.rollout.envs.openenv.tiny_player import episodes_by_chance
from tests.tiny_policy import tiny_task, write_run
from trainer.__main__ import app

pytestmark = [pytest.mark.envs, pytest.mark.engine, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
GROUP = 12
EPISODES = 16
"""Of each task, to learn from."""

GAMES = f"{HERE}/multi_env.py:TwoGames"
EXAMPLES = f"{HERE}/trl_examples.py"
OPENENV = ROOT / ".venv-openenv/bin/python"

REPLIES = {
    "clawgym": ("```bash\ntouch done.txt\n```", "TASK_COMPLETE"),
    "increment": ("increment: 1", "increment: 2", "Done."),
    "arithmetic": ('multiply {"a": 6, "b": 7}', "It is 42.", "I do not know."),
    "word": ("guess: crane", "guess: crate", "I give up."),
    "falling": ("move: left", "move: right", "stay:"),
    "sql": ("describe: penguins", "query: SELECT count(*) FROM penguins", "answer: 248"),
    "echo": ("echo: tea", "echo: milk", "I do not know."),
    "till": ('pay {"coins": 2}', 'pay {"coins": 1}', "Paid."),
}
"""What the model says in each environment."""


def tasks() -> list[Task]:
    with open(ROOT / "data/sql/pool.jsonl", encoding="utf-8") as file:
        asked = decode(Task, next(file), "pool.jsonl:1")
    return [
        tiny_task(0),
        Task("increment-2", "increment", "", {}),
        Task("product", "arithmetic", "What is 6 times 7? ", {"answer": 42}),
        Task("word", "word", "Win. ", {"env": "word", "secret": "crane"}),
        Task("falling-0", "falling", "Win. ", {"env": "catch"}),  # it falls in the middle
        asked,
        Task("say", "echo", "Play. ", {"word": "tea"}),
        Task("till", "till", "Pay four coins.", {"question": "Pay four coins.", "answer": "4"}),
    ]


def settings() -> dict[str, EnvSettings]:
    games = {f"{HERE}/multi_env.py:{name}_reward": 1.0 for name in ("word", "catch")}
    theirs = str(HERE / "verifiers_examples" / "everything.py")
    return {
        "increment": EnvSettings(f"{EXAMPLES}:Increment", "reward >= 1"),
        "arithmetic": EnvSettings(
            f"{EXAMPLES}:ARITHMETIC", "right == 1", rewards={f"{EXAMPLES}:right": 1.0}
        ),
        "word": EnvSettings(GAMES, "word_reward >= 1", rewards=games),
        "falling": EnvSettings(GAMES, "catch_reward >= 1", rewards=games),
        "sql": config_of(_sql_preset(), "the preset").envs["sql"],
        "echo": EnvSettings(
            "",
            "reward >= 1",
            style="openenv",
            serve="docs/openenv/echo_server.py:app",
            python=str(OPENENV),
        ),
        "till": EnvSettings(
            theirs,
            "paid >= 4",
            style="verifiers",
            python=str(add_environment(theirs).python),
            config={"kind": "till"},
        ),
    }


def _sql_preset() -> dict[str, Any]:
    return tomllib.loads(run_text("sql"))


@dataclass(frozen=True)
class Night:
    folder: Path
    model: Path
    adapter: Path


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """One step of a run whose pool has a task of every environment."""
    base, envs, pool = tmp_path_factory.mktemp("mixed"), settings(), tasks()
    model, adapter = default_model_dir(), base / "adapter"
    with pytest.MonkeyPatch.context() as patch, stopped(patch):
        register_environments(envs, ROOT)
        demos = episodes_by_chance(model, base, pool, REPLIES, EPISODES)
        register_environments({}, ROOT)
    fit(demos, SftSettings(batch_size=4, epochs=2), model, adapter, lambda *_: None)
    folder = write_run(
        base / "run",
        model,
        adapter,
        run={"steps": 1},
        rollout={
            "tasks_per_step": len(pool),
            "group_size": GROUP,
            "max_turns": 4,
            "max_new_tokens": 48,
        },
        trainer={"lr": 4.0, "optimizer": "sgd", "clip_norm": 0.03, "dtype": "bf16"},
        engine={
            "kv_cache_gib": 1.0,
            "max_model_len": 1024,
            "dtype": "bfloat16",
            "lifecycle": "hotswap",
            "start_seconds": 900,
        },
    )
    keys = ("use", "passes", "style", "rewards", "config", "ends", "serve", "python")
    tables = [
        "\n[data.mix]\n" + "".join(f"{task.env} = 1.0\n" for task in pool),
        *(
            f"\n[envs.{name}]\n"
            + "".join(f"{k} = {toml_value(v)}\n" for k in keys if (v := getattr(one, k)))
            for name, one in envs.items()
        ),
    ]
    with open(folder / "run.toml", "a", encoding="utf-8") as file:
        file.writelines(tables)
    (base / "pool.jsonl").write_text("".join(encode(task) + "\n" for task in pool))
    held = Task("held", "increment", "", {"seed": 2})
    (base / "heldout.jsonl").write_text(encode(held) + "\n")
    try:
        done = subprocess.run(
            [*GRPO_RUN, str(folder)], capture_output=True, text=True, check=False, timeout=1000
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield Night(folder, model, adapter)
    finally:
        stop_engine(folder)


def test_a_step_on_all_environments_together_changes_the_adapter(night: Night) -> None:
    record = json.loads((night.folder / "step-001" / "step.json").read_text())
    assert record["outcome"] == "TRAINED"
    assert sum(record["groups"].values()) == len(REPLIES)
    assert record["environments"].keys() == REPLIES.keys()
    assert record["train"]["grad_norm"] > 0
    assert record["adapter_sha"] != record["parent_sha"]
    groups = list(read_bundle(night.folder / "step-001" / "trajectory_bundle.jsonl"))
    assert sorted(group.env for group in groups) == sorted(REPLIES)
    entries = Ledger(night.folder / "ledger.json").entries()
    assert [e.name for e in entries if e.name.startswith("env-")] == []


@pytest.mark.parametrize("name", REPLIES)
def test_a_group_of_each_environment_trains_a_step_of_its_own(
    night: Night, name: str, tmp_path: Path
) -> None:
    groups = read_bundle(night.folder / "step-001" / "trajectory_bundle.jsonl")
    (group,) = [group for group in groups if group.env == name]
    assert len(group.trajectories) == GROUP
    assert len({t.reward for t in group.trajectories}) > 1
    assert all(turn.logprobs for t in group.trajectories for turn in t.turns)
    bundle, out = tmp_path / "trajectory_bundle.jsonl", tmp_path / "out"
    bundle.write_text(encode_group(group) + "\n", encoding="utf-8")
    done = CliRunner().invoke(
        app,
        [
            f"--bundle={bundle}",
            f"--adapter-init={night.folder / 'step-000' / 'adapter'}",
            f"--reference-adapter={night.folder / 'step-000' / 'adapter'}",
            f"--model={night.model}",
            f"--out-dir={out}",
            "--optimizer=sgd",
            "--lr=4.0",
            "--clip-norm=0.03",
        ],
    )
    assert done.exit_code == 0, done.output
    record = json.loads((out / "train.json").read_text())
    assert record["outcome"] == "TRAINED"
    assert record["train"]["grad_norm"] > 0
