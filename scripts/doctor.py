"""`grpo doctor`: is this machine fit for a night, and did an earlier one leave something behind?

Each check is one line with what to do about it. `--reclaim` ends engines that our ledgers own and
no loop uses; a stranger's process is named and left alone.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fieldkit import memory
from fieldkit.errors import FieldkitError, Unavailable
from fieldkit.memory import GIB
from fieldkit.process import Ledger, family
from rollout.command import SandboxSettings
from rollout.engine import LEDGER_FILE, stop_engine
from rollout.sandbox import probe
from scripts.checks import DISK_MARGIN_BYTES
from scripts.machine import gpu_names
from scripts.model import default_model_dir
from scripts.run_folder import ROOT, RunFolder

MEMORY_BYTES = 8 * GIB
"""What a night on the default model wants: engine 3, trainer 3 and the loop, with room to spare."""

PROGRAMS = ("bwrap", "prlimit", "choom", "bash", "tar", "mount", "unshare")
"""What the sandbox calls; Debian and Ubuntu have them in bubblewrap and util-linux."""


@dataclass(frozen=True)
class Finding:
    """One line of the check-up."""

    name: str
    ok: bool
    text: str


def examine() -> list[Finding]:
    """Every check, in the order in which a person would mend things."""
    checks: dict[str, Callable[[], str]] = {
        "packages": _packages,
        "programs": _programs,
        "sandbox": _sandbox,
        "memory": _memory,
        "disk": _disk,
        "gpu": _gpu,
        "model": _model,
        "leftovers": _leftovers,
    }
    return [_finding(name, check) for name, check in checks.items()]


def _finding(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except FieldkitError as e:
        return Finding(name, False, str(e))


def _packages() -> str:
    wanted = ("torch", "transformers", "peft", "vllm", "httpx", "pydantic", "scipy")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"missing: {', '.join(missing)}; `make setup` installs them")
    return "all there"


def _programs() -> str:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"missing: {', '.join(missing)}; `make system` installs them")
    return "all there"


def _sandbox() -> str:
    probe(SandboxSettings())
    return "bubblewrap works here"


def _memory() -> str:
    free = memory.available().host
    text = f"{free / GIB:.1f} GiB available of {memory.total_host() / GIB:.1f}"
    if free < MEMORY_BYTES:
        raise Unavailable(
            f"{text}, about {MEMORY_BYTES / GIB:.0f} wanted; holders: {memory.describe_holders()}"
        )
    return text


def _disk() -> str:
    free = shutil.disk_usage(ROOT).free
    if free < 2 * DISK_MARGIN_BYTES:
        raise Unavailable(f"{free / GIB:.1f} GiB free under {ROOT}; free some")
    return f"{free / GIB:.1f} GiB free under {ROOT}"


def _gpu() -> str:
    return ", ".join(gpu_names()) or "none: everything runs on the CPU"


def _model() -> str:
    folder = default_model_dir()
    if not (folder / "config.json").is_file():
        raise Unavailable("the default model is not built; `grpo model` builds it")
    return str(folder)


def _leftovers() -> str:
    left = list(leftovers())
    if left:
        held = sum(memory.held_by(pid) for _, pids in left for pid in pids)
        runs = ", ".join(f"{folder.name} (pid {pids[0]})" for folder, pids in left)
        raise Unavailable(
            f"engines that no loop uses: {runs}, {held / GIB:.1f} GiB; "
            "`grpo doctor --reclaim` ends them"
        )
    return "no engine without a loop"


def leftovers() -> Iterator[tuple[RunFolder, list[int]]]:
    """Runs of this checkout whose engine lives while no loop owns the run, with its pids."""
    for ledger in sorted((ROOT / "runs").glob(f"*/{LEDGER_FILE}")):
        folder = RunFolder(ledger.parent)
        pids = [pid for entry in Ledger(ledger).entries() for pid in family(entry.marker)]
        if pids and not _in_use(folder.lock):
            yield folder, pids


def reclaim() -> list[str]:
    """End those engines; one line for each."""
    lines = []
    for folder, pids in list(leftovers()):
        stop_engine(folder.path)
        lines.append(f"run {folder.name}: ended its engine ({len(pids)} processes)")
    return lines


def _in_use(lock: Path) -> bool:
    """Whether a loop or phase holds the run's lock now."""
    if not lock.exists():
        return False
    fd = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
