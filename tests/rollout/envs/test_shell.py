from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.shell import Environment, make_environment, system_prompt
from rollout.sandbox.base import SandboxSettings


def task(**changes: Any) -> Task:
    info: dict[str, Any] = {
        "workspace_seed": {
            "files": [{"path": "notes/a.txt", "kind": "text", "content": "one\ntwo\n"}]
        },
        "verifiable_assertions": [
            {"kind": "file_contents_contain", "path": "b.txt", "must_contain": ["2"]},
            {"kind": "file_unchanged", "path": "notes/a.txt"},
        ],
    }
    return Task("t-1", "clawgym", "Count the lines.", {**info, **changes})


@pytest_asyncio.fixture
async def environment(tmp_path: Path) -> AsyncIterator[Environment]:
    settings = SandboxSettings(command_seconds=20, output_bytes=100_000)
    made = make_environment("clawgym", settings, tmp_path)
    try:
        await made.reset(task())
        yield made
    finally:
        await made.close()


async def test_the_oracle_passes(environment: Environment) -> None:
    step = await environment.step("wc -l < notes/a.txt > b.txt")
    assert (step.observation, step.exit_code) == ("(no output)", 0)
    assert (step.reward, step.done) == (0.5, False)
    assert (await environment.grade()).passed


async def test_doing_nothing_keeps_the_seed_and_no_more(environment: Environment) -> None:
    grade = await environment.grade()
    assert [r.passed for r in grade.results] == [False, True]


async def test_output_is_observed_as_it_was_written(environment: Environment) -> None:
    assert (await environment.step("cat notes/a.txt")).observation == "one\ntwo"


async def test_a_failure_is_observed_with_its_exit_code(environment: Environment) -> None:
    step = await environment.step("echo before; cat missing")
    assert step.exit_code == 1
    assert step.observation == "[exit 1]\nbefore\ncat: missing: No such file or directory"


async def test_a_silent_failure_is_observed(environment: Environment) -> None:
    assert (await environment.step("false")).observation == "[exit 1]\n(no output)"


async def test_a_flood_is_observed_as_one(environment: Environment) -> None:
    observation = (await environment.step("yes")).observation
    assert observation.startswith("[ended after 100000 bytes of output]\ny\ny\n")
    assert len(observation) < 1000


async def test_a_timeout_is_observed_as_one(tmp_path: Path) -> None:
    environment = make_environment("clawgym", SandboxSettings(command_seconds=1.5), tmp_path)
    try:
        await environment.reset(task())
        step = await environment.step("echo begun; sleep 1000")
    finally:
        await environment.close()
    assert step.observation == "[ended after 1.5 s: time limit]\nbegun"
    assert step.exit_code == 124


async def test_a_reset_starts_from_the_seed_again(environment: Environment) -> None:
    await environment.step("echo changed > notes/a.txt; touch left /tmp/left .hidden")
    await environment.reset(task())
    step = await environment.step("cat notes/a.txt; ls -A . /tmp")
    assert step.observation == "one\ntwo\n.:\nnotes\n\n/tmp:"


async def test_two_episodes_that_do_the_same_see_the_same(
    environment: Environment, tmp_path: Path
) -> None:
    other = make_environment("clawgym", SandboxSettings(), tmp_path / "elsewhere")
    commands = ("pwd; id; env", "ls -l notes; echo ~", "echo $$; hostname", "ls /nowhere /tmp ~")
    try:
        await other.reset(task())
        for command in commands:
            assert await environment.step(command) == await other.step(command)
    finally:
        await other.close()


async def test_a_hostile_workspace_is_graded_not_followed(environment: Environment) -> None:
    await environment.step("ln -s /etc/hostname b.txt; rm -r notes; mkfifo notes")
    assert [r.passed for r in (await environment.grade()).results] == [False, False]


async def test_a_malformed_task_is_named(environment: Environment) -> None:
    bad = task(verifiable_assertions=[{"kind": "file_exists", "path": "../x"}])
    with pytest.raises(BadInput, match=r"task t-1: verifiable_assertions\.0\.path: '\.\./x'"):
        await environment.reset(bad)


async def test_close_may_come_first_and_twice(tmp_path: Path) -> None:
    environment = make_environment("clawgym", SandboxSettings(), tmp_path)
    await environment.close()
    await environment.reset(task())
    await environment.close()
    await environment.close()


def test_the_system_text_is_the_one_the_warm_start_was_taught() -> None:
    assert system_prompt("clawgym") == (
        "You work in a Linux shell. Each turn, write one ```bash block. "
        "When the task is done, write TASK_COMPLETE."
    )


def test_an_unknown_environment_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'clawgim' is unknown; known: clawgym; did you mean"):
        make_environment("clawgim", SandboxSettings(), tmp_path)
    with pytest.raises(BadInput, match="known: clawgym"):
        system_prompt("chess")
