"""A table shows its texts as they are written."""

from __future__ import annotations

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
