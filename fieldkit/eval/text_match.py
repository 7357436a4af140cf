"""Scores of one answer against one reference, from the text alone: 1.0 or 0.0, no model asked."""

from __future__ import annotations

import math
import re

from fieldkit.errors import BadInput

_MINUS = "−"  # U+2212, as typeset text has it
_NUMBER = re.compile(
    rf"[-{_MINUS}]?(?:\d[\d,]*(?:\.\d+)?|(?<![\w.])\.\d+)(?:[eE][-+{_MINUS}]?\d+\b)?"
)

_REFUSAL = re.compile(
    r"""
    \bi\ (?:do\ not|don['’]t)\ (?:know|have)
    | \bi\ (?:cannot|can['’]t)\ (?:answer|provide|determine|find|verify)
    | \bi(?:\ am|['’]m)\ (?:unable|not\ able)\ to\b
    | \bcontext\ (?:does\ not|doesn['’]t)\ (?:contain|include|mention)
    | \bnot\ (?:specified|mentioned|provided|available|stated|given|directly|explicitly)
    | \bno\ (?:specific\ |direct\ )?information\b
    | \binsufficient\ (?:information|context|data)
    | \bcannot\ be\ determined | \bunclear\b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def exact_match(predicted: str, expected: str) -> float:
    """1.0 where both are equal but for case and the space around them.

    >>> exact_match(" Yes\\n", "yes")
    1.0
    """
    return float(_plain(predicted) == _plain(expected))


def contains(predicted: str, expected: str) -> float:
    """1.0 where `expected` occurs in `predicted`, whatever the case; 0.0 for an empty `expected`.

    >>> contains("The capital is Paris.", "paris")
    1.0
    """
    return float(bool(_plain(expected)) and _plain(expected) in _plain(predicted))


def numeric_match(predicted: str, expected: str, *, rel_tolerance: float = 0.01) -> float:
    """1.0 where the first number of each lies within `rel_tolerance` of the expected one.

    Commas group digits; ".5", "1e5" and "−5" are numbers. The tolerance is absolute where 0 is
    expected. 0.0 where either text has no number. Raises `BadInput` for a tolerance that is
    negative or not finite.

    >>> numeric_match("about 1,234.5 dollars", "1234")
    1.0
    """
    if not (math.isfinite(rel_tolerance) and rel_tolerance >= 0):
        raise BadInput(f"rel_tolerance is {rel_tolerance}, not a finite number of 0 or more")
    found, wanted = _first_number(predicted), _first_number(expected)
    if found is None or wanted is None:
        return 0.0
    return float(abs(found - wanted) / (abs(wanted) or 1.0) <= rel_tolerance)


def is_refusal(text: str | None) -> bool:
    """Whether a text reads as "I cannot answer". An empty one, or None, counts as a refusal.

    >>> is_refusal("The context does not mention it.")
    True
    """
    return not text or text.isspace() or _REFUSAL.search(text) is not None


def _plain(text: str) -> str:
    return text.strip().lower()


def _first_number(text: str) -> float | None:
    found = _NUMBER.search(text)
    return float(found[0].replace(",", "").replace(_MINUS, "-")) if found else None
