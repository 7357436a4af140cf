"""`make chaos` takes an hour: after an interruption it resumes from its stored results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from tests.chaos.__main__ import Price, Seen, Wanted, broken_off
from tests.chaos.night import Toll

WANTED = Wanted(kills=10, several=4, real=2, steps=3, seed=0)
TOLL = Toll(Counter({"loop": 2, "trainer": 1}), Counter({"loop_start": 3}), starts=4, seconds=12.5)


def test_a_run_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    page = tmp_path / "chaos.md"
    assert broken_off(page, WANTED) == Seen(WANTED)
    seen = Seen(WANTED, [TOLL, TOLL], [TOLL], [TOLL])
    seen.write(page)
    assert broken_off(page, WANTED) == seen
    assert "| scripted | 2 | 6 | 8 | 0 |" in page.read_text()


def test_a_run_that_is_over_or_had_other_arguments_begins_anew(tmp_path: Path) -> None:
    page = tmp_path / "chaos.md"
    price = Price(3, TOLL, calm=80.0, killed=106.5, each=(8.0, 9.0, 9.5))
    Seen(WANTED, [TOLL], [], [], price, over=True).write(page)
    assert broken_off(page, WANTED) == Seen(WANTED)
    other = replace(WANTED, seed=1)
    Seen(WANTED, [TOLL]).write(page)
    assert broken_off(page, other) == Seen(other)
