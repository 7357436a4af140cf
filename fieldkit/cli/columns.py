"""Rows of text as aligned columns, or the same figures as JSON for another program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def show(rows: Sequence[Sequence[str]], facts: Any, *, as_json: bool) -> None:
    """Print `facts` as one JSON document, or `rows` (headings first) with their columns aligned:
    the first to the left, the others to the right."""
    if as_json:
        print(json.dumps(facts, indent=2, allow_nan=False))
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        print("  ".join(cells).rstrip())
