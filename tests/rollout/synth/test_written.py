"""A brief asks a model for one task, and its reply is read as one or refused with the reason."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.shell_tasks import DIFFICULTIES
from rollout.synth.vocabulary import PERSONAS
from rollout.synth.written import (
    _EXAMPLE,
    REPLY_SCHEMA,
    alike,
    briefs,
    request,
    resemblance,
    shingles,
    written_task,
)
from rollout.tasks import task_faults

FIRST = next(briefs(0))


def task_of(reply: str) -> Task:
    return written_task(FIRST, reply, "some-model", "written")


def test_the_example_in_the_request_is_a_sound_task() -> None:
    task = task_of(json.dumps(_EXAMPLE))
    assert task_faults(task, "here") == []
    assert task.task_id == f"written-{FIRST.persona.name}-0000"
    assert task.info["oracle"] == _EXAMPLE["commands"]
    assert task.info["author"] == "some-model"
    assert task.info["difficulty"] == FIRST.difficulty


def test_the_example_fits_the_schema() -> None:
    import jsonschema

    jsonschema.validate(_EXAMPLE, REPLY_SCHEMA)


def test_a_reply_may_have_words_around_its_object_and_keys_of_its_own() -> None:
    said = f"Here it is:\n```json\n{json.dumps(_EXAMPLE | {'note': 'nice'})}\n```\nEnjoy!"
    assert task_of(said).prompt == _EXAMPLE["prompt"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("I would rather not.", "there is no JSON object in it"),
        ("} {", "there is no JSON object in it"),
        ('{"prompt": "x"', "there is no JSON object in it"),
        ('{"prompt": }', "its JSON"),
        ('{"prompt": "x"}', r"its JSON: (files|commands|assertions): Field required"),
        (json.dumps(_EXAMPLE | {"commands": "ls"}), "its JSON: commands"),
        (json.dumps(_EXAMPLE | {"files": [{"path": 3}]}), "its JSON: files.0"),
    ],
)
def test_a_reply_that_is_no_task_is_refused_with_the_reason(reply: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        task_of(reply)


def test_every_persona_comes_with_every_difficulty_before_any_comes_again() -> None:
    n = len(PERSONAS) * len(DIFFICULTIES)
    asked = list(islice(briefs(3), 2 * n))
    assert [brief.number for brief in asked] == list(range(2 * n))
    counts = Counter((brief.persona.name, brief.difficulty) for brief in asked[:n])
    assert set(counts.values()) == {1}
    assert len(counts) == n
    assert all(first != second for first, second in (brief.skills for brief in asked))


def test_briefs_depend_on_the_seed_alone() -> None:
    def of(seed: int) -> list[Any]:
        return [request(brief) for brief in islice(briefs(seed), 30)]

    assert of(1) == of(1)
    assert of(1) != of(2)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("Sort the list.", "Sort  the LIST.", 1.0),
        ("abcdef", "abcdefg", 2 / 3),  # abcde bcdef of abcde bcdef cdefg
        ("aaaaa", "bbbbb", 0.0),
        ("ab", "ab", 1.0),
        ("ab", "cd", 0.0),
        ("", "", 1.0),
    ],
)
def test_resemblance_is_the_share_of_common_shingles(one: str, other: str, expected: float) -> None:
    assert resemblance(shingles(one), shingles(other)) == pytest.approx(expected)


def test_tasks_that_are_much_like_others_are_named_and_none_is_like_itself() -> None:
    def asked(task_id: str, prompt: str) -> Task:
        return Task(task_id, "clawgym", prompt, {})

    mine = (asked("a", "Move all .log files into paper."), asked("b", "Count the words of a.txt."))
    theirs = (asked("c", "Move all .log files into pages."), mine[1])
    assert alike(mine, theirs) == {"a"}
