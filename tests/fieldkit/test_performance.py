"""docs/fieldkit/performance.md says what was measured, and that is what fieldkit promises."""

from __future__ import annotations

import statistics
from typing import Any

from fieldkit.files.atomic import read_json
from scripts.base.checkout import ROOT
from tests.fieldkit.compat.performance import page

FOUND: dict[str, Any] = read_json(ROOT / "docs" / "fieldkit" / "performance.json")


def median(name: str, part: str) -> float:
    calls: list[float] = [v for r in FOUND[name] for v in r["milliseconds"][part]]
    return statistics.median(calls)


def test_the_page_is_what_was_measured() -> None:
    found = {name: FOUND[name] for name in ("ours", "original")}
    assert (ROOT / "docs" / "fieldkit" / "performance.md").read_text() == page(FOUND, found)


def test_a_swap_takes_no_longer_than_the_originals_and_little_more_than_its_copies() -> None:
    assert median("ours", "swap") <= 1.1 * median("original", "swap")
    assert median("ours", "swap") <= 1.5 * median("ours", "three copies")


def test_ten_thousand_swaps_and_a_hundred_thousand_files_were_measured() -> None:
    assert FOUND["files"] == 100_000
    assert statistics.median(r["growth"] for r in FOUND["ours"]) < 2**20
