"""Oracles and chance in worlds with tools: a function's calls as replies, and what is refused."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import Task, Trajectory
from reward.reward import Reward
from rollout.envs.base import Environment, MissingOracle, Site
from rollout.envs.configured import environment
from rollout.envs.env_settings import ENV_STYLES, EnvSettings, EnvStyle
from rollout.envs.tool_yardsticks import YARDSTICK_FORM, ToolsAsShown, random_call
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from rollout.yardsticks import DO_NOTHING, ORACLE, RANDOM, yardstick_player
from scripts.base.checkout import ROOT
from tests.rollout.envs.openenv.openenv_local import DOUBLE, THIS_PYTHON, stopped
from tests.rollout.scripted import renderer

COUNTER = Path(__file__).parent / "counter.py"
MINE = """
def solution(target, **row):
    return [("add", {"amount": 1}), ("add", {"amount": target - 1})]

def secret(**row):
    raise LookupError("nobody knows")

def drawn(rng, shown, **row):
    return "add", {"amount": len(shown) % 2}

def malformed(**row):
    return ["add"]

def of_numpy(target, **row):
    import numpy
    return [("add", {"amount": numpy.int64(target)})]

class Lottery:
    def reset(self, **row):
        import random
        self.number, self.over = random.randrange(10**6), False
    def say(self, number: int) -> str:
        \"\"\"Say a number.

        Args:
            number: Which one.
        \"\"\"
        self.over = number == self.number
        return "yes" if self.over else "no"
    def get_reward(self):
        return float(self.over)

def looked_up(**row):
    own = Lottery()
    own.reset(**row)
    return [("say", {"number": own.number})]
"""
TASK = Task("t0", "counter", "Count.", {"target": 5})


def counter(tmp_path: Path, oracle: str = "", chance: str = "") -> Environment:
    (tmp_path / "mine.py").write_text(MINE)
    settings = EnvSettings(
        f"{COUNTER}:Counter", "reward >= 1", ends="done", oracle=oracle, chance=chance
    )
    return environment("counter", settings, tmp_path)


def play(
    name: str, made: Environment, tmp_path: Path, chat: ChatRenderer | None = None
) -> Trajectory:
    from rollout.envs.registry import ENVIRONMENTS

    site = Site(SandboxSettings(), tmp_path, tool_form=YARDSTICK_FORM)
    ENVIRONMENTS.register("counter", made)
    try:
        player = yardstick_player(
            name,
            worlds=lambda task: made.make(site),
            settings=EpisodeSettings(max_turns=6, max_new_tokens=64, max_model_len=2000),
            reward=Reward(),
            load=None if chat is None else lambda: chat,
        )
        return asyncio.run(player.play(TASK, 0, seeds=lambda turn: turn))
    finally:
        ENVIRONMENTS.remove("counter")


def test_the_oracle_makes_the_calls_that_its_function_gives(tmp_path: Path) -> None:
    done = play(ORACLE, counter(tmp_path, oracle="mine.py:solution"), tmp_path)
    assert [turn.text for turn in done.turns] == ['add {"amount": 1}', 'add {"amount": 4}']
    assert done.grade.passed
    assert not play(DO_NOTHING, counter(tmp_path), tmp_path).grade.passed


def test_a_function_that_reads_the_last_message_judges_an_arm_that_says_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        MINE + "\ndef said(completions, **given):\n"
        "    return [float('yes' in c[-1]['content']) for c in completions]\n"
    )
    settings = EnvSettings(
        f"{COUNTER}:Counter", "said >= 1", ends="done", rewards={"mine.py:said": 1.0}
    )
    nothing = play(DO_NOTHING, environment("counter", settings, tmp_path), tmp_path)
    assert not nothing.turns
    assert not nothing.grade.passed


def test_an_oracle_sees_what_reset_draws_in_an_instance_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    settings = EnvSettings(
        "mine.py:Lottery", "reward >= 1", ends="over", oracle="mine.py:looked_up"
    )
    done = play(ORACLE, environment("counter", settings, tmp_path), tmp_path)
    assert done.grade.passed


def test_an_oracle_ends_by_saying_nothing_where_any_text_would_be_a_call(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Says:\n"
        "    def reset(self, **row): self.said = []\n"
        "    def say(self, text: str):\n"
        '        """Say.\n\n        Args:\n            text: What.\n        """\n'
        "        self.said.append(text)\n"
        "    def get_reward(self): return float(self.said == ['hello'])\n"
        "def solution(**row): return [('say', {'text': 'hello'})]\n"
    )
    settings = EnvSettings("mine.py:Says", "reward >= 1", fallback="say", oracle="mine.py:solution")
    assert play(ORACLE, environment("counter", settings, tmp_path), tmp_path).grade.passed


SEARCHES = """
class Searches:
    def reset(self, **row): self.found = False
    def search(self, limit: int = 5, query: str = "") -> str:
        \"\"\"Search.

        Args:
            limit: How many.
            query: What for.
        \"\"\"
        self.found = (limit, query) == (5, "42")
        return str(self.found)
    def say(self, text: str):
        \"\"\"Say.

        Args:
            text: What.
        \"\"\"
    def get_reward(self): return float(self.found)
def solution(**row): return [("say", {"text": "42"}), ("search", {"query": "42"})]
"""


def test_what_an_oracle_gives_to_a_later_parameter_is_not_read_as_the_first(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(SEARCHES)
    settings = EnvSettings("mine.py:Searches", "reward >= 1", oracle="mine.py:solution")
    done = play(ORACLE, environment("counter", settings, tmp_path), tmp_path)
    assert done.grade.passed
    assert [turn.text for turn in done.turns] == ["say: 42", 'search {"query": "42"}', "Done."]
    assert done.turns[1].action.command == 'search {"query": "42"}'


def test_chance_draws_calls_of_the_tools_or_as_its_function_says(tmp_path: Path) -> None:
    made = counter(tmp_path)
    done = play(RANDOM, made, tmp_path, renderer())
    assert len({turn.text.split()[0] for turn in done.turns}) >= 1
    assert all(turn.text.split()[0] in ("add", "peek", "peek:") for turn in done.turns)
    own = play(RANDOM, counter(tmp_path, chance="mine.py:drawn"), tmp_path, renderer())
    assert {turn.text for turn in own.turns} <= {'add {"amount": 0}', 'add {"amount": 1}'}


def test_an_environment_without_an_oracle_has_none(tmp_path: Path) -> None:
    oracle = counter(tmp_path).oracle
    assert oracle is not None
    with pytest.raises(MissingOracle, match=r'\[envs.counter\] names no oracle; `oracle = "mine'):
        oracle(TASK)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        ("mine.py:secret", r"task t0: mine\.py:secret: LookupError: nobody knows \(.*mine\.py:6\)"),
        ("mine.py:malformed", r"envs\.counter\.oracle: task t0: gave 'add'; a call is \(name of"),
        ("mine.py:of_numpy", r"t0: the arguments of add are not JSON: Object of type int64 is not"),
        ("mine.py:nothing", r"envs\.counter\.oracle.*nothing"),
    ],
)
def test_a_broken_oracle_is_an_error_that_names_key_and_task(
    tmp_path: Path, use: str, said: str
) -> None:
    oracle = counter(tmp_path, oracle=use).oracle
    assert oracle is not None
    with pytest.raises(BadInput, match=said):
        oracle(TASK)


def test_a_style_that_knows_no_chance_asks_for_a_function(tmp_path: Path) -> None:
    trl = ENV_STYLES["trl"]
    knows_none = EnvStyle(
        "draws nothing",
        lambda *given: replace(trl.environment(*given), random_reply=None),
        lambda *given: "",
    )
    ENV_STYLES.register("plain", knows_none)
    try:
        settings = EnvSettings(f"{COUNTER}:Counter", "reward >= 1", style="plain")
        made = environment("counter", settings, tmp_path)
        assert made.random_reply is not None
        with pytest.raises(BadInput, match=r"give a function in envs\.counter\.chance"):
            made.random_reply(TASK, "", random.Random(0))
    finally:
        ENV_STYLES.remove("plain")


def test_chance_in_a_style_that_shows_its_tools_later_waits_for_them() -> None:
    chance = ToolsAsShown()
    with pytest.raises(BadInput, match=r"task t0: .* shows its tools when an episode begins"):
        chance.reply(TASK, "", random.Random(0))
    tool = {"type": "function", "function": {"name": "pay", "parameters": {"properties": {}}}}
    assert chance.known(TASK) == ()
    chance.note(TASK.task_id, [tool])
    assert chance.known(TASK) == [tool]
    assert chance.reply(TASK, "Pay.", random.Random(0)).startswith("pay")
    chance.note(TASK.task_id, [])  # nothing but words
    assert set(chance.reply(TASK, "red or blue", random.Random(0)).split()) <= {"red", "or", "blue"}


def test_chance_draws_a_value_where_a_schema_says_any_or_one_of_several() -> None:
    several = {"oneOf": [{"type": "boolean"}, {"type": "boolean"}]}
    properties = {"any": True, "list": {"type": "array", "items": True}, "either": several}
    wanted = {"properties": properties, "required": list(properties)}
    schema = {"type": "function", "function": {"name": "put", "parameters": wanted}}
    for seed in range(8):
        _, drawn = random_call([schema], "red or blue", random.Random(seed))
        assert set(drawn["any"].split()) <= {"red", "or", "blue"}
        assert all(isinstance(one, str) for one in drawn["list"])
        assert isinstance(drawn["either"], bool)


def test_a_server_is_played_by_chance_with_the_tools_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EnvSettings(
        "", "reward > 0", style="openenv", serve=f"{DOUBLE}:app", python=str(THIS_PYTHON)
    )
    with stopped(monkeypatch):
        done = play(RANDOM, environment("counter", settings, ROOT), tmp_path, renderer())
    assert done.turns
    assert all(turn.text.startswith("guess {") for turn in done.turns)
