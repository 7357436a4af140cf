"""Draws near the frontier: what is passed now and then comes more often, nothing is given up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import product
from statistics import fmean

import pytest

from fieldkit.records import Draw, Signal, Task
from rollout.draw.base import Drawing
from rollout.draw.epochs import by_epochs
from rollout.draw.frontier import by_frontier
from rollout.draw.rules import DRAWS
from tests.reward.histories import history_of

POOL = [Task(f"task-{i:02}", "clawgym", "", {}) for i in range(42)]
K, BATCH = 4, 8
Rule = Callable[[Drawing], list[Task]]


def night(rule: Rule, steps: int, seed: int, spare: int = 0) -> tuple[float, Counter[str], int]:
    """A simulated night on a pool whose solve rates are spread as data/pool.jsonl's are (mean
    0.45, sd 0.29): the share of groups trained on that are not mixed, how often each task was
    drawn, and how many groups were played."""
    rng = random.Random(seed)
    rates = {t.task_id: rng.betavariate(0.9, 1.1) for t in POOL}
    history: list[tuple[int, Draw]] = []
    unmixed, counts = 0, Counter[str]()
    for step in range(1, steps + 1):
        tasks = rule(Drawing(seed, step, POOL, BATCH, spare, K, sums=history_of(history).sums))
        mixed = played = 0
        while played < min(BATCH + spare, len(tasks)) and played < BATCH + (played - mixed):
            task = tasks[played].task_id
            passed = sum(rng.random() < rates[task] for _ in range(K))
            history.append((step, Draw(task, Signal.LEARNABLE, passed, K)))
            counts[task] += 1
            mixed, played = mixed + (0 < passed < K), played + 1
        unmixed += BATCH - mixed
    return unmixed / (steps * BATCH), counts, counts.total()


@pytest.mark.parametrize("rule", DRAWS.values(), ids=DRAWS)
def test_a_step_plays_different_tasks_and_the_same_ones_again_after_a_kill(rule: Rule) -> None:
    history = history_of((1, Draw(t.task_id, Signal.STUCK, 2, K)) for t in POOL[:9])
    drawing = Drawing(0, 2, POOL, BATCH, 5, K, sums=history.sums)
    tasks = rule(drawing)
    assert len({t.task_id for t in tasks}) == len(tasks) == BATCH + 5
    assert rule(drawing) == tasks


@pytest.mark.parametrize("rule", DRAWS.values(), ids=DRAWS)
def test_how_many_spare_tasks_are_asked_for_does_not_change_the_first_ones(rule: Rule) -> None:
    longest = rule(Drawing(0, 3, POOL, BATCH, 34, K))
    assert len(longest) == len(POOL)
    for spare in (1, 5, 33):
        assert rule(Drawing(0, 3, POOL, BATCH, spare, K)) == longest[: BATCH + spare]
    assert rule(Drawing(0, 3, POOL, BATCH, 100, K)) == longest


def test_with_spare_tasks_an_epoch_still_plays_every_task_once_before_any_twice() -> None:
    history: list[tuple[int, Draw]] = []
    for step in range(1, 40):
        used = (0, 3, 5, 1)[step % 4]
        tasks = by_epochs(Drawing(0, step, POOL, BATCH, 5, K, sums=history_of(history).sums))
        history += ((step, Draw(t.task_id, Signal.STUCK, 0, K)) for t in tasks[: BATCH + used])
        counts = Counter(d.task_id for _, d in history)
        assert max(counts.values()) - min(counts[t.task_id] for t in POOL) <= 1


def test_near_the_frontier_far_fewer_groups_are_without_a_mix() -> None:
    """Share of the groups that are not mixed, and groups a step: means of 12 simulated nights of 40
    steps. Spare tasks bring both rules below 5 %; near the frontier half as many are played."""
    found = {}
    for rule, spare in product((by_epochs, by_frontier), (0, 8)):
        nights = [night(rule, 40, seed, spare) for seed in range(12)]
        assert all(len(counts) >= 36 for _, counts, _ in nights)
        share, groups = fmean(n[0] for n in nights), fmean(n[2] for n in nights)
        found[rule.__name__, spare] = (round(share, 2), round(groups / 40, 1))
    assert found == {
        ("by_epochs", 0): (0.42, 8.0),
        ("by_epochs", 8): (0.04, 13.5),
        ("by_frontier", 0): (0.25, 8.0),
        ("by_frontier", 8): (0.0, 10.5),
    }


def test_a_task_that_was_always_passed_comes_back_when_that_is_long_ago() -> None:
    solved = [(1, Draw(t.task_id, Signal.SATURATED, K, K)) for t in POOL[:21]]
    others = [(1, Draw(t.task_id, Signal.STUCK, 2, K)) for t in POOL[21:]]

    def of_solved(step: int) -> int:
        history = history_of((*solved, *others))
        drawn = [
            by_frontier(Drawing(s, step, POOL, BATCH, 0, K, sums=history.sums)) for s in range(40)
        ]
        return sum(int(t.task_id[-2:]) < 21 for tasks in drawn for t in tasks)

    assert of_solved(2) < 10 < of_solved(200)


def test_tasks_that_join_a_pool_that_has_nothing_to_teach_come_soon() -> None:
    solved = ((1, Draw(t.task_id, Signal.SATURATED, K, K)) for t in POOL)
    new = [Task(f"new-{i}", "clawgym", "", {}) for i in range(4)]
    joined = {t.task_id: 1 for t in new}
    sums = history_of(solved).sums
    tasks = by_frontier(Drawing(0, 2, [*POOL, *new], BATCH, 0, K, sums=sums, joined=joined))
    assert joined.keys() <= {t.task_id for t in tasks}


def test_of_several_environments_each_keeps_its_share() -> None:
    pool = [Task(f"{env}-{i}", env, "", {}) for env in ("sql", "clawgym") for i in range(20)]
    counts = Counter[str]()
    for step in range(1, 21):
        drawing = Drawing(0, step, pool, BATCH, 0, K, mix={"sql": 0.25, "clawgym": 0.75})
        counts.update(t.env for t in by_frontier(drawing))
    assert counts == {"sql": 40, "clawgym": 120}
