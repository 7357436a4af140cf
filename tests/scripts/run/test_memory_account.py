"""Memory that was forecast, held against what was used."""

from __future__ import annotations

from dataclasses import replace

from fieldkit.files.journal import Entry
from fieldkit.gate.memory import GIB
from fieldkit.records import Outcome
from scripts.run.memory_account import FORECAST, USED, told
from tests.scripts.made_night import summary

TRAINED = [summary(n, 20) for n in range(13)]


def entry(event: str, gib: float) -> Entry:
    return Entry(time=0.0, pid=1, event=event, data={"bytes": int(gib * GIB)})


def test_the_morning_says_what_was_forecast_and_what_was_used() -> None:
    journal = [entry(FORECAST, 5.2), entry(USED, 3.3), entry(USED, 5.0)]
    assert told(journal, TRAINED) == (
        "Memory of engine and trainer: forecast 5.2 GiB, used 5.0 GiB at most: the forecast was "
        "4 % too high."
    )
    assert "the forecast was 20 % too low" in told(
        [entry(FORECAST, 4.0), entry(USED, 5.0)], TRAINED
    )
    assert told([entry(FORECAST, 5.0), entry(USED, 5.0)], TRAINED).endswith("at most: as forecast.")


def test_of_a_few_steps_it_says_why_less_was_used() -> None:
    journal, few = [entry(FORECAST, 5.2), entry(USED, 3.8)], TRAINED[:3]
    assert told(journal, few).endswith(
        "37 % too high, since it counts what vLLM comes to hold over 20 steps."
    )
    assert "20 steps" not in told([entry(FORECAST, 3.8), entry(USED, 5.2)], few)


def test_where_no_server_is_the_runs_own_it_speaks_of_the_trainer() -> None:
    forecast = entry(FORECAST, 2.2)
    journal = [replace(forecast, data={**forecast.data, "engine": False}), entry(USED, 1.1)]
    assert told(journal, TRAINED[:3]) == (
        "Memory of the trainer: forecast 2.2 GiB, used 1.1 GiB at most: the forecast was 100 % too"
        " high."
    )


def test_a_resumed_night_counts_the_most_of_all_its_loops() -> None:
    journal = [entry(FORECAST, 5.0), entry(USED, 5.0), entry(USED, 3.0)]
    assert "used 5.0 GiB" in told(journal, TRAINED)


def test_what_was_used_before_a_new_start_does_not_count() -> None:
    journal = [entry(FORECAST, 9.0), entry(USED, 8.0), entry(FORECAST, 5.0), entry(USED, 4.0)]
    assert "forecast 5.0 GiB, used 4.0 GiB" in told(journal, TRAINED)


def test_a_night_on_a_gpu_or_of_an_older_version_says_nothing() -> None:
    assert (
        told([], TRAINED)
        == told([entry(USED, 4.0)], TRAINED)
        == told([entry(FORECAST, 5.0)], TRAINED)
        == ""
    )


def test_a_night_in_which_nothing_was_trained_says_nothing() -> None:
    untrained = [replace(s, outcome=Outcome.NO_SIGNAL) for s in TRAINED]
    assert told([entry(FORECAST, 5.0), entry(USED, 3.0)], untrained) == ""
