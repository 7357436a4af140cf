"""File assertions: reading them from a task, and grading the tree that an attempt left behind.

An assertion names a file relative to the workspace and says what must be true of it, so a grade
needs no model and no judgement. The tree was written by an untrusted policy: it is read beneath
its root only, and nothing in it may make the grader follow a link, block, or read without bound.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import regex

from fieldkit.errors import BadInput
from fieldkit.eval.grade import AssertionResult, Grade


class AssertionKind(StrEnum):
    """What an assertion says about its file."""

    FILE_EXISTS = "file_exists"
    """There is a regular file of that name."""
    FILE_NOT_EXISTS = "file_not_exists"
    """Nothing of that name is there, not even a link or a folder."""
    FILE_CONTENTS_CONTAIN = "file_contents_contain"
    """The text holds every string of `must_contain`."""
    FILE_CONTENTS_MATCH_REGEX = "file_contents_match_regex"
    """`regex` is found somewhere in the text (`re.search`, no flags)."""
    FILE_UNCHANGED = "file_unchanged"
    """The bytes are those of the workspace seed."""


@dataclass(frozen=True)
class Assertion:
    """One assertion. `must_contain` and `regex` are empty for the kinds that have none."""

    kind: AssertionKind
    path: str
    must_contain: tuple[str, ...] = ()
    regex: str = ""


@dataclass(frozen=True)
class GraderLimits:
    """How much of a hostile tree the grader is willing to read."""

    file_bytes: int = 4 * 2**20
    """A larger file fails its assertion: seeds and answers are a few kilobytes."""
    regex_seconds: float = 2.0
    """A search that takes longer (processor time) fails its assertion."""


_BY_KIND = {
    AssertionKind.FILE_CONTENTS_CONTAIN: "must_contain",
    AssertionKind.FILE_CONTENTS_MATCH_REGEX: "regex",
}
_NAME_BYTES = 255  # NAME_MAX of every Linux file system

_OF_THE_TREE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV),
    *(errno.EACCES, errno.EPERM),
    errno.EAGAIN,  # another process has a lease on the file
)
"""How the kernel refuses what a policy can put into its tree, also between a look at a name and its
opening. Any other error (no descriptors, a disk that fails) is the machine's."""


# --- reading a task -------------------------------------------------------------------------------


def parse_assertions(info: Mapping[str, Any], where: str) -> tuple[Assertion, ...]:
    """The assertions of a task's `info`, in order. Raises `BadInput` that begins with `where`."""
    listed = info.get("verifiable_assertions")
    if not isinstance(listed, list) or not listed:
        raise BadInput(f"{where}: verifiable_assertions must be a list that is not empty")
    seed = parse_seed(info, where)
    return tuple(
        _parse_assertion(value, seed, f"{where}: verifiable_assertions.{i}")
        for i, value in enumerate(listed)
    )


def parse_seed(info: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """The files a workspace starts with, path -> bytes. Raises `BadInput` beginning with `where`.

    A file is {"path", "kind": "text", "content"}, or {"path", "kind": "binary", "hex"} for a file
    that is no text.
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
    value_key = {"text": "content", "binary": "hex"}.get(str(kind))
    if value_key is None:
        raise BadInput(f"{where}.kind: {kind!r} is unknown; known: text, binary")
    _check_keys(file, {"path", "kind", value_key}, where)
    path = check_path(file["path"], f"{where}.path")
    value = file[value_key]
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
    try:
        kind = AssertionKind(str(value.get("kind")))
    except ValueError:
        known = ", ".join(AssertionKind)
        raise BadInput(f"{where}.kind: {value.get('kind')!r} is unknown; known: {known}") from None
    extra = _BY_KIND.get(kind)
    _check_keys(value, {"kind", "path"} | ({extra} if extra else set()), where)
    path = check_path(value["path"], f"{where}.path")
    if kind is AssertionKind.FILE_UNCHANGED and path not in seed:
        raise BadInput(
            f"{where}.path: {path!r} is not in workspace_seed, so it cannot stay the same"
        )
    if kind is AssertionKind.FILE_CONTENTS_CONTAIN:
        return Assertion(kind, path, must_contain=_parse_needles(value["must_contain"], where))
    if kind is AssertionKind.FILE_CONTENTS_MATCH_REGEX:
        return Assertion(kind, path, regex=_parse_regex(value["regex"], f"{where}.regex"))
    return Assertion(kind, path)


def _check_keys(value: Mapping[str, Any], expected: set[str], where: str) -> None:
    for key in sorted(expected - value.keys()):
        raise BadInput(f"{where}: the key {key!r} is missing")
    for key in sorted(value.keys() - expected):
        raise BadInput(f"{where}: unknown key {key!r}; known: {', '.join(sorted(expected))}")


def _parse_needles(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise BadInput(f"{where}.must_contain: expected a list that is not empty")
    for i, needle in enumerate(value):
        if not isinstance(needle, str) or not needle:
            raise BadInput(f"{where}.must_contain.{i}: expected text, found {needle!r}")
        _utf8(needle, f"{where}.must_contain.{i}")
    return tuple(value)


def _parse_regex(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise BadInput(f"{where}: expected a regular expression, found {value!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Tasks are written for `re`; `regex` runs them, because it can be stopped.
            re.compile(value)
            regex.compile(value)
    except (re.error, regex.error, OverflowError, RecursionError) as e:
        raise BadInput(f"{where}: {value!r} is no valid regular expression ({e})") from None
    return value


# --- reading a hostile tree -----------------------------------------------------------------------


class _Unmet(Exception):
    """What keeps an assertion from holding; its text becomes the result's detail."""


class _Absent(_Unmet):
    """Nothing of that name is there."""


def _open_root(root: Path) -> int:
    return os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _descend(root_fd: int, path: str) -> tuple[int, str]:
    """An fd of the folder that holds `path`, and the last component. Follows no link.

    A folder that its owner cannot search is an obstacle also where the grader is root, so that a
    grade does not depend on who grades.
    """
    *folders, name = path.split("/")
    fd = os.dup(root_fd)
    try:
        for folder in folders:
            _need_search(fd)
            status = _lstat(folder, fd)
            if stat.S_ISLNK(status.st_mode):
                raise _Unmet(f"{folder} is a symbolic link")
            if not stat.S_ISDIR(status.st_mode):
                raise _Absent(f"{folder} is not a folder")
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(folder, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
        _need_search(fd)
    except BaseException:
        os.close(fd)
        raise
    return fd, name


def _need_search(fd: int) -> None:
    if not os.fstat(fd).st_mode & stat.S_IXUSR:
        raise _Unmet("a folder on the way cannot be searched")


def _lstat(name: str, folder_fd: int) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        raise _Absent("no such file") from None


def _status(root_fd: int, path: str) -> os.stat_result:
    folder_fd, name = _descend(root_fd, path)
    try:
        return _lstat(name, folder_fd)
    finally:
        os.close(folder_fd)


def _need_regular(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds: list[tuple[Callable[[int], bool], str]] = [
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    ]
    found = next((name for test, name in kinds if test(mode)), "a device")
    raise _Unmet(f"is {found}, not a file")


def _read(root_fd: int, path: str, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes."""
    folder_fd, name = _descend(root_fd, path)
    try:
        status = _lstat(name, folder_fd)
        # Looked at before it is opened: opening a device or a pipe can have an effect.
        _need_regular(status.st_mode)
        if not status.st_mode & stat.S_IRUSR:
            raise _Unmet("cannot be read (permissions)")
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder_fd)
    finally:
        os.close(folder_fd)
    try:
        _need_regular(os.fstat(fd).st_mode)  # another may have taken its name since the look
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(fd)
    if len(data) > limit:
        raise _Unmet(f"is larger than {limit} bytes")
    return data


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Unmet("is not UTF-8 text") from None


# --- grading --------------------------------------------------------------------------------------


class AssertionGrader:
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
        root_fd = _open_root(root)
        try:
            return Grade(tuple(self._check(a, root_fd) for a in self._assertions))
        finally:
            os.close(root_fd)

    def _check(self, assertion: Assertion, root_fd: int) -> AssertionResult:
        detail = ""
        try:
            self._require(assertion, root_fd)
        except _Unmet as e:
            detail = str(e)
        except OSError as e:
            if e.errno not in _OF_THE_TREE:
                raise
            detail = f"cannot be read ({e.strerror})"
        return AssertionResult(assertion.kind.value, assertion.path, not detail, detail)

    def _require(self, assertion: Assertion, root_fd: int) -> None:
        """Return where the assertion holds; raise `_Unmet` saying why it does not."""
        path = assertion.path
        if assertion.kind is AssertionKind.FILE_NOT_EXISTS:
            _require_absent(root_fd, path)
            return
        if assertion.kind is AssertionKind.FILE_EXISTS:
            _need_regular(_status(root_fd, path).st_mode)
            return
        data = _read(root_fd, path, max(self._limits.file_bytes, len(self._seed.get(path, b""))))
        if assertion.kind is AssertionKind.FILE_UNCHANGED:
            if data != self._seed[path]:
                raise _Unmet("differs from the seed")
        elif assertion.kind is AssertionKind.FILE_CONTENTS_CONTAIN:
            _require_needles(assertion.must_contain, _text(data))
        else:
            self._require_match(assertion.regex, _text(data))

    def _require_match(self, pattern: str, text: str) -> None:
        try:
            found = regex.search(pattern, text, timeout=self._limits.regex_seconds)
        except TimeoutError:
            raise _Unmet(f"the search took over {self._limits.regex_seconds:g} s") from None
        if found is None:
            raise _Unmet(f"does not match {pattern!r}")


def _require_absent(root_fd: int, path: str) -> None:
    try:
        _status(root_fd, path)
    except _Absent:
        return
    raise _Unmet("is still there")


def _require_needles(needles: Sequence[str], text: str) -> None:
    missing = [n for n in needles if n not in text]
    if missing:
        raise _Unmet("does not contain " + ", ".join(repr(n) for n in missing))
