"""What a script written for fieldkit.nim 0.34.1 relies on. Passes on that package and on ours; the
last tests are where the two differ (docs/fieldkit/differences.md)."""

from __future__ import annotations

import inspect
import socket
from importlib.util import find_spec
from typing import Any

import pytest

from fieldkit.nim import (
    DEFAULT_CHUNK_TOKENS,
    NIM_CONTEXT_WINDOW,
    ChatMessage,
    NIMClient,
    NIMContextOverflowError,
    NIMError,
    NIMHTTPError,
    NIMTimeoutError,
    chunk_text,
    estimate_tokens,
    wait_for_warm,
)
from tests.fieldkit.answering import answering, said

OURS = find_spec("fieldkit.records") is not None
HELLO: list[ChatMessage] = [{"role": "user", "content": "hello"}]


def nobody() -> str:
    """The address of a port that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}/v1"


def failure(answers: list[tuple[int, str]], retries: int = 0) -> tuple[Exception, int]:
    """What a chat raises, and how often the server was asked."""
    with (
        answering(answers) as endpoint,
        NIMClient(endpoint.base_url, "m", max_retries=retries) as client,
        pytest.raises(Exception) as e,  # noqa: PT011 (which class it is, the tests say)
    ):
        client.chat(HELLO)
    return e.value, len(endpoint.asked)


def test_the_numbers() -> None:
    assert (NIM_CONTEXT_WINDOW, DEFAULT_CHUNK_TOKENS) == (8192, 1024)
    assert ChatMessage == dict[str, Any]


def test_a_client_takes_the_same_arguments_in_the_same_order() -> None:
    client = NIMClient("http://127.0.0.1:9/v1/", "m", "key", 3.0, 2)
    assert client.base_url == "http://127.0.0.1:9/v1"
    assert (client.model, client.api_key, client.timeout, client.max_retries) == ("m", "key", 3, 2)
    short = NIMClient("http://127.0.0.1:9/v1", "m")
    assert (short.api_key, short.timeout, short.max_retries) == ("local", 60.0, 4)
    for function in (wait_for_warm, chunk_text, estimate_tokens, NIMClient.chat, NIMClient.chunk):
        assert "return" in inspect.get_annotations(function)
    defaults = inspect.signature(wait_for_warm).parameters
    assert {n: p.default for n, p in defaults.items() if n != "base_url"} == {
        **{"timeout": 120.0, "poll_interval": 2.0, "api_key": "local"}
    }


def test_a_chat_sends_its_options_and_gives_the_whole_answer() -> None:
    with answering([said("hi")]) as endpoint, NIMClient(endpoint.base_url, "m", "key") as client:
        assert client.health()
        answer = client.chat(HELLO, seed=3)
    assert answer == {"choices": [{"message": {"content": "hi"}}]}
    expected = {"model": "m", "messages": HELLO, "max_tokens": 512, "temperature": 0.0, "seed": 3}
    assert endpoint.asked == [expected]
    assert endpoint.keys == ["Bearer key"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    with answering([(status, "busy"), said("hi")]) as endpoint:
        assert NIMClient(endpoint.base_url, "m", max_retries=1).chat(HELLO)["choices"]
    assert len(endpoint.asked) == 2


def test_a_wrong_request_is_not_sent_again() -> None:
    error, asked = failure([(400, "wrong")], retries=2)
    assert isinstance(error, NIMHTTPError)
    assert isinstance(error, NIMError)
    assert (error.status_code, error.body, asked) == (400, "wrong", 1)


def test_a_server_that_keeps_failing_is_an_http_error_with_its_status() -> None:
    error, _ = failure([(500, "broken")])
    assert isinstance(error, NIMHTTPError)
    assert error.status_code == 500


def test_a_server_that_is_not_there_is_a_timeout() -> None:
    with pytest.raises(NIMTimeoutError) as e:
        NIMClient(nobody(), "m", max_retries=0).chat(HELLO)
    assert isinstance(e.value, NIMError)
    assert not NIMClient(nobody(), "m").health()


def test_errors_are_made_with_the_same_arguments() -> None:
    assert NIMHTTPError("no", status_code=404).body is None
    assert str(NIMHTTPError("no", status_code=404, body="b")) == "no"
    over = NIMContextOverflowError(estimated_tokens=9, ceiling=8)
    assert isinstance(over, NIMError)
    assert (over.estimated_tokens, over.ceiling) == (9, 8)


def test_a_request_above_the_window_is_not_sent() -> None:
    with answering([said("hi")]) as endpoint, NIMClient(endpoint.base_url, "m") as client:
        long = "a" * 4 * (NIM_CONTEXT_WINDOW - 512 - 4)
        assert client.chat([{"role": "user", "content": long}])
        parts = [{"type": "text", "text": long}, {"type": "text", "text": "b"}]
        for content in (long + "b", parts):
            with pytest.raises(NIMContextOverflowError) as e:
                client.chat([{"role": "user", "content": content}])
            assert (e.value.estimated_tokens, e.value.ceiling) == (8193, 8192)
    assert len(endpoint.asked) == 1


def test_a_closed_client_says_so() -> None:
    client = NIMClient("http://127.0.0.1:9/v1", "m")
    client.close()
    client.close()
    for use in (client.health, lambda: client.chat(HELLO)):
        with pytest.raises(NIMError, match="closed"):
            use()


def test_a_warm_server_is_seen_and_a_cold_one_is_given_up() -> None:
    with answering([said("hi")]) as warm:
        assert wait_for_warm(warm.base_url + "/", timeout=5, poll_interval=1)
    with answering([said("hi")], models=503) as cold:
        assert not wait_for_warm(cold.base_url, timeout=0.05, poll_interval=0.01)


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2)])
def test_a_token_is_estimated_for_every_four_characters(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "budget", "chunks"),
    [
        ("", 1, [""]),
        ("  ", 1, ["  "]),
        ("\n\na", 1, ["a"]),
        ("short", 1024, ["short"]),
        ("One.\n\nTwo.", 1, ["One.", "Two."]),
        ("One.\n\nTwo.\n\nThree.", 3, ["One.\n\nTwo.", "Three."]),
        ("One two. Three four.", 3, ["One two.", "Three four."]),
        ("One. Two three four five.", 2, ["One. Two", "three", "four", "five."]),
        ("a\n\nBbb ccc ddd.\n\ne", 2, ["a", "Bbb ccc", "ddd.\n\ne"]),
        ("aaaa bbbb ", 2, ["aaaa", "bbbb "]),
    ],
)
def test_a_text_is_cut_at_paragraphs_then_sentences_then_words(
    text: str, budget: int, chunks: list[str]
) -> None:
    assert chunk_text(text, max_tokens=budget) == chunks
    assert NIMClient.chunk(text, max_tokens=budget) == chunks


def test_a_budget_of_nothing_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        chunk_text("a", max_tokens=0)


def test_a_server_that_stays_busy() -> None:
    error, asked = failure([(429, "busy")], retries=1)
    assert (type(error), asked) == (NIMHTTPError if OURS else NIMTimeoutError, 2)


def test_a_server_that_failed_once() -> None:
    with answering([(502, "no"), said("hi")]) as endpoint:
        client = NIMClient(endpoint.base_url, "m", max_retries=1)
        try:
            found: Any = client.chat(HELLO)["choices"][0]["message"]["content"]
        except NIMHTTPError:
            found = NIMHTTPError
    assert found == ("hi" if OURS else NIMHTTPError)


def test_an_answer_that_is_no_json() -> None:
    error, _ = failure([(200, "<html>")])
    assert isinstance(error, NIMError) is OURS


def test_a_server_that_is_warm_already_and_no_time_to_wait() -> None:
    with answering([said("hi")]) as warm:
        assert wait_for_warm(warm.base_url, timeout=0) is OURS


def test_a_word_longer_than_a_chunk() -> None:
    assert chunk_text("aaaaaaaaa", max_tokens=1) == (["aaaa", "aaaa", "a"] if OURS else ["a" * 9])


def test_whitespace_inside_a_chunk() -> None:
    found = chunk_text("a\n \n \nb\n\nCc  dd eeee.", max_tokens=2)
    assert found == (["a\n \n \nb", "Cc  dd", "eeee."] if OURS else ["a\n\nb", "Cc dd", "eeee."])


def test_an_answer_that_sends_elsewhere() -> None:
    error, _ = failure([(308, "")])
    assert isinstance(error, NIMHTTPError) is OURS


def sent(key: str, text: str) -> list[str] | type[Exception]:
    """The key and the text that reach a server, or the class of what a chat raises."""
    with (
        answering([said("hi")]) as endpoint,
        NIMClient(endpoint.base_url, "m", key, max_retries=0) as client,
    ):
        try:
            client.chat([{"role": "user", "content": text}])
        except Exception as e:
            return type(e)
    return [endpoint.keys[0], endpoint.asked[0]["messages"][0]["content"]]


def test_half_a_surrogate_pair() -> None:
    assert sent("key", "\ud83d") == (["Bearer key", "?"] if OURS else UnicodeEncodeError)


def test_a_key_that_ends_with_a_newline() -> None:
    assert sent("key\n", "hi") == (["Bearer key", "hi"] if OURS else NIMError)
