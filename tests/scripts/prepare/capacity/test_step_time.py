"""The model of a step, on numbers that were worked out by hand and by what may never be."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scripts.prepare.capacity.box import Box
from scripts.prepare.capacity.step_time import (
    TURN_SECONDS,
    StepTime,
    Way,
    bend,
    iteration_seconds,
    rollout_seconds,
    step_time,
)
from scripts.prepare.capacity.step_work import StepWork
from tests.scripts.prepare.capacity.round_numbers import EVEN, box, shape, work

WAY = Way()


def test_an_iteration_reads_the_weights_as_long_as_few_are_in_flight() -> None:
    """2 GB at 100 GB/s."""
    for in_flight in (1, 2, 5):
        assert iteration_seconds(shape(), box(), EVEN, in_flight, 0) == pytest.approx(0.020)


def test_an_iteration_computes_where_many_are_in_flight() -> None:
    """10 tokens of 2 GFLOP at half of 1 TFLOP/s."""
    assert iteration_seconds(shape(), box(), EVEN, 10, 0) == pytest.approx(0.040)


def test_the_engines_own_time_is_added() -> None:
    found = iteration_seconds(shape(), box(iteration_ms=5.0), EVEN, 1, 0)
    assert found == pytest.approx(0.025)


def test_a_kv_cache_is_read_too() -> None:
    """200,000 bytes a token: 4 attempts of 2,500 tokens add 2 GB."""
    assert iteration_seconds(shape(), box(), EVEN, 4, 2500) == pytest.approx(0.040)


def test_the_bend_is_where_reading_and_computing_take_as_long() -> None:
    """20 ms to read, 4 ms to compute a token; with a cache of 1,000 tokens 2 ms more to read."""
    assert bend(shape(), box(), EVEN, 0) == pytest.approx(5)
    assert bend(shape(), box(), EVEN, 1000) == pytest.approx(10)


def test_there_is_no_bend_where_a_cache_takes_longer_than_its_token() -> None:
    """A cache of 2,000 tokens takes 4 ms, as its token does."""
    assert math.isinf(bend(shape(), box(), EVEN, 2000))


def test_a_rollout_lasts_as_long_as_its_longest_attempt() -> None:
    """1,600 tokens in 200 iterations are 8 in flight: 32 ms each."""
    decode, prefill, worlds = rollout_seconds(work(), shape(), box(), EVEN, 64)
    assert decode == pytest.approx(6.4)
    assert (prefill, worlds) == (0, 0)


def test_one_at_a_time_every_token_reads_the_weights() -> None:
    decode, _, _ = rollout_seconds(work(), shape(), box(), EVEN, 1)
    assert decode == pytest.approx(1600 * 0.020)


def test_prompts_and_observations_are_computed_without_the_output_layer() -> None:
    _, prefill, _ = rollout_seconds(work(read=1000.0), shape(), box(), EVEN, 64)
    assert prefill == pytest.approx(1000 * 1.8e9 / 0.5e12)


def test_the_longest_attempts_turns_follow_one_another() -> None:
    """16 attempts of 10 turns and 100 tokens: the longest has 200 tokens, so 20 turns."""
    _, _, worlds = rollout_seconds(work(turns=160.0), shape(), box(), EVEN, 64)
    assert worlds == pytest.approx(20 * TURN_SECONDS)
    _, _, in_turn = rollout_seconds(work(turns=160.0), shape(), box(), EVEN, 1)
    assert in_turn == pytest.approx(160 * TURN_SECONDS)


def test_several_engines_have_whole_groups() -> None:
    """Four groups on three devices: one device has two of them, 800 tokens, 4 in flight."""
    decode, _, _ = rollout_seconds(work(), shape(), box(devices=3), EVEN, 64)
    assert decode == pytest.approx(200 * 0.020)


def test_nothing_is_faster_than_the_longest_attempt() -> None:
    decode, _, _ = rollout_seconds(work(), shape(), box(machines=100), EVEN, 64)
    assert decode == pytest.approx(200 * 0.020)


def test_a_step_that_sampled_nothing_decodes_nothing() -> None:
    assert rollout_seconds(work(sampled=0.0), shape(), box(), EVEN, 64) == (0, 0, 0)


def test_passes_are_flops_over_a_share_of_the_limit() -> None:
    """1,000 tokens: 2 TFLOP at 0.5, 4 TFLOP at 0.25 TFLOP/s."""
    time = step_time(work(), shape(), box(), EVEN, WAY)
    assert time.reference == pytest.approx(4)
    assert time.gradient == pytest.approx(16)
    assert (time.trainer_load, time.engine_restart, time.transfer) == (0, 0, 0)
    assert time.total == pytest.approx(6.4 + 4 + 16 + 3)


def test_a_box_whose_passes_were_measured_has_its_own_shares() -> None:
    time = step_time(work(), shape(), box(reference_share=0.25, gradient_share=0.5), EVEN, WAY)
    assert (time.reference, time.gradient) == pytest.approx((8, 8))


def test_a_step_without_a_reference_pass_takes_none() -> None:
    """As a run's first one; of two steps, one of which has it, it is half."""
    whole, spared, half = (
        step_time(work(referenced=share), shape(), box(), EVEN, WAY) for share in (1.0, 0.0, 0.5)
    )
    assert whole.reference > 0 == spared.reference
    assert half.reference == pytest.approx(whole.reference / 2)
    assert whole.total - spared.total == pytest.approx(whole.reference)


def test_a_canary_is_a_forward_pass() -> None:
    time = step_time(work(), shape(), box(), replace(EVEN, canary_tokens=500.0), WAY)
    assert time.canary == pytest.approx(2)


def test_a_step_that_starts_everything_anew_loads_the_weights_twice() -> None:
    """2 GB at 1 GB/s, each time."""
    time = step_time(work(), shape(), box(), EVEN, Way(restart=True, load=True))
    assert time.trainer_load == pytest.approx(6 + 2)
    assert time.engine_restart == pytest.approx(10 + 2)


def test_eight_processes_are_taken_where_they_pay_for_their_start() -> None:
    """20 s of passes: an eighth of them x 1.26, and a start of 8 s."""
    time = step_time(work(), shape(), box(devices=8), EVEN, WAY)
    assert time.processes == 8
    assert time.reference + time.gradient == pytest.approx(20 / 8 * 1.26)
    assert time.trainer_load == pytest.approx(8)
    small = step_time(work(inputs=100.0, scored=100.0), shape(), box(devices=8), EVEN, WAY)
    assert (small.processes, small.trainer_load) == (1, 0)


def test_an_adapter_goes_to_every_other_machine() -> None:
    """250 million float32 are 1 GB, to three machines at 1 GB/s."""
    way = Way(lora_parameters=250_000_000)
    assert step_time(work(), shape(), box(machines=4), EVEN, way).transfer == pytest.approx(3)
    assert step_time(work(), shape(), box(), EVEN, way).transfer == 0


def test_the_parts_are_the_total() -> None:
    time = step_time(work(turns=160.0, read=500.0), shape(), box(), EVEN, WAY)
    assert sum(time.parts.values()) == time.total
    assert "processes" not in time.parts


WORKS = [
    work(),
    work(episodes=512.0, sampled=51_200.0, read=80_000.0, turns=4000.0, context=700.0),
    work(episodes=4.0, sampled=40.0, longest=12.0, inputs=200_000.0, scored=80_000.0),
]
BOXES = [box(), box(devices=8, machines=4, iteration_ms=5.0), box(tflops=500.0)]
WAYS = [WAY, Way(1, restart=True, load=True, lora_parameters=10**8)]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("figure", "factor"),
    [
        *(("tflops", 2), ("memory_gb_s", 2), ("disk_gb_s", 2), ("link_gb_s", 2)),
        *(("iteration_ms", 0.5), ("start_seconds", 0.5), ("devices", 2)),
    ],
)
def test_a_better_box_is_never_slower(
    work: StepWork, box: Box, way: Way, figure: str, factor: float
) -> None:
    value = getattr(box, figure)
    better = replace(box, **{figure: type(value)(value * factor)})
    slow, fast = (step_time(work, shape(), b, EVEN, way).total for b in (box, better))
    assert fast <= slow * (1 + 1e-12)


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("name", ["sampled", "read", "turns", "longest", "context", "inputs"])
def test_more_work_never_takes_less(box: Box, name: str) -> None:
    few = WORKS[1]
    more = replace(few, **{name: 2 * getattr(few, name)})
    before, after = (step_time(w, shape(), box, EVEN, WAY) for w in (few, more))
    assert after.total >= before.total


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 31])
def test_attempts_in_flight_lie_between_one_and_the_seats(n: int) -> None:
    """Else an iteration would sample for more attempts than there are."""
    times: list[StepTime] = []
    for seats in (1, 4, 64):
        times.append(step_time(work(), shape(), box(devices=n), EVEN, Way(seats)))
    assert times[0].decode >= times[1].decode >= times[2].decode >= 200 * 0.020 - 1e-9
