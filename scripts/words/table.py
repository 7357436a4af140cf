"""A table of text cells, for the terminal and for Markdown.

Cells hold formatted text, never numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scripts.base.invocation import typeable

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text


@dataclass(frozen=True)
class Table:
    """A title, column headings, rows as wide as the headings, and notes below.

    alarm: an urgent note, shown last below the table, on a terminal in red.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    alarm: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"{self.title}: a row of {len(row)} under {len(self.columns)} columns"
                )

    def markdown(self, level: int = 2) -> str:
        """A heading, a pipe table (first column left, the rest right) and the notes."""
        lines = [f"{'#' * level} {self.title}", "", _line(self.columns)]
        lines.append(_line([":--", *["--:"] * (len(self.columns) - 1)]))
        lines += [_line(row) for row in self.rows]
        for note in (*self.notes, *([f"**{self.alarm}**"] if self.alarm else [])):
            lines += ["", note]
        return "\n".join(lines) + "\n"

    def plain(self) -> dict[str, Any]:
        """The same, JSON-ready: one object a row, by column."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        notes = [*self.notes, *([self.alarm] if self.alarm else [])]
        return {"title": self.title, "rows": rows, "notes": notes}

    def rich(self) -> RichTable:
        """The same for the terminal, with the notes as its caption."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=Text(self.title, "bold"),
            title_justify="left",
            caption=self._caption(),
            caption_justify="left",
            box=box.SIMPLE_HEAD,
        )
        for i, column in enumerate(self.columns):
            heading = Text(column.replace(": ", ":\n"))
            table.add_column(heading, justify="right" if i else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*[Text(_narrow(cell)) for cell in row])
        return table

    def _caption(self) -> Text | None:
        from rich.text import Text

        lines = [Text(typeable(note)) for note in self.notes]
        if self.alarm:
            lines.append(Text(self.alarm, "not dim not italic bold red"))
        return Text("\n").join(lines) if lines else None


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _narrow(cell: str) -> str:
    """Put brackets and p-values on lines of their own."""
    for before, after in ((" [", "\n["), (" (", "\n("), ("], p", "]\np")):
        cell = cell.replace(before, after)
    return cell
