from __future__ import annotations

import asyncio
import email.utils
import socket
import time
from typing import Any

import httpx
import pytest

from fieldkit.client import (
    AsyncChatClient,
    ChatClient,
    ChatError,
    ChatHTTPError,
    ChatTimeout,
    wait_for_warm,
)
from fieldkit.client.chat import LONGEST_WAIT_S
from fieldkit.errors import BadInput
from tests.fieldkit.answering import DRIP_SECONDS, Endpoint, answering, said

HELLO = [{"role": "user", "content": "hello"}]
DRIPS = int(60 / DRIP_SECONDS)  # a minute
NOT_WHOLE = r"no answer .*not whole after 0\.3 s"


def client(endpoint: Endpoint, retries: int = 2) -> ChatClient:
    return ChatClient(endpoint.base_url + "/", "m", "key", max_retries=retries, backoff=0.001)


def nobody() -> str:
    """The address of a port that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{s.getsockname()[1]}/v1"


def test_a_chat_carries_its_options_and_gives_the_whole_answer() -> None:
    with answering([said("hi")]) as endpoint, client(endpoint) as chat:
        answer = chat.chat(HELLO, max_tokens=7, temperature=0.5, seed=3)
    assert answer["choices"][0]["message"]["content"] == "hi"
    expected = {"model": "m", "messages": HELLO, "max_tokens": 7, "temperature": 0.5, "seed": 3}
    assert endpoint.asked == [expected]
    assert endpoint.keys == ["Bearer key"]


def test_an_option_that_a_model_refuses_is_left_out() -> None:
    with answering([said("hi")]) as endpoint, client(endpoint) as chat:
        chat.chat(HELLO, max_tokens=None, temperature=None, max_completion_tokens=7)
    assert endpoint.asked == [{"model": "m", "messages": HELLO, "max_completion_tokens": 7}]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(status: int) -> None:
    with answering([(status, "busy")] * 2 + [said("hi")]) as endpoint, client(endpoint) as chat:
        assert chat.chat(HELLO)["choices"]
    assert len(endpoint.asked) == 3


def test_a_server_that_stays_busy_is_an_error_with_its_status() -> None:
    with (
        answering([(503, "still loading")]) as endpoint,
        client(endpoint) as chat,
        pytest.raises(ChatHTTPError, match="HTTP 503: still loading") as e,
    ):
        chat.chat(HELLO)
    assert (e.value.status_code, e.value.body, len(endpoint.asked)) == (503, "still loading", 3)


def test_a_wrong_request_is_not_sent_again() -> None:
    with (
        answering([(400, "too long")]) as endpoint,
        client(endpoint) as chat,
        pytest.raises(ChatHTTPError, match="too long"),
    ):
        chat.chat(HELLO)
    assert len(endpoint.asked) == 1


def test_a_server_that_is_not_there_is_a_timeout_that_names_it() -> None:
    url = nobody()
    with (
        ChatClient(url, "m", max_retries=1, backoff=0.001) as chat,
        pytest.raises(ChatTimeout, match=f"{url}/chat/completions: no answer in 2 tries"),
    ):
        chat.chat(HELLO)


@pytest.mark.parametrize("body", ["<html>", "[1]"])
def test_an_answer_that_is_no_json_object_is_an_error(body: str) -> None:
    with (
        answering([(200, body)]) as endpoint,
        client(endpoint) as chat,
        pytest.raises(ChatError, match="not a JSON object"),
    ):
        chat.chat(HELLO)


def test_a_closed_client_says_so() -> None:
    chat = ChatClient("http://127.0.0.1:9/v1", "m")
    chat.close()
    chat.close()
    with pytest.raises(ChatError, match="is closed"):
        chat.chat(HELLO)


def test_a_key_is_not_printed() -> None:
    assert "secret" not in repr(ChatClient("http://127.0.0.1:9/v1", "m", "secret"))


@pytest.mark.parametrize("key", ["sk-sécret", "sk-\nsecret", "sk-secret\0"])
@pytest.mark.parametrize("client", [ChatClient, AsyncChatClient])
def test_a_key_that_no_header_takes_is_refused_and_not_printed(
    client: type[ChatClient] | type[AsyncChatClient], key: str
) -> None:
    with pytest.raises(BadInput, match="api_key holds a character") as refused:
        client("http://127.0.0.1:9/v1", "m", key)
    assert "sk-" not in str(refused.value)


def test_a_key_may_end_with_the_line_that_it_was_read_from() -> None:
    with answering([said("hi")]) as endpoint, ChatClient(endpoint.base_url, "m", "key\n") as chat:
        assert chat.chat(HELLO)["choices"]
    assert endpoint.keys == ["Bearer key"]


async def test_an_empty_key_is_not_sent() -> None:
    with answering([said("hi")]) as endpoint:
        with ChatClient(endpoint.base_url, "m", "", max_retries=0) as chat:
            assert chat.chat(HELLO)["choices"]
        async with AsyncChatClient(endpoint.base_url, "m", "\n", max_retries=0) as other:
            assert (await other.chat(HELLO))["choices"]
    assert endpoint.keys == [None, None]


def test_half_a_surrogate_pair_in_a_message_does_not_end_the_chat() -> None:
    with answering([said("hi")]) as endpoint, client(endpoint) as chat:
        assert chat.chat([{"role": "user", "content": [{"text": "\ud83d, \U0001f600"}]}])
    assert endpoint.asked[0]["messages"][0]["content"] == [{"text": "?, \U0001f600"}]


def test_an_answer_from_elsewhere_is_an_error_with_its_status_and_the_new_address() -> None:
    moved = {"Location": "https://new/v1"}
    with answering([(308, "")], models=308, headers=moved) as endpoint, client(endpoint) as chat:
        for ask in (lambda: chat.chat(HELLO), chat.models):
            with pytest.raises(ChatHTTPError, match="HTTP 308 to https://new/v1, where") as e:
                ask()
            assert e.value.status_code == 308
        assert not chat.health()


async def test_an_answer_that_cannot_be_unpacked_is_an_error_of_the_family() -> None:
    with answering([(200, "no gzip")], headers={"Content-Encoding": "gzip"}) as endpoint:
        with client(endpoint) as chat:
            for ask in (lambda: chat.chat(HELLO), chat.models):
                with pytest.raises(ChatError, match="the answer cannot be read"):
                    ask()
            assert not chat.health()
        async with AsyncChatClient(endpoint.base_url, "m") as other:
            with pytest.raises(ChatError, match="the answer cannot be read"):
                await other.chat(HELLO)


def test_any_number_of_tries_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(ChatClient, "_sent", refused)
    chat = ChatClient(nobody(), "m", max_retries=1100, backoff=0.0)
    with pytest.raises(ChatTimeout, match="no answer in 1101 tries"):
        chat.chat(HELLO)


def test_a_server_that_hangs_is_waited_for_no_longer_than_asked() -> None:
    with answering([said("hi")], hangs=True) as endpoint:
        began = time.monotonic()
        assert not wait_for_warm(endpoint.base_url, timeout=0.2, poll_interval=600)
        assert time.monotonic() - began < 300


def test_a_warm_server_is_seen_at_once_and_a_cold_one_is_not_waited_for_forever() -> None:
    with answering([said("hi")]) as warm:
        assert wait_for_warm(warm.base_url, timeout=0)
    with answering([said("hi")], models=503) as cold:
        assert not wait_for_warm(cold.base_url, timeout=0.05, poll_interval=0.01)
    assert not wait_for_warm(nobody(), timeout=0)


def test_a_server_that_becomes_warm_is_waited_for() -> None:
    with answering([said("hi")], models=[503, 503, 200]) as endpoint:
        assert wait_for_warm(endpoint.base_url, timeout=60, poll_interval=0.01)


@pytest.mark.parametrize(
    ("header", "waits"),
    [
        ("0.3", 0.3),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("Wed, 21 Oct 2015 07:28:00 +9999999999999999", 0),
        ("soon", 0),
        (None, 0),
    ],
)
def test_a_busy_server_says_how_long_to_wait(header: str | None, waits: float) -> None:
    answers = [(503, "busy"), said("hi")]
    with answering(answers, retry_after=header) as endpoint, client(endpoint) as chat:
        began = time.monotonic()
        assert chat.chat(HELLO)["choices"]
    assert time.monotonic() - began >= waits


def test_a_busy_server_may_say_until_when_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    until = email.utils.formatdate(time.time() + 3600, usegmt=True)
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with answering([(503, "busy"), said("hi")], retry_after=until) as endpoint:
        client(endpoint).chat(HELLO)
    assert waits == [LONGEST_WAIT_S]


def test_a_text_is_no_list_of_messages() -> None:
    with answering([said("hi")]) as endpoint, client(endpoint) as chat:
        with pytest.raises(BadInput, match="messages is a text"):
            chat.chat("hello")  # type: ignore[arg-type]
        assert endpoint.asked == []


def test_a_negative_number_of_retries_is_refused_before_anything_is_sent() -> None:
    with answering([said("hi")]) as endpoint, client(endpoint, retries=-1) as chat:
        with pytest.raises(BadInput, match="max_retries is -1; it has to be 0 or more"):
            chat.chat(HELLO)
        assert endpoint.asked == []


async def test_many_chats_are_in_flight_in_one_event_loop_and_retried_as_the_others() -> None:
    with answering([(503, "busy"), said("hi")]) as endpoint:
        async with AsyncChatClient(endpoint.base_url, "m", "key", backoff=0.001) as chat:
            answers = await asyncio.gather(*(chat.chat(HELLO, seed=i) for i in range(20)))
        assert [a["choices"][0]["message"]["content"] for a in answers] == ["hi"] * 20
        assert len(endpoint.asked) == 21
        with pytest.raises(ChatError, match="is closed"):
            await chat.chat(HELLO)


async def test_nobody_there_is_a_timeout_in_an_event_loop_too() -> None:
    async with AsyncChatClient(nobody(), "m", max_retries=1, backoff=0.001) as chat:
        with pytest.raises(ChatTimeout, match="no answer in 2 tries"):
            await chat.chat(HELLO)


def test_the_models_of_an_endpoint() -> None:
    listed = '{"data": [{"id": "a", "max_model_len": 9}, {}, 1]}'
    with answering([said("")], listed=listed) as endpoint, client(endpoint) as chat:
        assert chat.models() == [{"id": "a", "max_model_len": 9}]
    with (
        answering([said("")]) as endpoint,
        client(endpoint) as chat,
        pytest.raises(ChatError, match="no list of models"),
    ):
        chat.models()
    with ChatClient(nobody(), "m") as chat, pytest.raises(ChatTimeout, match="/models: no answer"):
        chat.models()


def test_an_answer_that_comes_byte_by_byte_is_waited_for_no_longer_than_one_try() -> None:
    with (
        answering([said("hi")], listed='{"data": []}', drips=DRIPS) as endpoint,
        ChatClient(endpoint.base_url, "m", timeout=0.3, max_retries=0) as chat,
    ):
        with pytest.raises(ChatTimeout, match=NOT_WHOLE):
            chat.chat(HELLO)
        with pytest.raises(ChatTimeout, match=NOT_WHOLE):
            chat.models()
        assert not chat.health()


async def test_an_answer_that_comes_byte_by_byte_ends_the_try_in_an_event_loop_too() -> None:
    with answering([said("hi")], drips=DRIPS) as endpoint:
        async with AsyncChatClient(endpoint.base_url, "m", timeout=0.3, max_retries=0) as chat:
            with pytest.raises(ChatTimeout, match=NOT_WHOLE):
                await chat.chat(HELLO)


async def test_a_server_on_this_machine_is_not_asked_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, nobody())
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with answering([said("hi")]) as endpoint:
        with ChatClient(endpoint.base_url, "m", max_retries=0) as chat:
            assert chat.chat(HELLO)["choices"]
        async with AsyncChatClient(endpoint.base_url, "m", max_retries=0) as other:
            assert (await other.chat(HELLO))["choices"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:80a/v1",
        "http://:80/v1",
        "localhost:8000",
        "htp://localhost:8000/v1",
        "http://☃.example/v1",
        "http://gpu..box/v1",
    ],
)
@pytest.mark.parametrize("client", [ChatClient, AsyncChatClient])
def test_what_is_no_address_is_refused_with_one_that_is(
    client: type[ChatClient] | type[AsyncChatClient], url: str
) -> None:
    with pytest.raises(BadInput, match="names no server; it is like http://localhost:8000/v1"):
        client(url, "model")


def test_a_chat_of_a_thread_waits_for_no_connection_that_others_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, Any]] = []
    http = httpx.Client

    def kept(**given: Any) -> httpx.Client:
        made.append(given)
        return http(**given)

    monkeypatch.setattr(httpx, "Client", kept)
    with answering([said("hi")]) as endpoint, client(endpoint) as chat:
        chat.chat(HELLO)
    assert [given["limits"].max_connections for given in made] == [None]
