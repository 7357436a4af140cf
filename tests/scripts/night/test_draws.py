"""A night near the frontier with spare tasks: each step follows from what those before it drew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldkit.codec import read_bundle
from fieldkit.records import RolloutGroup
from reward.group_signal import draw_of
from reward.pool_history import read_history
from rollout.draw.base import Drawing
from rollout.draw.rules import DRAWS
from rollout.engine.serve import stop_engine
from rollout.tasks import read_tasks
from scripts.base.checkout import from_checkout
from scripts.run.config import read_config
from scripts.run.reader import RunReader
from tests.scripts.night.running import Night
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(1200)

STEPS, BATCH, SPARE = 3, 2, 3


@pytest.fixture(scope="module")
def night(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """By the rule that looks back; the nights of other tests draw by the other one."""
    folder = write_run(
        tmp_path_factory.mktemp("drawn") / "night",
        *policy,
        run={"steps": STEPS},
        rollout={"draw": "frontier", "tasks_per_step": BATCH, "resample": SPARE},
        engine={"lifecycle": "hotswap"},
    )
    night = Night(folder)
    assert night.run() == 0, night.said
    yield night
    stop_engine(folder)


def played(night: Night, n: int) -> tuple[RolloutGroup, ...]:
    return read_bundle(night.folder.bundle(n))


def test_each_step_plays_what_its_rule_draws_after_the_steps_before(night: Night) -> None:
    config = read_config(night.folder.config)
    pool = read_tasks(from_checkout(config.data.pool))
    steps = RunReader(night.folder).steps
    settings = config.rollout
    for n in range(1, STEPS + 1):
        history = read_history(steps[:n], night.folder.bundle)
        drawing = Drawing(
            settings.run_seed, n, pool, BATCH, SPARE, settings.group_size, sums=history.sums
        )
        names = [g.task_id for g in played(night, n)]
        assert names == [t.task_id for t in DRAWS[settings.draw](drawing)][: len(names)]
        assert steps[n].draws == tuple(map(draw_of, played(night, n)))


def test_a_step_trains_on_as_many_groups_as_ever(night: Night) -> None:
    for n in range(1, STEPS + 1):
        groups = played(night, n)
        left_out = [g for g in groups if g.left_out]
        assert len(groups) - len(left_out) == BATCH
        assert not any(draw_of(g).mixed for g in left_out)
        mixed = sum(draw_of(g).mixed for g in groups)
        assert len(groups) == BATCH + min(SPARE, len(groups) - mixed)
        trained = json.loads((night.folder.step(n) / "train.json").read_text())
        assert trained["train"]["n_trajectories"] == BATCH * len(groups[0].trajectories)


def test_a_step_that_is_played_again_plays_the_same_tasks(night: Night) -> None:
    before = played(night, STEPS)
    shutil.rmtree(night.folder.step(STEPS))
    assert night.run() == 0, night.said
    assert [(g.task_id, g.left_out) for g in played(night, STEPS)] == [
        (g.task_id, g.left_out) for g in before
    ]
