"""File assertions: reading them from a task, and grading the tree that an attempt left behind.

An assertion names a file relative to the workspace and says what must be true of it, so a grade
needs no model and no judgement. A kind of assertion is an entry of `ASSERTION_KINDS`; whoever
reads, grades or checks a task asks there. Trees are read by `fieldkit.eval.tree`, which trusts
none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import regex

from fieldkit.errors import BadInput
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.eval.patterns import compile_pattern
from fieldkit.eval.tree import OF_THE_TREE, Tree, Unmet
from fieldkit.registry import Registry


@dataclass(frozen=True)
class GraderLimits:
    """How much of a hostile tree the grader is willing to read."""

    file_bytes: int = 4 * 2**20
    """A larger file fails its assertion: seeds and answers are a few kilobytes."""
    regex_seconds: float = 2.0
    """A search that takes longer (processor time) fails its assertion."""


@dataclass(frozen=True)
class Assertion:
    """One assertion: `kind` is a name in `ASSERTION_KINDS`, `wanted` what it asks of the contents
    (None for the kinds that ask nothing)."""

    kind: str
    path: str
    wanted: Any = None


@dataclass(frozen=True)
class AssertionKind:
    """What an assertion of this kind says about its file.

    Of the three forms exactly one is given: `of_text` for a statement about text, `of_bytes` for
    one about bytes, `of_tree` for one that does not open the file. Each returns where the assertion
    holds and raises `Unmet` saying why it does not.
    """

    of_text: Callable[[Any, str, GraderLimits], None] | None = None
    """Of (wanted, the file's text, limits)."""
    of_bytes: Callable[[bytes, bytes | None], None] | None = None
    """Of (the file's bytes, those of the workspace seed or None)."""
    of_tree: Callable[[Tree, str], None] | None = None
    """Of (tree, path)."""
    key: str = ""
    """The key of the task file that holds what is wanted; empty where nothing is."""
    parse: Callable[[Any, str], Any] = lambda value, where: value
    """The value of `key`, checked. Raises `BadInput` that begins with `where`."""
    in_seed: bool = False
    """The path has to be a file of the workspace seed."""
    absent: bool = False
    """It asks for a file that is not there; all others need it there."""
    implies: tuple[str, ...] = ()
    """The kinds that hold of a file wherever this one does: beside it they say nothing new."""

    def __post_init__(self) -> None:
        forms = [form for form in (self.of_text, self.of_bytes, self.of_tree) if form is not None]
        if len(forms) != 1:
            raise BadInput(
                f"an assertion kind has one of of_text, of_bytes and of_tree, not {len(forms)}"
            )


_NAME_BYTES = 255  # NAME_MAX of every Linux file system
_STUB_BYTES = 2**28  # far more than a workspace holds


# --- reading a task -------------------------------------------------------------------------------


def parse_assertions(info: Mapping[str, Any], where: str) -> tuple[Assertion, ...]:
    """The assertions of a task's `info`, in order. Raises `BadInput` that begins with `where`."""
    listed = info.get("verifiable_assertions")
    if not isinstance(listed, list):
        raise BadInput(f"{where}: verifiable_assertions must be a list")
    seed = parse_seed(info, where)
    return tuple(
        _parse_assertion(value, seed, f"{where}: verifiable_assertions.{i}")
        for i, value in enumerate(listed)
    )


def parse_seed(info: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """The files a workspace starts with, path -> bytes. Raises `BadInput` beginning with `where`.

    A file is {"path", "kind": "text", "content"}; or, where it is not text, {"path", "kind":
    "binary", "hex"}, or {"path", "kind": "binary-stub", "content": bytes} for that many zero bytes.
    """
    workspace = info.get("workspace_seed")
    files = workspace.get("files") if isinstance(workspace, dict) else None
    if not isinstance(files, list):
        raise BadInput(f"{where}: workspace_seed.files must be a list")
    seed: dict[str, bytes] = {}
    for i, file in enumerate(files):
        here = f"{where}: workspace_seed.files.{i}"
        path, content = _parse_file(file, here)
        if path in seed:
            raise BadInput(f"{here}.path: {path!r} is listed twice")
        seed[path] = content
    for path in seed:
        if any(str(parent) in seed for parent in Path(path).parents):
            raise BadInput(f"{where}: workspace_seed.files: {path!r} lies below another file")
    return seed


def check_path(path: Any, where: str) -> str:
    """`path` if it names something below a root: relative, no `.`, `..` or empty component."""
    if not isinstance(path, str) or not path:
        raise BadInput(f"{where}: expected a relative path, found {path!r}")
    if path.startswith("/"):
        raise BadInput(f"{where}: {path!r} is absolute; paths are relative to the workspace")
    for part in path.split("/"):
        if part in ("", ".", ".."):
            raise BadInput(f"{where}: {path!r} has a component {part!r}; write the plain path")
        if "\0" in part or len(_utf8(part, where)) > _NAME_BYTES:
            raise BadInput(f"{where}: {path!r} cannot be a file name")
    return path


def _utf8(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise BadInput(f"{where}: not valid Unicode ({e.reason})") from None


def _parse_file(file: Any, where: str) -> tuple[str, bytes]:
    if not isinstance(file, dict):
        raise BadInput(f"{where}: expected an object, found {type(file).__name__}")
    kind = file.get("kind")
    value_key = {"text": "content", "binary": "hex", "binary-stub": "content"}.get(str(kind))
    if value_key is None:
        raise BadInput(f"{where}.kind: {kind!r} is unknown; known: text, binary, binary-stub")
    _check_keys(file, {"path", "kind", value_key}, where)
    path = check_path(file["path"], f"{where}.path")
    value = file[value_key]
    if kind == "binary-stub":
        if type(value) is not int or not 0 <= value <= _STUB_BYTES:
            raise BadInput(
                f"{where}.content: expected a size of 0 to {_STUB_BYTES} bytes, found {value!r:.40}"
            )
        return path, bytes(value)
    if not isinstance(value, str):
        raise BadInput(f"{where}.{value_key}: expected text, found {type(value).__name__}")
    if value_key == "content":
        return path, _utf8(value, f"{where}.content")
    try:
        return path, bytes.fromhex(value)
    except ValueError as e:
        raise BadInput(f"{where}.hex: {e}") from None


def _parse_assertion(value: Any, seed: Mapping[str, bytes], where: str) -> Assertion:
    if not isinstance(value, dict):
        raise BadInput(f"{where}: expected an object, found {type(value).__name__}")
    name = str(value.get("kind"))
    kind = ASSERTION_KINDS.named(value.get("kind"), f"{where}.kind")
    _check_keys(value, {"kind", "path"} | ({kind.key} if kind.key else set()), where)
    path = check_path(value["path"], f"{where}.path")
    if kind.in_seed and path not in seed:
        raise BadInput(
            f"{where}.path: {path!r} is not in workspace_seed, so it cannot stay the same"
        )
    wanted = kind.parse(value[kind.key], f"{where}.{kind.key}") if kind.key else None
    return Assertion(name, path, wanted)


def _check_keys(value: Mapping[str, Any], expected: set[str], where: str) -> None:
    for key in sorted(expected - value.keys()):
        raise BadInput(f"{where}: the key {key!r} is missing")
    for key in sorted(value.keys() - expected, key=str):
        raise BadInput(f"{where}: unknown key {key!r}; known: {', '.join(sorted(expected))}")


# --- the kinds ------------------------------------------------------------------------------------


def _parse_needles(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise BadInput(f"{where}: expected a list that is not empty")
    for i, needle in enumerate(value):
        if not isinstance(needle, str) or not needle:
            raise BadInput(f"{where}.{i}: expected text, found {needle!r}")
        _utf8(needle, f"{where}.{i}")
    return tuple(value)


def _parse_regex(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadInput(f"{where}: expected a regular expression, found {value!r}")
    try:
        compile_pattern(value)
    except (re.error, regex.error, OverflowError, RecursionError) as e:
        raise BadInput(f"{where}: {value!r} is no valid regular expression ({e})") from None
    return value


def _contains(needles: Sequence[str], text: str, limits: GraderLimits) -> None:
    missing = [n for n in needles if n not in text]
    if missing:
        raise Unmet("does not contain " + ", ".join(repr(n) for n in missing))


def _matches(pattern: str, text: str, limits: GraderLimits) -> None:
    try:
        found = compile_pattern(pattern).search(text, timeout=limits.regex_seconds)
    except TimeoutError:
        raise Unmet(f"the search took over {limits.regex_seconds:g} s") from None
    if found is None:
        raise Unmet(f"does not match {pattern!r}")


def _unchanged(data: bytes, seed: bytes | None) -> None:
    if data != seed:
        raise Unmet("differs from the seed")


FILE_EXISTS, FILE_NOT_EXISTS = "file_exists", "file_not_exists"
FILE_UNCHANGED = "file_unchanged"
FILE_CONTENTS_CONTAIN = "file_contents_contain"
FILE_CONTENTS_MATCH_REGEX = "file_contents_match_regex"

ASSERTION_KINDS: Registry[AssertionKind] = Registry("assertion kind")
"""By the name that tasks give in `kind`."""
# There is a regular file or a folder of that name.
ASSERTION_KINDS.register(FILE_EXISTS, AssertionKind(of_tree=Tree.need_present))
# Nothing of that name is there, not even a link or a folder.
ASSERTION_KINDS.register(FILE_NOT_EXISTS, AssertionKind(of_tree=Tree.need_absent, absent=True))
# The text holds every string of `must_contain`.
ASSERTION_KINDS.register(
    FILE_CONTENTS_CONTAIN,
    AssertionKind(
        of_text=_contains, key="must_contain", parse=_parse_needles, implies=(FILE_EXISTS,)
    ),
)
# `regex` is found somewhere in the text (`re.search`, no flags).
ASSERTION_KINDS.register(
    FILE_CONTENTS_MATCH_REGEX,
    AssertionKind(of_text=_matches, key="regex", parse=_parse_regex, implies=(FILE_EXISTS,)),
)
# The bytes are those of the workspace seed.
ASSERTION_KINDS.register(
    FILE_UNCHANGED, AssertionKind(of_bytes=_unchanged, in_seed=True, implies=(FILE_EXISTS,))
)


def each_fact_once(grade: Grade) -> Grade:
    """The grade without the assertions that another one of the same file implies.

    Which ones are left out depends on the task alone: an attempt that only creates the file has
    met none of what is left. A kind that is not registered here implies nothing.
    """
    implied = {
        (kind, result.path)
        for result in grade.results
        if result.kind in ASSERTION_KINDS
        for kind in ASSERTION_KINDS[result.kind].implies
    }
    return replace(
        grade, results=tuple(r for r in grade.results if (r.kind, r.path) not in implied)
    )


# --- grading --------------------------------------------------------------------------------------


class TreeGrader:
    """Grades trees against one task's assertions.

    assertions: from `parse_assertions`; seed: from `parse_seed`, for `file_unchanged`.
    """

    def __init__(
        self,
        assertions: Sequence[Assertion],
        seed: Mapping[str, bytes],
        limits: GraderLimits | None = None,
    ) -> None:
        self._assertions = tuple(assertions)
        self._seed = dict(seed)
        self._limits = limits or GraderLimits()

    def grade(self, root: Path) -> Grade:
        """One verdict per assertion about the tree at `root`, in declaration order.

        Who writes to the tree meanwhile can fail assertions about it and do no more. Raises
        `OSError` where the root cannot be read: a tree that is not there is the caller's failure
        and must not become a grade.
        """
        with Tree(root) as tree:
            return Grade(tuple(self._check(a, tree) for a in self._assertions))

    def _check(self, assertion: Assertion, tree: Tree) -> AssertionResult:
        holds, detail = False, ""
        try:
            self._require(assertion, tree)
            holds = True
        except Unmet as e:
            detail = str(e) or "does not hold"
        except OSError as e:
            if e.errno not in OF_THE_TREE:
                raise
            detail = f"cannot be read ({e.strerror})"
        return AssertionResult(assertion.kind, assertion.path, holds, detail)

    def _require(self, assertion: Assertion, tree: Tree) -> None:
        """Return where the assertion holds; raise `Unmet` saying why it does not."""
        kind, path = ASSERTION_KINDS[assertion.kind], assertion.path
        if kind.of_tree is not None:
            kind.of_tree(tree, path)
            return
        seed = self._seed.get(path)
        data = tree.read(path, max(self._limits.file_bytes, len(seed or b"")))
        if kind.of_bytes is not None:
            kind.of_bytes(data, seed)
        if kind.of_text is not None:
            kind.of_text(assertion.wanted, _text(data), self._limits)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Unmet("is not UTF-8 text") from None
