"""The task check knows an assertion kind from outside as it knows those of the house."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldkit.eval.assertions import ASSERTION_KINDS, AssertionKind, GraderLimits
from fieldkit.eval.matched import MatchedArms
from fieldkit.eval.tree import Unmet
from rollout.arm import evaluate_arm
from rollout.tasks import task_faults
from scripts.evidence.collect import arm_of
from scripts.evidence.played import read_played
from tests.rollout.scripted import bash, player, replies, write_task


def _shouts(wanted: Any, text: str, limits: GraderLimits) -> None:
    if text != text.upper():
        raise Unmet("is not in capitals")


@pytest.fixture(autouse=True)
def shouting() -> Iterator[None]:
    ASSERTION_KINDS.register("file_shouts", AssertionKind(of_text=_shouts))
    yield
    ASSERTION_KINDS.remove("file_shouts")


SHOUTS = {"kind": "file_shouts", "path": "notes.txt"}
KEPT = {"kind": "file_unchanged", "path": "notes.txt"}
GONE = {"kind": "file_not_exists", "path": "notes.txt"}


def faults(*assertions: dict[str, Any]) -> str:
    return "; ".join(task_faults(write_task("a", verifiable_assertions=[*assertions]), "t:1"))


def test_a_claim_of_its_kind_is_held_against_the_others() -> None:
    assert faults(SHOUTS) == ""
    assert "file_shouts of notes.txt does not hold in the seed" in faults(SHOUTS, KEPT)
    assert "file_shouts and file_not_exists of notes.txt" in faults(SHOUTS, GONE)


def test_no_text_is_looked_for_in_a_binary_file() -> None:
    stub = {"files": [{"path": "notes.txt", "kind": "binary", "hex": "00"}]}
    task = write_task("a", verifiable_assertions=[SHOUTS], workspace_seed=stub)
    assert "file_shouts over the binary stub notes.txt" in "; ".join(task_faults(task, "t:1"))


def test_it_is_played_graded_and_split_in_the_evidence(tmp_path: Path) -> None:
    tasks = [write_task(n, verifiable_assertions=[SHOUTS]) for n in ("alpha", "beta")]
    script = replies(bash("echo LOUD > notes.txt"), "TASK_COMPLETE")
    one = player(tmp_path, script)
    summary = asyncio.run(evaluate_arm("policy", tasks, player=one, evals=tmp_path / "evals"))
    assert summary.n_passed == 2
    arm = arm_of("policy", read_played(tmp_path / "evals" / summary.key), tasks)
    kinds = MatchedArms([arm], "policy", {}).kinds()
    assert [*kinds] == ["file_shouts"]
