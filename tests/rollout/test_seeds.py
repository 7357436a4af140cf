"""Which tasks and which noise a step meets, whatever happened before it."""

from collections import Counter

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.seeds import EPISODE_TURN, SEED_BITS, eval_seed, plan_tasks, training_seed


def pool_of(n: int) -> list[Task]:
    return [Task(f"task-{i:02}", "clawgym", "", {}) for i in range(n)]


def plan(n: int, batch: int, steps: int, run_seed: int = 0) -> list[list[str]]:
    pool = pool_of(n)
    return [
        [t.task_id for t in plan_tasks(run_seed, step, pool, batch)] for step in range(1, steps + 1)
    ]


def test_every_turn_of_a_run_has_its_own_seed() -> None:
    seeds = {
        training_seed(run, step, task, k, turn)
        for run in (0, 1)
        for step in range(5)
        for task in ("a", "b")
        for k in range(4)
        for turn in range(EPISODE_TURN, 12)
    }
    assert len(seeds) == 2 * 5 * 2 * 4 * 13
    assert all(0 <= s < 2**SEED_BITS for s in seeds)


def test_seeds_stay_what_they_were() -> None:
    # A change here would make every stored partial file and every matched arm worthless.
    assert training_seed(0, 1, "a", 0, 0) == 59597468921338
    assert eval_seed("a", 0, 0) == 17751423394371


def test_an_evaluation_seed_depends_on_task_attempt_and_turn_only() -> None:
    seeds = {
        eval_seed(task, k, turn) for task in ("a", "b") for k in range(4) for turn in range(12)
    }
    assert len(seeds) == 2 * 4 * 12


def test_names_that_run_together_do_not_share_seeds() -> None:
    assert training_seed(0, 1, "a", 11, 1) != training_seed(0, 1, "a", 1, 11)
    assert training_seed(1, 11, "a", 0, 0) != training_seed(11, 1, "a", 0, 0)


def test_the_same_run_plans_the_same_tasks() -> None:
    assert plan(42, 8, 20) == plan(42, 8, 20)
    assert plan(42, 8, 20) != plan(42, 8, 20, run_seed=1)


@pytest.mark.parametrize(("n", "batch"), [(42, 8), (42, 5), (8, 8), (9, 8), (7, 3), (5, 1)])
def test_an_epoch_plays_every_task_once_before_any_twice(n: int, batch: int) -> None:
    played = [task for step in plan(n, batch, 40) for task in step]
    for start in range(0, len(played) - n, n):
        assert set(Counter(played[start : start + n]).values()) == {1}


@pytest.mark.parametrize(("n", "batch"), [(42, 8), (42, 5), (9, 8), (13, 12), (7, 3)])
def test_no_step_plays_a_task_twice_even_between_two_epochs(n: int, batch: int) -> None:
    for tasks in plan(n, batch, 60):
        assert len(set(tasks)) == batch


def test_epochs_come_in_different_orders() -> None:
    steps = plan(8, 8, 5)
    assert len({tuple(s) for s in steps}) == 5


def test_a_pool_smaller_than_a_step_is_refused() -> None:
    with pytest.raises(BadInput, match=r"tasks_per_step.*only 4"):
        plan_tasks(0, 1, pool_of(4), 8)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(BadInput, match="pool is empty"):
        plan_tasks(0, 1, [], 8)


def test_step_zero_is_where_a_run_starts_and_plays_nothing() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        plan_tasks(0, 0, pool_of(8), 8)
