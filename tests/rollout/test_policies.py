"""A model behind chat completions as a policy: what it is asked, and what ends its episodes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.client import AsyncChatClient
from fieldkit.codec import encode_trajectory
from fieldkit.errors import BadInput, Unavailable
from fieldkit.records import StopReason, Trajectory
from rollout.envs.base import Opening
from rollout.envs.shell import SHELL
from rollout.policies import chatting, reciting
from rollout.settings import EpisodeSettings
from tests.fieldkit.answering import Endpoint, answering
from tests.rollout.scripted import bash, player, renderer, replies, write_task

Answer = tuple[int, str]
WORK = bash("echo done > alpha.txt")


def says(text: str | None, prompt_tokens: int = 0, finish_reason: str = "stop") -> Answer:
    choice = {"message": {"content": text}, "finish_reason": finish_reason}
    usage = {"prompt_tokens": prompt_tokens} if prompt_tokens else None
    return 200, json.dumps({"choices": [choice], "usage": usage})


async def play(tmp_path: Path, *answers: Answer, **limits: float) -> tuple[Trajectory, Endpoint]:
    settings = EpisodeSettings(**{"max_turns": 4, "max_new_tokens": 64, **limits})  # type: ignore[arg-type]
    with answering(answers) as endpoint:
        async with AsyncChatClient(endpoint.base_url, "m", max_retries=0) as client:
            one = player(tmp_path, replies(""), policy=chatting(client), settings=settings)
            task = write_task("alpha")
            return await one.play(task, 0, seeds=lambda turn: 1000 + turn), endpoint


async def test_it_plays_the_same_world_and_is_graded_by_it(tmp_path: Path) -> None:
    t, endpoint = await play(tmp_path, says(WORK, 100), says("TASK_COMPLETE", 120))
    assert t.stop_reason is StopReason.TASK_COMPLETE
    assert t.grade.passed
    assert [turn.text for turn in t.turns] == [WORK, "TASK_COMPLETE"]
    first, second = endpoint.asked
    assert (first["seed"], first["temperature"]) == (1000, 1.0)
    assert (first["max_tokens"], first["top_p"], second["seed"]) == (64, 1.0, 1001)
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][:2] == first["messages"]


async def test_it_has_no_ids_so_it_cannot_be_trained_on(tmp_path: Path) -> None:
    t, _ = await play(tmp_path, says("TASK_COMPLETE", 100))
    assert [(x.prompt_ids, x.completion_ids, x.logprobs) for x in t.turns] == [((), (), ())]


async def test_a_reply_for_which_there_was_no_room_does_not_count(tmp_path: Path) -> None:
    limits = {"max_model_len": 200}
    t, _ = await play(tmp_path, says(WORK, 136), says("TASK_COMPLETE", 137), **limits)
    assert t.stop_reason is StopReason.CONTEXT_FULL
    assert len(t.turns) == 1


@pytest.mark.parametrize(
    "body", ['{"error": {"code": "context_length_exceeded"}}', "maximum context length is 9"]
)
async def test_an_endpoint_that_finds_the_prompt_too_long_ends_the_episode(
    tmp_path: Path, body: str
) -> None:
    t, _ = await play(tmp_path, says(WORK), (400, body))
    assert t.stop_reason is StopReason.CONTEXT_FULL


@pytest.mark.parametrize("answer", [(400, "maximum context length is 9"), says("x", 9_999)])
async def test_an_opening_that_is_too_long_is_an_error_that_names_the_task(
    tmp_path: Path, answer: Answer
) -> None:
    with pytest.raises(BadInput, match="task alpha: its opening leaves no room"):
        await play(tmp_path, answer)


@pytest.mark.parametrize(
    ("status", "said"), [(401, "--key-from"), (404, "no model 'm' there"), (422, "refuses")]
)
async def test_a_refused_request_is_bad_input(tmp_path: Path, status: int, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        await play(tmp_path, (status, "no"))


@pytest.mark.parametrize(
    "answer", [(503, "busy"), (429, "too many requests"), (200, "[]"), (200, '{"choices": []}')]
)
async def test_an_endpoint_that_is_broken_is_unavailable_and_no_reward(
    tmp_path: Path, answer: Answer
) -> None:
    with pytest.raises(Unavailable, match="task alpha, k = 0: failed 3 times"):
        await play(tmp_path, answer)


async def test_the_turn_limit_ends_it_as_it_ends_any_episode(tmp_path: Path) -> None:
    t, _ = await play(tmp_path, says(bash("ls")), max_turns=2)
    assert (t.stop_reason, len(t.turns)) == (StopReason.MAX_TURNS, 2)


async def test_a_reply_that_was_cut_or_is_empty_is_a_turn(tmp_path: Path) -> None:
    t, _ = await play(tmp_path, says("I think", 0, "length"), says(None), max_turns=2)
    assert [(x.text, x.finish_reason) for x in t.turns] == [("I think", "length"), ("", "stop")]


def test_a_world_that_needs_the_chat_template_is_refused() -> None:
    policy = chatting(AsyncChatClient("http://nowhere/v1", "m"))(write_task("a"), EpisodeSettings())
    with pytest.raises(BadInput, match="task a: its world gives its tools to the chat template"):
        policy.begin(write_task("a"), Opening(({"role": "user", "content": "x"},), ({},)))


def test_the_time_of_the_world_is_looked_at_between_turns() -> None:
    policy = chatting(AsyncChatClient("http://nowhere/v1", "m"))(write_task("a"), EpisodeSettings())
    assert policy.hear((), 1, 59.0) is None
    assert policy.hear((), 1, 60.0) is StopReason.TIME_LIMIT


async def test_written_replies_that_do_not_say_that_they_are_done_end_the_episode(
    tmp_path: Path,
) -> None:
    """A thread that ran out of replies was waited for without end."""
    chat = renderer()
    one = player(
        tmp_path, replies(""), policy=lambda _, limits: reciting(iter([WORK]), chat, limits)
    )
    async with asyncio.timeout(30):
        t = await one.play(write_task("alpha"), 0, seeds=lambda turn: turn)
    assert [turn.text for turn in t.turns] == [WORK]
    assert t.turns[0].completion_ids == chat.encode_reply(WORK)
    assert t.stop_reason is StopReason.TASK_COMPLETE


@pytest.mark.parametrize("answer", [(400, "maximum context length is 9"), says("x", 9_999)])
async def test_an_opening_that_only_the_world_knows_and_that_does_not_fit_ends_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    known_late = replace(SHELL, opening=None)
    monkeypatch.setattr("rollout.player.environment_of", lambda task: known_late)
    t, _ = await play(tmp_path, answer)
    assert (t.turns, t.stop_reason) == ((), StopReason.CONTEXT_FULL)


async def test_half_a_pair_of_surrogates_in_a_reply_is_stored_as_a_question_mark(
    tmp_path: Path,
) -> None:
    t, _ = await play(tmp_path, says("half \ud83d"), max_turns=1)
    assert t.turns[0].text == "half ?"
    assert encode_trajectory(t).encode()
