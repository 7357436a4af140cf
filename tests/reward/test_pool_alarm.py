"""The simulated nights follow the loop's own formulas, and the rule is right on them."""

from __future__ import annotations

import pytest

from fieldkit.records import Draw, Signal, Task
from reward.pool import PoolSettings, pool_state
from rollout.draw.base import Drawing
from rollout.draw.rules import chances
from tests.reward.histories import history_of
from tests.reward.pool_alarm import Outcome, judge
from tests.reward.pool_nights import BATCH, K, Setting, play

BOUND = PoolSettings().bound


@pytest.mark.parametrize(("draw", "spare"), [("uniform", 0), ("frontier", 3)])
def test_the_simulation_computes_what_the_loop_does(draw: str, spare: int) -> None:
    s = Setting("saturating", 30, draw, spare, nights=4, steps=200)
    pool = [Task(f"t{i}", "clawgym", "", {}) for i in range(s.n)]
    night, rows, wide = 2, list[tuple[int, Draw]](), PoolSettings(bound=0.45)
    compared = 0
    for step in play(s):
        for i, passed, played in zip(
            step.chosen[night], step.passes[night], step.played[night], strict=True
        ):
            if played:
                mixed = 0 < passed < K
                signal = Signal.LEARNABLE if mixed else Signal.STUCK
                rows.append((step.number, Draw(f"t{i}", signal, int(passed), K)))
        if step.number % 10:
            continue
        sums = history_of(rows).sums
        drawing = Drawing(0, step.number + 1, pool, BATCH, group_size=K, sums=sums)
        ours = chances(draw, drawing)
        assert list(ours.values()) == pytest.approx(step.chances[night].tolist())
        state = pool_state(sums, ours, wide)
        told = step.sums.probability(step.chances, wide.bound)[night]
        if state.share < wide.bound:
            assert told == pytest.approx(state.probability)
            compared += 1
    assert compared >= 2


def by_rule(s: Setting) -> dict[str, Outcome]:
    return {o.rule: o for o in judge(s, BOUND)}


def test_no_night_on_few_tasks_ends_early_by_a_false_alarm() -> None:
    """In 1,000 nights of 20 steps on a pool of 42 whose tasks stay as they are."""
    found = by_rule(Setting("steady", 42, nights=1000, steps=20))
    assert found["posterior"].ended == 0
    assert found["one dead batch"].false > 0


def test_nor_does_one_on_a_pool_of_which_little_can_be_learned_yet() -> None:
    """14 % of the groups differ, where the bound is 10 %, and the rule is asked 20 times."""
    found = by_rule(Setting("rare", 42, nights=1000, steps=20))
    assert found["posterior"].false <= 0.005
    assert found["one dead batch"].false > 0.5


@pytest.mark.parametrize(("n", "nights"), [(42, 60), (892, 12)])
def test_a_pool_that_saturates_is_seen_to_and_not_before(n: int, nights: int) -> None:
    found = by_rule(Setting("saturating", n, nights=nights, steps=250))
    mine, dead, every = (
        found[rule] for rule in ("posterior", "one dead batch", "every task silent")
    )
    assert mine.ended == mine.fell == 1
    assert mine.false <= 1 / nights
    assert mine.delay is not None
    assert mine.delay[1] < 80, "a night of 250 steps falls below the bound after some 115"
    assert dead.false == 1
    assert every.ended <= mine.ended
    assert (every.ended == 0) == (n == 892), "no large pool was ever silent task by task"


def test_draws_near_the_frontier_give_no_false_alarm() -> None:
    found = by_rule(Setting("saturating", 42, "frontier", nights=100))
    assert found["posterior"].false <= 0.01
    assert found["every task silent"].false > 0
    assert found["posterior"].ended > 2 * found["every task silent"].ended
