from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.grade import Grade
from fieldkit.records import Task
from rollout.envs.base import Reply, Site, Step, World
from rollout.envs.configured import register_environments
from rollout.envs.registry import make_world
from rollout.envs.shell import SYSTEM_PROMPT, ShellWorld
from rollout.sandbox.command import SandboxSettings


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


async def run(world: World, command: str) -> Step:
    return await world.step(Reply(f"```bash\n{command}\n```"))


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    settings = SandboxSettings(command_seconds=20, output_bytes=100_000)
    made = make_world(task(), Site(settings, tmp_path))
    try:
        await made.reset(task(), 0)
        yield made
    finally:
        await made.close()


async def test_the_oracle_passes(world: World) -> None:
    step = await run(world, "wc -l < notes/a.txt > b.txt")
    assert (step.said, step.exit_code) == ("(no output)", 0)
    assert (step.reward, step.stop) == (0.5, None)
    assert (await world.grade()).passed


async def test_doing_nothing_keeps_the_seed_and_no_more(world: World) -> None:
    grade = await world.grade()
    assert [r.passed for r in grade.results] == [False, True]


@pytest.mark.parametrize(("pay_implied", "earned"), [(True, (0.5, 0.5)), (False, (0.0, 1.0))])
async def test_a_step_earns_what_the_reward_pays(
    tmp_path: Path, pay_implied: bool, earned: tuple[float, float]
) -> None:
    """An empty b.txt is half of two assertions, and nothing where its existence is implied."""
    listed = [
        {"kind": "file_exists", "path": "b.txt"},
        {"kind": "file_contents_contain", "path": "b.txt", "must_contain": ["2"]},
    ]
    played = task(verifiable_assertions=listed)
    world = make_world(played, Site(SandboxSettings(), tmp_path, pay_implied=pay_implied))
    try:
        await world.reset(played, 0)
        first, second = await run(world, "touch b.txt"), await run(world, "echo 2 > b.txt")
        assert (first.reward, second.reward) == earned
    finally:
        await world.close()


async def test_output_is_observed_as_it_was_written(world: World) -> None:
    assert (await run(world, "cat notes/a.txt")).said == "one\ntwo"


async def test_a_failure_is_observed_with_its_exit_code(world: World) -> None:
    step = await run(world, "echo before; cat missing")
    assert step.exit_code == 1
    assert step.said == "[exit 1]\nbefore\ncat: missing: No such file or directory"


async def test_a_silent_failure_is_observed(world: World) -> None:
    assert (await run(world, "false")).said == "[exit 1]\n(no output)"


async def test_a_flood_is_observed_as_one(world: World) -> None:
    observation = (await run(world, "yes")).said or ""
    assert observation.startswith("[ended after 100000 bytes of output]\ny\ny\n")
    assert len(observation) < 1000


async def test_a_timeout_is_observed_as_one(tmp_path: Path) -> None:
    world = make_world(task(), Site(SandboxSettings(command_seconds=1.5), tmp_path))
    try:
        await world.reset(task(), 0)
        step = await run(world, "echo begun; sleep 1000")
    finally:
        await world.close()
    assert step.said == "[ended after 1.5 s: time limit]\nbegun"
    assert step.exit_code == 124


async def test_a_reset_starts_from_the_seed_again(world: World) -> None:
    await run(world, "echo changed > notes/a.txt; touch left /tmp/left .hidden")
    await world.reset(task(), 0)
    step = await run(world, "cat notes/a.txt; ls -A . /tmp")
    assert step.said == "one\ntwo\n.:\nnotes\n\n/tmp:"


async def test_two_episodes_that_do_the_same_see_the_same(world: World, tmp_path: Path) -> None:
    other = make_world(task(), Site(SandboxSettings(), tmp_path / "elsewhere"))
    commands = ("pwd; id; env", "ls -l notes; echo ~", "echo $$; hostname", "ls /nowhere /tmp ~")
    try:
        await other.reset(task(), 0)
        for command in commands:
            assert await run(world, command) == await run(other, command)
    finally:
        await other.close()


async def test_a_hostile_workspace_is_graded_not_followed(world: World) -> None:
    await run(world, "ln -s /etc/hostname b.txt; rm -r notes; mkfifo notes")
    assert [r.passed for r in (await world.grade()).results] == [False, False]


async def test_a_malformed_task_is_named(world: World) -> None:
    bad = task(verifiable_assertions=[{"kind": "file_exists", "path": "../x"}])
    with pytest.raises(BadInput, match=r"task t-1: verifiable_assertions\.0\.path: '\.\./x'"):
        await world.reset(bad, 0)


async def test_close_may_come_first_and_twice(tmp_path: Path) -> None:
    world = make_world(task(), Site(SandboxSettings(), tmp_path))
    await world.close()
    await world.reset(task(), 0)
    await world.close()
    await world.close()
    assert list(tmp_path.iterdir()) == [], "nothing of an episode is left"


def test_the_system_text_is_the_one_the_warm_start_was_taught() -> None:
    assert SYSTEM_PROMPT == (
        "You work in a Linux shell. Each turn, write one ```bash block. "
        "When the task is done, write TASK_COMPLETE."
    )


def test_an_unknown_environment_names_the_nearest(tmp_path: Path) -> None:
    register_environments({}, tmp_path)  # those of a run that another test read
    with pytest.raises(BadInput, match="'clawgim' is unknown; known: clawgym; did you mean"):
        make_world(replace(task(), env="clawgim"), Site(SandboxSettings(), tmp_path))


async def test_a_workspace_that_cannot_be_read_is_played_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(workspace: Path) -> Grade:
        raise OSError(errno.EIO, "Input/output error")

    await world.reset(task(), 0)
    assert isinstance(world, ShellWorld)
    monkeypatch.setattr(world._grader, "grade", fails)
    with pytest.raises(Unavailable, match="cannot be graded"):
        await world.grade()
