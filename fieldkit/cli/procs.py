"""`fieldkit procs`: the processes that were started through a ledger and still live."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.cli.columns import show
from fieldkit.errors import BadInput, MissingFile


def procs(
    ledger: Annotated[
        Path | None, typer.Argument(help="Only those of this ledger file or its folder")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List your marked processes: who they are, what they hold, and whose ledger names them."""
    from fieldkit.gate.memory import GIB, gpu_held_by, held_by
    from fieldkit.process.ledger import LEDGER_FILE, Ledger
    from fieldkit.process.owned import marked

    wanted = ledger / LEDGER_FILE if ledger is not None and ledger.is_dir() else ledger
    rows, facts = [("name", "pid", "age", "holds", "ledger")], []
    for found in marked():
        if wanted is not None and found.ledger.resolve() != wanted.resolve():
            continue
        try:
            entries = Ledger(found.ledger).entries()
        except (BadInput, OSError) as e:
            print(f"warning: {e}", file=sys.stderr)
            entries = []
        entry = next((e for e in entries if e.marker == found.marker), None)
        leads = entry is not None and entry.pid == found.pid
        name, began = (entry.name, entry.started_at) if entry else (None, None)
        held = held_by(found.pid) + gpu_held_by([found.pid])
        facts.append(
            {
                "pid": found.pid,
                "name": name,
                "leader": leads,
                "started_at": began,
                "held": held,
                "ledger": str(found.ledger),
            }
        )
        shown = f"{name or 'in no ledger'}{'' if leads else ' (child)'}"
        age = "–" if began is None else f"{(time.time() - began) / 60:.0f} min"
        rows.append((shown, str(found.pid), age, f"{held / GIB:.2f} GiB", str(found.ledger)))
    if wanted is not None and not facts and not wanted.is_file():
        raise MissingFile(
            f"{wanted}: no such ledger, and no process names it; `fieldkit procs` lists all"
        )
    show(rows, facts, as_json=as_json)
