"""The forms that a comparison is shown in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.files.atomic import write_text
from scripts.run.folder import refuse_run_file

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True)
class Shown:
    """One comparison in four forms, each made when it is asked for."""

    rich: Callable[[], Group]
    markdown: Callable[[], str]
    plain: Callable[[], dict[str, Any]]
    html: Callable[[], str]


def write_html(shown: Shown, path: Path) -> Path:
    """Write the page, making its folder if needed.

    Raises `BadInput` if `path` is a folder, or another file than compare.html in a run's.
    """
    refuse_run_file(path, "--html", path.with_name("compare.html"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, shown.html())
    return path
