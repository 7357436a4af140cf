"""One group of real rollouts and one trained step in each kind of verifiers environment: the real
engine, the real trainer, a two-layer model that acts by chance, and one night over all of them.

What differs within a group is what each environment's own rubric says.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode, read_bundle
from fieldkit.records import Trajectory
from rollout.engine.serve import stop_engine
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from scripts.base.checkout import ROOT
from scripts.environments.foreign_venv import add_environment
from scripts.environments.freeze import dataset_tasks
from scripts.run.assignments import toml_value
from tests.chaos.night import GRPO_RUN
from tests.rollout.envs.openenv.tiny_player import make_tiny_player
from tests.tiny_policy import write_run

pytestmark = [pytest.mark.envs, pytest.mark.engine, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[1] / "verifiers_examples"
GROUP = 16

PASSES = {
    "reasoning": "check_answer_reward_func >= 1",
    "tools": "right == 1",
    "till": "paid >= 4",
    "sums": "right == 1",
}
"""`ReasoningGymEnv`, a `ToolEnv`, a `StatefulToolEnv`, a v1 taskset; and when each is passed."""


def replies(answers: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """What the model says in each environment: some of it is right, some is not."""
    half = int(answers.get("tools", 0)) // 2
    known = {
        "reasoning": (f"<answer>\n{answers.get('reasoning')}\n</answer>", "I do not know."),
        "tools": (
            f'add {{"a": {half}, "b": {half}}}',
            f"It is {answers.get('tools')}.",
            "I do not know.",
        ),
        "till": ('pay {"coins": 2}', 'pay {"coins": 1}', "Paid."),
        "sums": (f"{answers.get('sums')}.", "I do not know."),
    }
    return {name: known[name] for name in answers}


def settings_of(file: str, *names: str, **more: Any) -> dict[str, EnvSettings]:
    """The environments of a file, in the virtual environment that it needs."""
    path = EXAMPLES / file
    python = str(add_environment(str(path)).python)
    return {
        name: EnvSettings(str(path), PASSES[name], style="verifiers", python=python, **more)
        for name in names
    }


@dataclass(frozen=True)
class Trained:
    """A step: its group, and what the trainer made of it."""

    group: tuple[Trajectory, ...]
    record: dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """A night of one step for each v0 environment, and one for the v1 taskset; by environment.

    The tiny model has no room for the replies of all four."""
    kinds = settings_of("everything.py", "reasoning", "tools", "till")
    v0 = {name: replace(one, config={"kind": name}) for name, one in kinds.items()}
    # Each episode of a v1 taskset starts a program, 16 of them at once here.
    v1 = settings_of("sums_v1.py", "sums", call_seconds=300)
    base = tmp_path_factory.mktemp("theirs")
    return {**played(base / "v0", v0), **played(base / "v1", v1)}


def played(base: Path, settings: Mapping[str, EnvSettings]) -> dict[str, Trained]:
    """A night on a group of each environment; by environment."""
    rows = {n: dataset_tasks(n, asked, ROOT, "train", 2, 0) for n, asked in settings.items()}
    pool = [first for first, _ in rows.values()]
    answers = {task.env: str(task.info["answer"]) for task in pool}
    if "reasoning" in rows:  # its rows hold a number instead of the answer
        asked = rows["reasoning"][0].prompt.removeprefix("Calculate ").removesuffix(".")
        answers["reasoning"] = str(round(eval(asked)))
    base.mkdir()
    register_environments(settings, ROOT)
    try:
        model, adapter = make_tiny_player(base, pool, replies(answers))
    finally:
        register_environments({}, ROOT)
    folder = write_run(
        base / "run",
        model,
        adapter,
        run={"steps": len(pool)},
        rollout={"tasks_per_step": 1, "group_size": GROUP, "max_turns": 4, "max_new_tokens": 24},
        engine={"max_model_len": 1024, "lifecycle": "hotswap", "start_seconds": 900},
    )
    tables = [
        f"\n[envs.{name}]\n"
        + "".join(
            f"{key} = {toml_value(getattr(one, key))}\n"
            for key in ("use", "style", "passes", "python", "config", "call_seconds")
        )
        for name, one in settings.items()
    ]
    with open(folder / "run.toml", "a", encoding="utf-8") as file:
        file.writelines(tables)
    (base / "pool.jsonl").write_text("".join(encode(task) + "\n" for task in pool))
    (base / "heldout.jsonl").write_text(encode([*rows.values()][-1][1]) + "\n")
    try:
        done = subprocess.run(
            [*GRPO_RUN, str(folder)], capture_output=True, text=True, check=False, timeout=800
        )
    finally:
        stop_engine(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    of_task = {task.task_id: task.env for task in pool}
    found = {}
    for step in sorted(folder.glob("step-*"))[1:]:
        record = json.loads((step / "step.json").read_text())
        for group in read_bundle(step / "trajectory_bundle.jsonl"):
            found[of_task[group.task_id]] = Trained(group.trajectories, record)
    return found


@pytest.mark.parametrize("name", PASSES)
def test_a_group_of_each_kind_trains_a_step_on_what_its_rubric_says(
    trained: dict[str, Trained], name: str
) -> None:
    step = trained[name]
    assert len(step.group) == GROUP
    assert len({t.reward for t in step.group}) > 1
    assert all(turn.logprobs for t in step.group for turn in t.turns)
    assert step.record["outcome"] == "TRAINED"
    assert step.record["groups"] == {"LEARNABLE": 1}
    assert step.record["train"]["grad_norm"] > 0
    assert step.record["adapter_sha"] != step.record["parent_sha"]


def test_the_tools_ran_and_a_till_kept_its_episodes_apart(trained: dict[str, Trained]) -> None:
    tools = trained["tools"].group
    used = [t for t in tools if any(p.name == "add_calls" and p.value for p in t.grade.rewards)]
    assert used
    assert all(t.turns[0].observation is not None for t in used)
    for t in trained["till"].group:
        told = [turn.observation for turn in t.turns if turn.observation is not None]
        paid = [2 if "2" in turn.action.command else 1 for turn in t.turns if turn.observation]
        assert told == [f"{sum(paid[: i + 1])} in the till" for i in range(len(told))]
        (part,) = [p for p in t.grade.rewards if p.name == "paid"]
        assert part.value == sum(paid)
    assert len({p.value for t in trained["till"].group for p in t.grade.rewards}) > 2
