"""Checks of a shell task that need only its text.

A task that cannot be passed looks like a policy that learned nothing, so assertions that exclude
each other are found before anything is played. Whether oracle and grader agree is checked in the
sandbox, elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.assertions import (
    ASSERTION_KINDS,
    FILE_CONTENTS_MATCH_REGEX,
    FILE_UNCHANGED,
    Assertion,
    GraderLimits,
    parse_assertions,
    parse_seed,
)
from fieldkit.eval.patterns import only_texts
from fieldkit.eval.tree import Tree, Unmet
from fieldkit.records import Task
from rollout.sandbox.command import SandboxSettings

DIFFICULTIES = ("easy", "middle", "hard")
_PAGE = 4096  # a tmpfs counts in whole pages
_OWN_INODES = 4  # the tmpfs's root, workspace, scratch, and one to work with
_ALL_DIFFICULTIES = (*DIFFICULTIES, "medium")  # ClawGym's files say medium


def shell_faults(task: Task, where: str) -> list[str]:
    """Everything wrong with a shell task's `info`; raises `BadInput` where it cannot be read."""
    _check_info(task.info)
    seed = parse_seed(task.info, where)
    assertions = parse_assertions(task.info, where)
    if not assertions:  # a held-out one would leave a whole night without tables
        return ["verifiable_assertions is empty, so no episode could pass, and none be compared"]
    return assertion_faults(assertions, seed, _binary_paths(task.info))


def shell_doubts(task: Task) -> list[str]:
    """Reasons why a valid task may not be what its author wanted: a key that is nearly a known one,
    or no assertion that needs work."""
    doubts = _near_misses(task.info)
    assertions = parse_assertions(task.info, task.task_id)
    seed = parse_seed(task.info, task.task_id)
    if all(_holds_in_seed(a, seed) for a in assertions):
        doubts.append("every assertion holds in the seed, so doing nothing passes")
    return doubts


def _near_misses(info: Mapping[str, Any]) -> list[str]:
    """A task may have keys of its own; one that is nearly a known key which is missing is more
    probably that key, mistyped."""
    free = [key for key in (*_TYPES, _ORACLE) if key not in info]
    return [
        f"info.{key} is not read; did you mean {near[0]!r}?"
        for key in info
        if key not in _TYPES and (near := get_close_matches(key, free, n=1, cutoff=_NEARLY))
    ]


def _holds_in_seed(claim: Assertion, seed: Mapping[str, bytes]) -> bool:
    kind, data = ASSERTION_KINDS[claim.kind], seed.get(claim.path)
    there = data is not None or any(path.startswith(f"{claim.path}/") for path in seed)
    if kind.of_tree is not None:
        return kind.of_tree in (Tree.need_present, Tree.need_absent) and there is not kind.absent
    return data is not None and (kind.of_bytes is not None or _holds(claim, data))


def shell_fits(task: Task, settings: SandboxSettings) -> list[str]:
    """Whether the workspace holds the seed: in whole pages, and with a folder for each path."""
    seed = parse_seed(task.info, task.task_id)
    held = sum(-(-len(data) // _PAGE) * _PAGE for data in seed.values())
    names = {str(p) for path in seed for p in (Path(path), *Path(path).parents)}
    faults = []
    if held > settings.workspace_bytes:
        faults.append(
            f"workspace_seed.files take {held} bytes, more than sandbox.workspace_bytes ="
            f" {settings.workspace_bytes}"
        )
    if len(names) + _OWN_INODES > settings.workspace_inodes:
        faults.append(
            f"workspace_seed.files are {len(names)} files and folders, more than"
            f" sandbox.workspace_inodes = {settings.workspace_inodes} hold"
        )
    return faults


def published_task(line: Mapping[str, Any], env: str) -> dict[str, Any] | None:
    """A line of ClawGym's own files: `intent` is the prompt, and all keys stand on one level."""
    others = {"env", "prompt", "info", "environment"}  # the last one of a dataset's row
    if "intent" not in line or not line.keys().isdisjoint(others):
        return None
    info = {key: value for key, value in line.items() if key != "task_id"}
    return {"task_id": line.get("task_id"), "env": env, "prompt": line["intent"], "info": info}


def shell_marks(task: Task) -> list[tuple[str, str]]:
    """Seed files (names and contents; no files give no mark) and assertions, in any order."""
    files = _canonical(task.info["workspace_seed"]["files"])
    marks = [("seed files", files)] if files != "[]" else []
    return [*marks, ("assertions", _canonical(task.info["verifiable_assertions"]))]


def _canonical(items: Sequence[Any]) -> str:
    return json.dumps(sorted({json.dumps(item, sort_keys=True) for item in items}))


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "persona": (str, dict),  # in ClawGym's files {"role", "context"}
    "intent": str,
    "skills_required": list,
    "difficulty": str,
    "estimated_steps": int,
}
"""The keys that describe a task and may be missing: nothing is played or graded by them."""


_ORACLE = "oracle"
_NEARLY = 0.8  # difflib's ratio of two keys, of which one is the other with a letter or two wrong


def _check_info(info: Mapping[str, Any]) -> None:
    oracle = info.get(_ORACLE, [])
    if not isinstance(oracle, list) or not all(isinstance(command, str) for command in oracle):
        raise BadInput(
            f"info.oracle: expected a list of commands, each a text, found {oracle!r:.60}"
        )
    for key, kind in _TYPES.items():
        if key in info and not isinstance(info[key], kind):
            names = [k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,))]
            raise BadInput(f"info.{key}: expected {' or '.join(names)}, found {info[key]!r:.60}")
    if info.get("difficulty", DIFFICULTIES[0]) not in _ALL_DIFFICULTIES:
        known = ", ".join(_ALL_DIFFICULTIES)
        raise BadInput(f"info.difficulty: {info['difficulty']!r} is unknown; known: {known}")


def _binary_paths(info: Mapping[str, Any]) -> set[str]:
    return {f["path"] for f in info["workspace_seed"]["files"] if f["kind"] != "text"}


def assertion_faults(
    assertions: Sequence[Assertion], seed: Mapping[str, bytes], binary: set[str]
) -> list[str]:
    """Assertions that cannot hold, alone or together.

    seed: the workspace's files, path -> bytes. binary: the ones that are not text.
    """
    faults: list[str] = []
    for a in assertions:
        faults += _binary_fault(a, binary)
    faults += _existence_faults(assertions)
    faults += _unchanged_faults(assertions, seed)
    faults += _contents_faults(assertions)
    return faults


def _binary_fault(assertion: Assertion, binary: set[str]) -> list[str]:
    if assertion.path in binary and ASSERTION_KINDS[assertion.kind].of_text is not None:
        return [
            f"{assertion.kind} over the binary stub {assertion.path}: no text can be found in it"
        ]
    return []


def _existence_faults(assertions: Sequence[Assertion]) -> list[str]:
    """Files that must be there against files that must not, and files against folders."""
    absent = {a.path for a in assertions if ASSERTION_KINDS[a.kind].absent}
    needed = {a.path: a.kind for a in assertions if not ASSERTION_KINDS[a.kind].absent}
    faults = [
        f"nothing can make it true: {kind} and file_not_exists of {path}"
        for path, kind in needed.items()
        if path in absent
    ]
    for path, kind in needed.items():
        for parent in map(str, Path(path).parents):
            if parent in absent:
                faults.append(
                    f"nothing can make it true: {kind} of {path}, but file_not_exists of {parent}"
                )
            if parent in needed and ASSERTION_KINDS[needed[parent]].of_tree is None:
                faults.append(
                    f"nothing can make it true: {parent} must be a file and the folder of {path}"
                )
    return faults


def _unchanged_faults(assertions: Sequence[Assertion], seed: Mapping[str, bytes]) -> list[str]:
    """Claims about a file that must not change have to hold in the seed."""
    faults: list[str] = []
    for one, other in combinations(assertions, 2):
        if one.path != other.path:
            continue
        for kept, claim in ((one, other), (other, one)):
            if kept.kind == FILE_UNCHANGED and not _holds(claim, seed[kept.path]):
                faults.append(
                    f"nothing can make it true: {claim.kind} of {claim.path} does not hold in the"
                    " seed, and the file must stay unchanged"
                )
    return faults


def _contents_faults(assertions: Sequence[Assertion]) -> list[str]:
    """Claims about a file whose contents another assertion gives have to hold for those
    contents."""
    faults: list[str] = []
    for one, other in combinations(assertions, 2):
        pairs = [(one, other), (other, one)] if one.path == other.path else []
        texts = (
            (only_texts(whole.wanted), claim)
            for whole, claim in pairs
            if whole.kind == FILE_CONTENTS_MATCH_REGEX
        )
        if any(t and not any(_holds(claim, x.encode()) for x in t) for t, claim in texts):
            faults.append(
                f"nothing can make it true: two assertions about {one.path} ask for contents that"
                " exclude each other"
            )
    return faults


def _holds(claim: Assertion, content: bytes) -> bool:
    """Whether a claim about text holds; claims of other kinds are not judged here."""
    of_text = ASSERTION_KINDS[claim.kind].of_text
    if of_text is None:
        return True
    try:
        of_text(claim.wanted, content.decode(errors="replace"), GraderLimits())
    except Unmet:
        return False
    return True
