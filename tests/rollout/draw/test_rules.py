"""The probability that a place goes to a task is how often it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from fieldkit.records import Draw, Signal, Task
from rollout.draw.base import Drawing
from rollout.draw.rules import DRAWS, chances
from tests.reward.histories import history_of

K, BATCH, STEPS = 8, 8, 400
POOL = [Task(f"task-{i:02}", "sql" if i % 2 else "clawgym", "", {}) for i in range(40)]
HISTORY = history_of(
    (step, Draw(t.task_id, Signal.STUCK, K // 2 if i < 6 else K, K))
    for step in range(1, 20)
    for i, t in enumerate(POOL)
)
"""Six tasks are passed half of the time, the others always."""


def drawn(rule: str, mix: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """By task the shares of the places that it got in many steps, and `chances`."""
    found, told = Counter[str](), dict[str, float]()
    for seed in range(STEPS):
        drawing = Drawing(seed, 20, POOL, BATCH, 0, K, mix=mix, sums=HISTORY.sums)
        found.update(t.task_id for t in DRAWS[rule](drawing))
        told = told or chances(rule, drawing)
    return {t.task_id: found[t.task_id] / (STEPS * BATCH) for t in POOL}, told


@pytest.mark.parametrize("mix", [{}, {"sql": 0.25, "clawgym": 0.75}], ids=["any", "mixed"])
@pytest.mark.parametrize("rule", DRAWS)
def test_a_task_has_no_more_than_one_of_a_step_s_places(
    rule: str, mix: Mapping[str, float]
) -> None:
    shares, told = drawn(rule, mix)
    assert sum(told.values()) == pytest.approx(1)
    assert max(told.values()) <= 1 / BATCH + 1e-9
    assert told == pytest.approx(shares, abs=0.012)


def test_a_step_that_takes_every_task_gives_each_the_same() -> None:
    told = chances("frontier", Drawing(0, 20, POOL[:8], BATCH, 0, K, sums=HISTORY.sums))
    assert set(told.values()) == {1 / 8}
