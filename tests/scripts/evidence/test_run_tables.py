"""What the tables say about the pool: states, probability, forecast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.codec import encode
from fieldkit.records import AtStop, Draw, Signal
from scripts.evidence.findings import Findings, read_findings
from scripts.evidence.run_tables import pool_states_table, pool_table, text_tables, work_table
from scripts.evidence.step_figures import NOTHING
from tests.scripts.made_night import Night, make_night, summary

STEPS = 30


def drawing(night: Night, learnable: list[int]) -> Findings:
    """The night with a group of each of its tasks in every step, of which so many are learnable."""
    pool = [f"p{i:03d}" for i in range(8)]
    for n, wanted in enumerate(learnable, start=1):
        draws = [
            Draw(task, Signal.LEARNABLE, 2, 4) if i < wanted else Draw(task, Signal.STUCK, 0, 4)
            for i, task in enumerate(pool)
        ]
        night.folder.summary(n).write_text(encode(replace(summary(n, STEPS), draws=tuple(draws))))
    return read_findings(night.folder, night.config)


@pytest.fixture
def night(tmp_path: Path) -> Night:
    return make_night(tmp_path, n_steps=STEPS, pool_size=9)


def test_the_pool_has_its_states_its_probability_and_a_forecast(night: Night) -> None:
    falling = [*[8] * 10, *[4] * 8, *[1] * 6, *[0] * 4, 1, 1]
    table = pool_states_table(drawing(night, falling))
    assert table is not None
    counts = dict(zip(table.columns, table.rows[0], strict=True))
    assert counts == {
        "tasks": "9",
        "fresh": "1",
        "learnable": "1",
        "revived": "0",
        "saturated": "0",
        "stuck": "7",
    }
    outlook, forecast = table.notes
    assert "fewer than 10 % with probability below 0.01" in outlook
    assert "reaches 10 % around step" in forecast


def test_a_pool_that_stays_as_it_is_has_no_end_in_sight(night: Night) -> None:
    found = drawing(night, [4] * STEPS)
    table = pool_states_table(found)
    assert table is not None
    assert table.notes[1].endswith("no end in sight.")
    assert table in list(text_tables(found))


def test_every_task_has_its_own_line_learnable_ones_first_and_fresh_ones_last(night: Night) -> None:
    table = pool_table(drawing(night, [*[3] * (STEPS - 1), 2]))
    assert table is not None
    now = [row[table.columns.index("now")] for row in table.rows]
    assert now == ["learnable"] * 3 + ["stuck"] * 5 + ["fresh"]
    rates = [row[table.columns.index("solve rate")] for row in table.rows]
    assert float(rates[0].split()[0]) > 40 > 10 > float(rates[3].split()[0])
    assert table.rows[-1][table.columns.index("drawn")] == "0"


def test_the_history_of_a_task_names_a_signal_once_for_the_steps_in_a_row_that_had_it(
    night: Night,
) -> None:
    learnable = [*[3] * (STEPS - 2), 2, 3]
    table = pool_table(drawing(night, learnable))
    assert table is not None
    third = next(row for row in table.rows if row[0] == "p002")
    before = ", ".join(map(str, range(1, STEPS - 1)))
    assert third[-1] == f"learnable: {before}; stuck: {STEPS - 1}; learnable: {STEPS}"
    assert table.rows[-1][-1] == NOTHING


def test_a_run_that_has_drawn_nothing_has_no_table_of_its_pool(tmp_path: Path) -> None:
    made = make_night(tmp_path, n_steps=1, evaluated=False)
    made.folder.summary(1).unlink()
    assert pool_states_table(read_findings(made.folder, made.config)) is None


def test_stops_that_come_to_be_done_say_by_how_much_and_whether_it_can_be_luck(
    night: Night,
) -> None:
    """Of ten stops a step one is done in the first step, and nine in the last."""
    for n in range(1, STEPS + 1):
        done = AtStop(n=10, passed=1 + round(8 * (n - 1) / (STEPS - 1)), idle=0)
        found = replace(summary(n, STEPS), at_stop=done)
        night.folder.summary(n).write_text(encode(found))
    table = work_table(read_findings(night.folder, night.config))
    assert table is not None
    (row,) = (r for r in table.rows if r[0] == "stops with everything done")
    assert [cell.split()[0] for cell in row[1:3]] == ["4/30", "26/30"]
    assert row[3] == "+73.3, p < 0.001"
    drawn = replace(night.config, rollout=replace(night.config.rollout, draw="frontier"))
    table = work_table(read_findings(night.folder, drawn))
    assert table is not None
    (row,) = (r for r in table.rows if r[0] == "stops with everything done")
    assert row[3] == "+73.3", "a draw by weight moves to other tasks"
