"""What earlier attempts say about a task's chance to be passed, and to be passed now and then."""

from __future__ import annotations

import random
from itertools import product

import pytest

from fieldkit.records import Draw, Signal
from reward.pool_history import PoolHistory
from reward.solve_rate import DISCOUNT, PRIOR_ATTEMPTS, DrawSums, SolveRate, solve_rates
from tests.reward.histories import history_of


def drawn(step: int, task: str, passed: int, played: int = 4) -> tuple[int, Draw]:
    return step, Draw(task, Signal.LEARNABLE, passed, played)


def test_a_task_that_was_never_drawn_is_as_the_pool_is() -> None:
    history = history_of((drawn(1, "a", 3), drawn(1, "b", 4)))
    rates = solve_rates(history.sums, ["a", "b", "new"], 2)
    assert rates["new"].mean == pytest.approx((7 + 1) / (8 + 2))
    assert rates["new"].passes + rates["new"].fails == pytest.approx(PRIOR_ATTEMPTS)
    assert solve_rates(PoolHistory().sums, ["a"], 1)["a"].mean == 0.5


def test_what_was_passed_now_and_then_is_the_most_probable_to_be_mixed_again() -> None:
    history = history_of(drawn(1, f"{n} of 4", n) for n in range(5))
    rates = solve_rates(history.sums, [*history.by_task, "new"], 2)
    mixed = {task: rate.mixed(4) for task, rate in rates.items()}
    assert max(mixed, key=mixed.__getitem__) == "2 of 4"
    for never_differs in ("0 of 4", "4 of 4"):
        assert mixed[never_differs] < mixed["new"] < mixed["2 of 4"]


def test_attempts_of_an_older_policy_count_less() -> None:
    pool = ["old", "young", "other"]
    history = history_of((drawn(1, "old", 4), drawn(11, "young", 4), drawn(11, "other", 0)))
    rates = solve_rates(history.sums, pool, 12)
    assert rates["other"].fails > rates["young"].fails
    assert rates["young"].passes - rates["old"].passes == pytest.approx(4 - 4 * DISCOUNT**10)


def test_tasks_that_left_the_pool_say_nothing() -> None:
    stayed, left = drawn(1, "a", 1), drawn(1, "gone", 4)
    assert solve_rates(history_of((stayed, left)).sums, ["a"], 2) == solve_rates(
        history_of((stayed,)).sums, ["a"], 2
    )


@pytest.mark.parametrize(("passes", "fails", "k"), [*product((0.3, 2.5), (0.7, 4.0), (2, 4))])
def test_the_chance_of_a_mixed_group_is_that_of_a_beta_binomial(
    passes: float, fails: float, k: int
) -> None:
    rng, n = random.Random(0), 40_000
    rates = (rng.betavariate(passes, fails) for _ in range(n))
    mixed = sum(0 < sum(rng.random() < p for _ in range(k)) < k for p in rates) / n
    assert SolveRate(passes, fails).mixed(k) == pytest.approx(mixed, abs=0.01)


def test_sums_that_grow_step_by_step_are_those_of_the_whole_history() -> None:
    """To the last bit: a file of sums that was lost must not change a draw."""
    rng = random.Random(0)
    rows = [
        drawn(step, f"t{rng.randrange(30)}", rng.randrange(5))
        for step in range(1, 200)
        for _ in range(8 + step % 3)
    ]
    grown = DrawSums()
    for step in range(1, 200):
        grown = grown.plus(step, [d for played, d in rows if played == step])
    assert grown == history_of(rows).sums


def test_sums_weigh_attempts_as_the_formula_does() -> None:
    rows = (drawn(1, "a", 3), drawn(4, "a", 1), drawn(9, "a", 4))
    found = history_of(rows).sums.attempts["a"].at(11)
    assert found.passed == pytest.approx(
        sum(DISCOUNT ** (11 - step) * d.passed for step, d in rows), rel=1e-12
    )


def test_sums_know_how_many_groups_each_step_drew() -> None:
    """0 for a step of which nothing is known."""
    rows = [
        drawn(step, f"t{n}", 1) for step in (1, 2, 3, 6, 7) for n in range(8 if step < 7 else 3)
    ]
    sums = history_of(rows).sums
    assert sums.groups(9) == [8, 8, 8, 0, 0, 8, 3, 0, 0]
    assert sums.groups(2) == [8, 8]
    assert DrawSums().groups(2) == [0, 0]
    assert len(sums.drew) == 4, "equal steps are one entry"
