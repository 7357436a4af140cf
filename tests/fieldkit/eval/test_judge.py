from __future__ import annotations

import json
from pathlib import Path

import pytest

from fieldkit.client import ChatClient
from fieldkit.errors import BadInput
from fieldkit.eval import Judge, JudgeError
from tests.fieldkit.answering import Endpoint, answering, said

FOUR = said('{"score": 4, "rationale": "close"}')


def client(endpoint: Endpoint) -> ChatClient:
    return ChatClient(endpoint.base_url, "judge-model", max_retries=1, backoff=0.001)


def test_the_endpoint_is_asked_for_a_score_of_the_rubrics_scale() -> None:
    with answering([FOUR]) as endpoint, client(endpoint) as chat:
        found = Judge.builtin(chat, "correctness").grade(prediction="a", reference="b")
    assert (found.score, found.rationale) == (4.0, "close")
    schema = endpoint.asked[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["score"] == {"type": "number", "minimum": 0.0, "maximum": 5.0}


def test_an_endpoint_that_knows_no_schema_is_asked_without_from_then_on() -> None:
    with answering([(400, "response_format?"), FOUR]) as endpoint, client(endpoint) as chat:
        judge = Judge(chat)
        assert judge.grade(prediction="a").score == 4.0
        assert judge.grade(prediction="b").score == 4.0
    assert ["response_format" in asked for asked in endpoint.asked] == [True, False, False]


def test_the_same_question_is_asked_once_and_the_file_remembers_it(tmp_path: Path) -> None:
    cache = tmp_path / "judge.jsonl"
    with answering([FOUR]) as endpoint, client(endpoint) as chat:
        judge = Judge(chat, cache=cache)
        assert judge.grade(prediction="a") == judge.grade(prediction="a")
        assert Judge(chat, cache=cache).grade(prediction="a").score == 4.0
        assert len(endpoint.asked) == 1
        judge.grade(prediction="another")
        Judge(chat, rubric="another", cache=cache).grade(prediction="a")
    assert len(endpoint.asked) == 3


def test_a_torn_cache_is_survived_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "judge.jsonl"
    with answering([FOUR]) as endpoint, client(endpoint) as chat:
        Judge(chat, cache=cache).grade(prediction="a")
        cache.write_text(cache.read_text() + '{"key": "to')
        Judge(chat, cache=cache).grade(prediction="b")
        assert [len(json.loads(line)) for line in cache.read_text().splitlines()] == [2, 2]
        cache.write_text("{}\n")
        with pytest.raises(BadInput, match=r"judge\.jsonl:1"):
            Judge(chat, cache=cache)


def test_a_reply_without_a_score_is_a_result_that_is_not_kept() -> None:
    with answering([said("I would rather not"), FOUR]) as endpoint, client(endpoint) as chat:
        judge = Judge(chat)
        assert judge.grade(prediction="a").score is None
        assert judge.grade(prediction="a").score == 4.0


def test_a_score_off_the_scale_is_an_error() -> None:
    with (
        answering([said('{"score": 9}')]) as endpoint,
        client(endpoint) as chat,
        pytest.raises(JudgeError, match="score 9 is not in 0 to 5"),
    ):
        Judge(chat).grade(prediction="a")


@pytest.mark.parametrize(
    ("raw", "score", "rationale"),
    [
        ('{"score": 1} is harsh. Final: {"score": 5, "rationale": "same"}', 5.0, "same"),
        ('{"score": 5, "rationale": "{a} says so", "of": {"score": 1}} {note}', 5.0, "{a} says so"),
        ('{"of": {"note": "\\"}"}, "score": 3} }', 3.0, ""),
        ('{"score": "4", "rationale": "x"}', 4.0, "x"),
        ('{"score": true} then {"score": null}', None, None),
        ('{"score": 1' + "0" * 400 + "}", None, None),
        ("**Score:** 4", 4.0, None),
        ("Score: **4**/5", 4.0, None),
        ("subscore: 2, sub-score: 2\nscore: 5\nsub_score: 1", 5.0, None),
        ('{"score": "4/5", "rationale": "cut', 4.0, None),
    ],
)
def test_the_last_score_of_a_reply_counts_in_whatever_form(
    raw: str, score: float | None, rationale: str | None
) -> None:
    found = Judge.parse(raw)
    assert (found.score, found.rationale) == (score, raw if rationale is None else rationale)


@pytest.mark.parametrize("answer", [(503, "down"), (200, '{"choices": []}'), (401, "key?")])
def test_a_judge_that_cannot_be_asked_is_an_error(answer: tuple[int, str]) -> None:
    with (
        answering([answer]) as endpoint,
        client(endpoint) as chat,
        pytest.raises(JudgeError),
    ):
        Judge(chat).grade(prediction="a")
