from __future__ import annotations

import inspect
from typing import Any

import pytest

from fieldkit.client import ChatClient
from fieldkit.errors import BadInput
from fieldkit.eval import Judge, JudgeError
from fieldkit.nim import NIMClient, NIMContextOverflowError
from tests.fieldkit.answering import answering, said


def hello(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_request_that_fills_the_window_is_sent_and_one_token_more_is_not() -> None:
    with answering([said("hi")]) as endpoint, NIMClient(endpoint.base_url, "m") as chat:
        chat.context_window = 20
        assert chat.chat(hello("abcdefgh"), max_tokens=14)["choices"]
        with pytest.raises(NIMContextOverflowError, match="21 tokens, the window has 20") as e:
            chat.chat(hello("abcdefghi"), max_tokens=14)
    assert (e.value.estimated_tokens, e.value.ceiling, e.value.exit_code) == (21, 20, 2)
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("", 4),
        (None, 4),
        ([{"type": "text", "text": "abcde"}, {"type": "image_url", "image_url": {"url": "x"}}], 6),
    ],
)
def test_what_a_message_counts(content: Any, tokens: int) -> None:
    client = NIMClient("http://127.0.0.1:9/v1", "m", context_window=0)
    with pytest.raises(NIMContextOverflowError) as e:
        client.chat(hello(content), max_tokens=0)
    assert e.value.estimated_tokens == tokens
    with pytest.raises(NIMContextOverflowError, match=f" {tokens} tokens"):
        client.chat(hello(content), max_tokens=None)  # the prompt alone


def test_the_answer_counts_under_its_newer_name_and_what_is_no_message_is_named() -> None:
    client = NIMClient("http://127.0.0.1:9/v1", "m", context_window=20)
    with pytest.raises(NIMContextOverflowError, match="21 tokens"):
        client.chat(hello("abcdefgh"), max_tokens=None, max_completion_tokens=15)
    with pytest.raises(BadInput, match="messages"):
        client.chat("hello", max_tokens=1)  # type: ignore[arg-type]


def test_what_is_sent_and_how_it_fails_is_the_chat_clients() -> None:
    own = {name for name, _ in inspect.getmembers(NIMClient, inspect.isfunction)}
    own -= {name for name, _ in inspect.getmembers(ChatClient, inspect.isfunction)}
    assert own == {"chunk"}
    with answering([(400, "no")]) as endpoint, NIMClient(endpoint.base_url, "m") as chat:
        judge = Judge.builtin(chat, "correctness")
        with pytest.raises(JudgeError, match="no"):
            judge.grade(prediction="a", question="b", reference="c")
    assert endpoint.asked[0]["model"] == "m"
