"""What a run's summaries and bundles say about its groups, and where their signal leads."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.codec import encode_group
from fieldkit.errors import BadInput
from fieldkit.records import Draw, RolloutGroup, Signal, StepSummary
from reward.group_signal import draw_of
from reward.pool_history import PoolHistory, forecast, read_history
from tests.reward.build import group, trajectory
from tests.reward.histories import history_of
from tests.scripts.evals import step

SAT, STUCK, LEARN = Signal.SATURATED, Signal.STUCK, Signal.LEARNABLE


def summary(n: int, *draws: Draw, bundle: bool = True) -> StepSummary:
    return replace(step(n, "a"), bundle_sha="b" if bundle else None, draws=draws)


def draw(signal: Signal, passed: int = 1) -> Draw:
    return Draw("a", signal, passed, 2)


def no_bundle(step: int) -> Path:
    raise AssertionError(f"the bundle of step {step} was asked for")


def write_group(run: Path, played: RolloutGroup) -> Path:
    bundle = run / f"{played.step}.jsonl"
    bundle.write_text(encode_group(played) + "\n")
    return bundle


DONE = "TASK_COMPLETE"


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ((["ls", DONE], 2), (["ls", "ls", DONE], 2), SAT),
        ((["ls", DONE], 1), (["ls", "ls", DONE], 1), STUCK),
        ((["ls", DONE], 1), (["ls", "ls", DONE], 2), LEARN),
        ((["ls", DONE], 2), (["ls", "ls"], 2), LEARN),
    ],
    ids=["turns alone, done", "turns alone, undone", "the work", "the stop"],
)
def test_a_group_that_differs_by_turns_alone_is_silent(
    first: tuple[list[str], int], second: tuple[list[str], int], told: Signal, tmp_path: Path
) -> None:
    members = [
        trajectory(texts, passed, 2, 0.9 - k / 10, k=k)
        for k, (texts, passed) in enumerate((first, second))
    ]
    drawn = draw_of(group(members, LEARN))
    assert drawn.signal is told
    history = read_history([summary(1, drawn)], no_bundle)
    assert history.by_task["t"] == ((1, told),)
    assert history.sums.attempts["t"].is_silent == (told is not LEARN)


def test_the_history_of_a_run_is_read_from_its_step_summaries() -> None:
    steps = [summary(0, bundle=False), summary(1, draw(LEARN)), summary(2, draw(STUCK, 0))]
    history = read_history(steps, no_bundle)
    assert history.by_task["a"] == ((1, LEARN), (2, STUCK))
    assert history.steps == ((1, (draw(LEARN),)), (2, (draw(STUCK, 0),)))


def test_a_step_of_an_older_version_is_read_from_its_bundle(tmp_path: Path) -> None:
    members = [trajectory(["ls"], passed, 2, passed / 2, k=k) for k, passed in enumerate((1, 2))]
    bundle = write_group(tmp_path, group(members, LEARN))
    history = read_history([summary(1)], lambda step: bundle)
    assert history == PoolHistory(((1, (Draw("t", LEARN, 1, 2),)),))
    bundle.write_text(bundle.read_text() + '{"schema": 1, "step": 1}\n')
    with pytest.raises(BadInput, match=r"1\.jsonl:2"):
        read_history([summary(1)], lambda step: bundle)
    bundle.unlink()
    assert read_history([summary(1)], lambda step: bundle) == PoolHistory()


def of_shares(*shares: float, groups: int = 40, seed: int | None = None) -> PoolHistory:
    """One step for each share, with that share of LEARNABLE groups, or by chance with it."""
    rng = random.Random(seed)
    return history_of(
        (step, Draw(f"t{i}", LEARN if differs else SAT, 0, 4))
        for step, share in enumerate(shares, start=1)
        for i in range(groups)
        for differs in [rng.random() < share if seed is not None else i < share * groups]
    )


def test_a_share_that_halves_reaches_the_bound_when_the_line_says() -> None:
    found = forecast(of_shares(0.8, 0.4, 0.2, groups=400), bound=0.1)
    few = forecast(of_shares(0.8, 0.4, 0.2), bound=0.1)
    assert found.step == few.step == 5, "a little after 4"
    assert found.latest is not None
    assert few.latest is not None
    assert found.latest < few.latest


def test_a_share_that_does_not_fall_by_more_than_chance_has_no_end_in_sight() -> None:
    assert forecast(of_shares(0.25, 0.3, 0.275, 0.35), bound=0.1).step is None
    falls = [
        forecast(of_shares(*[0.3] * 6, seed=seed), bound=0.1).step is not None
        for seed in range(300)
    ]
    assert sum(falls) <= 0.09 * len(falls), "one in twenty is expected"


def test_too_few_groups_give_no_forecast() -> None:
    found = forecast(of_shares(0.8, 0.4), bound=0.1)
    assert (found.step, found.blocks) == (None, ((1, 32, 40), (2, 16, 40)))


def test_small_steps_are_joined_to_blocks_and_a_forecast_takes_the_newest_ones() -> None:
    rise_and_fall = of_shares(*[0.2] * 50, *[0.8] * 10, *[0.4] * 10, *[0.2] * 10, groups=8)
    found = forecast(rise_and_fall, bound=0.1)
    assert found.blocks[:2] == ((5, 10, 40), (10, 10, 40))
    assert found.step is not None
    assert 80 <= found.step < 105


def test_a_share_below_the_bound_is_forecast_for_now() -> None:
    assert forecast(of_shares(0.5, 0.2, 0.025, groups=200), bound=0.1).step == 3
