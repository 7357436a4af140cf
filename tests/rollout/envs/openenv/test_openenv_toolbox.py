"""A server's episodes: its tools, what the policy reads, its rewards and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from rollout.envs.openenv.openenv_toolbox import OpenEnv, OpenEnvToolbox, Source, reset_options
from rollout.envs.tool_calls import ToolCall
from rollout.envs.tool_world import ToolFailure
from scripts.base.checkout import ROOT
from tests.rollout.envs.openenv.openenv_local import DOUBLE, QUICK, THIS_PYTHON, begin, opened


def source(app: str = "app", **other: Any) -> Source:
    how = Source("guess", serve=f"{DOUBLE}:{app}", python=THIS_PYTHON, limits=QUICK)
    return replace(how, **other)


def environment(of: Source, folder: Path) -> OpenEnv:
    return OpenEnv(of, ROOT, folder / "ledger.json", folder / "log", lambda line: None)


@pytest.fixture(scope="module")
def guess(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenEnv]:
    env = environment(source(), tmp_path_factory.mktemp("guess"))
    yield env
    env.stop()


async def test_an_episode_is_told_its_tools_played_and_paid(guess: OpenEnv) -> None:
    episode, seen = await opened(guess, {"seed": 3})
    assert seen == "Guess my number."
    assert [s["function"]["name"] for s in episode.schemas] == ["guess"]
    assert await episode.call(ToolCall("guess", {"number": 9})) == "Lower."
    assert not episode.done
    assert await episode.call(ToolCall("guess", {"number": 4})) == "Right."
    assert episode.done
    assert episode.earned == [-0.1, 1.0]
    assert episode.reward == pytest.approx(0.9)
    with pytest.raises(ToolFailure, match="over"):
        await episode.call(ToolCall("guess", {"number": 4}))
    await episode.close()
    await episode.close()


async def test_what_a_policy_does_wrong_is_for_it_to_read(guess: OpenEnv) -> None:
    episode = await begin(guess, {"seed": 3})
    with pytest.raises(ToolFailure, match="Tool shout not found"):
        await episode.call(ToolCall("shout", {}))
    with pytest.raises(ToolFailure, match="number: Input should be a valid integer"):
        await episode.call(ToolCall("guess", {"number": "four"}))
    assert await episode.call(ToolCall("guess", {"number": "4"})) == "Right."
    assert episode.reward == 1.0
    await episode.close()


async def test_an_episode_without_a_step_has_earned_nothing(guess: OpenEnv) -> None:
    episode = await begin(guess, {})
    assert episode.reward == 0.0
    await episode.close()


async def test_an_environment_that_gives_no_reward_has_none(guess: OpenEnv) -> None:
    episode = OpenEnvToolbox(guess)
    episode.earned, episode.done = [None, None], True
    assert episode.reward is None
    episode.earned = [None, 0.5]
    assert episode.reward == 0.5


async def test_an_episode_that_never_came_to_the_step_that_pays_is_worth_what_was_given(
    guess: OpenEnv,
) -> None:
    """Without a reward it would be compared with none: one that won and one that stalled would be a
    group of which nothing is learned."""
    episode = OpenEnvToolbox(guess)
    assert episode.reward == 0
    episode.earned = [None, None]
    assert episode.reward == 0


async def test_two_episodes_know_nothing_of_each_other(guess: OpenEnv) -> None:
    first, second = await begin(guess, {"seed": 3}), await begin(guess, {"seed": 3})
    await first.call(ToolCall("guess", {"number": 4}))
    assert first.done
    assert not second.done
    assert second.earned == []
    await first.close()
    assert await second.call(ToolCall("guess", {"number": 4})) == "Right."
    await second.close()


async def test_the_tools_of_an_mcp_environment_are_its_own(tmp_path: Path) -> None:
    env = environment(source("tools"), tmp_path)
    episode = await begin(env, {"seed": 3})
    assert [s["function"]["name"] for s in episode.schemas] == ["guess", "peek"]
    assert await episode.call(ToolCall("peek", {})) == "4"
    with pytest.raises(ToolFailure, match="Field required"):
        await episode.call(ToolCall("guess", {}))
    assert await episode.call(ToolCall("guess", {"number": 4})) == "Right."
    await episode.close()
    env.stop()


async def test_a_closed_episode_is_not_played_on(guess: OpenEnv) -> None:
    episode = await begin(guess, {})
    await episode.close()
    with pytest.raises(Unavailable, match="closed"):
        await episode.call(ToolCall("guess", {"number": 4}))


async def test_a_server_that_dies_in_a_step_is_unavailable_and_the_next_episode_has_a_new_one(
    tmp_path: Path,
) -> None:
    env = environment(source(), tmp_path)
    episode = await begin(env, {"fault": "step:die"})
    with pytest.raises(Unavailable, match="hung up"):
        await episode.call(ToolCall("guess", {"number": 4}))
    await episode.close()
    again = await begin(env, {"seed": 3})
    assert await again.call(ToolCall("guess", {"number": 4})) == "Right."
    await again.close()
    env.stop()


async def test_nobody_at_a_url_is_said_at_once() -> None:
    env = OpenEnv(Source("far", url="http://127.0.0.1:9"), ROOT, ROOT, ROOT, pytest.fail)
    async with asyncio.timeout(5):
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:9/schema: no answer .* running"):
            await begin(env, {})


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"serve": ""}, "name a server: url = … or serve = …"),
        ({"python": None}, "needs python"),
        ({"url": "http://example.org:80"}, "which port of this machine"),
        ({"url": "127.0.0.1"}, "which port of this machine"),
    ],
)
def test_a_wrong_source_says_what_to_write(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        OpenEnv(source(**wrong), ROOT, ROOT, ROOT, pytest.fail)


def test_a_row_goes_to_reset_and_its_own_seed_comes_first() -> None:
    assert reset_options({"game": "a", "level": None}, 2**40 + 5) == {"seed": 5, "game": "a"}
    assert reset_options({"seed": 7}, 5) == {"seed": 7}
