"""`fieldkit lineage`: what came from what, as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldkit.cli.columns import show
from fieldkit.errors import MissingFile


def lineage(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="results.tsv, or its folder; default: runs/lineage"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show every trial below the one that it came from, with its outcome."""
    from fieldkit.lineage.store import LineageStore

    asked = file or Path("runs") / "lineage"
    table = asked / LineageStore.RESULTS_FILENAME if asked.is_dir() else asked
    if not table.is_file():
        raise MissingFile(
            f"{table}: no such file; name a table or its folder, as in `fieldkit lineage FOLDER`."
            " LineageStore.append writes one, and so does `grpo run` of a run that starts from"
            " another run's adapter, when it is evaluated"
        )
    store = LineageStore(table.parent)
    store.results_path = table
    if as_json:
        rows = [dict(zip(t.header(), t.to_row(), strict=True)) for t in store.all_trials()]
        show([], {"file": str(table), "trials": rows}, as_json=True)
    else:
        print(store.tree())
