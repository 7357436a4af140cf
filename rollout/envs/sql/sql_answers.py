"""When an answer is right: what a policy wrote against what the gold query gave.

A whole number has to be equal; another number may be off by half a percent, as far as rounding goes
in a sentence. Text is compared without case, outer blanks, quotes and a final stop. A list is a
multiset: order is free, each element counts. This module knows no database and no reward.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.json_text import parse_json

TOLERANCE = 0.005
"""Relative, for numbers that are not whole."""

_OUTER = " \t\r\n\"'`.;"
_NUMBER = re.compile(r"[-+]?(?:\d[\d,_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def number_in(text: str) -> float | None:
    """The number that a text is, with thousands separators, a currency sign or a percent sign; None
    where it is none, or more than a number."""
    bare = text.strip(_OUTER.replace(".", "")).lstrip("$€£").rstrip("%").strip().rstrip(".")
    if not _NUMBER.fullmatch(bare):
        return None
    value = float(bare.replace(",", "").replace("_", ""))
    return value if math.isfinite(value) else None


def bare_text(text: str) -> str:
    """What is compared of a text."""
    return " ".join(text.strip(_OUTER).casefold().split())


def elements_of(text: str) -> list[str]:
    """The elements of a list as it is written: a JSON list, or separated by lines, semicolons or
    commas, whichever comes first in this order."""
    try:
        read = parse_json(text, "")
    except BadInput:
        read = None
    if isinstance(read, list):
        return [e if isinstance(e, str) else json.dumps(e) for e in read]
    inner = text.strip().strip("[]()")
    for separator in ("\n", ";", ","):
        if separator in inner:
            return [e for e in inner.split(separator) if e.strip()]
    return [inner]


def _same_number(given: float, gold: float) -> bool:
    if float(gold).is_integer():
        return given == gold
    return math.isclose(given, gold, rel_tol=TOLERANCE)


def _same_element(given: str, gold: Any) -> bool:
    if isinstance(gold, (int, float)):
        number = number_in(given)
        return number is not None and _same_number(number, gold)
    return bare_text(given) == bare_text(str(gold))


def is_right(given: str, gold: Any) -> bool:
    """Whether a written answer is the gold one: a number, a text, or a list of them."""
    if not isinstance(gold, list):
        return _same_element(given, gold)
    left = elements_of(given)
    if len(left) != len(gold):
        return False
    for wanted in gold:
        found = next((e for e in left if _same_element(e, wanted)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def gives(rows: Sequence[Sequence[Any]], gold: Any) -> bool:
    """Whether a query's rows are the gold answer: some column holds its values and no others."""
    wanted = gold if isinstance(gold, list) else [gold]
    if not rows or len(rows) != len(wanted):
        return False
    return any(
        is_right(json.dumps([_text(row[i]) for row in rows]), wanted) for i in range(len(rows[0]))
    )


def looks_like(given: str, gold: Any) -> bool:
    """Whether an answer has the gold one's form: a number, a text, a list of several."""
    if isinstance(gold, list):
        return len(elements_of(given)) > 1
    return (number_in(given) is not None) == isinstance(gold, (int, float)) and bool(given.strip())


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def closeness(rows: Sequence[Sequence[Any]], gold: Any) -> float:
    """How much a result resembles the gold answer, 0 to 1: a quarter for its number of rows, a half
    for the values that both have, a quarter for numbers in the same range.

    A public environment's progress reward is of this kind. It is kept for comparison only: any
    single row and any large number earn some of it (`sql_rewards.published_progress`).
    """
    wanted = gold if isinstance(gold, list) else [gold]
    if not rows:
        return 0.0
    cardinality = min(len(rows), len(wanted)) / max(len(rows), len(wanted))
    ours = Counter(bare_text(_text(v)) for row in rows for v in row)
    theirs = Counter(bare_text(_text(v)) for v in wanted)
    overlap = (ours & theirs).total() / (ours | theirs).total()
    found = [float(v) for row in rows for v in row if isinstance(v, (int, float))]
    numbers = [float(v) for v in wanted if isinstance(v, (int, float))]
    near = 0.0
    if found and numbers:
        near = max(1 / (1 + math.log1p(abs(f - n))) for f in found for n in numbers)
    elif not found and not numbers:
        near = 1.0
    return 0.25 * cardinality + 0.5 * overlap + 0.25 * near
