"""A table of text cells, for the terminal and for Markdown.

Cells hold formatted text, never numbers. On a terminal a cell is broken between words: columns that
do not fit beside the others stand below them, behind the first column again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from scripts.base.invocation import typeable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
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

    def rich(self) -> OnTerminal:
        """The same for the terminal, with the notes as its caption."""
        return OnTerminal(self)

    def blocks(self, width: int) -> list[RichTable]:
        """The same as tables of at most `width` characters a line: usually one."""
        columns = [
            [heading.replace(": ", ":\n"), *(_narrow(row[i]) for row in self.rows)]
            for i, heading in enumerate(self.columns)
        ]
        sizes = [_Size.of(cells) for cells in columns]
        found = []
        for part in _parts([size.least for size in sizes], width):
            widths = _widths([sizes[i] for i in part], width - _frame(len(part)))
            found.append(self._block([columns[i] for i in part], widths))
        return found

    def _block(self, columns: Sequence[Sequence[str]], widths: Sequence[int]) -> RichTable:
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        block = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, ((heading, *_), width) in enumerate(zip(columns, widths, strict=True)):
            justify: Literal["left", "right"] = "right" if i else "left"
            block.add_column(Text(heading), justify=justify, overflow="fold", width=width)
        for row in zip(*(cells for _, *cells in columns), strict=True):
            block.add_row(*map(Text, row))
        return block

    def caption(self) -> Text | None:
        """The notes and the alarm for the terminal; None where there are none."""
        from rich.text import Text

        lines = [Text(typeable(note)) for note in self.notes]
        if self.alarm:
            lines.append(Text(self.alarm, "not dim not italic bold red"))
        return Text("\n", "table.caption").join(lines) if lines else None


@dataclass(frozen=True)
class OnTerminal:
    """A table that takes as much width as its terminal has."""

    table: Table

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RichTable | Text]:
        from rich.text import Text

        # Title and notes are as wide as the terminal. Rich's own would be as narrow as the columns.
        yield Text(self.table.title, "bold")
        yield from self.table.blocks(options.max_width)
        if (notes := self.table.caption()) is not None:
            yield notes


@dataclass(frozen=True)
class _Size:
    """Of a column: the width of the longest `_PIECE`, and of its longest line."""

    least: int
    most: int

    @classmethod
    def of(cls, cells: Sequence[str]) -> _Size:
        from rich.cells import cell_len

        pieces = [piece for cell in cells for piece in _PIECE.findall(cell)]
        lines = [line for cell in cells for line in cell.splitlines()]
        return cls(*(max(map(cell_len, found), default=1) for found in (pieces, lines)))


_PIECE = re.compile(r"\[\S+ to|\(\S+ %\)|p [=<] \S+|\S+")
"""What is not broken: a word, the lower end of an interval, a share, a p-value."""


def _frame(n: int) -> int:
    """The characters that border and padding of `n` columns take."""
    return 2 * n + 1


def _parts(least: Sequence[int], width: int) -> Iterator[list[int]]:
    """Which columns stand side by side; the first one in each part."""
    part = [0]
    for i in range(1, len(least)):
        taken = sum(least[j] for j in (*part, i)) + _frame(len(part) + 1)
        if taken > width and len(part) > 1:
            yield part
            part = [0]
        part.append(i)
    yield part


def _widths(sizes: Sequence[_Size], room: int) -> list[int]:
    """The longest lines where they fit; else the widest columns are made narrower, as far as their
    words go. Where not even the words fit, those are broken."""
    for limit in range(max(size.most for size in sizes), 0, -1):
        widths = [max(size.least, min(size.most, limit)) for size in sizes]
        if sum(widths) <= room:
            break
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return widths


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _narrow(cell: str) -> str:
    """Put brackets and p-values on lines of their own."""
    for before, after in ((" [", "\n["), (" (", "\n("), ("], p", "]\np")):
        cell = cell.replace(before, after)
    return cell
