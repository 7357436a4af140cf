"""A pattern of Python's `re`, searched by the `regex` package with the same meaning.

Tasks are written for `re`, whose searches cannot be stopped; `regex` takes a time limit, but reads
some of the same text otherwise: `a{e}` as an approximate match, `[[:alpha:]]` as a POSIX class, and
`\\w` and `\\s` as other sets of characters. So `re`'s own parser reads the pattern, and its parse
tree is written out in forms that both packages read alike. What is left differs under `(?i)` only:
`re` takes i, I, İ and ı for one letter, and with `(?a)` the Kelvin sign for no K.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from functools import cache

# The parser of the standard library's `re` has no public name.
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import regex

# `\w` of `re` is str.isalnum() and "_" and `\s` is str.isspace(); `regex` has Unicode's properties,
# with marks and joiners among the first and without the separators below among the second.
_MEMBERS = {
    ops.CATEGORY_WORD: (r"\p{L}\p{N}_", "a-zA-Z0-9_"),
    ops.CATEGORY_SPACE: (r"\s\x1c-\x1f", r" \t\n\r\f\v"),
    ops.CATEGORY_DIGIT: (r"\p{Nd}", "0-9"),
}
"""The members of a category in a set: Unicode's, and ASCII's."""
_OPPOSITE = {
    ops.CATEGORY_NOT_WORD: ops.CATEGORY_WORD,
    ops.CATEGORY_NOT_SPACE: ops.CATEGORY_SPACE,
    ops.CATEGORY_NOT_DIGIT: ops.CATEGORY_DIGIT,
}
_PLACES = {
    ops.AT_BEGINNING: "^",
    ops.AT_BEGINNING_STRING: r"\A",
    ops.AT_END: "$",
    ops.AT_END_STRING: r"\Z",
}
_LAZINESS = {ops.MAX_REPEAT: "", ops.MIN_REPEAT: "?", ops.POSSESSIVE_REPEAT: "+"}
_FLAGS = {"i": re.I, "m": re.M, "s": re.S}


@cache
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """The pattern, to be searched with a time limit. Raises `re.error` for one that is not valid in
    `re`, and also `regex.error`, `OverflowError` and `RecursionError` for one beyond its bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what a later version of `re` may read otherwise
        re.compile(pattern)
        tree = parser.parse(pattern)
    flags = "".join(letter for letter, flag in _FLAGS.items() if tree.state.flags & flag)
    ascii_only = bool(tree.state.flags & re.A)
    body = _Writer(ascii_only).sequence(tree)
    return regex.compile(f"(?{flags}){body}" if flags else body, regex.V0)


def only_texts(pattern: str) -> tuple[str, ...]:
    r"""The texts in which a valid pattern is found, where it spells a whole file out: plain
    characters between `\A` or `^` and `\Z` or `$` (which allows a last newline too). Empty where
    the pattern leaves anything open."""
    tree = parser.parse(pattern)
    nodes = list(tree)
    if len(nodes) < 2 or tree.state.flags & (re.I | re.M):
        return ()
    first, *middle, last = nodes
    begins = first in ((ops.AT, ops.AT_BEGINNING_STRING), (ops.AT, ops.AT_BEGINNING))
    if not begins or any(op is not ops.LITERAL for op, _ in middle):
        return ()
    text = "".join(chr(code) for _, code in middle)
    by_end = {(ops.AT, ops.AT_END_STRING): (text,), (ops.AT, ops.AT_END): (text, text + "\n")}
    return by_end.get(last, ())


def _literal(code: int) -> str:
    return f"\\U{code:08x}"


class _Writer:
    """Writes parse trees as text. `ascii_only`: whether `\\w`, `\\d` and `\\s` are ASCII's."""

    def __init__(self, ascii_only: bool) -> None:
        self.ascii_only = ascii_only

    def sequence(self, tree: Iterable[tuple[Any, Any]]) -> str:
        return "".join(self.node(op, value) for op, value in tree)

    def node(self, op: Any, value: Any) -> str:
        if op in _LAZINESS:
            low, high, body = value
            most = "" if high == ops.MAXREPEAT else high
            return f"(?:{self.sequence(body)}){{{low},{most}}}{_LAZINESS[op]}"
        writers: dict[Any, Callable[[Any], str]] = {
            ops.LITERAL: _literal,
            ops.NOT_LITERAL: lambda code: f"[^{_literal(code)}]",
            ops.ANY: lambda _: ".",
            ops.IN: self._set,
            ops.AT: self._place,
            ops.BRANCH: lambda v: "(?:" + "|".join(map(self.sequence, v[1])) + ")",
            ops.SUBPATTERN: lambda v: self._group(*v),
            ops.ATOMIC_GROUP: lambda v: f"(?>{self.sequence(v)})",
            ops.ASSERT: lambda v: f"(?{'=' if v[0] > 0 else '<='}{self.sequence(v[1])})",
            ops.ASSERT_NOT: lambda v: f"(?{'!' if v[0] > 0 else '<!'}{self.sequence(v[1])})",
            ops.GROUPREF: lambda number: f"\\g<{number}>",
            ops.GROUPREF_EXISTS: lambda v: (
                f"(?({v[0]}){self.sequence(v[1])}|{self.sequence(v[2] or ())})"
            ),
            ops.FAILURE: lambda _: "(?!)",
        }
        return writers[op](value)

    def _group(self, number: int | None, add: int, remove: int, body: Any) -> str:
        """A capturing group keeps its number, because groups are written in their order."""
        outer, self.ascii_only = self.ascii_only, self._narrowed(add)
        inner = self.sequence(body)
        self.ascii_only = outer
        on = "".join(letter for letter, flag in _FLAGS.items() if add & flag)
        off = "".join(letter for letter, flag in _FLAGS.items() if remove & flag)
        flagged = f"(?{on}{f'-{off}' if off else ''}:{inner})" if on or off else inner
        return f"({flagged})" if number is not None else f"(?:{flagged})"

    def _narrowed(self, add: int) -> bool:
        return bool(add & re.A) or (self.ascii_only and not add & re.U)

    def _place(self, place: Any) -> str:
        if place in _PLACES:
            return _PLACES[place]
        word = f"[{self._category(ops.CATEGORY_WORD)}]"
        edge = f"(?<={word})(?!{word})|(?<!{word})(?={word})"
        if place is ops.AT_BOUNDARY:
            return f"(?:{edge})"
        # `re` finds no \B in an empty text (before Python 3.14).
        return f"(?:(?!{edge})(?:(?=[\\s\\S])|(?<=[\\s\\S])))"

    def _set(self, members: Any) -> str:
        """One set of characters; alternatives where it has a category such as `\\W`, which is no
        range of characters."""
        negated = members[0][0] is ops.NEGATE
        inside, outside = "", []
        for op, value in members[negated:]:
            if op is ops.LITERAL:
                inside += _literal(value)
            elif op is ops.RANGE:
                inside += f"{_literal(value[0])}-{_literal(value[1])}"
            elif value in _OPPOSITE:
                outside.append(self._category(_OPPOSITE[value]))
            else:
                inside += self._category(value)
        if not outside:
            return f"[{'^' if negated else ''}{inside}]"
        if any(o in inside for o in outside):  # `[\\s\\S]`: every character
            return "(?!)" if negated else r"[\s\S]"
        sets = [*([f"[{inside}]"] if inside else []), *(f"[^{o}]" for o in outside)]
        if negated:
            return "".join(f"(?!{s})" for s in sets) + r"[\s\S]"
        return f"(?:{'|'.join(sets)})"

    def _category(self, category: Any) -> str:
        """The members of a positive category."""
        unicode, ascii_members = _MEMBERS[category]
        return ascii_members if self.ascii_only else unicode
