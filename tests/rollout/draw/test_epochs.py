"""Uniform draws: which tasks a step meets, whatever happened before it."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.draw.base import Drawing
from rollout.draw.epochs import by_epochs
from rollout.draw.mix import check_mix


def plan_tasks(
    run_seed: int,
    step: int,
    pool: Sequence[Task],
    batch: int,
    mix: Mapping[str, float] | None = None,
) -> list[Task]:
    return by_epochs(Drawing(run_seed, step, pool, batch, mix=mix or {}))


def pool_of(n: int) -> list[Task]:
    return [Task(f"task-{i:02}", "clawgym", "", {}) for i in range(n)]


def plan(n: int, batch: int, steps: int, run_seed: int = 0) -> list[list[str]]:
    pool = pool_of(n)
    return [
        [t.task_id for t in plan_tasks(run_seed, step, pool, batch)] for step in range(1, steps + 1)
    ]


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


@pytest.mark.parametrize("after", [1, 20, 27, 31, 33])
@pytest.mark.parametrize("n_new", [3, 10, 42])
@pytest.mark.parametrize("mix", [{}, {"clawgym": 1.0}])
def test_tasks_that_are_added_come_first_and_then_all_others_before_any_comes_again(
    mix: dict[str, float], n_new: int, after: int
) -> None:
    pool = pool_of(42 + n_new)
    joined = {task.task_id: after for task in pool[42:]}

    def step(n: int) -> list[str]:
        drawing = Drawing(0, n, pool, 8, mix=mix, joined=joined)
        return [t.task_id for t in by_epochs(drawing)]

    drawn = [task for n in range(after + 1, after + 30) for task in step(n)]
    assert set(drawn[:n_new]) == joined.keys()
    assert len(set(drawn[: len(pool)])) == len(pool)
    assert all(len(set(step(n))) == 8 for n in range(after + 1, after + 30))


def test_a_pool_that_grows_twice_begins_with_what_came_last() -> None:
    pool = pool_of(48)
    joined = {t.task_id: 9 for t in pool[42:45]} | {t.task_id: 30 for t in pool[45:]}
    tasks = by_epochs(Drawing(0, 31, pool, 8, joined=joined))
    assert {t.task_id for t in tasks[:3]} == {t.task_id for t in pool[45:]}


def test_a_pool_smaller_than_a_step_is_refused() -> None:
    with pytest.raises(BadInput, match=r"tasks_per_step.*only 4"):
        plan_tasks(0, 1, pool_of(4), 8)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(BadInput, match="pool is empty"):
        plan_tasks(0, 1, [], 8)


def test_step_zero_is_where_a_run_starts_and_plays_nothing() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        plan_tasks(0, 0, pool_of(8), 8)


PLANNED = ["35", "41", "04", "30", "17", "27", "22", "38"]

MIXED = [
    Task(f"{env}-{i}", env, "", {}) for env, n in (("sql", 7), ("clawgym", 20)) for i in range(n)
]


def mixed(steps: int, batch: int, **mix: float) -> list[list[Task]]:
    return [plan_tasks(3, step, MIXED, batch, mix) for step in range(1, steps + 1)]


@pytest.mark.parametrize("share", [0.5, 0.3, 0.25, 0.07])
def test_environments_are_drawn_by_their_shares(share: float) -> None:
    """Never more than one task away from the share, at any step."""
    sql = 0
    for step, tasks in enumerate(mixed(60, 8, sql=share, clawgym=1 - share), start=1):
        assert len({t.task_id for t in tasks}) == 8
        sql += sum(t.env == "sql" for t in tasks)
        assert abs(sql - share * 8 * step) <= 1


def test_shares_need_not_add_up_to_one() -> None:
    assert mixed(5, 8, sql=1, clawgym=3) == mixed(5, 8, sql=0.25, clawgym=0.75)


def test_each_environment_is_walked_in_epochs_of_its_own() -> None:
    drawn = [t.task_id for tasks in mixed(40, 8, sql=0.5, clawgym=0.5) for t in tasks]
    for env, n in (("sql", 7), ("clawgym", 20)):
        counts: Counter[str] = Counter()
        for task in (t for t in drawn if t.startswith(env)):
            counts[task] += 1
            # An epoch's last tasks may wait while a step ends; none is ever two epochs ahead.
            assert max(counts.values()) - min(counts[f"{env}-{i}"] for i in range(n)) <= 2
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_mixed_plan_depends_on_seed_and_step_alone() -> None:
    mix = {"sql": 0.5, "clawgym": 0.5}
    assert mixed(9, 8, **mix)[-1] == plan_tasks(3, 9, MIXED, 8, mix)
    assert plan_tasks(4, 9, MIXED, 8, mix) != plan_tasks(3, 9, MIXED, 8, mix)


def test_without_a_mix_the_same_tasks_are_played_as_ever() -> None:
    assert plan_tasks(42, 7, pool_of(42), 8, {}) == plan_tasks(42, 7, pool_of(42), 8)
    # A change here would make runs that are under way play other tasks.
    assert [t.task_id[-2:] for t in plan_tasks(42, 7, pool_of(42), 8)] == PLANNED


@pytest.mark.parametrize(
    ("mix", "said"),
    [
        ({"sql": 1.0}, "task clawgym-0 of the pool is of env 'clawgym', which has no share"),
        ({"sql": 0.5, "clawgym": 0.4, "game": 0.1}, "of env 'game', but the pool has 0"),
        (
            {"sql": 0.95, "clawgym": 0.05},
            "plays up to 8 different tasks of env 'sql', but the pool has 7",
        ),
    ],
)
def test_a_mix_that_the_pool_cannot_give_is_refused(mix: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        check_mix(MIXED, 8, mix)
