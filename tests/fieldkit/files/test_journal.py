"""The journal keeps what happened, whatever happened next."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.journal import Entry, Journal, Mark


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


def test_the_name_of_a_file_that_is_not_utf_8_costs_no_event(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("phase_end", exit=2, error=f"{os.fsdecode(b'caf' + bytes([233]))}: damaged, é")
    (entry,) = journal.read()
    assert entry.data["error"] == "caf?: damaged, é"


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
    with pytest.raises(ValueError, match="event"):
        Journal(tmp_path / "j").append("e", **{"event": "another"})


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


def test_a_journal_is_read_on_from_where_it_was_read_to(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.read_on(Mark()) == ((), Mark())
    mark = Mark()
    seen: list[Entry] = []
    for n in range(5):
        journal.append("e", text="x" * 3000 * n)
        journal.append("e", n=n)
        found = journal.read_on(mark)
        assert found is not None
        entries, mark = found
        seen += entries
        assert len(entries) == 2
    assert tuple(seen) == journal.read()
    assert journal.read_on(mark) == ((), mark)
    assert (mark.n_bytes, mark.n_lines) == (journal.path.stat().st_size, 10)


def test_a_line_that_is_torn_is_read_when_it_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append("one")
    found = journal.read_on(Mark())
    assert found is not None
    line = journal.path.read_bytes()
    with open(journal.path, "ab") as f:
        f.write(line[:9])
    assert journal.read_on(found[1]) == ((), found[1])
    with open(journal.path, "ab") as f:
        f.write(line[9:])
    again = journal.read_on(found[1])
    assert again is not None
    assert [e.event for e in again[0]] == ["one"]


def test_another_journal_is_not_read_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    for n in range(3):
        journal.append("e", n=n)
    found = journal.read_on(Mark())
    assert found is not None
    text = journal.path.read_bytes()
    for other in (text[:-4], text[:-4] + b"9}}\n", text[: len(text) // 2], b""):
        journal.path.write_bytes(other)
        assert journal.read_on(found[1]) is None
    journal.path.unlink()
    assert journal.read_on(found[1]) is None


def test_a_new_line_that_is_no_event_names_file_and_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append("one")
    found = journal.read_on(Mark())
    assert found is not None
    with open(journal.path, "ab") as f:
        f.write(b"\xff\n")
    with pytest.raises(BadInput, match=r"j:2: not UTF-8"):
        journal.read_on(found[1])
