"""The corpus: split sizes, distinct tasks, held-out and final work that occurs nowhere else."""

from collections import Counter
from itertools import islice

import pytest

from fieldkit.codec import encode
from fieldkit.files.atomic import sha256_text
from fieldkit.records import Task
from rollout.envs.shell_tasks import DIFFICULTIES
from rollout.synth import splits as synth_splits
from rollout.synth.operation import FINAL, HELDOUT, OPERATIONS, Registered
from rollout.synth.splits import (
    DEMO_SEED,
    N_DEMOS,
    SPLITS,
    Plan,
    content_marks,
    demonstration_plans,
    split_marks,
    split_tasks,
)
from rollout.synth.vocabulary import GENERIC_KEYS, PERSONAS, PLAIN_WORDS

BEFORE = {
    "pool": "7fc18752b6525c5c8291f43a2ee974424b1ebdebaca12446387695dee1803895",
    "heldout": "b92adc737d680724657b29356d13e954942c107c54f7f02b8e9951a22710197d",
    "reserve": "8f7cb62e8dd5d70ad7e5e004887bfa63dd1dba824de1d377ceb16727ae9106cc",
}
"""SHA-256 of the files as they were before there was a development and a final set."""


@pytest.fixture(scope="module")
def splits() -> dict[str, list[Plan]]:
    return split_tasks(seed=0)


@pytest.fixture(scope="module")
def demonstrated(splits: dict[str, list[Plan]]) -> list[Task]:
    """What the committed warm start learned from."""
    avoid = [p.task for s in ("pool", HELDOUT) for p in splits[s]]
    return [p.task for p in islice(demonstration_plans(DEMO_SEED, avoid), N_DEMOS)]


def names(plan: Plan) -> set[str]:
    return set(plan.task.info["skills_required"])


def own_operations(split: str) -> set[str]:
    return {o.name for o in OPERATIONS if o.only_in == split}


def written(plans: list[Plan]) -> str:
    return "".join(encode(plan.task) + "\n" for plan in plans)


def as_drawn(splits: dict[str, list[Plan]]) -> list[Plan]:
    """The reserve with the development set put back into it."""
    both = [*splits["development"], *splits["reserve"]]
    personas = [p.name for p in PERSONAS]

    def place(plan: Plan) -> tuple[int, int, int]:
        info, number = plan.task.info, int(plan.task.task_id.rsplit("-", 1)[1])
        difficulty = DIFFICULTIES.index(info["difficulty"])
        return number // len(DIFFICULTIES), personas.index(info["persona"]), difficulty

    return sorted(both, key=place)


def test_the_splits_have_their_sizes(splits: dict[str, list[Plan]]) -> None:
    sizes = {"pool": 42, HELDOUT: 158, "development": 150, "reserve": 850, FINAL: 408}
    assert {k: len(v) for k, v in splits.items()} == sizes
    assert tuple(splits) == SPLITS


def test_the_older_splits_are_what_they_were_before_there_were_newer_ones(
    splits: dict[str, list[Plan]],
) -> None:
    """To the byte; the reserve with the development set in its place."""
    now = {**splits, "reserve": as_drawn(splits)}
    assert {name: sha256_text(written(now[name])) for name in BEFORE} == BEFORE


def test_another_operation_for_the_final_set_changes_no_other_split(
    splits: dict[str, list[Plan]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = next(o for o in OPERATIONS if o.name == "create")
    more = [Registered("another", d, FINAL, one.make) for d in DIFFICULTIES]
    monkeypatch.setattr(synth_splits, "OPERATIONS", [*more, *OPERATIONS])
    again = split_tasks(seed=0)
    assert any("another" in names(p) for p in again[FINAL])
    for name in SPLITS[:-1]:
        assert written(again[name]) == written(splits[name])


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


@pytest.mark.parametrize("kept", [HELDOUT, FINAL])
def test_no_heldout_and_no_final_task_shares_text_files_or_assertions_with_another_split(
    splits: dict[str, list[Plan]], kept: str
) -> None:
    theirs = {mark for p in splits[kept] for mark in split_marks(p.task)}
    for name in SPLITS:
        if name != kept:
            assert theirs.isdisjoint(m for p in splits[name] for m in split_marks(p.task)), name


def test_no_two_splits_share_text_files_or_assertions(splits: dict[str, list[Plan]]) -> None:
    """Of development and reserve, drawn as one, only the names of seed files come back."""
    seen: Counter[tuple[str, str]] = Counter()
    for plans in splits.values():
        seen.update({mark for p in plans for mark in content_marks(p.task)})
    assert set(seen.values()) == {1}


def test_the_warm_start_learned_from_no_development_and_no_final_task(
    splits: dict[str, list[Plan]], demonstrated: list[Task]
) -> None:
    learned = {mark for task in demonstrated for mark in content_marks(task)}
    for name in ("development", FINAL):
        assert learned.isdisjoint(m for p in splits[name] for m in content_marks(p.task)), name


def test_demonstrations_share_nothing_with_the_tasks_they_must_avoid(
    splits: dict[str, list[Plan]],
) -> None:
    avoid = [p.task for s in ("pool", HELDOUT) for p in splits[s]]
    apart = [p.task for s in ("development", FINAL) for p in splits[s]]
    marks = {mark for task in avoid for mark in split_marks(task)}
    contents = {mark for task in apart for mark in content_marks(task)}
    for plan in islice(demonstration_plans(2, avoid, apart), 2000):
        assert marks.isdisjoint(split_marks(plan.task))
        assert contents.isdisjoint(content_marks(plan.task))
        assert not plan.task.info["unseen_template"]


def test_keeping_apart_from_development_and_final_changes_no_committed_demonstration(
    splits: dict[str, list[Plan]], demonstrated: list[Task]
) -> None:
    avoid = [p.task for s in ("pool", HELDOUT) for p in splits[s]]
    apart = [p.task for s in ("development", FINAL) for p in splits[s]]
    again = islice(demonstration_plans(DEMO_SEED, avoid, apart), N_DEMOS)
    assert [p.task for p in again] == demonstrated


def test_the_development_set_is_the_end_of_the_reserve_and_balanced_from_its_first_line(
    splits: dict[str, list[Plan]],
) -> None:
    found = [p.task.info["difficulty"] for p in splits["development"]]
    assert found == [*DIFFICULTIES] * 50
    drawn = [p.task.task_id for p in as_drawn(splits)]
    assert [p.task.task_id for p in splits["reserve"][:800]] == drawn[:800]


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


def test_an_operation_of_one_split_occurs_in_no_other_and_each_occurs(
    splits: dict[str, list[Plan]],
) -> None:
    for owner in (HELDOUT, FINAL):
        own = own_operations(owner)
        for name, plans in splits.items():
            found = {o for p in plans for o in names(p)} & own
            assert found == (own if name == owner else set()), (owner, name)
    assert len(own_operations(FINAL)) >= 10


def test_final_tasks_are_new_by_operation_by_composition_or_not_at_all(
    splits: dict[str, list[Plan]],
) -> None:
    elsewhere = {frozenset(names(p)) for s in SPLITS[:-1] for p in splits[s]}
    own = own_operations(FINAL)
    new = [p for p in splits[FINAL] if p.task.info["unseen_template"]]
    composed = [p for p in new if not names(p) & own]
    assert all(frozenset(names(p)) not in elsewhere for p in new)
    assert not any(names(p) & own for p in splits[FINAL] if p not in new)
    n = len(splits[FINAL])
    assert 0.35 < (len(new) - len(composed)) / n < 0.45
    assert 0.15 < len(composed) / n < 0.25
    for difficulty in DIFFICULTIES:
        assert len([p for p in new if p.task.info["difficulty"] == difficulty]) > n / 6


def test_no_word_is_part_of_another_so_that_a_search_hits_one_word_only() -> None:
    for persona in PERSONAS:
        words = set(persona.words + PLAIN_WORDS)
        assert not [(a, b) for a in words for b in words if a != b and a in b]
        keys = set(persona.keys + GENERIC_KEYS)
        assert not [(a, b) for a in keys for b in keys if a != b and a in b]
