"""A child's exit code becomes the error that the child ended with."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import (
    BadInput,
    FieldkitError,
    Interrupted,
    NotOwner,
    PoolConverged,
    Shortage,
    Unavailable,
)
from scripts.base.exit_codes import KILLED, ChildBug, Killed, raise_code

LOG = Path("log/train.log")


@pytest.mark.parametrize(
    "kind", [BadInput, PoolConverged, Unavailable, Shortage, NotOwner, Interrupted]
)
def test_the_error_has_the_kind_of_its_code_and_the_childs_text(kind: type[FieldkitError]) -> None:
    with pytest.raises(kind, match="the file is gone") as raised:
        raise_code(kind.exit_code, "the file is gone", "the trainer", LOG)
    assert type(raised.value) is kind


@pytest.mark.parametrize("code", [1, 7])
def test_a_code_that_no_error_has_is_a_bug_of_the_child(code: int) -> None:
    told = rf"the trainer ended with exit code {code}: no message; its log: {LOG}"
    with pytest.raises(ChildBug, match=told):
        raise_code(code, "", "the trainer", LOG)


def test_a_child_that_ends_like_a_converged_pool_without_a_word_is_a_bug() -> None:
    with pytest.raises(ChildBug, match="the rollout phase ended with exit code 3: no message"):
        raise_code(PoolConverged.exit_code, "", "the rollout phase", LOG)


@pytest.mark.parametrize("code", KILLED)
def test_a_killed_child_is_a_shortage_of_memory(code: int) -> None:
    """A guard of memory sends SIGTERM first."""
    with pytest.raises(Killed, match=rf"was killed \(exit {code}\).*its log: {LOG}") as raised:
        raise_code(code, "", "the trainer", LOG)
    assert isinstance(raised.value, Shortage)


def test_a_child_that_ended_well_raises_nothing() -> None:
    raise_code(0, "", "the trainer", LOG)
