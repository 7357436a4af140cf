"""A TRL class plays by the loop that plays everything: prompts, tools, rewards, and its faults."""

import asyncio
import gc
import inspect
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode
from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.records import ActionKind, Signal, StopReason, Task, Trajectory
from reward.reward import Reward
from rollout.envs.base import Environment, Opening, Reply, Site, Step
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.envs.registry import environment_of, make_world
from rollout.envs.trl_class import tools_of
from rollout.envs.user_code import load
from rollout.player import Player
from rollout.policies import RecitedPolicy
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from rollout.tasks import check_disjoint, check_tasks, decode_tasks, read_tasks

pytestmark = pytest.mark.trl

HERE = Path(__file__).parent
COUNTER = EnvSettings(use="counter.py:Counter", passes="reward >= 1")


@pytest.fixture(autouse=True)
def _none_registered() -> Iterator[None]:
    yield
    register_environments({}, HERE)


def register(settings: EnvSettings = COUNTER, root: Path = HERE) -> Environment:
    register_environments({"counter": settings}, root)
    return environment_of(task())


def task(target: int = 3, **info: Any) -> Task:
    return Task(f"count-{target}", "counter", f"Count to {target}.", {"target": target, **info})


def play(
    replies: Sequence[str], played: Task | None = None, tmp_path: Path = HERE, form: str = "text"
) -> Trajectory:
    player = _player(replies, tmp_path, form)
    return asyncio.run(player.play(played or task(), 0, lambda turn: turn + 1))


def _player(replies: Sequence[str], tmp_path: Path = HERE, form: str = "text") -> Player:
    site = Site(SandboxSettings(), tmp_path, tool_form=form)
    return Player(
        policy=lambda *_: RecitedPolicy(replies),
        worlds=lambda t: make_world(t, site),
        settings=EpisodeSettings(max_turns=8),
        adapter_sha="recited",
        policy_version="recited",
        reward=Reward(),
        clock=lambda: 0.0,
    )


def opening(played: Task | None = None, form: str = "text") -> Opening:
    async def reset() -> Opening:
        world = make_world(played or task(), Site(SandboxSettings(), HERE, tool_form=form))
        try:
            return await world.reset(played or task(), 0)
        finally:
            await world.close()

    return asyncio.run(reset())


def test_an_episode_runs_tools_until_a_reply_calls_none() -> None:
    register()
    played = play(["add: 1", 'I add.\nadd {"amount": 2}', "Done."])
    assert [t.observation for t in played.turns] == [
        "the counter is at 1",
        "the counter is at 3",
        None,
    ]
    assert played.stop_reason is StopReason.TASK_COMPLETE
    assert played.grade.passed
    assert played.reward == 1.0


def test_several_calls_of_a_reply_run_in_order_and_are_told_by_name() -> None:
    register()
    [turn, _] = play(["add: 1\nadd: 1\npeek:", "Done."]).turns
    assert turn.observation == (
        "add: the counter is at 1\nadd: the counter is at 2\npeek: {'value': 2}"
    )


def test_coroutines_run_after_the_other_tools_of_their_reply_as_in_trl() -> None:
    register()
    [turn, _] = play(["peek:\nadd: 1\nadd: 1", "Done."]).turns
    assert turn.observation == (
        "add: the counter is at 1\nadd: the counter is at 2\npeek: {'value': 2}"
    )


def test_what_an_instance_holds_is_used_in_the_thread_that_made_it(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(
        "import sqlite3\n"
        "class Held:\n"
        "    def __init__(self): self.db = sqlite3.connect(':memory:')\n"
        "    def reset(self, **row): self.db.execute('select 1')\n"
        "    def one(self) -> int:\n"
        '        """One."""\n'
        "        return self.db.execute('select 1').fetchone()[0]\n"
        "    def get_reward(self): return self.db.execute('select 1').fetchone()[0]\n"
    )
    register(EnvSettings(use="held.py:Held", passes="reward == 1"), tmp_path)
    played = play(["one:", "Done."])
    assert played.turns[0].observation == "1"
    assert played.grade.passed


def test_an_episode_to_which_no_part_applies_takes_no_part_in_its_group() -> None:
    rewards = {"counter.py:only_even": 1.0, "get_reward": 0.0}
    register(EnvSettings(use="counter.py:Counter", passes="reward >= 1", rewards=rewards))
    none = play(["Done."])
    assert none.grade.unrewarded
    paid = [
        replace(none, k=k, reward=r, grade=Grade((), (RewardPart("only_even", r),)))
        for k, r in ((1, 0.0), (2, 1.0))
    ]
    reward = Reward(scale="mean")
    assert reward.of_group([none, *paid]) == (0.0, -0.5, 0.5)
    assert [t[0] for t in reward.of_turns([none, *paid])] == [0.0, -0.5, 0.5]
    assert reward.signal([none, *paid]) is Signal.LEARNABLE
    assert reward.of_group([none, none]) == (0.0, 0.0)


def test_a_tool_that_raises_and_one_that_is_unknown_are_told_as_in_trl() -> None:
    register()
    calls = (
        '<tool_call>{"name": "add", "arguments": {"amount": -1}}</tool_call>'
        '<tool_call>{"name": "fly", "arguments": {}}</tool_call>'
        '<tool_call>{"name": "add", "arguments": {"size": 1}}</tool_call>'
    )
    [turn, _] = play([calls, "Done."], form="hermes").turns
    assert turn.observation == (
        "{'error': 'the counter only goes up'}\n"
        "{'error': 'Tool fly not found.'}\n"
        "{'error': \"Counter.add() got an unexpected keyword argument 'size'\"}"
    )


def test_what_a_tool_raised_is_told_to_the_policy_and_to_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    register()
    play(["add: -1", "Done."])
    gc.collect()  # asyncio complains when it drops an exception that nobody asked for
    assert "never retrieved" not in caplog.text


def test_a_reply_without_a_call_goes_to_the_tool_that_takes_such_replies(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(
        "class Asks:\n"
        "    def reset(self, **row): return None\n"
        "    def look(self, text: str) -> str:\n"
        '        """Look.\n\n        Args:\n            text: what\n        """\n'
        "        self.over = text == 'SELECT 2'\n"
        "        return text\n"
        "    def add(self, a: int) -> str:\n"
        '        """Add.\n\n        Args:\n            a: what\n        """\n'
        "        return str(a)\n"
        "    def get_reward(self): return 1.0\n"
    )
    settings = EnvSettings("asks.py:Asks", "reward >= 1", ends="over", fallback="look")
    register(settings, tmp_path)
    replies = ["SELECT 1", "look: x", "Look:\n```sql\nSELECT 2\n```\nI hope.", "never said"]
    played = play(replies)
    assert [turn.action.command for turn in played.turns] == [
        "look: SELECT 1",
        "look: x",
        "look: SELECT 2",
    ]
    assert played.stop_reason is StopReason.ENV_DONE
    assert [turn.action.kind for turn in play(["  \n"]).turns] == [ActionKind.DONE]


ASKS = """
class Asks:
    def reset(self, **row): return None
    def look(self, text: str) -> str:
        \"\"\"Look.

        Args:
            text: what
        \"\"\"
        return text
    def get_reward(self): return 1.0
def heard(completions, **row): return [float(len(completions[0][0]["content"]))]
"""


@pytest.mark.parametrize("form", ["text", "hermes"])
@pytest.mark.parametrize(
    ("reply", "looked", "stop"),
    [
        (Reply("SELECT 1", "length"), None, StopReason.REPLY_CUT),
        (Reply("```sql\nSELECT 1", "length"), None, StopReason.REPLY_CUT),
        (Reply("<think>\n```\nSELECT 2\n```\n", "length"), None, StopReason.REPLY_CUT),
        (Reply("```sql\nSELECT 1\n```\nI hope", "length"), "SELECT 1", None),
        (Reply("<think>SELECT 2</think>\nSELECT 1"), "SELECT 1", None),
        (Reply("<think>\nlook: 2\n</think>\nSELECT 1"), "SELECT 1", None),
        (Reply("<think>SELECT 2"), None, StopReason.TASK_COMPLETE),
    ],
)
def test_only_what_a_reply_says_to_its_end_goes_to_the_tool_that_takes_such_replies(
    form: str, reply: Reply, looked: str | None, stop: StopReason | None, tmp_path: Path
) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    register(EnvSettings("asks.py:Asks", "reward >= 1", fallback="look"), tmp_path)

    async def step() -> Step:
        world = make_world(task(), Site(SandboxSettings(), tmp_path, tool_form=form))
        try:
            await world.reset(task(), 0)
            return await world.step(reply)
        finally:
            await world.close()

    found = asyncio.run(step())
    assert (found.said, found.stop) == (looked, stop)
    assert found.calls == (looked is not None)


@pytest.mark.parametrize("form", ["text", "hermes"])
def test_a_reward_function_gets_what_a_reply_says_without_its_thoughts(
    form: str, tmp_path: Path
) -> None:
    (tmp_path / "asks.py").write_text(ASKS)
    register(EnvSettings("asks.py:Asks", "heard == 5", rewards={"asks.py:heard": 1.0}), tmp_path)
    assert play(["<think>\nIt is over.\n</think>\n\nDone."], form=form).grade.passed


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("ad", r"envs\.counter\.fallback: there is no tool 'ad'; known: add, peek"),
        ("add", r"envs\.counter\.fallback: the tool add has the arguments amount; a reply can"),
        ("peek", r"envs\.counter\.fallback: the tool peek has the arguments none; a reply can"),
    ],
)
def test_a_fallback_that_can_take_no_reply_is_refused(tool: str, said: str) -> None:
    register(replace(COUNTER, fallback=tool))
    with pytest.raises(BadInput, match=said):
        play(["add: 1"])


def test_an_attribute_that_is_not_there_ends_nothing_and_is_named() -> None:
    register(replace(COUNTER, ends="ovr"))
    with pytest.raises(BadInput, match=r"envs.counter.ends: .*counter.py:\d+: .*'ovr'; name an"):
        play(["add: 1", "Done."])


def test_half_of_a_surrogate_pair_is_shown_as_what_a_tokenizer_takes(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        "class Half:\n"
        "    def reset(self, **row): return '\\ud800?'\n"
        "    def look(self) -> str:\n"
        '        """Look."""\n'
        "        return '\\ud800!'\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="half.py:Half", passes="reward >= 1"), tmp_path)
    assert play(["look:", "Done."]).turns[0].observation == "?!"
    assert opening().messages[-1]["content"].endswith("??")


def test_the_environment_ends_the_episode_where_it_is_asked_to() -> None:
    register(EnvSettings(use="counter.py:Counter", passes="reward >= 1", ends="done"))
    played = play(["add: 3", "add: 3"])
    assert len(played.turns) == 1
    assert played.stop_reason is StopReason.ENV_DONE


def test_a_reply_that_was_cut_before_any_call_has_not_ended_by_itself() -> None:
    register()

    async def step(reply: Reply) -> StopReason | None:
        world = make_world(task(), Site(SandboxSettings(), HERE, tool_form="text"))
        try:
            await world.reset(task(), 0)
            return (await world.step(reply)).stop
        finally:
            await world.close()

    cut = asyncio.run(step(Reply("I think that I", "length")))
    assert cut is StopReason.REPLY_CUT
    assert not cut.by_itself
    assert asyncio.run(step(Reply("I give up."))) is StopReason.TASK_COMPLETE


def test_what_reset_says_follows_the_prompt_and_is_equal_within_a_group() -> None:
    register()
    first, again, other = opening(), opening(), opening(task(4))
    assert first == again
    said = first.messages[-1]["content"]
    assert said.startswith("Count to 3. The lucky number is ")
    assert said.split("is")[-1] != other.messages[-1]["content"].split("is")[-1]


def test_the_template_shows_the_tools_where_it_can_and_the_system_message_where_not() -> None:
    register()
    shown = opening(form="hermes")
    assert shown.tools is not None
    assert [t["function"]["name"] for t in shown.tools] == ["add", "peek"]
    assert len(shown.messages) == 1
    told = opening(form="text")
    assert told.tools is None
    assert told.messages[0]["role"] == "system"
    assert 'add {"amount": integer}: Add to the counter.' in told.messages[0]["content"]


def test_a_row_may_hold_the_conversation() -> None:
    register()
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count."}]
    messages = opening(task(prompt=talk)).messages
    assert messages[0]["content"].startswith("Be brief.\n\nYou have tools.")
    assert messages[1]["content"].startswith("Count. The lucky number")


def test_reward_functions_are_weighted_and_one_that_does_not_apply_counts_nothing() -> None:
    register(
        EnvSettings(
            use="counter.py:Counter",
            passes="reward >= 1",
            rewards={"counter.py:short": 0.1, "counter.py:only_even": 0.5, "get_reward": 2.0},
        )
    )
    odd, even = play(["add: 3", "Done."]), play(["add: 4", "Done."], task(4))
    assert [(p.name, p.value, p.weight) for p in odd.grade.rewards] == [
        ("short", -2.0, 0.1),
        ("only_even", None, 0.5),
        ("reward", 1.0, 2.0),
    ]
    assert odd.reward == pytest.approx(2.0 - 0.2)
    assert even.reward == pytest.approx(2.0 - 0.2 + 0.5)


def test_a_metric_that_a_reward_function_logs_is_a_part_that_nothing_is_learned_from() -> None:
    """As TRL's functions log one; others than those that ask get no such argument."""
    rewards = {"counter.py:watched": 1.0, "counter.py:only_even": 0.5}
    register(EnvSettings(use="counter.py:Counter", passes="reward >= 1", rewards=rewards))
    done = play(["add: 3", "Done."])
    assert [(p.name, p.value, p.weight) for p in done.grade.rewards] == [
        ("watched", 0.0, 1.0),
        ("watched.messages", 3.0, 0.0),
        ("only_even", None, 0.5),
        ("reward", 1.0, 1.0),
    ]
    assert done.reward == 1.0


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ("['one']", r"gave 'one' \(str\), expected a number"),
        ("[float('nan')]", "gave nan, which is not a reward"),
        ("[1.0, 2.0]", r"gave \[1.0, 2.0\] for one attempt, expected a list of one"),
        ("1.0", "gave 1.0 for one attempt"),
    ],
)
def test_what_is_no_reward_is_an_error_that_names_the_function(
    gives: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(f"def mine(**given):\n    return {gives}\n")
    use = str(HERE / "counter.py:Counter")
    rewards = {"mine.py:mine": 1.0}
    register(EnvSettings(use=use, passes="reward >= 1", rewards=rewards), tmp_path)
    with pytest.raises(BadInput, match=f"^envs.counter: reward function mine: {said}"):
        play(["Done."])


@pytest.mark.parametrize("own", [True, False], ids=["get_reward", "reward function"])
@pytest.mark.parametrize(
    ("does", "kind", "said"),
    [
        ("{}['x']", Unavailable, r"KeyError: 'x' \(.*paid.py:3\)"),
        ("import json; json.loads('')", Unavailable, r"JSONDecodeError: .* \(.*paid.py:3\)"),
        (
            "import time; time.sleep(600)",
            Unavailable,
            r"no answer in 1 s; it was at .*paid.py:3\. Bound the work there",
        ),
        ("from fieldkit.errors import BadInput; raise BadInput('a hint')", BadInput, "a hint"),
        ("return 'one'", BadInput, r"gave 'one' \(str\), expected a number"),
    ],
    ids=["raises", "raises in a library", "hangs", "says what to do", "no number"],
)
def test_a_grader_that_fails_is_told_alike_as_a_method_and_as_a_function(
    own: bool, does: str, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    (tmp_path / "paid.py").write_text(
        f"class Paid:\n    def _pay(self):\n        {does}\n"
        "    def reset(self, **row): ...\n"
        '    def go(self):\n        """Go."""\n'
        + ("    def get_reward(self): return self._pay()\n" if own else "")
        + "def pay(environments, **given): return [environments[0]._pay()]\n"
    )
    rewards = {} if own else {"paid.py:pay": 1.0}
    passes = "reward >= 1" if own else "pay >= 1"
    seconds = 1.0 if "sleep" in does else 60.0
    paid = EnvSettings("paid.py:Paid", passes, rewards=rewards, call_seconds=seconds)
    register(paid, tmp_path)
    with pytest.raises(kind, match=said):
        play(["Done."])


def test_passes_that_names_no_part_of_the_reward_is_an_error_with_the_nearest() -> None:
    register(EnvSettings(use="counter.py:Counter", passes="rewards >= 1"))
    with pytest.raises(BadInput, match=r"names 'rewards', .*did you mean 'reward'"):
        play(["Done."])


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("place", ["reset", "quit", "get_reward"])
def test_a_class_that_calls_exit_is_a_broken_environment_and_not_the_phases_own_end(
    kind: str, place: str, tmp_path: Path
) -> None:
    """Exit code 3 would say that the pool has converged."""
    (tmp_path / "quits.py").write_text(
        "import sys\n"
        "class Quits:\n"
        + "".join(
            f"    {kind} {name}(self{', **row' if name == 'reset' else ''}):\n"
            + ('        """Quit."""\n' if name == "quit" else "")
            + f"        {'sys.exit(3)' if name == place else 'return None'}\n"
            for name in ("reset", "quit", "get_reward")
        )
    )
    register(EnvSettings(use="quits.py:Quits", passes="reward >= 1"), tmp_path)
    with pytest.raises(Unavailable, match=rf"{place}: it called sys.exit\(3\) \(.*quits.py:\d+\)"):
        play(["quit:", "Done."])


ENDS = """
import asyncio, concurrent.futures
class Ends:
    def reset(self, **row): ...
    {kind} draw(self) -> str:
        \"\"\"Draw.\"\"\"
        raise {error}
    def get_reward(self): return 1.0
"""


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(
    "error", ["StopIteration", "asyncio.CancelledError", "concurrent.futures.CancelledError"]
)
def test_a_tool_that_raises_what_asyncio_uses_itself_is_told_as_any_other(
    kind: str, error: str, tmp_path: Path
) -> None:
    """A future takes no StopIteration, so its call never ended; and a cancelled episode is lost."""
    (tmp_path / "ends.py").write_text(ENDS.format(kind=kind, error=error))
    register(EnvSettings(use="ends.py:Ends", passes="reward >= 1", call_seconds=2.0), tmp_path)
    done = play(["draw:", "Done."])
    assert str(done.turns[0].observation).startswith("{'error': ")
    assert done.grade.passed


def test_an_episode_that_is_given_up_while_its_tool_waits_is_cancelled(tmp_path: Path) -> None:
    source = ENDS.format(kind="async def", error="await asyncio.sleep(600)")
    (tmp_path / "waits.py").write_text(source)
    register(EnvSettings(use="waits.py:Ends", passes="reward >= 1"), tmp_path)

    async def given_up() -> None:
        playing = asyncio.ensure_future(_player(["draw:"]).play(task(), 0, lambda turn: turn))
        await asyncio.wait({playing}, timeout=0.5)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(given_up())


def test_a_coroutine_that_hangs_is_told_with_the_line_at_which_it_waits(tmp_path: Path) -> None:
    source = ENDS.format(kind="async def", error="await asyncio.sleep(600)")
    (tmp_path / "waits.py").write_text(source)
    register(EnvSettings(use="waits.py:Ends", passes="reward >= 1", call_seconds=1.0), tmp_path)
    said = play(["draw:"]).turns[-1].observation
    assert said is not None
    assert re.search(r"the tool draw: no answer in 1 s; .*waits\.py:7\. Bound ", said)


def test_a_call_that_hangs_ends_its_episode_and_its_instance_is_not_used_again(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "class Slow:\n"
        f"    def __init__(self): open({str(made)!r}, 'a').write('x')\n"
        "    def reset(self, **row): ...\n"
        "    def wait(self) -> str:\n"
        '        """Wait."""\n'
        "        time.sleep(600)\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="slow.py:Slow", passes="reward >= 1", call_seconds=0.5), tmp_path)
    player = _player(["wait:", "Done."])
    played = asyncio.run(player.play(task(), 0, lambda turn: turn))
    assert played.stop_reason is StopReason.TIME_LIMIT
    assert played.grade.unrewarded
    assert not played.grade.passed
    [turn] = played.turns
    assert turn.action.command == "wait {}"
    assert turn.observation is not None
    assert "envs.counter: the tool wait: no answer in 0.5 s; it was at" in turn.observation
    assert turn.observation.endswith("It was called with {}")
    sound = replace(player, policy=lambda *_: RecitedPolicy(["Done."]))
    other = asyncio.run(sound.play(task(), 1, lambda turn: turn))
    assert other.grade.passed
    assert [r.path for r in played.grade.results] == [r.path for r in other.grade.results]
    assert made.read_text() == "xx"


def test_an_environment_that_answers_nobody_is_broken(tmp_path: Path) -> None:
    (tmp_path / "down.py").write_text(
        "import threading\n"
        "class Down:\n"
        "    def reset(self, **row): ...\n"
        "    def wait(self) -> str:\n"
        '        """Wait."""\n'
        "        threading.Event().wait()\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="down.py:Down", passes="reward >= 1", call_seconds=0.2), tmp_path)
    player = _player(["wait:"])

    async def four() -> list[Any]:
        playing = (player.play(task(i), 0, lambda turn: turn) for i in range(4))
        return await asyncio.gather(*playing, return_exceptions=True)

    played = asyncio.run(four())
    ended = [one for one in played if isinstance(one, Trajectory)]
    failed = [one for one in played if not isinstance(one, Trajectory)]
    assert [one.stop_reason for one in ended] == [StopReason.TIME_LIMIT] * 2
    assert len(failed) == 2
    said = r"failed 3 times; last: envs\.counter: the tool wait: no answer in 0\.2 s; .*call_sec"
    for error in failed:
        assert isinstance(error, Unavailable)
        assert re.search(said, str(error))
        assert str(error).endswith("2 episodes of this phase ended so already")


def test_an_instance_in_which_something_may_still_run_is_not_used_again(tmp_path: Path) -> None:
    (tmp_path / "adds.py").write_text(
        "import asyncio\n"
        "class Adds:\n"
        "    made = 0\n"
        "    def __init__(self): Adds.made += 1\n"
        "    def reset(self, **row): self.sum = 0\n"
        "    async def later(self) -> str:\n"
        '        """Add one, later."""\n'
        "        await asyncio.sleep(0.05)\n"
        "        self.sum += 1\n"
        "    async def leave(self) -> str:\n"
        '        """The first instance breaks."""\n'
        "        if Adds.made == 1: raise SystemExit(1)\n"
        "        await asyncio.sleep(0.2)\n"
        "    def get_reward(self): return self.sum\n"
    )
    register(EnvSettings(use="adds.py:Adds", passes="reward >= 1"), tmp_path)
    assert play(["later:\nleave:", "Done."]).reward == 1.0


def test_resets_take_turns_and_waiting_for_ones_turn_costs_no_time(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "class Slow:\n"
        "    def reset(self, **row): time.sleep(0.2)\n"
        "    def look(self) -> str:\n"
        '        """Look."""\n'
        "    def get_reward(self): return 1.0\n"
    )
    # Ten resets take two seconds, and each of them much less than one.
    register(EnvSettings(use="slow.py:Slow", passes="reward >= 1", call_seconds=1.5), tmp_path)
    played = asyncio.run(_at_once(10))
    assert [one.reward for one in played] == [1.0] * 10


def test_a_reset_that_hangs_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(
        "import threading\n"
        "class Hangs:\n"
        "    def reset(self, target, **row):\n"
        "        if target == 0: threading.Event().wait()\n"
        "    def look(self) -> str:\n"
        '        """Look."""\n'
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="hangs.py:Hangs", passes="reward >= 1", call_seconds=0.5), tmp_path)
    hung, *others = asyncio.run(_at_once(4))
    assert "reset: no answer in 0.5 s" in str(hung)
    assert [one.reward for one in others] == [1.0] * 3


async def _at_once(n: int) -> list[Any]:
    """Episodes of tasks 0 to n - 1, or what they raised."""
    player = _player(["Done."])
    playing = (player.play(task(i), 0, lambda turn: turn + 1) for i in range(n))
    return list(await asyncio.gather(*playing, return_exceptions=True))


def test_256_episodes_at_once_and_a_slow_tool_stalls_none(tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(
        "import threading\n"
        "barrier, free = threading.Barrier(255), threading.Event()\n"
        "class Gate:\n"
        "    def reset(self, **row): ...\n"
        "    def meet(self) -> str:\n"
        '        """Wait until 255 episodes are here."""\n'
        "        return str(barrier.wait(60) >= 0)\n"
        "    def stay(self) -> str:\n"
        '        """Wait until somebody calls."""\n'
        "        return str(free.wait(60))\n"
        "    def call(self) -> str:\n"
        '        """Call the one who waits."""\n'
        "        return str(free.set())\n"
        "    def get_reward(self): return 1.0\n"
    )
    settings = EnvSettings(use="gate.py:Gate", passes="reward >= 1")
    register(settings, tmp_path)

    async def one(*calls: str) -> list[str | None]:
        world = make_world(task(), Site(SandboxSettings(), tmp_path))
        await world.reset(task(), 0)
        said = [(await world.step(Reply(call))).said for call in calls]
        await world.close()
        return said

    async def all_of_them() -> None:
        slow = asyncio.create_task(one("stay:"))
        met = await asyncio.gather(*(one("meet:", "meet:") for _ in range(255)))
        assert met == [["True", "True"]] * 255
        assert not slow.done()
        assert await one("call:") == ["None"]
        assert await slow == ["True"]

    asyncio.run(all_of_them())


def test_an_answer_is_the_text_that_trl_would_show(tmp_path: Path) -> None:
    """A number with too many digits for `str` is the policy's mistake, and ends no phase."""
    (tmp_path / "power.py").write_text(
        "class Power:\n"
        "    def reset(self, **row): ...\n"
        "    def power(self, exponent: int) -> object:\n"
        '        """A power of ten.\n\n        Args:\n            exponent: Which.\n        """\n'
        "        blocks = [{'type': 'text', 'text': 'no '}, {'type': 'text', 'text': 'power'}]\n"
        "        things = [{'type': 'monster', 'hp': 3}]\n"
        "        rows = [{'type': 'image', 'size': 9}, {'type': 'text', 'size': 1}]\n"
        "        seen = [{'type': 'image', 'image': 'x.png'}]\n"
        "        return {-1: blocks, -2: things, -3: [], -4: rows, -5: seen}.get(\n"
        "            exponent, 10 ** max(0, exponent)\n"
        "        )\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="power.py:Power", passes="reward >= 1"), tmp_path)
    replies = [f"power: {n}" for n in (2, 9999, -1, -2, -3, -4)]
    first, huge, *others = [t.observation for t in play([*replies, "Done."]).turns][:-1]
    assert first == "100"
    assert "{'error': 'Exceeds the limit" in str(huge)
    rows = "[{'type': 'image', 'size': 9}, {'type': 'text', 'size': 1}]"
    assert others == ["no power", "[{'type': 'monster', 'hp': 3}]", "[]", rows]
    with pytest.raises(BadInput, match=r"the tool power: gave image; only text can be played"):
        play(["power: -5"])


def test_a_tool_that_sets_a_signal_is_an_error_and_no_mistake_of_the_policy(tmp_path: Path) -> None:
    """As the SQL tool of TRL's examples limits its queries; TRL calls it in the main thread."""
    (tmp_path / "timed.py").write_text(
        "import signal\n"
        "class Timed:\n"
        "    def reset(self, **row): ...\n"
        '    def go(self):\n        """Go."""\n'
        "        try:\n"
        "            signal.signal(signal.SIGALRM, lambda *_: None)\n"
        "        except ValueError as e:\n"
        "            raise RuntimeError('use no threads') from e\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="timed.py:Timed", passes="reward >= 1"), tmp_path)
    with pytest.raises(BadInput, match=r"the tool go: it sets a signal.*timed\.py:9\)"):
        play(["go:", "Done."])


def test_a_signal_of_an_event_loop_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "timed.py").write_text(
        "import asyncio, signal\n"
        "class Timed:\n"
        "    def reset(self, **row): ...\n"
        "    async def _wait(self):\n"
        "        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)\n"
        '    def go(self):\n        """Go."""\n'
        "        asyncio.run(self._wait())\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="timed.py:Timed", passes="reward >= 1"), tmp_path)
    with pytest.raises(BadInput, match=r"the tool go: it sets a signal"):
        play(["go:", "Done."])


RUNS = """
import signal
class Runs:
    def reset(self, **row): ...
    def run(self, code: str) -> str:
        \"\"\"Run Python.

        Args:
            code: What.
        \"\"\"
        try:
            exec(code, {})
        except ValueError as e:
            raise RuntimeError(str(e)) from e
    def get_reward(self): return 1.0
"""


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('signal only works in main thread of the main interpreter')",
        "import signal; signal.signal(2, print)",
        "from contextlib import *; from signal import *; s = ExitStack();"
        " s.callback(signal, 2, print); s.close()",
        "e = ValueError(); e.__cause__ = e; raise e",  # no end of causes
    ],
    ids=["its text", "a signal", "a library's signal", "a circle"],
)
def test_a_policys_code_that_sets_a_signal_or_says_so_is_told_so_and_ends_no_night(
    code: str, tmp_path: Path
) -> None:
    (tmp_path / "runs.py").write_text(RUNS)
    register(EnvSettings(use="runs.py:Runs", passes="reward >= 1"), tmp_path)
    played = play([f"run: {code}", "Done."])
    assert str(played.turns[0].observation).startswith("{'error': ")
    assert played.grade.passed


def test_a_library_that_sets_a_signal_for_the_environment_is_an_error_too(tmp_path: Path) -> None:
    (tmp_path / "timed.py").write_text(
        "import contextlib, signal\n"
        "class Timed:\n"
        "    def reset(self, **row): ...\n"
        "    @contextlib.contextmanager\n"
        "    def _limit(self):\n"
        "        with contextlib.ExitStack() as after:\n"
        "            after.callback(signal.signal, signal.SIGALRM, print)\n"
        "            yield\n"
        '    def go(self):\n        """Go."""\n'
        "        with self._limit(): pass\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="timed.py:Timed", passes="reward >= 1"), tmp_path)
    with pytest.raises(BadInput, match=r"the tool go: it sets a signal.*timed\.py:6\)"):
        play(["go:", "Done."])


def test_a_coroutine_that_configures_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "set.py").write_text(
        "class Set:\n"
        "    paid = 0.0\n"
        "    async def configure(self, paid): self.paid = paid\n"
        "    def reset(self, **row): ...\n"
        '    def go(self):\n        """Go."""\n'
        "    def get_reward(self): return self.paid\n"
    )
    register(EnvSettings(use="set.py:Set", passes="reward >= 1", config={"paid": 1.0}), tmp_path)
    assert play(["Done."]).grade.passed


def test_a_method_named_as_the_end_is_refused_because_it_is_always_true(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(
        "class Asks:\n"
        "    def reset(self, **row): ...\n"
        '    def go(self):\n        """Go."""\n'
        "    def _over(self): return False\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="asks.py:Asks", passes="reward >= 1", ends="_over"), tmp_path)
    with pytest.raises(BadInput, match=r"counter\.ends: .*: _over is a method, .* a property"):
        play(["go:", "Done."])


def test_an_end_that_is_computed_is_read_in_the_instances_thread(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(
        "import sqlite3\n"
        "class Held:\n"
        "    def __init__(self): self.db = sqlite3.connect(':memory:')\n"
        "    def reset(self, **row): self.calls = 0\n"
        "    def go(self, number: int):\n"
        '        """Go.\n\n        Args:\n            number: Which.\n        """\n'
        "        self.calls += 1\n"
        "    @property\n"
        "    def over(self): return self.db.execute(f'SELECT {self.calls} > 1').fetchone()[0]\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="held.py:Held", passes="reward >= 1", ends="over"), tmp_path)
    done = play(["go: 1", "go: 2", "go: 3"])
    assert (len(done.turns), done.stop_reason) == (2, StopReason.ENV_DONE)


def test_calls_behind_the_one_that_ends_the_episode_are_not_made(tmp_path: Path) -> None:
    (tmp_path / "goal.py").write_text(
        "class Goal:\n"
        "    def reset(self, **row): self.n, self.over = 1, False\n"
        "    def double(self):\n"
        '        """Double."""\n'
        "        self.n *= 2\n"
        "        self.over = self.over or self.n == 4\n"
        "        return str(self.n)\n"
        "    def get_reward(self): return float(self.n == 4)\n"
    )
    register(EnvSettings(use="goal.py:Goal", passes="reward >= 1", ends="over"), tmp_path)
    done = play(["double:\ndouble:\ndouble:"])
    assert (done.reward, done.stop_reason) == (1.0, StopReason.ENV_DONE)
    assert done.turns[0].observation is not None
    assert done.turns[0].observation.split() == ["double:", "2", "double:", "4"]


def test_two_parts_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def reward(**given): return [0.0]\n")
    use = str(HERE / "counter.py:Counter")
    mine = {"mine.py:reward": 1.0}
    register(EnvSettings(use=use, passes="reward >= 1", rewards=mine), tmp_path)
    with pytest.raises(BadInput, match=r"counter\.rewards: two parts .* called 'reward'; rename"):
        play(["Done."])


def test_functions_are_tools_without_state(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(
        "def double(x: int) -> int:\n"
        '    """Double a number.\n\n    Args:\n        x: the number\n    """\n'
        "    return 2 * x\n"
        "TOOLS = [double]\n"
        "def right(completions, answer, **row):\n"
        "    return [float(str(a) in c[-1]['content']) for c, a in zip(completions, answer)]\n"
    )
    settings = EnvSettings(
        use="tools.py:TOOLS", passes="right == 1", rewards={"tools.py:right": 1.0}
    )
    register(settings, tmp_path)
    played = play(["double: 21", "It is 42."], task(answer=42))
    assert played.turns[0].observation == "42"
    assert played.grade.passed


def test_static_methods_are_tools_and_class_methods_are_none_as_in_trl(tmp_path: Path) -> None:
    from trl.trainer.grpo_trainer import GRPOTrainer

    asked = "inspect.getmembers(type(instance), predicate=inspect.isfunction)"
    assert asked in inspect.getsource(GRPOTrainer.__init__), "TRL finds tools in another way"
    (tmp_path / "kinds.py").write_text(
        "class Kinds:\n    def reset(self, **row):\n        return 'Go.'\n"
        "    @staticmethod\n    def go(steps: int) -> str:\n"
        '        """Go.\n\n        Args:\n            steps: How far.\n        """\n'
        "        return f'{steps} on'\n"
        "    @classmethod\n    def other(cls): ...\n"
        "    def get_reward(self):\n        return 1.0\n"
    )
    register(EnvSettings(use="kinds.py:Kinds", passes="reward >= 1"), tmp_path)
    assert play(["go: 2", "Done."]).turns[0].observation == "2 on"
    assert [*tools_of(load("kinds.py:Kinds", tmp_path, "envs.a"))] == ["go"]


def test_a_method_that_is_a_function_of_another_name_is_called_by_that_name_as_in_trl(
    tmp_path: Path,
) -> None:
    (tmp_path / "named.py").write_text(
        "def shared_double(self, x: int) -> int:\n"
        '    """Double a number.\n\n    Args:\n        x: the number\n    """\n'
        "    return self.factor * x\n"
        "class Named:\n"
        "    factor = 2\n"
        "    double = shared_double\n"
        "    def reset(self, **row): ...\n"
        "    def get_reward(self): return 1.0\n"
    )
    register(EnvSettings(use="named.py:Named", passes="reward >= 1"), tmp_path)
    assert play(["shared_double: 21", "Done."]).turns[0].observation == "42"


@pytest.mark.parametrize(
    ("source", "use", "said"),
    [
        ("", "gone.py:X", "gone.py: no such file"),
        ("", "bad.py", "is no module:NAME and no path/to/file.py:NAME"),
        ("class Cuonter: ...", "bad.py:Counter", "has no 'Counter'; did you mean 'Cuonter'?"),
        ("import chess_engine", "bad.py:X", "needs the package 'chess_engine', which .venv lacks"),
        ("x = (", "bad.py:X", r"bad.py:1: SyntaxError"),
        ("\n1 / 0", "bad.py:X", r"bad.py:2: ZeroDivisionError"),
        ("raise SystemExit(3)", "bad.py:X", r"bad.py:1: SystemExit: 3"),
        ("class X: ...", "bad.py:X", r"bad.py:1: X has no method reset"),
        (
            "class X:\n    def reset(self, **r): ...",
            "bad.py:X",
            "has no public method to be a tool",
        ),
        (
            "class X:\n    def __init__(self, n): ...\n    def reset(self, **r): ...\n"
            "    def go(self): ...",
            "bad.py:X",
            r"bad.py:1: X takes arguments \(n\); as in TRL",
        ),
        (
            "class X:\n    def reset(self, **r): ...\n    def go(self): ...\n"
            "    def get_reward(self): ...",
            "bad.py:X",
            r"bad.py:3: the tool go cannot be described: .*no docstring",
        ),
        (
            'class X:\n    def reset(self, **r): ...\n    def go(self):\n        """Go."""\n'
            "        yield 1\n    def get_reward(self): ...",
            "bad.py:X",
            r"bad.py:3: the tool go: it has a `yield`, so a call makes a generator",
        ),
        (
            'class X:\n    def reset(self, **r): ...\n    def go(self):\n        """Go."""',
            "bad.py:X",
            r"nothing gives a reward; add a method get_reward\(\) to X, or name a function in run",
        ),
        ("", "no_such_module_here:X", "there is no module 'no_such_module_here'"),
        ("X = 3", "bad.py:X", r"bad.py:X is no class, no function and no list of functions"),
    ],
)
def test_code_that_does_not_keep_the_contract_is_named_with_its_line(
    source: str, use: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text(source)
    register(EnvSettings(use=use, passes="reward >= 1"), tmp_path)
    with pytest.raises(BadInput, match=f"^envs.counter: .*{said}"):
        make_world(task(), Site(SandboxSettings(), tmp_path))


def test_a_python_of_its_own_is_refused_with_where_a_class_runs() -> None:
    with pytest.raises(BadInput, match=r"envs\.counter\.python: a class runs in \.venv"):
        register(replace(COUNTER, python="/other/bin/python")).make(Site(SandboxSettings(), HERE))


def test_a_reset_that_raises_is_a_broken_environment_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "class Broken:\n    def reset(self, **row):\n        {}['x']\n"
        '    def go(self):\n        """Go."""\n    def get_reward(self): ...\n'
    )
    register(EnvSettings(use="broken.py:Broken", passes="reward >= 1"), tmp_path)
    with pytest.raises(Unavailable, match=r"reset: KeyError: 'x' \(.*broken.py:3\)"):
        play(["Done."])


def test_a_constructor_that_fails_is_tried_again_and_then_told_with_its_line(
    tmp_path: Path,
) -> None:
    """It may open a connection, as `reset` may."""
    (tmp_path / "opens.py").write_text(
        "class Opens:\n    made = 0\n    def __init__(self):\n        Opens.made += 1\n"
        "        if Opens.made in (1, 3, 4, 5): raise OSError('no route')\n"
        "    def reset(self, **row): ...\n"
        '    def go(self):\n        """Go."""\n    def get_reward(self): return 1.0\n'
    )
    register(EnvSettings(use="opens.py:Opens", passes="reward >= 1"), tmp_path)
    assert play(["Done."]).grade.passed
    register(EnvSettings(use="opens.py:Opens", passes="reward >= 0"), tmp_path)
    with pytest.raises(Unavailable, match=r"the constructor: OSError: no route \(.*opens\.py:5\)"):
        play(["Done."])


def test_a_reward_function_that_does_not_take_what_it_gets_is_told_with_its_own_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text("\ndef mine(completions): return [1.0]\n")
    use = str(HERE / "counter.py:Counter")
    register(EnvSettings(use=use, passes="reward >= 1", rewards={"mine.py:mine": 1.0}), tmp_path)
    said = r"reward function mine takes no `\*\*columns`.* target too \(.*mine\.py:2\)$"
    with pytest.raises(BadInput, match=said):
        play(["Done."])
    (tmp_path / "pool.jsonl").write_text(encode(task()) + "\n")  # and before a night begins
    [problem] = check_tasks(tmp_path / "pool.jsonl")
    assert re.search(said, problem.reason)


def test_rows_that_differ_only_by_a_column_are_different_tasks(tmp_path: Path) -> None:
    register()
    for name, seeds in (("pool", range(3)), ("heldout", range(3, 5)), ("clash", range(2, 4))):
        lines = [f'{{"environment": "counter", "prompt": "", "target": {s}}}\n' for s in seeds]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    assert len(read_tasks(tmp_path / "pool.jsonl")) == 3
    check_disjoint(tmp_path / "pool.jsonl", tmp_path / "heldout.jsonl")
    with pytest.raises(BadInput, match=r"pool.jsonl:3: task .* has the same task_id as"):
        check_disjoint(tmp_path / "pool.jsonl", tmp_path / "clash.jsonl")


def test_one_row_a_thousand_times_is_as_many_tasks_that_differ_by_seed(tmp_path: Path) -> None:
    register()
    row = json.dumps({"environment": "counter", "prompt": "Go."}) + "\n"
    pool, held_out = tmp_path / "pool.jsonl", tmp_path / "held.jsonl"
    pool.write_text(row * 1000)
    held_out.write_text(row * 3)
    check_disjoint(pool, held_out)
    ids = [t.task_id for t in (*read_tasks(pool), *read_tasks(held_out))]
    assert len(set(ids)) == 1003
    assert [t.task_id for t in decode_tasks(held_out)] == ids[1000:]
    assert len({str(opening(t).messages) for t in read_tasks(held_out)}) == 3
    pool.write_text(row * 2)
    held_out.write_text(row)  # held out once, it is a question that the pool gives away
    with pytest.raises(BadInput, match="has the same row as held-out task"):
        check_disjoint(pool, held_out)


def test_an_answer_of_a_gigabyte_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "huge.py").write_text(
        "class Huge:\n"
        "    def reset(self, **row): ...\n"
        "    def look(self) -> str:\n"
        '        """Look."""\n'
        "        return 'x' * 2**30\n"
        "    def get_reward(self): return 0.0\n"
    )
    register(EnvSettings(use="huge.py:Huge", passes="reward >= 1"), tmp_path)
    said = play(["look:", "Done."]).turns[0].observation
    assert said == f"{'x' * 65_536}\n[{2**30 - 65_536} characters left out]"


def test_random_numbers_of_the_environment_are_seeded_before_reset() -> None:
    register()
    random.seed(1)
    one = opening()
    random.seed(2)
    assert opening() == one


ASYNC = """
import asyncio, random

class Waits:
    async def reset(self, **row):
        drawn = random.randrange(10**6)
        await asyncio.sleep(0.01)
        return f"The number is {drawn}."
    def say(self) -> str:
        \"\"\"Say something.\"\"\"
        return ""
    def get_reward(self):
        return 0.0
"""


def test_coroutine_resets_at_once_draw_what_their_tasks_seeds_give(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(ASYNC)
    register(EnvSettings(use="waits.py:Waits", passes="reward >= 1"), tmp_path)
    tasks = [Task(f"t{i % 3}", "counter", "", {}) for i in range(24)]

    async def opened() -> list[str]:
        worlds = [make_world(t, Site(SandboxSettings(), tmp_path)) for t in tasks]
        began = await asyncio.gather(*(w.reset(t, 0) for w, t in zip(worlds, tasks, strict=True)))
        for world in worlds:
            await world.close()
        return [str(one.messages[-1]["content"]) for one in began]

    said = asyncio.run(opened())
    assert len(set(said)) == 3
    assert [said[i] for i in range(3)] * 8 == said
