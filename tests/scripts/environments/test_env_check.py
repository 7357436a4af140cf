"""What `grpo env check` finds, and on which line; what a sound environment is told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.environments.check_text import check_text
from scripts.environments.checker import check
from scripts.environments.env_check import Checked, check_environment, with_context
from scripts.environments.order import Order
from tests.fieldkit.answering import answering, said
from tests.tiny_model import make_tiny_model

FAULTY = Path(__file__).with_name("faulty.py")
LINES = FAULTY.read_text().splitlines()


def order_of(name: str, **more: Any) -> Order:
    """To check the class `name` of faulty.py."""
    ends = "" if name in ("OneStep", "ToolRaises") else "over"
    order = Order(f"faulty.py:{name}", str(FAULTY.parent), passes="reward >= 1", ends=ends)
    return replace(order, **{"episodes": 8, **more})


def apart(name: str, **more: Any) -> Checked:
    """Checked as `grpo env check` does it, in a process of its own."""
    return check_environment(order_of(name, **more), lambda *_: None)


def checked(name: str, **more: Any) -> Checked:
    """Checked in this process, which has imported what takes seconds to import."""
    findings, figures = check(order_of(name, **more), lambda **_: None)
    return Checked(name, tuple(findings), figures)


def line_of(text: str, after: str = "") -> str:
    """file:line of the first line that holds `text` behind the one that holds `after`."""
    start = next(i for i, line in enumerate(LINES) if after in line)
    number = next(i for i, line in enumerate(LINES) if i >= start and text in line)
    return f"{FAULTY}:{number + 1}"


def test_a_sound_environment_has_no_findings_but_figures() -> None:
    found = apart("Sound", perfect=[("guess", {"number": n}) for n in range(1, 7)])
    assert found.sound
    assert found.findings == ()
    figures = found.figures
    assert [t["function"]["name"] for t in figures["tools"]] == ["guess", "read"]
    assert figures["random"]["episodes"] == 8
    assert 0 < figures["random"]["mean"] == figures["random"]["passed"] <= 1
    assert figures["empty"] == {"reward": 0.0, "parts": {"reward": 0.0}, "passed": False}
    assert figures["perfect"]["passed"]
    assert figures["reset_ms"] < figures["slowest_step_ms"] + 100
    json.dumps(found.plain())


@pytest.mark.parametrize(
    ("name", "says", "where"),
    [
        ("Needs", "Needs() needs size", line_of("def __init__(self, size")),
        ("Chance", "the same seed and calls", line_of("def read", "class Chance")),
        ("Shares", "two instances share state", line_of("def read", "class Shares")),
        ("Keeps", "a second episode of one instance", line_of("def read", "class Keeps")),
        ("Raises", "reset raised KeyError: 'question'", line_of("it raises here")),
        ("NoNumber", "which is not a reward", line_of("def get_reward", "class NoNumber")),
        ("Untyped", "number is missing a type hint", line_of("def guess", "class Untyped")),
        ("Gives", "without a call passes", line_of("def get_reward", "class Gives")),
        ("Narrow", "takes no `**row`", line_of("def reset", "class Narrow")),
        ("Silent", "neither the row nor reset()", line_of("def reset", "class Silent")),
        ("Unpaid", "nothing gives a reward", line_of("class Unpaid")),
        ("SaysList", "reset returned list", line_of("def reset", "class SaysList")),
        ("Shows", "gave image; only text can be", line_of("def read", "class Shows")),
        ("Yields", "tool read: it has a `yield`, so", line_of("def read", "class Yields")),
        ("YieldsLater", "tool read: it has a `yield`", line_of("def read", "class YieldsLater")),
        ("ToolRaises", "every call of a tool raised", line_of("every time")),
    ],
)
def test_a_fault_is_an_error_with_its_line(name: str, says: str, where: str) -> None:
    found = checked(name)
    assert not found.sound
    [error] = [f for f in found.findings if f.level == "error"]
    assert says in error.text
    assert error.where == where


@pytest.mark.parametrize(
    ("name", "what", "where"),
    [("Hangs", "guess", "class Hangs"), ("HangsInC", "the reward", "it hangs in C")],
)
def test_a_call_that_hangs_is_ended_and_has_its_line(name: str, what: str, where: str) -> None:
    [error] = apart(name, call_seconds=1.0).findings
    assert error.text.startswith(what)
    assert "did not return within 1 s" in error.text
    number = int(error.where.rpartition(":")[2])
    within = int(line_of(where).rpartition(":")[2])
    assert error.where.startswith(f"{FAULTY}:")
    assert within <= number <= within + 8


def test_a_tool_that_sets_a_signal_is_an_error_as_in_a_run() -> None:
    [error] = apart("Timed").findings
    assert error.text.startswith("tool read: it sets a signal")
    assert error.where == line_of("def read", "class Timed")


def test_a_tool_that_leaves_something_to_luck_shares_no_state_but_is_a_warning() -> None:
    found = checked("Rolls")
    assert found.sound
    [*_, warning] = found.findings
    assert warning.text.startswith("tool read draws from the generators of the process")
    assert warning.where == line_of("def read", "class Rolls")


def test_episodes_without_a_reward_are_counted_and_not_among_the_equals() -> None:
    found = checked("Seldom", turns=1, episodes=16)
    of = found.figures["random"]
    assert 0 < of["unrewarded"] < of["episodes"] == 16
    first, equals = found.findings
    assert first.level == equals.level == "warning"
    assert first.text.startswith(f"{of['unrewarded']} of 16 episodes had no reward (None) and")
    assert first.text.endswith("return 0.0 for a failure")
    assert first.where == line_of("def get_reward", "class Seldom")
    assert equals.text.startswith("every episode of a random policy that had a reward is worth 1:")
    assert f"16 episodes, {of['unrewarded']} without a reward, reward 1" in check_text(found)


def test_a_class_that_a_policy_cannot_give_is_a_warning_with_what_to_use() -> None:
    found = checked("Typed")
    assert found.sound
    way, *put = [f for f in found.findings if "its argument" in f.text]
    assert way.where == line_of("def guess", "class Typed")
    assert way.text == (
        "tool guess: its argument way: the policy's value arrives as JSON, not as Way; use"
        ' `Literal["up", "down"]`'
    )
    assert {f.where for f in put} == {line_of("def put", "class Typed")}
    assert [f.text.removeprefix("tool put: its argument ") for f in put] == [
        "places: the policy is not shown the fields of Place; give x, y arguments of their own, or"
        " name them under `Args:`",
        "sizes: the policy's value arrives as JSON, not as Size; give high arguments of their own,"
        " or name them under `Args:`",
        "paint: the policy's value arrives as JSON, not as date; use a type of JSON, and convert it"
        " in the tool",
    ]


def test_a_process_that_ends_itself_leaves_its_last_words() -> None:
    [error] = apart("Dies").findings
    assert "the reward ended the process (exit code 3); its last words: no more" in error.text


def test_a_reward_function_that_raises_is_an_error_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "pays.py"
    file.write_text("def pays(**given):\n    return [{}['x']]\n")
    [error] = checked("Sound", rewards={f"{file}:pays": 1.0}).findings
    assert "reward function pays: KeyError: 'x'" in error.text
    assert error.where == f"{file}:2"


@pytest.mark.parametrize(
    ("takes", "says"),
    [
        ("completions, environments", "takes no `**columns`: add it, because it is called with"),
        ("completions, answer, **row", "needs the column answer, and the row has seed: name rows"),
    ],
)
def test_a_reward_function_that_the_row_does_not_fit_has_its_line_and_what_to_add(
    takes: str, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "pays.py"
    file.write_text(f"\ndef pays({takes}):\n    return [1.0]\n")
    [error] = checked("Sound", rewards={f"{file}:pays": 1.0}).findings
    assert f"reward function pays {says}" in error.text
    assert error.where == f"{file}:2"


def test_a_reward_function_may_use_what_the_environment_holds_as_in_a_run(tmp_path: Path) -> None:
    file = tmp_path / "pays.py"
    file.write_text(
        "def pays(environments, **given):\n"
        "    return [environments[0].log.execute('SELECT 0.5').fetchone()[0]]\n"
    )
    assert checked("Holds", rewards={f"{file}:pays": 1.0}).findings == ()


def test_the_coroutines_of_all_instances_share_an_event_loop_as_in_trl() -> None:
    assert checked("Waits").findings == ()


def test_an_end_that_is_not_set_is_suggested() -> None:
    found = checked("Sound", ends="")
    assert found.sound
    [warning] = found.findings
    assert re.match(r"over turns true in \d+ of 9 episodes: if", warning.text)
    assert "`--ends over`" in warning.text
    assert warning.where == line_of("self.over = False", "class Sound")
    assert checked("Sound").findings == ()


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    return ChatRenderer(make_tiny_model(tmp_path_factory.mktemp("model")))


def in_context(name: str, renderer: ChatRenderer, most: int, form: str = "text") -> Checked:
    """Checked, and measured as a run with a context of `most` tokens would."""
    limits = EpisodeSettings(max_new_tokens=20, max_model_len=most)
    return with_context(checked(name), renderer, form, "", limits)


def test_a_first_text_that_does_not_fit_the_context_is_an_error(renderer: ChatRenderer) -> None:
    found = in_context("TellsMuch", renderer, 600)
    tokens = found.figures["context_tokens"]["opening"]
    assert 200 < tokens <= 580
    assert found.findings == ()
    [error] = in_context("TellsMuch", renderer, tokens + 19).findings
    assert error.level == "error"
    assert error.text.startswith(f"an episode begins with {tokens} tokens, which with a reply of")
    assert in_context("TellsMuch", renderer, tokens + 20).sound
    assert "longest" not in found.plain()


def test_the_tools_take_room_in_the_context_as_the_run_shows_them(renderer: ChatRenderer) -> None:
    def tokens(form: str) -> int:
        found = in_context("Sound", renderer, 600, form)
        taken: int = found.figures["context_tokens"]["opening"]
        return taken

    prompt = "Find a number from 1 to 6."
    bare = len(renderer.opening_ids([{"role": "user", "content": prompt}]))
    assert bare == tokens("hermes") < tokens("text")  # this template shows no tools


def test_an_answer_that_alone_fills_the_context_is_a_warning(renderer: ChatRenderer) -> None:
    found = in_context("AnswersMuch", renderer, 200)
    assert found.sound
    [warning] = found.findings
    assert "so the episode ends with it (CONTEXT_FULL)" in warning.text


def test_the_order_of_a_set_is_found_in_another_process() -> None:
    [error] = apart("Sets").findings
    assert error.text.startswith("the same seed and calls in another process gave something else")
    assert "read, said" in error.text
    assert error.text.endswith("; as the order of a set does: sort what is shown")
    assert error.where == line_of("def read", "class Sets")


def test_an_environment_that_cannot_be_loaded_twice_is_not_compared() -> None:
    assert apart("Once").findings == ()


def test_one_tool_called_step_is_a_warning() -> None:
    found = checked("OneStep")
    assert found.sound
    [warning, flat] = found.findings
    assert "give every action a method of its own" in warning.text
    assert warning.where == line_of("def step", "class OneStep")
    assert "every episode of a random policy is worth 0" in flat.text


def test_a_perfect_episode_that_earns_nothing_is_an_error() -> None:
    [error] = checked("Sound", perfect=[("read", {})]).findings
    assert "the perfect episode does not pass" in error.text


def test_a_function_that_reads_the_last_message_judges_an_episode_without_a_call(
    tmp_path: Path,
) -> None:
    (tmp_path / "last.py").write_text(
        "def last(completions, **row):\n"
        "    return [float(len(c[-1]['content']) > 3) for c in completions]\n"
    )
    found = checked("Sound", rewards={f"{tmp_path / 'last.py'}:last": 0.1})
    assert not [f for f in found.findings if f.level == "error"], found.findings


def test_a_perfect_episode_that_calls_no_tool_of_the_class_names_the_nearest() -> None:
    [error] = checked("Sound", perfect=[("guss", {"number": 1})]).findings
    assert error.text == "there is no tool 'guss'; did you mean 'guess'?"


def test_the_calls_of_an_oracle_are_the_perfect_episode(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import random\n"
        "def solution(**row):\n"
        "    return [('guess', {'number': random.randint(1, 6)})]  # as reset draws it\n"
    )
    found = checked("Sound", oracle=f"{tmp_path}/own.py:solution")
    assert found.figures["perfect"]["passed"]


def test_an_oracle_whose_call_fails_is_named_with_it_and_not_the_environment(
    tmp_path: Path,
) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def solution(**row):\n    return [('read', {}), ('guess', {'nmber': 1})]\n"
        "def other(**row):\n    return [('read', {}), ('guss', {'number': 1})]\n"
        "def idle(**row):\n    return [('read', {})]\n"
    )
    [error] = checked("Sound", oracle=f"{file}:solution").findings
    assert error.where == f"{file}:1"
    assert error.text == (
        f"the episode of oracle = {file}:solution does not pass: {{'reward': 0.0}}; call 2,"
        " guess(nmber=1): TypeError: Sound.guess() got an unexpected keyword argument 'nmber'"
    )
    [error] = checked("Sound", oracle=f"{file}:other").findings
    assert error.where == f"{file}:3"
    said = f"oracle = {file}:other: call 2, guss(number=1): there is no tool 'guss'; did you mean"
    assert error.text.startswith(said)
    [error] = checked("Sound", oracle=f"{file}:idle").findings
    assert error.text.startswith(f"the episode of oracle = {file}:idle does not pass")
    assert error.where == line_of("def get_reward", "class Sound")


def test_passes_that_names_no_part_of_the_reward_names_the_parts() -> None:
    with pytest.raises(BadInput, match="'correct', which is no part of the reward; parts: reward"):
        checked("Sound", passes="correct >= 1")


def test_a_model_that_knows_more_than_chance_is_reported_beside_it() -> None:
    with answering([said("\n".join(f"guess: {n}" for n in range(1, 7)))]) as endpoint:
        found = checked("Sound", endpoint=endpoint.base_url, model="m", turns=6)
    assert found.findings == ()
    assert found.figures["model"]["mean"] == 1.0
    asked = endpoint.asked[0]["messages"]
    assert 'guess {"number": integer}' in asked[0]["content"]
    assert asked[1]["content"] == "Find a number from 1 to 6."


def test_a_model_that_earns_no_more_than_chance_is_a_warning() -> None:
    with answering([said("I do not know.")]) as endpoint:
        found = checked("Sound", endpoint=endpoint.base_url, model="m")
    assert found.sound
    silent, poor = found.findings
    assert "called no tool" in silent.text
    assert "skill does not pay" in poor.text


def test_an_endpoint_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="--endpoint"):
        checked("Sound", endpoint="http://127.0.0.1:9/v1", model="m")


def test_a_class_that_is_not_there_is_bad_input() -> None:
    with pytest.raises(BadInput, match="has no 'Sond'; did you mean 'Sound'"):
        apart("Sond")


def test_an_end_that_is_no_attribute_is_an_error() -> None:
    [error] = checked("OneStep", ends="finished").findings[1:]
    assert "ends = 'finished': 'OneStep' object has no attribute 'finished'" in error.text
    [error] = checked("Asked", ends="_ended").findings
    assert "ends = '_ended': _ended is a method, which is always true" in error.text
