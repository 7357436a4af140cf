"""How many steps a night will have, foreseen from committed nights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.base.checkout import ROOT
from scripts.phases.usual import (
    Foresight,
    Settled,
    UsualNight,
    alike,
    foresee,
    held_out_tasks,
    of_run,
    shape,
    told,
    usual_nights,
)
from scripts.run.config import read_config
from scripts.run.plan import PAGE_SECONDS

SETTINGS = {"model.path": "smol"}
NIGHT = UsualNight("one", SETTINGS, 20.0, (100.0, 100.0, 50.0), 2.0, 0.5, learned_at=4)


def foreseen(
    seconds: float, preflight: float = 20.0, *nights: UsualNight, tasks: int = 40
) -> Foresight:
    return foresee(
        nights or (NIGHT,),
        preflight_seconds=preflight,
        gone=30.0,
        seconds=seconds,
        tasks=tasks,
        start_arms=1,
    )


def test_the_steps_fill_what_start_and_evaluations_leave() -> None:
    around = 30 + PAGE_SECONDS + 40 * 2.5
    assert foreseen(around).steps == 0
    assert foreseen(around + 249).steps == 2
    assert foreseen(around + 250).steps == 3
    assert foreseen(around + 250 + 10 * 50).steps == 13  # as fast as the last one that is known


def test_a_machine_of_half_the_speed_has_twice_the_seconds_and_not_the_start_again() -> None:
    around = 30 + PAGE_SECONDS + 2 * 40 * 2.5
    assert foreseen(around + 499, preflight=40.0).steps == 2
    assert foreseen(around + 500, preflight=40.0).steps == 3


def test_whether_it_suffices_is_what_committed_nights_needed_and_the_minutes_are_named() -> None:
    around = 30 + PAGE_SECONDS + 40 * 2.5
    enough, short = foreseen(around + 300), foreseen(around + 299)
    assert (enough.steps, enough.enough, enough.suffices) == (4, 4, True)
    assert not short.suffices
    assert short.minutes == pytest.approx((around + 300) / 60)
    text = told(Settled(short, 40, None), 7.0, "tonight")
    assert "about 3 steps in 7 minutes" in text
    assert "`grpo run tonight --minutes 10`" in text
    assert "`grpo run tonight --set eval.tasks=20`" in text
    text = told(Settled(enough, 40, None), 8.0, "tonight")
    assert text.endswith("so that is usually enough")


def number(seconds: float, most: int = 48) -> int:
    return held_out_tasks(lambda n: foreseen(seconds, tasks=n), most)


def around(tasks: int) -> float:
    """Seconds of a night without a step."""
    return 30 + PAGE_SECONDS + tasks * 2.5


def test_a_night_plays_as_many_held_out_tasks_as_leave_the_steps_that_are_usually_enough() -> None:
    enough = 300.0  # four steps of the night before
    assert number(around(48) + enough) == 48
    assert number(around(48) + enough - 1) == 40
    assert number(around(40) + enough - 1) == 32
    assert number(around(24) + enough) == 24
    assert number(around(41) + enough, most=41) == 41
    assert number(around(41) + enough - 1, most=41) == 33


def test_where_even_the_fewest_leave_too_little_the_fewest_are_played() -> None:
    assert number(around(24) + 299) == 24
    assert number(10.0) == 24
    assert number(10.0, most=20) == 20  # a file of fewer tasks


def test_the_person_is_told_of_fewer_tasks_with_the_numbers_and_the_way_back() -> None:
    found = foreseen(around(24) + 300, tasks=24)
    text = told(Settled(found, 24, 48), 7.0, "tonight")
    assert "usually enough. To leave time for steps, evaluations play the first 24" in text
    assert "`grpo run tonight --set eval.tasks=48` before the first step plays 48" in text
    short = told(Settled(foreseen(around(24), tasks=24), 24, 48), 3.0, "tonight")
    assert "usually too few. To leave time" in short
    assert "`grpo run tonight --minutes" in short
    assert "eval.tasks=12" not in short
    whole = told(Settled(found, 48, 48), 7.0, "tonight")
    assert "evaluations play" not in whole


def test_of_several_nights_the_slowest_learner_says_what_is_enough() -> None:
    slow = replace(NIGHT, name="two", learned_at=9)
    assert foreseen(1000.0, 20.0, NIGHT, slow).enough == 9


def test_a_run_of_another_model_pool_or_size_is_not_foreseen() -> None:
    assert alike([NIGHT], SETTINGS) == (NIGHT,)
    assert alike([NIGHT], {"model.path": "mine"}) == ()


def test_the_table_is_what_the_committed_nights_say_and_fits_the_default_night() -> None:
    table = usual_nights()
    assert table == tuple(of_run(ROOT / "runs" / night.name) for night in table)
    preset = read_config(ROOT / "scripts" / "prepare" / "presets" / "smol.toml")
    assert shape(preset.plain()) in [night.settings for night in table]
