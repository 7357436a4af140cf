"""The corpus: split sizes, distinct tasks, held-out work that occurs nowhere else."""

from collections import Counter
from itertools import islice

import pytest

from rollout.envs.shell_tasks import DIFFICULTIES
from rollout.synth.splits import (
    Plan,
    demonstration_plans,
    split_marks,
    split_tasks,
)
from rollout.synth.vocabulary import GENERIC_KEYS, PERSONAS, PLAIN_WORDS


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Plan]]:
    return split_tasks(seed=0)


def test_the_split_has_the_documents_sizes(splits: dict[str, list[Plan]]) -> None:
    assert {k: len(v) for k, v in splits.items()} == {"pool": 42, "heldout": 158, "reserve": 1000}


def test_the_same_seed_writes_the_same_tasks_and_another_seed_others(
    splits: dict[str, list[Plan]],
) -> None:
    again, other = split_tasks(seed=0), split_tasks(seed=1)
    assert [p.task for p in splits["heldout"]] == [p.task for p in again["heldout"]]
    assert [p.task for p in splits["heldout"]] != [p.task for p in other["heldout"]]


def test_task_ids_and_texts_are_unique(splits: dict[str, list[Plan]]) -> None:
    tasks = [p.task for split in splits.values() for p in split]
    assert len({t.task_id for t in tasks}) == len(tasks)
    assert len({t.prompt for t in tasks}) == len(tasks)


def test_no_heldout_task_shares_text_files_or_assertions_with_pool_or_reserve(
    splits: dict[str, list[Plan]],
) -> None:
    heldout = {mark for p in splits["heldout"] for mark in split_marks(p.task)}
    others = {mark for s in ("pool", "reserve") for p in splits[s] for mark in split_marks(p.task)}
    assert heldout.isdisjoint(others)


def test_demonstrations_share_nothing_with_the_tasks_they_must_avoid(
    splits: dict[str, list[Plan]],
) -> None:
    avoid = [p.task for s in ("pool", "heldout") for p in splits[s]]
    marks = {mark for task in avoid for mark in split_marks(task)}
    for plan in islice(demonstration_plans(1, avoid), 300):
        assert marks.isdisjoint(split_marks(plan.task))
        assert not plan.task.info["unseen_template"]


def test_difficulties_come_in_thirds_and_every_persona_occurs(
    splits: dict[str, list[Plan]],
) -> None:
    for split in splits.values():
        counts = Counter(p.task.info["difficulty"] for p in split)
        assert max(counts.values()) - min(counts.values()) <= 1
        assert set(counts) == set(DIFFICULTIES)
        assert {p.task.info["persona"] for p in split} == {p.name for p in PERSONAS}


def test_a_share_of_the_heldout_templates_occurs_nowhere_else(
    splits: dict[str, list[Plan]],
) -> None:
    unseen = [p.task for p in splits["heldout"] if p.task.info["unseen_template"]]
    known = {p.task.info["template"] for s in ("pool", "reserve") for p in splits[s]}
    assert 0.1 < len(unseen) / len(splits["heldout"]) < 0.3
    assert known.isdisjoint(t.info["template"] for t in unseen)


def test_no_word_is_part_of_another_so_that_a_search_hits_one_word_only() -> None:
    for persona in PERSONAS:
        words = set(persona.words + PLAIN_WORDS)
        assert not [(a, b) for a in words for b in words if a != b and a in b]
        keys = set(persona.keys + GENERIC_KEYS)
        assert not [(a, b) for a in keys for b in keys if a != b and a in b]
