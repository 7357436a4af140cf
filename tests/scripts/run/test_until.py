"""A deadline by the clock, and how the forecast for it held."""

from __future__ import annotations

import time

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.journal import Entry
from scripts.run.until import FORECAST, deadline, held, next_time, seconds_until


def at(hour: int, minute: int, day: int = 10) -> float:
    return time.mktime((2026, 3, day, hour, minute, 0, 0, 0, -1))


def entry(when: float, event: str, **data: object) -> Entry:
    return Entry(when, 1, event, dict(data))


def test_the_next_seven_in_the_morning_is_tomorrows_in_the_evening_and_todays_at_night() -> None:
    assert next_time("07:00", at(22, 30)) == at(7, 0, day=11)
    assert next_time("07:00", at(2, 15)) == at(7, 0)
    assert next_time("7:00", at(7, 0)) == at(7, 0, day=11)


def test_a_night_that_was_stopped_and_goes_on_after_its_time_gets_no_day_more() -> None:
    started = entry(at(22, 0), "loop_start", limits={"until": at(7, 0, 11)})
    played = entry(at(22, 9), "phase_start", phase="rollout")
    stopped = entry(at(6, 55, 11), "loop_end", next="train")
    assert deadline("07:00", at(7, 5, 11), [started, played, stopped]) == at(7, 0, 11)
    assert deadline("07:00", at(7, 5, 11), [started, played]) == at(7, 0, 11), "it was killed"
    assert deadline("07:00", at(2, 0, 11), [started, played]) == at(7, 0, 11), "it is to come"
    again = entry(at(7, 5, 11), "loop_start", limits={"until": at(7, 0, 11)})
    judged = entry(at(7, 6, 11), "phase_start", phase="eval")
    twice = [started, played, stopped, again, judged]
    assert deadline("07:00", at(7, 10, 11), twice) == at(7, 0, 11), "stopped in the evaluation too"
    tomorrow = at(7, 0, 12)
    earlier = entry(at(22, 0, 9), "loop_start", limits={"until": at(7, 0, 10)})
    assert deadline("07:00", at(7, 10, 11), [earlier, played, again, judged]) == tomorrow
    assert deadline("07:00", at(7, 5, 11), []) == tomorrow
    assert deadline("07:00", at(7, 5, 11), [started, stopped]) == tomorrow, "it took no step"
    night = [started, played, stopped]
    assert deadline("07:00", at(20, 0, 11), night) == tomorrow, "another evening"
    assert deadline("08:00", at(7, 5, 11), night) == at(8, 0, 11), "another time"
    done = entry(at(6, 55, 11), "loop_end", next="done")
    assert deadline("07:00", at(7, 5, 11), [started, played, done]) == tomorrow


@pytest.mark.parametrize("clock", ["25:00", "7", "07:60", "seven", ""])
def test_what_is_no_time_of_day_is_refused_with_an_example(clock: str) -> None:
    with pytest.raises(BadInput, match="--until 07:00"):
        next_time(clock, at(22, 0))


def test_a_forecast_is_held_against_the_end() -> None:
    journal = [
        entry(at(22, 0), "loop_start"),
        entry(at(22, 10), FORECAST, steps=34, end=at(6, 52, 11)),
        entry(at(22, 11), FORECAST, steps=40, end=at(6, 58, 11)),
        entry(at(6, 40, 11), "phase_end", phase="eval", exit=0),
    ]
    found = held(journal, 36)
    assert found is not None
    assert found.told() == (
        "At 22:10 the forecast was 34 steps, done at 06:52; it became 36, done at 06:40: "
        "12 min earlier."
    )


def test_of_a_night_that_was_resumed_the_last_loops_forecast_counts() -> None:
    journal = [
        entry(at(22, 0), "loop_start"),
        entry(at(22, 10), FORECAST, steps=34, end=at(6, 52, 11)),
        entry(at(8, 0, 11), "loop_start"),
        entry(at(8, 5, 11), FORECAST, steps=20, end=at(9, 0, 11)),
        entry(at(9, 0, 11), "phase_end", phase="eval", exit=0),
        entry(at(10, 0, 11), "loop_start"),
    ]
    found = held(journal, 20)
    assert found is not None
    assert (found.steps, found.done) == (20, at(9, 0, 11))
    assert found.told().endswith("done at 09:00: to the minute.")


def test_a_phase_that_is_typed_after_the_loop_has_ended_is_no_part_of_its_night() -> None:
    night = [
        entry(at(18, 0), "loop_start"),
        entry(at(18, 5), FORECAST, steps=84, end=at(21, 3)),
        entry(at(19, 47), "phase_end", phase="eval", exit=0),
        entry(at(19, 47), "loop_end", next="done"),
    ]
    typed = [
        entry(at(22, 1), "phase_start", phase="eval"),
        entry(at(22, 1), "phase_end", phase="eval", exit=0),
    ]
    assert held([*night, *typed], 84) == held(night, 84)
    assert held(night, 84).told().endswith("done at 19:47: 76 min earlier.")  # type: ignore[union-attr]


def test_seconds_until_a_deadline_count_down_and_no_deadline_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", lambda: at(22, 0))
    assert seconds_until(at(22, 1)) == 60
    assert seconds_until(None) is None


def test_a_night_without_a_forecast_says_nothing() -> None:
    assert held([entry(at(22, 0), "loop_start"), entry(at(23, 0), "phase_end")], 3) is None
