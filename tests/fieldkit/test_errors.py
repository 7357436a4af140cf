"""What the system reports becomes one of our errors where a person can do something about it."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from fieldkit.client.chat import ChatHTTPError
from fieldkit.errors import BadInput, FieldkitError, Shortage, foreseen, last_told
from fieldkit.nim.windowed_client import NIMContextOverflowError
from trainer.gradient import MicroBatchTooLarge


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.ENOSPC, Shortage, "/a/b: no space left on this disk"),
        (errno.EDQUOT, Shortage, "/a/b: no space left on this disk"),
        (errno.EROFS, BadInput, "/a/b: cannot be written or read (Read-only file system)"),
        (errno.EACCES, BadInput, "/a/b: cannot be written or read (Permission denied)"),
        (errno.EMFILE, Shortage, "/a/b: too many open files"),
        (errno.ENFILE, Shortage, "/a/b: too many open files"),
    ],
)
def test_a_limit_of_the_machine_says_what_to_mend(
    number: int, kind: type[FieldkitError], says: str
) -> None:
    known = foreseen(OSError(number, os.strerror(number), "/a/b"))
    assert type(known) is kind
    assert str(known).startswith(says)


def test_a_name_that_cannot_be_opened_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "round").symlink_to("round")
    for name, says in (
        ("n" * 300, "file name too long"),
        ("file/inside", "not a directory"),
        ("", "is a directory"),
        ("round", "too many levels of symbolic links"),
    ):
        path = tmp_path / name
        with pytest.raises(OSError, match=r".") as raised:
            path.read_bytes()
        known = foreseen(raised.value)
        assert isinstance(known, BadInput)
        assert str(known) == f"{path}: {says}"


def test_what_nobody_can_mend_from_the_message_stays_what_it_was() -> None:
    assert foreseen(OSError(errno.EIO, "Input/output error")) is None
    assert foreseen(KeyError("x")) is None
    ours = BadInput("as it is")
    assert foreseen(ours) is ours


def every(kind: type[FieldkitError]) -> Iterator[type[FieldkitError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from every(one)


MADE_OTHERWISE: dict[type[FieldkitError], Callable[[], FieldkitError]] = {
    ChatHTTPError: lambda: ChatHTTPError("400", status_code=400, body="{}"),
    NIMContextOverflowError: lambda: NIMContextOverflowError(estimated_tokens=9, ceiling=8),
    MicroBatchTooLarge: lambda: MicroBatchTooLarge("it is large", 7, ["free memory"]),
}
"""Errors of classes that take more than a message."""


OURS = {kind for kind in every(FieldkitError) if kind.__module__.startswith("fieldkit.")}


@pytest.mark.parametrize("kind", sorted(OURS | MADE_OTHERWISE.keys(), key=str))
def test_an_error_comes_back_whole_from_another_process(kind: type[FieldkitError]) -> None:
    error = MADE_OTHERWISE.get(kind, partial(kind, "what, where"))()
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), again.exit_code, vars(again)) == (str(error), kind.exit_code, vars(error))


def test_the_last_error_that_a_program_told_is_its_message_or_the_end_of_what_it_said() -> None:
    assert last_told("error: one\nloading\nerror: two, and\nits remedy\n") == "two, and\nits remedy"
    assert last_told(f"{'.' * 600}ended\n") == f"{'.' * 495}ended"
    assert last_told("") == ""
