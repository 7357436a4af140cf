"""`grpo doctor`: checks whether this machine is ready for a night and lists processes left by runs.

Each check is one line with a remedy, and so is each live process that a run has started. Nothing
here ends or changes anything, except that a missing hub model is downloaded.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fieldkit.errors import BadInput, FieldkitError, Interrupted, Unavailable
from fieldkit.gate import memory, nvidia
from fieldkit.gate.memory import GIB
from rollout.engine.vllm_server import is_cpu_build
from rollout.sandbox.base import probe
from rollout.sandbox.command import SandboxSettings
from scripts.base.checkout import ROOT
from scripts.doctor.ownership import Family, Use, families, told
from scripts.phases.checks import DISK_MARGIN_BYTES
from scripts.phases.context import run_model
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder

MEMORY_BYTES = 8 * GIB
"""Memory for a night on the default model: engine 3, trainer 3 and the loop, plus a margin."""

PROGRAMS = ("bwrap", "nsenter", "prlimit", "choom", "taskset", "setpriv", "bash", "tar", "mount")
"""Programs that the sandbox runs; on Debian and Ubuntu they are in bubblewrap, util-linux, tar and
mount."""

LIBRARY = "libnuma.so.1"
"""What vLLM's CPU build loads and no wheel brings; on Debian and Ubuntu it is libnuma1."""

_COMPUTE = """
import torch
for gpu in range(torch.cuda.device_count() or 1):
    torch.ones(8, device=f"cuda:{gpu}").sum().item()
print("CUDA", torch.version.cuda)
"""
"""Fails where the driver is too old for this torch, and where this torch has no code for a GPU."""


class Unchecked(FieldkitError):
    """A check was not made: what it needs is missing, and another line says so."""


@dataclass(frozen=True)
class Finding:
    """One line of the check-up."""

    name: str
    ok: bool
    text: str
    is_input: bool = False
    """It is about a file or a setting; false if it is about the machine."""
    is_checked: bool = True
    """False where it could not be looked at: not ok, and no fault of its own either."""

    @property
    def failed(self) -> bool:
        return self.is_checked and not self.ok


def examine(config: RunConfig | None = None, run: Path | None = None) -> list[Finding]:
    """Every check, in the order in which a person would fix problems.

    config, run: settings and folder of the run that the machine is checked for; None: the default
    settings and no run.
    """
    config = config or RunConfig()
    checks: dict[str, Callable[[], str]] = {
        "packages": _packages,
        "programs": partial(_programs, config.sandbox),
        "sandbox": partial(_sandbox, config.sandbox),
        "memory": _memory,
        "disk": _disk,
        "gpu": _gpu_elsewhere if config.cluster.used else _gpu,
        "model": lambda: str(run_model(RunFolder(run) if run else None, config.model.path)),
    }
    return [finding(name, check) for name, check in checks.items()] + _processes(run)


def finding(name: str, check: Callable[[], str]) -> Finding:
    """A check's result, or its error, as a `Finding`."""
    try:
        return Finding(name, True, check())
    except Interrupted:
        raise
    except Unchecked as e:
        return Finding(name, False, f"not checked: {e}", is_checked=False)
    except FieldkitError as e:
        return Finding(name, False, str(e), isinstance(e, BadInput))


def _packages() -> str:
    wanted = ("torch", "transformers", "peft", "vllm", "httpx", "pydantic", "scipy")
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise Unavailable(f"missing: {', '.join(missing)}; `make setup` installs them")
    if is_cpu_build():
        try:
            ctypes.CDLL(LIBRARY)
        except OSError:
            raise Unavailable(
                f"missing: {LIBRARY}, without which vLLM does not start; `make system` installs it"
            ) from None
    return "all there"


def _programs(settings: SandboxSettings) -> str:
    if settings.kind == "none":
        return "none needed without a sandbox"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        raise Unavailable(f"missing: {', '.join(missing)}; `make system` installs them")
    return "all there"


def _sandbox(settings: SandboxSettings) -> str:
    probe(settings)
    return "OFF: --sandbox none" if settings.kind == "none" else "bubblewrap works here"


def _memory() -> str:
    free = memory.available().host
    text = f"{free / GIB:.1f} GiB available of {memory.total_host() / GIB:.1f}"
    if free < MEMORY_BYTES:
        raise Unavailable(
            f"{text}, about {MEMORY_BYTES / GIB:.0f} wanted; holders: {memory.describe_holders()}; "
            "end what is not needed (`kill PID`; `grpo doctor --reclaim` ends what runs have left)"
        )
    return text


def _gpu_elsewhere() -> str:
    return "not asked: engine and trainer are on the cluster's nodes"


def _gpu() -> str:
    if is_cpu_build():
        driver = shutil.which("nvidia-smi") is not None
        unused = ", though there is an NVIDIA driver: `GRPO_BUILD=cuda make setup` would use it"
        return f"none: everything runs on the CPU{unused if driver else ''}"
    if missing := _missing_for_kernels():
        raise Unavailable(f"missing: {', '.join(missing)}; `make system` installs them")
    done = subprocess.run(
        [sys.executable, "-P", "-c", _COMPUTE], capture_output=True, text=True, check=False
    )
    if done.returncode:
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise Unavailable(
            f"torch computes nothing there: {why}; `nvidia-smi` shows GPU and driver, "
            "`GRPO_BUILD=cpu make setup` goes back to the CPU"
        )
    return f"{', '.join(nvidia.gpu_names())}, with {done.stdout.strip()}"


def _missing_for_kernels() -> list[str]:
    """What the programs that Triton compiles for a GPU need: a C compiler, and Python's headers."""
    compilers = (os.environ.get("CC"), "gcc", "clang")
    has_compiler = any(name and shutil.which(name) for name in compilers)
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return [*([] if has_compiler else ["gcc"]), *([] if header.is_file() else [str(header)])]


def _disk() -> str:
    free = shutil.disk_usage(ROOT).free
    if free < 2 * DISK_MARGIN_BYTES:
        raise Unavailable(
            f"{free / GIB:.1f} GiB free under {ROOT}, {2 * DISK_MARGIN_BYTES / GIB:.0f} wanted; "
            f"remove what is not needed: `du -sh {shlex.quote(str(ROOT))}/runs/*` shows what each "
            "run takes"
        )
    return f"{free / GIB:.1f} GiB free under {ROOT}"


def _processes(run: Path | None = None) -> list[Finding]:
    """A line for each family of live processes that a run has started.

    Processes of `run` itself are no problem: its next phase uses or ends them.
    """
    found = families()
    if not found:
        return [Finding("processes", True, "no run has any")]
    return [_process(family, family.run.path == run) for family in found]


def _process(family: Family, own: bool) -> Finding:
    text = told(family)
    if family.reclaimable and own:
        return Finding("process", True, f"{text}; this run uses it or ends it")
    if family.reclaimable:
        return Finding("process", False, f"{text}; `grpo doctor --reclaim` ends it")
    if family.use is Use.UNKNOWN:
        ledger = shlex.quote(str(family.run.ledger))
        return Finding(
            "process",
            False,
            f"{text} ({family.trouble}); once no loop works on that run, `mv {ledger} {ledger}.bad`"
            " and `grpo doctor --reclaim` end it",
        )
    if family.is_silent:
        stop = f"`grpo stop {family.run.typed}`"
        when = "once its loop has ended (Ctrl-C there), " if family.use is Use.LOOP else ""
        return Finding("process", False, f"{text}; {when}{stop} ends it")
    return Finding("process", True, text)
