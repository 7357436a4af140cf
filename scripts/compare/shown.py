"""The forms that a comparison is shown in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.files.atomic import write_text
from scripts.run.folder import refuse_run_file

if TYPE_CHECKING:
    from rich.console import Group

    from scripts.words.table import Table


@dataclass(frozen=True)
class Shown:
    """One comparison in four forms, each made when it is asked for."""

    rich: Callable[[], Group]
    markdown: Callable[[], str]
    plain: Callable[[], dict[str, Any]]
    html: Callable[[], str]


def rich_form(
    tables: Sequence[Table], sentences: Sequence[str], remarks: Sequence[str] = ()
) -> Group:
    """A comparison for the terminal, with the sentences last, next to the prompt."""
    from rich.console import Group
    from rich.text import Text

    shown = [part for t in tables for part in (t.rich(), Text())]
    noted = [Text(f"• {r}") for r in remarks]
    said = [Text(s, style="bold") for s in sentences]
    return Group(*shown, *noted, *([Text()] if noted else []), *said)


def markdown_form(
    title: str, tables: Sequence[Table], sentences: Sequence[str], remarks: Sequence[str] = ()
) -> str:
    """A comparison as Markdown, with the sentences first."""
    lines = [f"# {title}", "", *[f"- **{s}**" for s in sentences], *[f"- {r}" for r in remarks]]
    return "\n".join(lines) + "\n\n" + "\n".join(t.markdown() for t in tables)


def write_html(shown: Shown, path: Path) -> Path:
    """Write the page, making its folder if needed.

    Raises `BadInput` if `path` is a folder, or another file than compare.html in a run's.
    """
    refuse_run_file(path, "--html", path.with_name("compare.html"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, shown.html())
    return path
