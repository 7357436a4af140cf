"""The files of a finished step: adapter/, trainer_state/ and train.json, all visible or none.

The step folder already holds the rollout's files, so it cannot itself be renamed into place. The
result is built in a temporary folder next to them, and its children are renamed, train.json last:
"done" means that train.json exists and that its hashes match the files next to it. Nothing here
imports torch, so a step without signal does not either.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import fsync_dir, fsync_tree, read_json, write_json
from fieldkit.training.adapter import adapter_sha, copy_adapter, files_sha

ADAPTER_DIR = "adapter"
STATE_DIR = "trainer_state"
MARKER_FILE = "train.json"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
SCHEMA = 1
_BUILD_PREFIX = "train.tmp-"


@contextmanager
def new_result(out_dir: Path, *, publish: bool = True) -> Iterator[Path]:
    """Yield an empty folder for adapter/ and trainer_state/; publish it on success.

    The caller writes train.json into it last (`write_marker`). After an error the folder is
    removed; after a kill the next call removes it. publish: False for a process that makes the same
    result as another one: its folder is elsewhere, and is removed in any case.
    """
    if not publish:
        with TemporaryDirectory() as elsewhere:
            yield Path(elsewhere)
        return
    out_dir.mkdir(parents=True, exist_ok=True)
    remove_unfinished(out_dir)
    build = out_dir / f"{_BUILD_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    build.mkdir()
    try:
        yield build
        _publish(build, out_dir)
    finally:
        shutil.rmtree(build, ignore_errors=True)


def remove_unfinished(out_dir: Path) -> None:
    """Remove what a killed process left of a result. No other may be making one."""
    for left in out_dir.glob(f"{_BUILD_PREFIX}*"):
        shutil.rmtree(left)


def _publish(build: Path, out_dir: Path) -> None:
    """Rename the children of `build` into `out_dir`, the marker last."""
    fsync_tree(build)
    for name in (ADAPTER_DIR, STATE_DIR):
        # A folder without a marker next to it is left from a step that was killed.
        if (out_dir / name).exists():
            shutil.rmtree(out_dir / name)
        if (build / name).exists():
            os.rename(build / name, out_dir / name)
    fsync_dir(out_dir)
    os.rename(build / MARKER_FILE, out_dir / MARKER_FILE)
    fsync_dir(out_dir)


def write_marker(build: Path, result: dict[str, Any]) -> dict[str, Any]:
    """Write train.json: `result` and the hashes of the folders next to it; returns all of it."""
    marker = {"schema": SCHEMA, **_hashes(build), **result}
    write_json(build / MARKER_FILE, marker)
    return marker


def _hashes(folder: Path) -> dict[str, str | None]:
    """Of the folders that belong to train.json."""
    state = folder / STATE_DIR
    return {
        "adapter_sha": adapter_sha(folder / ADAPTER_DIR),
        "optimizer_sha": state_sha(state) if state.exists() else None,
    }


def read_result(out_dir: Path) -> dict[str, Any] | None:
    """train.json of a finished step, or None where the step is not done.

    Raises `BadInput` if the folders next to it do not have the hashes in it.
    """
    file = out_dir / MARKER_FILE
    if not file.exists():
        return None
    result = read_json(file)
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise BadInput(f"{file}: not a result of schema {SCHEMA}")
    for key, sha in _hashes(out_dir).items():
        if result.get(key) != sha:
            raise BadInput(
                f"{file}: {key} is {str(result.get(key))[:12]}, but the folder next to it has"
                f" {str(sha)[:12]}: it was changed afterwards; remove {file} to train again"
            )
    return result


def carry_over(build: Path, adapter: Path, state: Path | None) -> None:
    """Copy adapter and trainer state byte for byte: the result of a step without signal."""
    (build / ADAPTER_DIR).mkdir()
    copy_adapter(adapter, build / ADAPTER_DIR)
    if state is not None:
        (build / STATE_DIR).mkdir()
        for name in (OPTIMIZER_FILE, STATE_FILE):
            shutil.copyfile(state / name, build / STATE_DIR / name)


def state_sha(folder: Path) -> str:
    """Identity of a trainer_state folder: hex SHA-256 over its two files."""
    files = [folder / name for name in (OPTIMIZER_FILE, STATE_FILE)]
    for file in files:
        if not file.is_file():
            raise BadInput(f"{file}: no such file; leave --optimizer-state out to start")
    return files_sha(files)


def state_steps(folder: Path, of_adapter: str) -> int:
    """Optimizer steps of a trainer_state folder, after checking its adapter."""
    file = folder / STATE_FILE
    state = read_json(file)
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise BadInput(f"{file}: not a trainer state of schema {SCHEMA}")
    if state.get("adapter_sha") != of_adapter:
        raise BadInput(
            f"{file}: the state of adapter {str(state.get('adapter_sha'))[:12]}, but the initial "
            f"adapter is {of_adapter[:12]}; give the trainer_state that lies beside it"
        )
    return int(state["steps"])
