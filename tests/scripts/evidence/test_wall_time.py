from __future__ import annotations

from dataclasses import replace

import pytest

from fieldkit.files.journal import Entry
from scripts.evidence.wall_time import UNCLAIMED, wall_time
from scripts.run.timings import Segment, StepTimings
from tests.scripts.made_night import timings

SWAPPED = Entry(0.0, 1, "adapter_served", {"lifecycle": "hotswap"})
RESTARTED = Entry(0.0, 1, "adapter_served", {"lifecycle": "restart"})


def test_the_parts_add_up_to_the_wall() -> None:
    found = wall_time([timings(n) for n in range(4)], (), 32, 64)
    assert found is not None
    assert found.wall == 100 + 3 * 80
    assert sum(p.seconds for p in found.parts) == pytest.approx(found.wall)
    assert sum(p.share for p in found.parts) == pytest.approx(1)


def test_the_time_between_phases_is_a_part_of_its_own() -> None:
    gap = StepTimings(
        1,
        (
            Segment("rollout", "1", 0, 10, {"rollout": 10.0}),
            Segment("train", "1", 15, 20, {"gradient": 5.0}),
        ),
    )
    found = wall_time([gap], (), 32, 64)
    assert found is not None
    assert ("between phases", 5) in [(p.name, p.seconds) for p in found.parts]


def test_what_no_part_claims_is_told_as_such() -> None:
    short = StepTimings(1, (Segment("rollout", "1", 0, 10, {"rollout": 7.0}),))
    found = wall_time([short], (), 32, 64)
    assert found is not None
    assert (found.parts[-1].name, found.parts[-1].seconds) == (UNCLAIMED, 3)


def test_the_time_that_a_loop_waited_to_do_a_phase_again_is_told() -> None:
    failed = {"phase": "train", "exit": 5, "error": "too little memory"}
    journal = [
        Entry(100.0, 1, "pause", {**failed, "seconds": 60.0}),
        Entry(160.5, 2, "phase_start", {"phase": "train"}),
        Entry(200.0, 1, "pause", {**failed, "seconds": 600.0}),
        Entry(440.0, 3, "loop_start", {}),  # a person did not want to wait
    ]
    found = wall_time([timings(1)], journal, 32, 64)
    assert found is not None
    (told,) = (sentence for sentence in found.sentences if "waited" in sentence)
    assert "waited 5 min to do a failed phase again: train (exit 5) 2 times;" in told
    undisturbed = wall_time([timings(1)], (), 32, 64)
    assert undisturbed is not None
    assert len(undisturbed.sentences) == len(found.sentences) - 1


def test_a_server_that_was_lost_in_the_night_is_told() -> None:
    lines = ["engine-2 is lost, 1 left: no answer", "engine-2 answers again"]
    journal = [Entry(100.0 + i, 1, "servers", {"text": line}) for i, line in enumerate(lines)]
    both = f"{lines[0]}; at last, of 2 lines in journal.jsonl: {lines[1]}."
    for seen, told in ((1, f"{lines[0]}."), (2, both)):
        found = wall_time([timings(1)], journal[:seen], 32, 64)
        assert found is not None
        assert f"Of the servers: {told}" in found.sentences


def test_nothing_clocked_is_nothing_to_show() -> None:
    assert wall_time([StepTimings(0)], (), 32, 64) is None


def test_fewer_evaluations_are_advised_only_where_there_are_some_between_start_and_end() -> None:
    step = StepTimings(1, (Segment("eval x", "1", 0, 100, {"eval": 90.0, "startup": 10.0}),))
    for eval_every, told in ((5, True), (0, False)):
        found = wall_time([step], (), 32, 64, eval_every)
        assert found is not None
        assert "eval.tasks" in found.sentences[-1]
        assert ("run.eval_every" in found.sentences[-1]) == told


def test_restarts_are_held_against_hot_swap() -> None:
    step = StepTimings(
        1, (Segment("rollout", "1", 0, 100, {"engine": 30.0, "reclaim": 10.0, "rollout": 60.0}),)
    )
    found = wall_time([step], [RESTARTED], 32, 64)
    assert found is not None
    assert "40 s (40 % of the night)" in found.sentences[0]
    assert "hot-swap would have saved" in found.sentences[0]
    reason = "restart: 9.1 GiB of GPU memory beside the engine, the trainer needs about 15.0"
    short = replace(RESTARTED, data={**RESTARTED.data, "reason": reason})
    forced = wall_time([step], [short], 32, 64)
    assert forced is not None
    assert "the memory was not enough for engine and trainer at once" in forced.sentences[0]
    swapped = wall_time([step], [SWAPPED], 32, 64)
    assert swapped is not None
    assert "nothing to gain" in swapped.sentences[0]


def test_attempts_that_had_to_wait_for_a_seat_are_told() -> None:
    waited = wall_time([timings(1)], (), 32, 8)
    assert waited is not None
    assert "At most 8 of a step's 32 attempts" in waited.sentences[1]


def test_a_night_that_went_into_evaluations_is_told_how_to_spend_less_on_them() -> None:
    found = wall_time([timings(0), timings(1)], (), 32, 64)
    assert found is not None
    assert "eval.tasks" in found.sentences[-1]
