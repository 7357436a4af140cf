"""Whether a pattern that somebody wrote is safe to search a policy's files with.

A backtracking search can take time exponential in what it reads, and a policy decides what is
read. This module attacks a pattern: from its parse tree it builds texts that make each repetition
match in as many ways as it can and then fail, and counts the steps of a plain backtracking matcher
as the text grows. Counted, not timed, so the verdict is the same on every machine and for every
engine. It never judges what a pattern means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

# The parser of the standard library's `re` has no public name. Assertions are written in `re`'s
# syntax (the grader refuses others), so it reads all of them.
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_ROUNDS = 14, 28
"""Repetitions in the shorter and the longer text of an attack."""
_GROWTH = 6.5
"""Twice the text may cost four times the steps (quadratic, milliseconds for a file), not eight."""
_BUDGET = 60_000
"""Steps at which an attack has succeeded; two ways a round make 2**28."""
_HARMLESS = 300
"""Steps for the shorter text that no growth worth stopping begins with: three nested choices among
14 rounds take more, and two take fewer."""
_ENDS = ("", "\x00", "\n!")
_FEW = 8  # a repetition bounded by this cannot blow up by itself
_CHOICES = 4  # branches of an alternation that are tried as the text of a round

_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
_OF_CATEGORY = {
    ops.CATEGORY_DIGIT: "0",
    ops.CATEGORY_NOT_DIGIT: "a",
    ops.CATEGORY_SPACE: " ",
    ops.CATEGORY_NOT_SPACE: "a",
    ops.CATEGORY_WORD: "a",
    ops.CATEGORY_NOT_WORD: "-",
}


@cache
def regex_fault(pattern: str) -> str | None:
    """Why a valid pattern must not be used, or None. Raises `re.error` for an invalid one."""
    tree = parser.parse(pattern)
    for before, body in _attacks(tree):
        for end in _ENDS:
            few = _steps(tree, before + body * _ROUNDS[0] + end)
            if few < _HARMLESS:
                continue
            many = _steps(tree, before + body * _ROUNDS[1] + end)
            if many >= _BUDGET or many > _GROWTH * few:
                return (
                    f"catastrophic regex {pattern!r}: a text like"
                    f" {before + body * 3 + '…' + end!r} takes it a time that grows too fast"
                )
    return None


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


# --- texts to attack with -------------------------------------------------------------------------


def _attacks(tree: Any) -> list[tuple[str, str]]:
    """(what leads to a repetition, the text of one round) for every repetition in the tree."""
    return list(dict.fromkeys(_repetitions(tree, "")))


def _repetitions(tree: Any, before: str) -> Iterator[tuple[str, str]]:
    for op, value in tree:
        for inner in _inner(op, value):
            if op in _REPEATS and value[1] > _FEW:
                yield from ((before, _sample(inner, choice)) for choice in range(_CHOICES))
            yield from _repetitions(inner, before)
        before += _sample_node(op, value, 0)


def _inner(op: Any, value: Any) -> list[Any]:
    """The subtrees of a node."""
    if op in _REPEATS:
        return [value[2]]
    if op is ops.BRANCH:
        return list(value[1])
    if op is ops.SUBPATTERN:
        return [value[3]]
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        return [value[1]]
    if op is ops.ATOMIC_GROUP:
        return [value]
    return []


def _sample(tree: Any, choice: int) -> str:
    """A text that the tree matches: repetitions once, of branches number `choice`."""
    return "".join(_sample_node(op, value, choice) for op, value in tree)


def _sample_node(op: Any, value: Any, choice: int) -> str:
    if op is ops.LITERAL:
        return chr(value)
    if op is ops.NOT_LITERAL:
        return "a" if value != ord("a") else "b"
    if op is ops.ANY:
        return "a"
    if op is ops.IN:
        return _sample_set(value)
    if op is ops.BRANCH:
        return _sample(value[1][choice % len(value[1])], choice)
    if op in (ops.ASSERT, ops.ASSERT_NOT):
        return ""
    least = _least(value[0]) if op in _REPEATS else 1
    return "".join(_sample(inner, choice) for inner in _inner(op, value)) * max(1, least)


def _sample_set(members: Any) -> str:
    """A character of a [set]. Of a negated one, one that it names nowhere."""
    if members[0][0] is ops.NEGATE:
        return next((c for c in "a0- _~" if _in_set(c, members)), "\x01")
    op, value = members[0]
    if op is ops.LITERAL:
        return chr(value)
    return chr(value[0]) if op is ops.RANGE else _OF_CATEGORY.get(value, "a")


def _least(count: int) -> int:
    """`x{1000}` is no more ambiguous than `x{2}`, and much shorter."""
    return min(count, 2)


# --- a matcher that counts ------------------------------------------------------------------------


class _Spent(Exception):
    """The budget of steps is used up."""


def _steps(tree: Any, text: str) -> int:
    """How many steps it takes to match the tree at the start of the text, or to fail."""
    matcher = _Matcher(text, tree.state.flags)
    try:
        next(matcher.sequence(tree, 0, 0), None)
    except _Spent:
        return _BUDGET
    return matcher.steps


class _Matcher:
    """Plain backtracking over a parse tree. Every method yields the ends of its matches in turn.

    References and look-behinds count as matching nothing, which is enough to count steps.
    """

    def __init__(self, text: str, flags: int) -> None:
        self.text, self.steps = text, 0
        self.dot_all, self.multiline = bool(flags & re.S), bool(flags & re.M)
        self.ignore_case = bool(flags & re.I)

    def sequence(self, tree: Any, index: int, at: int) -> Iterator[int]:
        if index == len(tree):
            yield at
            return
        op, value = tree[index]
        for end in self.node(op, value, at):
            yield from self.sequence(tree, index + 1, end)

    def node(self, op: Any, value: Any, at: int) -> Iterator[int]:
        self.steps += 1
        if self.steps >= _BUDGET:
            raise _Spent
        if op in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN):
            if at < len(self.text) and self._is(op, value, self.text[at]):
                yield at + 1
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT):
            yield from self._rounds(value, 0, at)
        elif op is ops.POSSESSIVE_REPEAT:
            yield from _first(self._rounds(value, 0, at))
        elif op is ops.ATOMIC_GROUP:
            yield from _first(self.sequence(value, 0, at))
        elif op in (ops.BRANCH, ops.SUBPATTERN):
            for inner in _inner(op, value):
                yield from self.sequence(inner, 0, at)
        elif self._holds(op, value, at):
            yield at

    def _rounds(self, value: Any, done: int, at: int) -> Iterator[int]:
        low, high, body = value
        if done < high:
            for end in self.sequence(body, 0, at):
                if end > at:
                    yield from self._rounds(value, done + 1, end)
        if done >= _least(low):
            yield at

    def _is(self, op: Any, value: Any, char: str) -> bool:
        if op is ops.ANY:
            return self.dot_all or char != "\n"
        chars = {char, char.lower(), char.upper()} if self.ignore_case else {char}
        if op is ops.IN:
            return any(_in_set(c, value) for c in chars)
        return (chr(value) in chars) is (op is ops.LITERAL)

    def _holds(self, op: Any, value: Any, at: int) -> bool:
        if op is ops.AT:
            return self._at(value, at)
        if op in (ops.ASSERT, ops.ASSERT_NOT) and value[0] > 0:
            found = next(self.sequence(value[1], 0, at), None) is not None
            return found is (op is ops.ASSERT)
        return True

    def _at(self, place: Any, at: int) -> bool:
        text = self.text
        if place in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            by_line = self.multiline and place is ops.AT_BEGINNING
            return at == 0 or (by_line and text[at - 1] == "\n")
        if place is ops.AT_END:
            by_line = self.multiline and text[at : at + 1] == "\n"
            return at == len(text) or by_line or text[at:] == "\n"
        if place is ops.AT_END_STRING:
            return at == len(text)
        edge: bool = _is_word(text[max(0, at - 1) : at]) != _is_word(text[at : at + 1])
        return edge is bool(place is ops.AT_BOUNDARY)


def _first(ends: Iterator[int]) -> Iterator[int]:
    end = next(ends, None)
    if end is not None:
        yield end


def _in_set(char: str, members: Any) -> bool:
    negated = members[0][0] is ops.NEGATE
    return any(_is_member(char, op, value) for op, value in members[negated:]) is not negated


def _is_member(char: str, op: Any, value: Any) -> bool:
    if op is ops.LITERAL:
        return bool(ord(char) == value)
    if op is ops.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    if value in (ops.CATEGORY_DIGIT, ops.CATEGORY_NOT_DIGIT):
        return char.isdecimal() is (value is ops.CATEGORY_DIGIT)
    if value in (ops.CATEGORY_SPACE, ops.CATEGORY_NOT_SPACE):
        return char.isspace() is (value is ops.CATEGORY_SPACE)
    return _is_word(char) is (value is ops.CATEGORY_WORD)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
