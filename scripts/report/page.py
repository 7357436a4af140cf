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
from scripts.words.visible import visible

if TYPE_CHECKING:
    from jinja2 import Environment

FILE_NAME = "report.html"
TEMPLATES = Path(__file__).parent / "templates"

_AFTER_VALUE = re.compile(r"^(.+?) ([\[(].*)$", re.DOTALL)
"""A cell's value, and the interval or share in brackets after it."""


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
    env.filters["cell"] = cell
    env.filters["code"] = code
    env.filters["visible"] = visible
    return env


def cell(text: str) -> Markup:
    """Render a table cell: the value, and after it the interval in small type."""
    found = _AFTER_VALUE.match(text)
    # Not `Markup.format`, which takes ten times as long: a long run has 20,000 cells.
    if not found:
        return Markup(f"<span>{escape(text)}</span>")
    sub = f'<span class="sub">{escape(found[2])}</span>'
    return Markup(f"<span>{escape(found[1])} {sub}</span>")


def code(text: str) -> Markup:
    """Render text with `commands` in backticks as code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # an unpaired backtick is plain text
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if i % 2 else escape(piece)
        for i, piece in enumerate(pieces)
    )
