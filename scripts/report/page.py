"""report.html: one page about a run, in one file that needs nothing else.

It is written at the end of a night and on request. It has no script and loads nothing, so it opens
without a network and text from a model cannot run; the template escapes every value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from scripts.evidence.findings import Findings
from scripts.evidence.flips import Flips
from scripts.evidence.transcripts import BUDGET_BYTES, RULE, views
from scripts.report import drawing
from scripts.report.sections import sections
from scripts.words.table import Table
from scripts.words.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment

FILE_NAME = "report.html"
TEMPLATES = Path(__file__).parent / "templates"

_BRACKET = re.compile(r" (?=[\[(])")
"""What is between a cell's value and the interval or share in brackets after it."""


def render(f: Findings, linked: Sequence[str] = ()) -> str:
    """Render the page as HTML. The page names every gap. linked: data files that lie next to it."""
    env = environment()
    with drawing.style():
        values = sections(f)
    shown = list(_transcripts(f.flips, env))
    return env.get_template("report.html.j2").render(
        **values, transcripts=shown, rule=RULE, data_files=linked
    )


def _transcripts(flips: Flips | None, env: Environment) -> Iterator[Markup]:
    """Yield the HTML of the flipped tasks, in order, that fit into `BUDGET_BYTES` together."""
    template = env.get_template("flip.html.j2")
    left = BUDGET_BYTES
    for view in views(flips) if flips else ():
        html = template.render(flip=view)
        size = len(html.encode())
        if size <= left:
            left -= size
            yield Markup(html)


@cache
def environment() -> Environment:
    """The Jinja environment of the templates, with their filters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["rows"] = rows
    env.filters["cell"] = cell
    env.filters["code"] = code
    env.filters["visible"] = visible
    return env


def rows(table: Table) -> Markup:
    """Render a table's rows. A long run has 60,000 cells, which take the template twice as long."""
    tags = [f'<td data-label="{escape(heading)}">' for heading in table.columns[1:]]
    return Markup("".join(_row(row, tags) for row in table.rows))


def _row(row: Sequence[str], tags: Sequence[str]) -> str:
    first, *others = row
    cells = "".join(f"{tag}{cell(text)}</td>" for tag, text in zip(tags, others, strict=True))
    return f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>\n'


def cell(text: str) -> Markup:
    """Render a table cell: the value, and after it the interval in small type."""
    # Not `Markup.format`, which takes ten times as long.
    if (found := _BRACKET.search(text)) is None:
        return Markup(f"<span>{escape(text)}</span>")
    sub = f'<span class="sub">{escape(text[found.end() :])}</span>'
    return Markup(f"<span>{escape(text[: found.start()])} {sub}</span>")


def code(text: str) -> Markup:
    """Render text with `commands` in backticks as code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # an unpaired backtick is plain text
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if i % 2 else escape(piece)
        for i, piece in enumerate(pieces)
    )
