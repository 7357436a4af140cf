"""A table shows its texts as they are written."""

from __future__ import annotations

import pytest

from scripts.words.table import Table
from scripts.words.text import as_text


def test_words_in_brackets_stand_in_every_part_of_a_table() -> None:
    shown = as_text(
        Table(
            "Of [envs.title]",
            ("task", "a long [heading] of words"),
            (("[cell]", ":key:"),),
            notes=("see [model] adapter, :note:",),
            alarm="[alarm] rings",
        ).rich()
    )
    for written in (
        *("Of [envs.title]", "[heading]", "[cell]"),
        *("see [model] adapter, :note:", "[alarm] rings"),
    ):
        assert written in shown, shown


WIDE = Table(
    "Against night-0@warm",
    ("arm", "passed", "won / lost", "assertions, %: do-nothing / warm", "ended by itself"),
    (
        (
            *("night-0@29", "+2.1 [−7.8 to +11.9], p = 1.00", "3 / 2", "5.3 / 60.5 (100.0 %)"),
            "+100.0 [+89.5 to +100.0], p < 0.001",
        ),
        ("data-science-researcher", "0.0", "0 / 0", "–", "–"),
    ),
    notes=("Brackets are intervals of 95 %.",),
)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_breaks_no_word_share_or_interval_on_a_narrow_terminal(width: int) -> None:
    lines = as_text(WIDE.rich(), width).splitlines()
    assert max(map(len, lines)) <= width
    shown = "\n".join(lines)
    for whole in (
        *("night-0@29", "data-science-researcher", "assertions,", "do-nothing"),
        *("[−7.8 to", "[+89.5 to", "+100.0]", "p = 1.00", "p < 0.001", "(100.0 %)"),
    ):
        assert whole in shown, shown


def test_columns_that_do_not_fit_stand_below_behind_the_first() -> None:
    shown = as_text(WIDE.rich(), 60)
    assert shown.count("data-science-researcher") == 2
    assert shown.count("Against night-0@warm") == shown.count("Brackets are intervals") == 1
    assert as_text(WIDE.rich(), 160).count("data-science-researcher") == 1


def test_a_word_that_no_terminal_is_wide_enough_for_is_broken_and_kept() -> None:
    table = Table("Files", ("file", "n"), (("x" * 50, "3"),))
    lines = as_text(table.rich(), 30).splitlines()
    assert max(map(len, lines)) <= 30
    assert "".join(lines).count("x") == 50
