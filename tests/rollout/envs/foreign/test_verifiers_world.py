"""verifiers environments, each in its own packages, played by our loop through theirs."""

import asyncio
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.records import StopReason, Task, Trajectory
from reward.reward import Reward
from rollout.envs.base import Environment, Reply, Site
from rollout.envs.env_settings import EnvSettings
from rollout.envs.foreign import foreign_worker, verifiers_world
from rollout.envs.foreign.verifiers_world import (
    VerifiersProgram,
    VerifiersWorld,
    dataset_rows,
    verifiers_environment,
    verifiers_identity,
)
from rollout.player import Player
from rollout.policies import RecitedPolicy
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from scripts.base.checkout import ROOT
from scripts.environments.foreign_venv import add_environment, inline_metadata
from tests.fieldkit.answering import answering, said

EXAMPLES = Path(__file__).parents[1] / "verifiers_examples" / "everything.py"
ADD = '<tool_call>{{"name": "add", "arguments": {{"a": {0}, "b": {0}}}}}</tool_call>'


@pytest.fixture(scope="module")
def python() -> str:
    return str(add_environment(str(EXAMPLES)).python)


def made(
    python: str, kind: str, passes: str = "right == 1", url: str = "", **more: Any
) -> Environment:
    settings = EnvSettings(
        use=str(EXAMPLES),
        style="verifiers",
        passes=passes,
        python=python,
        config={"kind": kind, **({"url": url} if url else {})},
        **more,
    )
    return verifiers_environment("theirs", settings, Path("/"))


def rows(python: str, kind: str, tmp_path: Path, n: int = 2) -> list[dict[str, Any]]:
    settings = EnvSettings(
        use=str(EXAMPLES),
        style="verifiers",
        passes="right == 1",
        python=python,
        config={"kind": kind},
    )
    program = VerifiersProgram("theirs", settings, Path("/"))
    try:
        found: list[dict[str, Any]] = asyncio.run(
            program.ask("rows", tmp_path, split="train", n=n, seed=None)
        )
    finally:
        program.close()
    return found


def task(**row: Any) -> Task:
    return Task("t", "theirs", "", row)


def play(
    environment: Environment,
    played: Task,
    replies: Sequence[str],
    tmp_path: Path,
    form: str = "hermes",
) -> Trajectory:
    site = Site(SandboxSettings(), tmp_path, tool_form=form)
    player = Player(
        policy=lambda *_: RecitedPolicy(replies),
        worlds=lambda t: environment.make(site),
        settings=EpisodeSettings(max_turns=8),
        adapter_sha="recited",
        policy_version="recited",
        reward=Reward(),
        clock=lambda: 0.0,
    )
    return asyncio.run(player.play(played, 0, lambda turn: turn + 1))


def asked(text: str) -> Task:
    return task(prompt=[{"role": "user", "content": text}], answer="6")


@pytest.mark.envs
def test_a_tool_environment_runs_its_tools_and_is_scored_by_its_rubric(
    python: str, tmp_path: Path
) -> None:
    found = play(
        made(python, "tools"), asked("What is 3 + 3?"), [ADD.format(3), "It is 6."], tmp_path
    )
    assert [t.observation for t in found.turns] == ["6", None]
    assert found.stop_reason is StopReason.TASK_COMPLETE
    assert [(p.name, p.value, p.weight) for p in found.grade.rewards] == [
        ("right", 1.0, 1.0),
        ("lambda_free", 0.5, 0.5),
        ("num_turns", 2.0, 0.0),
        ("total_tool_calls", 1.0, 0.0),
        ("add_calls", 1.0, 0.0),
    ]
    assert found.reward == 1.25
    assert found.grade.passed


@pytest.mark.envs
def test_the_text_form_tells_and_reads_the_tools_where_a_template_has_none(
    python: str, tmp_path: Path
) -> None:
    replies = ['add {"a": 3, "b": 3}', "It is 6."]
    found = play(made(python, "tools"), asked("What is 3 + 3?"), replies, tmp_path, "text")
    assert found.turns[0].observation == "6"
    assert found.grade.passed


@pytest.mark.envs
def test_a_stateful_tool_gets_what_the_policy_does_not_see(python: str, tmp_path: Path) -> None:
    call = '<tool_call>{"name": "pay", "arguments": {"coins": 2}}</tool_call>'
    environment = made(python, "till", "paid >= 4")
    found = play(environment, asked("Pay."), [call, call, "Paid."], tmp_path)
    assert [t.observation for t in found.turns] == ["2 in the till", "4 in the till", None]
    assert found.grade.passed


@pytest.mark.envs
def test_a_game_ends_by_its_own_condition_and_its_number_is_that_of_the_task(
    python: str, tmp_path: Path
) -> None:
    environment = made(python, "guess", "hit == 1")
    first = play(environment, asked("Guess."), ["1000"], tmp_path)
    said = str(first.turns[0].observation)
    number = said.removesuffix(".").split()[-1]
    assert first.stop_reason is StopReason.TASK_COMPLETE  # the recited policy had no more to say
    assert not first.grade.passed
    again = play(environment, asked("Guess."), ["1000", number], tmp_path)
    assert again.turns[0].observation == said
    assert again.stop_reason is StopReason.ENV_DONE
    assert again.grade.passed
    gone = play(environment, asked("Guess."), ["give up"], tmp_path)
    assert gone.turns[0].observation == "A pity."
    assert gone.stop_reason is StopReason.ENV_DONE


@pytest.mark.envs
def test_reasoning_gym_gives_rows_and_scores_an_answer(python: str, tmp_path: Path) -> None:
    first, second = rows(python, "reasoning", tmp_path)
    assert first["question"] != second["question"]
    prompt = first.pop("prompt")
    played = Task("t", "theirs", first["question"], {**first, "prompt": prompt})
    environment = made(python, "reasoning", "check_answer_reward_func >= 1")
    found = play(environment, played, ["<answer>\nno number\n</answer>"], tmp_path)
    assert found.stop_reason is StopReason.ENV_DONE
    assert [p.name for p in found.grade.rewards][:2] == [
        "check_answer_reward_func",
        "format_reward_func",
    ]
    assert not found.grade.passed


@pytest.mark.envs
@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        (
            "raises",
            Unavailable,
            r"reward function raises: KeyError\('oops'\) \(.*everything.py:\d+",
        ),
        ("nothing", Unavailable, r"reward function nothing: TypeError"),
        ("group", BadInput, r"a reward function scores a whole group at once \(best\)"),
        ("dies", Unavailable, "verifiers_worker: it died"),
        ("broken", Unavailable, r"KeyError: 'no file' \(.*everything.py:\d+"),
        ("no such", Unavailable, r"ValueError: no kind 'no such'"),
    ],
)
def test_what_is_broken_there_is_an_error_here_and_never_a_reward(
    kind: str, error: type[Exception], said: str, python: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        play(made(python, kind), asked("What is 3 + 3?"), ["6"], tmp_path)


@pytest.mark.envs
def test_a_conversation_that_is_rewritten_is_refused(python: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="rewrites the conversation instead of adding to it"):
        play(made(python, "forgets", "hit == 1"), asked("Guess."), ["1", "2"], tmp_path)


@pytest.mark.envs
def test_chance_calls_a_tool_that_the_episode_showed(python: str, tmp_path: Path) -> None:
    environment, row = made(python, "tools"), asked("What is 3 + 3?")
    play(environment, row, ["6"], tmp_path)
    assert environment.random_reply is not None
    assert environment.random_reply(row, "What is 3 + 3?", random.Random(0)).startswith("add {")


@pytest.mark.envs
def test_a_tool_that_raises_is_for_the_policy_to_read(python: str, tmp_path: Path) -> None:
    call = '<tool_call>{"name": "refuse", "arguments": {}}</tool_call>'
    found = play(made(python, "meeting"), asked("What is 3 + 3?"), [call, "6"], tmp_path)
    assert "not today" in str(found.turns[0].observation)
    assert found.grade.passed


@pytest.mark.envs
@pytest.mark.parametrize(("verdict", "reward"), [("Yes.", 1.0), ("No.", 0.0)])
def test_a_judge_is_asked_at_its_own_endpoint(
    verdict: str, reward: float, python: str, tmp_path: Path
) -> None:
    with answering([said(verdict)]) as judge:
        environment = made(python, "judge", "judged == 1", url=judge.base_url)
        found = play(environment, asked("What is 3 + 3?"), ["It is six."], tmp_path)
    assert (found.reward, found.grade.passed) == (reward, reward == 1.0)
    assert "It is six." in judge.asked[0]["messages"][0]["content"]


@pytest.mark.envs
def test_a_judge_that_does_not_answer_is_an_error_and_no_reward(
    python: str, tmp_path: Path
) -> None:
    environment = made(python, "judge", "judged == 1", url="http://127.0.0.1:9/v1")
    said = rf"reward function judged: .*Judge model.* \({EXAMPLES}:126\)"
    with pytest.raises(Unavailable, match=said):
        play(environment, asked("What is 3 + 3?"), ["It is six."], tmp_path)


@pytest.mark.envs
def test_a_group_of_environments_plays_and_scores_each_row_in_its_own(
    python: str, tmp_path: Path
) -> None:
    environment = made(python, "both", "reward >= 1")  # the sum: they have no part in common
    first, *_, last = rows(python, "both", tmp_path, 16)
    sums = play(environment, task(**first), [f"It is {first['answer']}."], tmp_path)
    assert [(p.name, p.value) for p in sums.grade.rewards][:2] == [
        ("right", 1.0),
        ("lambda_free", 0.5),
    ]
    call = '<tool_call>{"name": "pay", "arguments": {"coins": 2}}</tool_call>'
    till = play(environment, task(**last), [call, "Paid."], tmp_path)
    assert till.turns[0].observation == "2 in the till"
    assert [(p.name, p.value) for p in till.grade.rewards][:1] == [("paid", 2.0)]
    assert sums.grade.passed
    assert till.grade.passed


@pytest.mark.envs
def test_a_dataset_that_is_not_there_is_named(python: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="it has an eval_dataset and no dataset"):
        rows(python, "held out", tmp_path)


@pytest.mark.envs
def test_a_file_may_import_the_module_beside_it_and_is_hashed_with_it(
    python: str, tmp_path: Path
) -> None:
    (tmp_path / "prompts.py").write_text("SYSTEM = 'Add.'\n")
    file = tmp_path / "mine.py"
    file.write_text(f"from prompts import SYSTEM\n{EXAMPLES.read_text(encoding='utf-8')}")
    settings = EnvSettings(use=str(file), style="verifiers", passes="right == 1", python=python)
    assert len(dataset_rows("mine", settings, tmp_path, "train", 1, 0, tmp_path)) == 1
    before = verifiers_identity("mine", settings, tmp_path)
    (tmp_path / "prompts.py").write_text("SYSTEM = 'Sum up.'\n")
    assert verifiers_identity("mine", settings, tmp_path) != before


@pytest.mark.envs
def test_256_episodes_at_once_and_a_slow_tool_stalls_none(python: str, tmp_path: Path) -> None:
    environment = made(python, "meeting", call_seconds=120.0)
    site = Site(SandboxSettings(), tmp_path, tool_form="hermes")

    async def one(i: int, first: str) -> tuple[str | None, float | None]:
        world = environment.make(site)
        await world.reset(
            task(prompt=[{"role": "user", "content": f"{i} + {i}?"}], answer=str(2 * i)), 0
        )
        told = (await world.step(Reply(first))).said
        await world.step(Reply(str(2 * i)))
        grade = await world.grade()
        await world.close()
        return told, grade.reward

    async def all_of_them() -> None:
        waits, calls = (
            f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
            for name in ("stay", "call")
        )
        slow = asyncio.create_task(one(0, waits))
        played = await asyncio.gather(*(one(i, ADD.format(i)) for i in range(1, 256)))
        assert played == [(str(2 * i), 1.0) for i in range(1, 256)]
        assert not slow.done()
        assert await one(0, calls) == ("called out", 1.0)
        assert await slow == ("called", 1.0)

    asyncio.run(all_of_them())


@pytest.mark.envs
def test_the_page_of_verifiers_shows_an_environment_that_plays(python: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "environments-verifiers.md").read_text(encoding="utf-8")
    shown = tmp_path / "sums.py"
    shown.write_text(page.split("```python\n")[1].split("```")[0], encoding="utf-8")
    assert inline_metadata(shown) == {"dependencies": ["verifiers==0.3.1"]}
    settings = EnvSettings(
        use=str(shown), style="verifiers", passes="right == 1", python=python, config={"n": 3}
    )
    (row,) = dataset_rows("sums", settings, tmp_path, "train", 1, 0, tmp_path)
    environment = verifiers_environment("sums", settings, tmp_path)
    found = play(environment, task(**row), [f"It is {row['answer']}."], tmp_path)
    assert found.grade.passed


@pytest.mark.envs
def test_the_game_of_the_three_styles_pays_hints_and_the_right_number(tmp_path: Path) -> None:
    shown = ROOT / "docs" / "styles" / "guess_verifiers.py"
    theirs = str(add_environment(str(shown)).python)
    settings = EnvSettings(use=str(shown), style="verifiers", passes="reward > 0.5", python=theirs)
    (row,) = dataset_rows("guess", settings, tmp_path, "eval", 1, 0, tmp_path)
    environment = verifiers_environment("guess", settings, tmp_path)
    found = play(
        environment, task(**row), [f"guess: {n}" for n in range(1, 9)], tmp_path, form="text"
    )
    told = [turn.observation for turn in found.turns if turn.observation]
    wrong = told.count("Higher.")
    assert found.reward == pytest.approx((found.turns[-1].observation != "Higher.") - 0.1 * wrong)
    assert found.grade.passed == (wrong <= 4)


SCRIPTED = f"""
import asyncio, sys
sys.path.insert(0, {str(Path(foreign_worker.__file__).parent)!r})
import foreign_worker

class Scripted(foreign_worker.Worker):
    async def load(self, use, config):
        print("loads", flush=True)
        if config:
            raise ValueError("the network is down")
        return {{}}

    async def begin(self, episode, row, seed):
        return {{"ask": {{"messages": [{{"role": "user", "content": "Go."}}], "tools": []}}}}

    async def reply(self, episode, **reply):
        print("replied", repr(reply["text"]), flush=True)
        if reply["text"] == "Wait.":
            await asyncio.Event().wait()
        return {{"over": {{"rewards": [["right", 0.0, 1.0]], "by_policy": True, "told": []}}}}

foreign_worker.run(Scripted())
"""


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerifiersProgram]:
    """A program without verifiers; with a config it cannot be loaded."""
    yield from _scripted(tmp_path, monkeypatch, {})


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VerifiersProgram]:
    yield from _scripted(tmp_path, monkeypatch, {"offline": True})


def _scripted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> Iterator[VerifiersProgram]:
    (tmp_path / "worker.py").write_text(SCRIPTED, encoding="utf-8")
    monkeypatch.setattr(verifiers_world, "_worker", lambda python: tmp_path / "worker.py")
    settings = EnvSettings(
        use="x", style="verifiers", passes="right == 1", python=sys.executable, config=config
    )
    program = VerifiersProgram("theirs", settings, Path("/"))
    yield program
    program.close()


def loads(tmp_path: Path) -> int:
    return (tmp_path / "envs.theirs.log").read_text(encoding="utf-8").count("loads\n")


async def test_an_episode_without_a_reply_is_graded_as_one_with_an_empty_reply(
    scripted: VerifiersProgram, tmp_path: Path
) -> None:
    """Most rubrics read the last message, and raise where there is none."""
    world = VerifiersWorld(Site(SandboxSettings(), tmp_path, tool_form="text"), scripted)
    await world.reset(asked("Go."), 0)
    assert not (await world.grade()).passed
    assert "replied ''\n" in (tmp_path / "envs.theirs.log").read_text(encoding="utf-8")


async def test_a_reply_that_hangs_ends_its_episode_and_the_next_has_a_new_program(
    scripted: VerifiersProgram, tmp_path: Path
) -> None:
    scripted.settings = replace(scripted.settings, call_seconds=5.0)
    site = Site(SandboxSettings(), tmp_path, tool_form="text")
    world = VerifiersWorld(site, scripted)
    await world.reset(asked("Go."), 0)
    scripted.settings = replace(scripted.settings, call_seconds=0.5)
    ended = await world.step(Reply("Wait."))
    assert ended.stop is StopReason.TIME_LIMIT
    assert ended.late == "envs.theirs: worker: no answer to 'reply' in 0.5 s (call_seconds)"
    assert (await world.grade()).unrewarded
    await world.close()
    scripted.settings = replace(scripted.settings, call_seconds=5.0)
    await world.reset(asked("Go."), 0)
    assert (await world.step(Reply("Done."))).stop is StopReason.TASK_COMPLETE
    assert not (await world.grade()).unrewarded
    assert loads(tmp_path) == 2


async def test_an_episode_whose_program_died_is_closed_without_a_new_one(
    scripted: VerifiersProgram, tmp_path: Path
) -> None:
    world = VerifiersWorld(Site(SandboxSettings(), tmp_path, tool_form="text"), scripted)
    await world.reset(asked("Go."), 0)
    scripted.close()
    await world.close()
    assert not scripted.alive
    assert loads(tmp_path) == 1


async def test_an_environment_that_could_not_be_loaded_is_loaded_again(
    offline: VerifiersProgram, tmp_path: Path
) -> None:
    for n in (1, 2):
        with pytest.raises(Unavailable, match="the network is down"):
            await offline.ask("begin", tmp_path, episode=n, row={}, seed=0)
        assert loads(tmp_path) == n


async def test_episodes_that_begin_at_once_load_it_once(
    scripted: VerifiersProgram, tmp_path: Path
) -> None:
    begun = (scripted.ask("begin", tmp_path, episode=n, row={}, seed=0) for n in range(4))
    await asyncio.gather(*begun)
    assert loads(tmp_path) == 1


def test_settings_that_cannot_work_name_their_key_and_the_command() -> None:
    with pytest.raises(BadInput, match=r"envs.theirs.python: missing; `grpo env add .*everything"):
        made("", "tools")
    with pytest.raises(BadInput, match=r"envs.theirs.python: /no/python: no such file"):
        made("/no/python", "tools")
    with pytest.raises(BadInput, match=r"envs.theirs.rewards: the environment's rubric has"):
        made("/no/python", "tools", rewards={"x.py:f": 1.0})
    with pytest.raises(BadInput, match=r"envs.theirs.ends: .* says itself when it ends"):
        made("/no/python", "tools", ends="over")
