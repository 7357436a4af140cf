"""`[envs.NAME]` with a server, played by the loop that plays everything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.process.ledger import Ledger
from fieldkit.records import StopReason, Task
from rollout.envs.configured import environment_hashes, register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.envs.openenv.openenv_style import openenv_identity
from scripts.base.checkout import ROOT
from scripts.run.config import read_config
from tests.rollout.envs.openenv.openenv_local import DOUBLE, THIS_PYTHON, play, stopped


def settings(app: str = "app", **other: Any) -> EnvSettings:
    how = {"use": "", "style": "openenv", "passes": "reward >= 0.5", "python": str(THIS_PYTHON)}
    return EnvSettings(**{**how, "serve": f"{DOUBLE}:{app}", **other})


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ends every server that a test started, and forgets its environments."""
    with stopped(monkeypatch):
        yield
    register_environments({}, ROOT)


def task(**row: Any) -> Task:
    return Task("guess-1", "guess", "Play. ", {"seed": 3, **row})


@pytest.fixture
def guess(servers: None) -> None:
    register_environments({"guess": settings()}, ROOT)


def test_an_episode_of_a_server_is_played_paid_by_step_and_graded(
    guess: None, tmp_path: Path
) -> None:
    played = play(task(), ["guess: 9", "I go down.\nguess: 4", "more"], tmp_path)
    assert [t.observation for t in played.turns] == ["Lower.", "Right."]
    assert played.stop_reason is StopReason.ENV_DONE
    assert [t.reward for t in played.turns] == [-0.1, 1.0]
    assert played.reward == pytest.approx(0.9)
    (part,) = played.grade.rewards
    assert part.name == "reward"
    assert part.value == pytest.approx(0.9)
    assert played.grade.passed


def test_what_a_policy_does_wrong_is_told_to_it(guess: None, tmp_path: Path) -> None:
    replies = ["guess: many", 'guess {"size": 3}', "guess: 11", "I give up."]
    played = play(task(), replies, tmp_path)
    assert [t.observation for t in played.turns] == [
        "{'error': 'number: Input should be a valid integer, unable to parse string as an "
        "integer'}",
        "{'error': 'number: Field required; size: Extra inputs are not permitted'}",
        "{'error': 'the number is from 1 to 10'}",
        None,
    ]
    assert played.stop_reason is StopReason.TASK_COMPLETE
    assert played.reward == 0.0
    assert not played.grade.passed


def test_calls_after_the_end_of_the_game_are_not_made(guess: None, tmp_path: Path) -> None:
    played = play(task(), ["guess: 4\nguess: 4"], tmp_path)
    assert played.turns[0].observation == "Right."
    assert played.reward == 1.0


def test_an_episode_whose_server_dies_is_played_again_with_a_new_one(
    servers: None, tmp_path: Path
) -> None:
    register_environments({"guess": settings()}, ROOT)
    said: list[str] = []
    with pytest.raises(Unavailable, match=r"failed 3 times; last: .*hung up"):
        play(task(fault="step:die"), ["guess: 4"], tmp_path, said)
    assert play(task(), ["guess: 4"], tmp_path, said).reward == 1.0
    assert len([line for line in said if "is ready" in line]) == 4
    assert len([line for line in said if "its server ended" in line]) == 3


def test_a_step_that_hangs_ends_its_episode_and_no_other(servers: None, tmp_path: Path) -> None:
    register_environments({"guess": settings(call_seconds=2.0)}, ROOT)
    played = play(task(fault="step:hang"), ["guess: 4"], tmp_path)
    assert played.stop_reason is StopReason.TIME_LIMIT
    assert played.grade.unrewarded
    assert "step: no answer within 2 s (call_seconds)" in str(played.turns[-1].observation)
    assert play(task(), ["guess: 4"], tmp_path).reward == 1.0


def test_all_episodes_of_a_run_have_one_server_which_the_runs_ledger_knows(
    guess: None, tmp_path: Path
) -> None:
    said: list[str] = []
    for _ in range(2):
        play(task(), ["guess: 4"], tmp_path, said)
    assert len(said) == 1
    assert [e.name for e in Ledger(tmp_path / "ledger.json").entries()] == ["env-guess"]


def test_a_reward_may_be_shown_and_not_learned_from(servers: None, tmp_path: Path) -> None:
    register_environments({"guess": settings(rewards={"reward": 0.0})}, ROOT)
    played = play(task(), ["guess: 4"], tmp_path)
    assert played.grade.passed
    assert played.reward == 0.0
    assert played.turns[0].reward == 0.0  # credit by turn adds these up


def test_options_go_to_every_reset_and_a_row_comes_before_them(
    servers: None, tmp_path: Path
) -> None:
    register_environments({"guess": settings(config={"seed": 1, "fault": "reset:raise"})}, ROOT)
    with pytest.raises(Unavailable, match="the ball is lost"):
        play(task(), ["guess: 4"], tmp_path)
    assert play(task(fault=""), ["guess: 4"], tmp_path).reward == 1.0


def test_another_reward_function_beside_a_server_is_another_environment(tmp_path: Path) -> None:
    paying = tmp_path / "short_answers.py"
    paying.write_text("def short(completions, **row): return [1.0]\n")
    far = {"style": "openenv", "passes": "reward >= 1", "url": "http://127.0.0.1:1"}

    def sha(**more: Any) -> str:
        asked = EnvSettings(**{"use": "", **far, **more})
        return environment_hashes({"far": asked}, tmp_path)["far"]

    first = sha(rewards={"short_answers.py:short": 0.1})
    assert first != sha()
    paying.write_text("def short(completions, **row): return [2.0]\n")
    assert sha(rewards={"short_answers.py:short": 0.1}) != first


def test_a_table_with_serve_or_url_is_a_server(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        "[envs.guess]\n"
        f'serve = "{DOUBLE}:app"\n'
        'python = ".venv/bin/python"\n'
        'passes = "reward >= 1"\n'
        "sessions = 8\n"
        'show = ["text"]\n'
        "[envs.far]\n"
        'url = "http://127.0.0.1:8000"\n'
        'passes = "reward >= 1"\n'
    )
    envs = read_config(file).envs
    guess = envs["guess"]
    assert (guess.style, guess.sessions, guess.show) == ("openenv", 8, ["text"])
    assert envs["far"].style == "openenv"
    register_environments({}, ROOT)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"serve": ""}, r"envs\.guess: name a server: url = … or serve = …"),
        ({"use": "counter.py:Counter"}, r"envs\.guess\.use: an OpenEnv server is named by url"),
        ({"ends": "over"}, r"envs\.guess\.ends: an OpenEnv server"),
        ({"python": ""}, r"envs\.guess: serve = .* needs python"),
        ({"serve": "", "url": "ftp://x"}, "has an address like http://HOST:PORT"),
    ],
)
def test_a_wrong_table_says_what_to_write(
    servers: None, tmp_path: Path, wrong: dict[str, Any], reason: str
) -> None:
    register_environments({"guess": settings(**wrong)}, ROOT)
    with pytest.raises(BadInput, match=reason):
        play(task(), ["guess: 4"], tmp_path)


def test_another_program_or_another_package_is_another_environment(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text("import rules\nimport json\n")
    (tmp_path / "rules.py").write_text("WORTH = 1\n")
    (tmp_path / "notes.py").write_text("")
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    (packages / "textarena-0.7.4.dist-info").mkdir(parents=True)
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/python").touch()
    how = settings(serve="server.py:app", python="venv/bin/python")

    def sha() -> str:
        return environment_hashes({"game": how}, tmp_path)["game"]

    first = sha()
    (tmp_path / "notes.py").write_text("x = 1\n")
    assert sha() == first
    (tmp_path / "rules.py").write_text("WORTH = 2\n")
    second = sha()
    assert second != first
    (packages / "textarena-0.7.4.dist-info").rename(packages / "textarena-0.7.5.dist-info")
    assert sha() != second
    (tmp_path / "venv/bin/python").unlink()
    with pytest.raises(BadInput, match=r"venv/bin/python: no such program"):
        sha()
    far = EnvSettings(use="", style="openenv", passes="reward >= 1", url="http://127.0.0.1:1")
    assert openenv_identity("far", far, tmp_path) == openenv_identity("far", far, tmp_path)


def test_a_reward_function_named_as_the_servers_own_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(**given): return [0.0]\n")
    asked = settings(rewards={"mine.py:reward": 1.0})
    with pytest.raises(BadInput, match=r"guess\.rewards: two parts .* called 'reward'; rename"):
        openenv_identity("guess", asked, tmp_path)


@pytest.mark.parametrize("file", ["models.py", "server/game.py"])
def test_a_change_beside_the_folder_of_the_server_is_another_environment(
    file: str, tmp_path: Path
) -> None:
    home = tmp_path / "my_env"
    (home / "server").mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "models.py").write_text("ONE = 1\n")
    (home / "server/__init__.py").write_text("")
    (home / "server/game.py").write_text("TWO = 2\n")
    (home / "server/app.py").write_text("from ..models import ONE\nimport my_env.server.game\n")
    how = settings(app="", serve=f"{home}/server/app.py:app")
    before = openenv_identity("mine", how, tmp_path)
    (home / "client.py").write_text("")
    assert openenv_identity("mine", how, tmp_path) == before
    (home / file).write_text("ONE = TWO = 3\n")
    assert openenv_identity("mine", how, tmp_path) != before
