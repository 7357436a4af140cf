"""A taskset of verifiers 0.4 (v1), in its own packages: its harness is a program that speaks to its
endpoint, and our loop gives the replies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.envs.base import Reply, Site, Step
from rollout.envs.env_settings import EnvSettings
from rollout.envs.foreign.verifiers_world import dataset_rows, verifiers_environment
from rollout.sandbox.command import SandboxSettings
from scripts.environments.foreign_venv import add_environment
from scripts.environments.freeze import row_tasks
from tests.fieldkit.answering import answering
from tests.rollout.test_policies import says
from tests.scripts.typed import grpo

pytestmark = [pytest.mark.envs, pytest.mark.timeout(900)]

SUMS = Path(__file__).parents[1] / "verifiers_examples" / "sums_v1.py"


@pytest.fixture(scope="module")
def settings() -> EnvSettings:
    python = str(add_environment(str(SUMS)).python)
    return EnvSettings(str(SUMS), "right == 1", style="verifiers", python=python, call_seconds=300)


def test_a_taskset_is_played_scored_and_ended_by_a_limit(
    settings: EnvSettings, tmp_path: Path
) -> None:
    rows = dataset_rows("sums", settings, Path("/"), "train", 3, 0, tmp_path)
    tasks = row_tasks("sums", rows, "rows")
    environment = verifiers_environment("sums", settings, Path("/"))
    site = Site(SandboxSettings(), tmp_path)

    async def play(number: int, *replies: str) -> tuple[list[Step], dict[str, float | None], bool]:
        world = environment.make(site)
        opening = await world.reset(tasks[number], 0)
        assert opening.messages == ({"role": "user", "content": rows[number]["prompt"]},)
        steps = [await world.step(Reply(reply)) for reply in replies]
        grade = await world.grade()
        await world.close()
        return steps, {part.name: part.value for part in grade.rewards}, grade.passed

    async def all_of_them() -> None:
        (step,), parts, passed = await play(0, f"{rows[0]['answer']}.")
        assert step.stop == "TASK_COMPLETE"
        assert (parts, passed) == ({"right": 1.0, "short": 1.0}, True)
        assert await play(0) == ([], {"right": 0.0, "short": 1.0}, False)
        limited = environment.make(site)
        await limited.reset(tasks[0], 0)
        over = (await limited._ask("end"))["over"]  # type: ignore[attr-defined]
        assert [(name, value) for name, value, _ in over["rewards"]] == [
            ("right", 0.0),
            ("short", 1.0),
        ]
        await limited.close()
        found = await asyncio.gather(*(play(i, "I do not know, I am sorry.") for i in range(3)))
        assert [parts for _, parts, _ in found] == [{"right": 0.0, "short": 0.0}] * 3

    asyncio.run(all_of_them())


def test_a_harness_that_runs_commands_on_this_machine_is_refused(
    settings: EnvSettings, tmp_path: Path
) -> None:
    bash = replace(settings, config={"agent": {"harness": {"id": "bash"}}})
    with pytest.raises(BadInput, match=r"its harness 'bash' would run the policy's commands"):
        dataset_rows("sums", bash, Path("/"), "train", 1, 0, tmp_path)


def test_an_endpoint_is_evaluated_on_its_rows() -> None:
    listed = json.dumps({"data": [{"id": "m", "max_model_len": 4096}]})
    with answering([says("It is 0, 2, 4, 6, 8, 10, 12 or 14.")], 200, listed) as endpoint:
        words = ("env", "eval", SUMS, "--passes", "right == 1", "--tasks", "2", "--json")
        ended = grpo(*words, "--endpoint", endpoint.base_url)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["summary"]["n_tasks"] == 2
    assert {a["messages"][-1]["content"][:8] for a in endpoint.asked} == {"What is "}


def test_an_environment_of_v0_is_told_which_version_it_needs(
    settings: EnvSettings, tmp_path: Path
) -> None:
    old = replace(settings, use=str(SUMS.with_name("everything.py")))
    with pytest.raises(BadInput, match=r"`grpo env add \S+ --with 'verifiers<0\.4'` makes"):
        dataset_rows("sums", old, Path("/"), "train", 1, 0, tmp_path)
