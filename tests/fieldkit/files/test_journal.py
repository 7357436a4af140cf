"""The journal keeps what happened, whatever happened next."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.journal import Journal


def test_events_come_back_in_order_with_who_and_when(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    before = time.time()
    journal.append("phase_start", phase="rollout")
    journal.append("phase_end", phase="rollout", exit=0, wrote={"bundle_sha": "ab"})
    first, second = journal.read()
    assert (first.event, first.data) == ("phase_start", {"phase": "rollout"})
    assert second.data["wrote"] == {"bundle_sha": "ab"}
    assert first.pid == os.getpid()
    rounding = 0.001
    assert before - rounding <= first.time <= second.time <= time.time() + rounding


def test_a_journal_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert Journal(tmp_path / "journal.jsonl").read() == ()


def test_a_line_torn_by_a_crash_costs_nothing_else(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("one")
    with open(journal.path, "a", encoding="utf-8") as f:
        f.write('{"schema": 1, "ti')
    assert [e.event for e in journal.read()] == ["one"]
    journal.append("two")
    assert [e.event for e in journal.read()] == ["one", "two"]


def test_an_event_cannot_write_over_who_and_when(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pid"):
        Journal(tmp_path / "j").append("e", pid=1)


def test_a_number_that_is_none_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(ValueError, match="JSON"):
        journal.append("e", loss=float("nan"))
    assert journal.read() == ()


@pytest.mark.parametrize(
    "line", ["not json", "[]", '{"schema": 2, "time": 1, "pid": 1, "event": "e"}', '{"schema": 1}']
)
def test_a_line_that_is_no_event_names_file_and_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "j"
    Journal(path).append("fine")
    with open(path, "a", encoding="utf-8") as f:
        f.write(line + "\n")
    with pytest.raises(BadInput, match=r"j:2: "):
        Journal(path).read()
