"""What the groups of a pool say about its tasks and about itself."""

from __future__ import annotations

import random

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import Draw, Signal
from reward.pool import (
    PRIOR_GROUPS,
    START_GROUPS,
    PoolSettings,
    PoolState,
    TaskState,
    pool_state,
)
from reward.solve_rate import GROUP_DISCOUNT, DrawSums
from tests.reward.histories import history_of

SAT, STUCK, LEARN = Signal.SATURATED, Signal.STUCK, Signal.LEARNABLE
K = 4
PASSED = {SAT: K, STUCK: 0, LEARN: 2}


def drawn(*rows: tuple[int, str, Signal]) -> DrawSums:
    """The sums of (step, task, signal) rows."""
    return history_of((s, Draw(t, signal, PASSED[signal], K)) for s, t, signal in rows).sums


def state(sums: DrawSums, pool: str | list[str], settings: PoolSettings | None = None) -> PoolState:
    """Of a pool whose tasks are drawn alike."""
    return pool_state(sums, dict.fromkeys(pool, 1.0), settings)


def passes(*dead: float, pool: list[str], seed: int = 0) -> DrawSums:
    """Whole passes, one a step; of each, the share of groups that are silent."""
    rng = random.Random(seed)
    rows = []
    for step, share in enumerate(dead, start=1):
        silent = set(rng.sample(pool, round(share * len(pool))))
        rows += [(step, task, SAT if task in silent else LEARN) for task in pool]
    return drawn(*rows)


def of(n: int) -> list[str]:
    return [f"t{i}" for i in range(n)]


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ([], TaskState.FRESH),
        ([LEARN], TaskState.LEARNABLE),
        ([SAT], TaskState.SATURATED),
        ([STUCK], TaskState.STUCK),
        ([LEARN, SAT], TaskState.SATURATED),
        ([LEARN, LEARN, LEARN, STUCK], TaskState.LEARNABLE),
        ([SAT, LEARN], TaskState.REVIVED),
        ([STUCK, STUCK, LEARN], TaskState.STUCK),
        ([STUCK, SAT, LEARN, LEARN, LEARN], TaskState.REVIVED),
        ([STUCK, LEARN, SAT, SAT, SAT], TaskState.SATURATED),
    ],
    ids=lambda v: v.value if isinstance(v, TaskState) else " ".join(s.value for s in v),
)
def test_a_task_has_the_state_that_its_groups_give_it(seen: list[Signal], told: TaskState) -> None:
    sums = drawn(*[(step, "a", signal) for step, signal in enumerate(seen, start=1)])
    found = state(sums, "ab")
    assert found.tasks["a"].state is told
    assert "a" in found.of(told)
    assert "b" in found.of(TaskState.FRESH)


def test_a_task_whose_attempts_could_never_be_paid_is_stuck_not_saturated() -> None:
    sums = history_of([(1, Draw("a", STUCK, 0, 0))]).sums
    assert state(sums, "a").tasks["a"].state is TaskState.STUCK


def test_time_alone_changes_no_state_but_makes_a_task_like_its_pool() -> None:
    early = drawn((1, "a", SAT), (1, "b", LEARN))
    late = drawn((1, "a", SAT), (1, "b", LEARN), *[(s, "c", LEARN) for s in range(2, 80)])
    assert state(late, "abc").tasks["a"].state is TaskState.SATURATED
    new = state(late, "abcd").tasks["d"].learnable
    assert state(early, "ab").tasks["a"].learnable < 0.3
    assert state(late, "abc").tasks["a"].learnable == pytest.approx(new, abs=0.05)


def test_the_chance_of_a_learnable_group_is_that_of_its_beta() -> None:
    """By hand: m ~ Beta(a, a), so 1/2, with a of the prior, what is left of the groups before the
    first step, and one group; each task has one group and one prior group."""
    found = state(drawn((1, "a", SAT), (1, "b", LEARN)), "ab")
    assert PRIOR_GROUPS == 1
    assert found.tasks["a"].learnable == pytest.approx((0.5 + 0) / 2)
    assert found.tasks["b"].learnable == pytest.approx((0.5 + 1) / 2)
    assert found.share == pytest.approx(0.5)
    a = 1 + GROUP_DISCOUNT * START_GROUPS / 2 + 1
    of_tasks, of_m = 2 * 0.25 * (0.25 * 0.75) / 3, 0.5**2 * (0.25 / (2 * a + 1))
    assert found.sd == pytest.approx((of_tasks + of_m) ** 0.5)


def test_the_probability_is_that_of_a_simulated_pool() -> None:
    """Pools with a known m and tasks of known q, seen for a pass: among those that leave so many
    learnable groups behind, the share of the next pass is below the bound as often as told."""
    rng, n, wanted, bound = random.Random(0), 42, 14, 0.35
    prior, below = 1 + GROUP_DISCOUNT * START_GROUPS / 2, list[bool]()
    while len(below) < 3000:
        m = rng.betavariate(prior, prior)
        q = [rng.betavariate(PRIOR_GROUPS * m, PRIOR_GROUPS * (1 - m)) for _ in range(n)]
        if sum(rng.random() < p for p in q) == wanted:
            below.append(sum(q) / n < bound)
    rows = [(1, t, LEARN if i < wanted else SAT) for i, t in enumerate(of(n))]
    told = state(drawn(*rows), of(n), PoolSettings(bound=bound)).probability
    assert told == pytest.approx(sum(below) / len(below), abs=0.04)


@pytest.mark.parametrize("n", [42, 892])
def test_two_silent_passes_make_a_pool_converge_and_a_step_does_not(n: int) -> None:
    pool = of(n)
    found = state(passes(1, 1, pool=pool), pool)
    assert found.converged
    assert found.probability > 0.99
    assert "the pool has converged" in found.message
    assert f"of {n} tasks 0 learnable (0 of them revived), {n} saturated" in found.message
    assert not state(drawn(*[(1, t, SAT) for t in pool[:8]]), pool).converged


def test_one_learnable_group_does_not_keep_a_pool_alive_and_a_fifth_of_them_does() -> None:
    pool = of(42)
    assert state(passes(1, 1, 1, 41 / 42, pool=pool), pool).converged
    alive = state(passes(1, 1, 1, *[0.8] * 12, pool=pool), pool)
    assert not alive.converged
    assert alive.probability < 0.05
    assert "still teaches" in alive.message


def test_a_sample_of_a_large_pool_is_enough() -> None:
    """A seventh of the pool was drawn and did not differ; the rest is taken to be like it."""
    pool = of(892)
    rows = [(1 + i // 8, t, SAT) for i, t in enumerate(pool[:120])]
    found = state(drawn(*rows), pool)
    assert len(found.of(TaskState.FRESH)) == 892 - 120
    assert found.converged


def test_what_is_asked_for_decides() -> None:
    pool = of(42)
    sums = passes(1, 1, 1, 41 / 42, pool=pool)
    found = state(sums, pool)
    sure = PoolSettings(confidence=0.5 + found.probability / 2)
    assert state(sums, pool, sure).converged == (found.probability >= sure.confidence)
    assert not state(sums, pool, PoolSettings(bound=0.005)).converged


def test_tasks_that_joined_the_pool_lift_convergence_until_they_were_drawn() -> None:
    pool, joined = of(42), [f"new{i}" for i in range(42)]
    alike = dict.fromkeys([*pool, *joined], 1.0)
    sums = passes(*[1] * 8, pool=pool)
    assert state(sums, pool).converged
    assert pool_state(sums, alike).converged, "of one pool, the rest is taken to be like it"
    grown = pool_state(sums, alike, joined=set(joined))
    assert grown.share > 0.2
    assert grown.probability < 0.01
    played = sums.plus(9, [Draw(t, STUCK, 0, K) for t in joined])
    assert pool_state(played, alike, joined=set(joined)).converged


def test_a_few_tasks_that_joined_a_large_pool_are_played_before_it_has_converged() -> None:
    pool, joined = of(210), ["new0", "new1"]
    alike = dict.fromkeys([*pool, *joined], 1.0)
    sums = passes(*[1] * 8, pool=pool)
    grown = pool_state(sums, alike, joined=set(joined))
    assert grown.probability > 0.95, "by their share they hardly count"
    assert not grown.converged
    assert grown.message.startswith("not played yet: 2 of the tasks that were added")
    half = sums.plus(9, [Draw("new0", STUCK, 0, K)])
    assert not pool_state(half, alike, joined=set(joined)).converged
    played = half.plus(10, [Draw("new1", STUCK, 0, K)])
    assert pool_state(played, alike, joined=set(joined)).converged


def test_tasks_that_are_drawn_more_often_count_more() -> None:
    """Near the frontier a pool goes on while there is something left to draw."""
    pool = of(100)
    sums = drawn(*[(1, t, LEARN if i < 5 else SAT) for i, t in enumerate(pool)] * 3)
    alike = state(sums, pool)
    assert alike.converged
    frontier = pool_state(sums, {t: 50.0 if i < 5 else 1.0 for i, t in enumerate(pool)})
    assert frontier.share > 0.5
    assert not frontier.converged


def test_a_task_that_left_the_pool_says_nothing() -> None:
    one, other = (drawn((1, "a", SAT), (1, "gone", signal)) for signal in (LEARN, STUCK))
    assert state(one, "a") == state(other, "a")


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(BadInput, match="empty"):
        state(drawn(), [])
