"""Servers that openenv's own `create_app` makes, in their own virtual environment, as a user writes
them (docs/openenv). `make test-envs` makes that environment and runs these."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from fieldkit.errors import BadInput, Unavailable
from fieldkit.process.ledger import Ledger
from fieldkit.records import StopReason, Task, Trajectory
from reward.reward import Reward
from rollout.engine.serve import stop_engine
from rollout.envs.base import Site
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.envs.openenv.openenv_server import Launch
from rollout.envs.openenv.openenv_style import source_of
from rollout.envs.openenv.openenv_toolbox import OpenEnv, OpenEnvToolbox, Source
from rollout.envs.registry import make_world
from rollout.envs.tool_calls import ToolCall
from rollout.envs.tool_world import ToolFailure
from rollout.player import Player
from rollout.policies import WrittenSampler, sampled
from rollout.sandbox.command import SandboxSettings
from rollout.seeds import world_seed
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from scripts.phases.training.kept_trainer import stop_trainer
from scripts.prepare.model import build_model
from tests.chaos.night import GRPO_RUN, SITE
from tests.rollout.envs.openenv import openenv_moves as moves
from tests.rollout.envs.openenv.openenv_local import begin, launch, local, opened, play, stopped
from tests.tiny_policy import write_run

pytestmark = [pytest.mark.envs, pytest.mark.timeout(600)]

PYTHON = ROOT / ".venv-openenv/bin/python"
GUESS = Launch("guess", "docs/openenv/guess_server.py:app", PYTHON, ROOT)


@pytest.fixture(scope="module")
def env(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenEnv]:
    """The server of docs/openenv/NAME_server.py."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    source = Source(name, serve=f"docs/openenv/{name}_server.py:app", python=PYTHON)
    one = OpenEnv(source, ROOT, folder / "ledger.json", folder / "log", print)
    yield one
    one.stop()


def of(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("env", names, indirect=True)


# -- the protocol ----------------------------------------------------------------------------------

TALK = (
    {"type": "reset", "data": {"seed": 3}},
    {"type": "step", "data": {"number": 9}},
    {"type": "step", "data": {"number": "2"}},
    {"type": "step", "data": {"number": "two"}},
    {"type": "step", "data": {"size": 2}},
    {"type": "step", "data": {"number": 11}},
    {"type": "dance"},
    {"type": "step", "data": {"number": 4}},
    {"type": "reset", "data": {"seed": 4, "level": "easy"}},
)


async def heard(url: str) -> list[Any]:
    """What a server answers to `TALK`, and to what is no JSON."""
    async with connect(f"{url.replace('http', 'ws')}/ws") as socket:
        answers = []
        for said in (*map(json.dumps, TALK), "{"):
            await socket.send(said)
            answers.append(_bare(json.loads(await socket.recv())))
        await socket.send(json.dumps({"type": "close"}))
        await socket.wait_closed()
        return answers


def _bare(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what pydantic says beside place and message."""
    if "errors" in answer["data"]:
        errors = [{k: e[k] for k in ("type", "loc", "msg")} for e in answer["data"]["errors"]]
        answer["data"]["errors"] = errors
    return answer


async def test_the_double_answers_as_a_real_server_does(tmp_path: Path) -> None:
    with local(GUESS, tmp_path / "real") as real, local(launch(), tmp_path / "double") as double:
        urls = [await real.address(), await double.address()]
        said, same = [await heard(url) for url in urls]
        assert said == same
        async with httpx.AsyncClient() as http:
            schemas = [(await http.get(f"{url}/schema")).json()["action"] for url in urls]
        for schema in schemas:
            schema["properties"]["metadata"] = schema["properties"].pop("metadata")["type"]
        assert schemas[0] == schemas[1]


async def test_the_double_refuses_a_session_as_a_real_server_does(tmp_path: Path) -> None:
    refusals = []
    real = Launch("guess", "docs/openenv/guess_server.py:one", PYTHON, ROOT)
    for how in (real, launch("one")):
        with local(how, tmp_path) as server:
            url = (await server.address()).replace("http", "ws")
            async with connect(f"{url}/ws"), connect(f"{url}/ws") as second:
                refusals.append(json.loads(await second.recv()))
    for refusal in refusals:
        assert refusal["type"] == "error"
        del refusal["data"]["message"]
    assert refusals[0] == refusals[1]
    assert refusals[0]["data"] == {
        "code": "CAPACITY_REACHED",
        "active_sessions": 1,
        "max_sessions": 1,
    }


@of("guess")
async def test_what_a_real_environment_raises_is_for_the_policy_to_read(env: OpenEnv) -> None:
    episode = await begin(env, {"seed": 3})
    with pytest.raises(ToolFailure, match="the number is from 1 to 10"):
        await episode.call(ToolCall("guess", {"number": 11}))
    with pytest.raises(ToolFailure, match="number: Field required"):
        await episode.call(ToolCall("guess", {}))
    assert await episode.call(ToolCall("guess", {"number": 4})) == "Right."
    await episode.close()


# -- games -----------------------------------------------------------------------------------------


async def win(episode: OpenEnvToolbox, move: moves.Moves) -> list[str]:
    """Play to the end; the moves."""
    (schema,) = episode.schemas
    function = schema["function"]
    (field,) = function["parameters"]["properties"]
    made: list[str] = []
    text = next(move)
    try:
        while True:
            made.append(text)
            seen = await episode.call(ToolCall(function["name"], {field: text}))
            if episode.done:
                return made
            text = move.send(seen)
    finally:
        await episode.close()


@of("echo")
async def test_echo(env: OpenEnv) -> None:
    episode, seen = await opened(env, {"word": "tea"})
    assert seen == "Say tea."
    assert await win(episode, moves.echo(seen)) == ["tea"]
    assert episode.earned == [1.0]


@of("catch")
async def test_catch_is_won_in_nine_moves_and_lost_by_standing_still(env: OpenEnv) -> None:
    episode, seen = await opened(env, {"seed": 1})
    assert len(await win(episode, moves.catch(seen))) == 9
    assert episode.earned == [None] * 8 + [1.0]
    lost = await begin(env, {"seed": 1})
    await win(lost, always("left"))
    assert lost.reward == -1.0


def always(move: str) -> moves.Moves:
    while True:
        yield move


@of("textarena")
@pytest.mark.parametrize("game", moves.GAMES)
async def test_a_game_of_textarena_is_won_and_begins_equally_under_one_seed(
    env: OpenEnv, game: str
) -> None:
    openings = set()
    for _ in range(2):
        episode, seen = await opened(env, {"game": game, "seed": 11})
        openings.add(seen)
        await win(episode, moves.GAMES[game](seen))
        assert episode.reward == 1.0
    assert len(openings) == 1


@pytest.mark.parametrize(
    ("name", "row", "how"),
    [
        ("echo", {"word": "tea"}, moves.echo),
        ("catch", {}, moves.catch),
        ("wordle", {}, moves.wordle),
        *(("textarena", {"game": game}, how) for game, how in moves.GAMES.items()),
    ],
)
def test_an_episode_of_every_game_is_played_by_the_player(
    name: str,
    row: dict[str, Any],
    how: Callable[[str], moves.Moves],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The moves that win are found in one episode and recited in another of the same task."""
    settings = EnvSettings(
        use="",
        style="openenv",
        serve=f"docs/openenv/{name}_server.py:app",
        python=str(PYTHON),
        passes="reward >= 1",
    )
    task = Task("one", name, "Play. ", row)
    with stopped(monkeypatch):
        register_environments({name: settings}, ROOT)

        async def found() -> list[str]:
            source = source_of(name, settings, ROOT)
            one = OpenEnv(source, ROOT, tmp_path / "ledger.json", tmp_path / "log", print)
            episode, seen = await opened(one, row, world_seed(task.task_id))
            tool = episode.schemas[0]["function"]["name"]
            made = [f"{tool}: {move}" for move in await win(episode, how(seen))]
            one.stop()
            return made

        replies = asyncio.run(found())
        played = play(task, replies, tmp_path)
    register_environments({}, ROOT)
    assert len(played.turns) == len(replies)
    assert played.stop_reason is StopReason.ENV_DONE
    assert played.reward == 1.0
    assert played.grade.passed


def test_a_game_of_dozens_of_moves_ends_where_the_context_is_full(tmp_path: Path) -> None:
    """Sudoku, each move answered with the grid: won within 32,768 tokens, and with 2,048 ended
    before a prompt and a reply would not fit, with all that was played on record."""
    settings = EnvSettings(
        use="",
        style="openenv",
        serve="docs/openenv/textarena_server.py:app",
        python=str(PYTHON),
        passes="reward >= 1",
    )
    task = Task("long", "games", "Play. ", {"game": "Sudoku-v0-hard"})
    chat = ChatRenderer(build_model())
    with pytest.MonkeyPatch.context() as patch, stopped(patch):
        register_environments({"games": settings}, ROOT)

        def played(room: int) -> Trajectory:
            made: list[moves.Moves] = []

            def write(seed: int, ids: Sequence[int]) -> str:
                if not made:
                    made.append(moves.sudoku(chat.decode(ids)))
                return f"play: {next(made[0])}"

            player = Player(
                policy=sampled(WrittenSampler(write, chat), chat),
                worlds=lambda t: make_world(t, Site(SandboxSettings(), tmp_path)),
                settings=EpisodeSettings(max_turns=90, max_model_len=room),
                adapter_sha="written",
                policy_version="written",
                reward=Reward(),
            )
            return asyncio.run(player.play(task, 0, lambda turn: turn + 1))

        won, cut = played(32_768), played(2_048)
    register_environments({}, ROOT)
    assert won.stop_reason is StopReason.ENV_DONE
    assert won.grade.passed
    assert len(won.turns) > 48
    assert cut.stop_reason is StopReason.CONTEXT_FULL
    assert (cut.grade.passed, cut.reward) == (False, 0.0)
    most = len(cut.turns)
    assert [t.text for t in cut.turns] == [t.text for t in won.turns[:most]]
    assert len(cut.turns[-1].prompt_ids) + 96 <= 2_048 < len(won.turns[most].prompt_ids) + 96


@of("textarena")
async def test_a_game_that_needs_a_download_says_which(env: OpenEnv) -> None:
    with pytest.raises(Unavailable, match=r"reset: .*Resource 'words' not found"):
        await begin(env, {"game": "Wordle-v0"})


@of("wordle")
async def test_wordle_is_won_with_the_words_of_a_wheel(env: OpenEnv) -> None:
    """Each game with the secret of its seed; a lost one is worth what its last guess had right."""
    openings = set()
    for seed in range(8):
        for game in ("Wordle-offline-v0", "Wordle-offline-v0-long"):
            episode, seen = await opened(env, {"game": game, "seed": seed})
            openings.add(seen)
            await win(episode, moves.wordle(seen))
            assert episode.reward == 1.0
    assert len(openings) == 2
    lost = await begin(env, {"seed": 3})  # the secret is "cycle"
    seen = await lost.call(ToolCall("play", {"move": "[crane]"}))
    assert "C R A N E\nG X X X G" in seen
    seen = await lost.call(ToolCall("play", {"move": "[zzzzz]"}))
    assert "'zzzzz' is not an English word" in seen
    await lost.call(ToolCall("play", {"move": "[zzzzz]"}))
    assert (lost.done, lost.reward) == (True, 0.4)
    await lost.close()


@of("textarena")
async def test_games_that_begin_at_the_same_time_are_each_their_seeds(env: OpenEnv) -> None:
    """TextArena seeds one generator for the whole process."""

    async def opening(seed: int) -> str:
        episode, seen = await opened(env, {"game": "FrozenLake-v0", "seed": seed})
        await episode.close()
        return seen

    alone = [await opening(seed) for seed in range(16)]
    assert await asyncio.gather(*map(opening, range(16))) == alone
    assert len(set(alone)) > 8


@of("shop")
async def test_the_tools_of_a_real_mcp_environment(env: OpenEnv) -> None:
    episode = await begin(env, {})
    assert [s["function"]["name"] for s in episode.schemas] == ["pay", "price"]
    assert await episode.call(ToolCall("price", {"fruit": "pear"})) == "4"
    with pytest.raises(ToolFailure, match="no kiwi; there are apple, pear, plum"):
        await episode.call(ToolCall("price", {"fruit": "kiwi"}))
    assert await episode.call(ToolCall("pay", {"amount": 10})) == "Thank you."
    assert (episode.done, episode.reward) == (True, 1.0)
    await episode.close()


@of("catch")
async def test_64_sessions_at_once(env: OpenEnv) -> None:
    begun = await asyncio.gather(*(opened(env, {"seed": i}) for i in range(64)))
    await asyncio.gather(*(win(episode, moves.catch(seen)) for episode, seen in begun))
    assert [episode.reward for episode, _ in begun] == [1.0] * 64


async def test_256_sessions_at_once_and_a_slow_one_stalls_none(tmp_path: Path) -> None:
    gate = "tests/rollout/envs/openenv/gate_server.py:app"
    source = Source("gate", serve=gate, python=PYTHON, sessions=256)
    said: list[str] = []
    env = OpenEnv(source, ROOT, tmp_path / "ledger.json", tmp_path / "log", said.append)

    async def walk(episode: OpenEnvToolbox, how: str = "walk") -> float | None:
        while not episode.done:
            await episode.call(ToolCall("pass", {"how": how}))
        return episode.reward

    try:
        episodes = await asyncio.gather(*(begin(env, {}) for _ in range(256)))
        waiting = asyncio.create_task(walk(episodes[0], "wait"))
        assert await asyncio.gather(*(walk(episode) for episode in episodes[2:])) == [5.0] * 254
        assert not waiting.done()
        assert await walk(episodes[1], "open") == 5.0
        assert await waiting == 1.0
        await asyncio.gather(*(episode.close() for episode in episodes))
    finally:
        env.stop()
    assert [line for line in said if "its server is ready" not in line] == []


async def test_a_package_that_the_environment_lacks_is_named(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text("import openenv, torch\n")
    source = Source("lacking", serve=f"{program}:app", python=PYTHON)
    env = OpenEnv(source, ROOT, tmp_path / "ledger.json", tmp_path / "log", print)
    with pytest.raises(BadInput, match=r"No module named 'torch'.*uv\.sh pip install --python"):
        await begin(env, {})


def test_a_run_plays_two_servers_trains_a_step_and_leaves_no_server(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    """Catch and a word game in one pool, as `grpo` plays them: on the scripted engine, whose tiny
    policy calls no tool."""
    folder = write_run(tmp_path / "two", *policy, engine={"max_model_len": 1024})
    tables = [
        f'[envs.{name}]\nserve = "docs/openenv/{program}_server.py:app"\n'
        f'python = "{PYTHON}"\npasses = "reward >= 1"\n'
        for name, program in (("catch", "catch"), ("games", "textarena"))
    ]
    with open(folder / "run.toml", "a", encoding="utf-8") as file:
        file.write("\n".join(tables))
    rows = [{"environment": name, "prompt": "Play. "} for name in ("catch", "games")]
    for split, seeds in (("pool", range(1)), ("heldout", range(9, 10))):
        lines = [json.dumps({**row, "seed": seed}) + "\n" for row in rows for seed in seeds]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    try:
        for phase in ("start", "rollout", "train"):
            words = [*GRPO_RUN[:-1], phase, str(folder)]
            env = {**os.environ, "PYTHONPATH": str(SITE)}
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
            assert done.returncode == 0, done.stdout + done.stderr
            names = [entry.name for entry in Ledger(folder / "ledger.json").entries()]
            assert [name for name in names if name.startswith("env-")] == []
        bundle = (folder / "step-001/trajectory_bundle.jsonl").read_text().splitlines()
        assert sorted(json.loads(line)["env"] for line in bundle) == ["catch", "games"]
        assert (folder / "step-001/step.json").is_file()
        logs = [path.name for path in (folder / "log").iterdir()]
        assert {n.rsplit("-", 2)[0] for n in logs if n.startswith("env-")} == {
            "env-catch",
            "env-games",
        }
    finally:
        stop_trainer(folder)
        stop_engine(folder)
