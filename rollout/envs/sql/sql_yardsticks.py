"""What the SQL agent is held against: who knows the gold query, and who draws calls by chance.

`oracle` and `chance` are what `[envs.NAME]` names under these keys.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

Call = tuple[str, Mapping[str, str]]

_TABLES = re.compile(r"^Tables: (.+)$", re.MULTILINE)
_COLUMN = re.compile(r"^(\w+) (?:INTEGER|REAL|TEXT)$", re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
_READ = re.compile(r"\b(?:FROM|JOIN) (\w+)")


def oracle(answer: Any, sql: str, **row: Any) -> list[Call]:
    """Look at the tables of the gold query, run it, and answer what it gives."""
    tables = dict.fromkeys(_READ.findall(sql))
    values = answer if isinstance(answer, list) else [answer]
    return [
        *(("describe", {"table": table}) for table in tables),
        ("query", {"sql": sql}),
        ("answer", {"value": ", ".join(map(_as_shown, values))}),
    ]


def _as_shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def chance(rng: random.Random, shown: str, **row: Any) -> Call:
    """A call by chance, of what was shown so far: tables, their columns once described, numbers.

    It knows the shape of a query, as a policy that was shown a few does, and nothing else.
    """
    told = _TABLES.findall(shown)
    tables = told[-1].split(", ") if told else ["table"]
    columns, table = _COLUMN.findall(shown), rng.choice(tables)
    tool = rng.choices(("describe", "sample", "query", "answer"), (3, 2, 4, 1))[0]
    if tool in ("describe", "sample"):
        return tool, {"table": table}
    if tool == "answer":
        return tool, {"value": rng.choice(_NUMBER.findall(shown) or ["1"])}
    what = rng.choice(("count(*)", "*", *(f"{f}({{}})" for f in ("avg", "max", "min")), "{}"))
    column = rng.choice(columns) if columns else "name"
    return tool, {"sql": f"SELECT {what.format(column)} FROM {table}"}
