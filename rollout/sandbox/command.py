"""One command of a policy: its limits, its result, and how it is passed to bash.

Shared by every kind of sandbox, so that a command means the same in each. Whatever a policy can
cause (a failure, too much output, text that cannot be passed to a shell) is a `CommandResult`.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import PositiveFloat, PositiveInt

from fieldkit.errors import Unavailable
from fieldkit.settings import Change, Unit, settings
from rollout.sandbox.output import BoundedOutput

TIMED_OUT_CODE = 124
"""Exit code of a command that ran out of time, as coreutils' `timeout` gives it."""
FLOODED_CODE = 141
"""Exit code of a command that printed too much: 128 + SIGPIPE, as if its reader had ended."""
NOT_RUN_CODE = 126
"""Exit code of text that cannot be passed to bash; shells use it for what they cannot run."""

BOX_PATH = "/usr/bin:/bin"
"""PATH of a command."""

_COMMAND_BYTES = 100_000  # below MAX_ARG_STRLEN (131,072), beyond which exec fails like a bad box
_PENDING_SIGNALS = 256  # shells need none; the default of a machine is tens of thousands
_TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SandboxKind = Literal["bwrap", "none"]


@settings("sandbox")
class SandboxSettings:
    """The limits of a command."""

    kind: Annotated[SandboxKind, Change.TYPED] = "bwrap"
    """"none" runs commands as this user on this machine, with limits but without isolation. It
    cannot be set in run.toml, only by `--sandbox none`."""
    command_seconds: Annotated[PositiveFloat, Unit("seconds")] = 10.0
    """Wall time of a command, in seconds."""
    output_chars: Annotated[PositiveInt, Unit("characters")] = 600
    """Characters of a command's output that are kept, from its beginning and its end."""
    output_bytes: Annotated[PositiveInt, Unit("bytes")] = 4 * 2**20
    """A command that prints more bytes than this is ended."""
    workspace_bytes: Annotated[PositiveInt, Unit("bytes")] = 32 * 2**20
    """Bytes of workspace and /tmp together. They are in memory and last for an episode."""
    workspace_inodes: PositiveInt = 2000
    """Files and folders of workspace and /tmp together."""
    processes: PositiveInt = 64
    """Processes and threads of a command."""
    cpu_seconds: Annotated[PositiveInt, Unit("seconds")] = 30
    """CPU time of one process, in seconds."""
    memory_bytes: Annotated[PositiveInt, Unit("bytes")] = 4 * 2**30
    """Address space of one process, and memory of all processes of a command together."""
    file_bytes: Annotated[PositiveInt, Unit("bytes")] = 64 * 2**20
    """Size of one written file."""
    open_files: PositiveInt = 256
    """Open files of one process."""


@dataclass(frozen=True)
class CommandResult:
    """What a command did.

    exit_code: the command's own, or one of the `*_CODE` constants if it was ended or not run.
    output: stdout and stderr in the order they were written, bounded. flooded: it was ended because
    it printed too much. seconds: wall time, which is never part of an observation.
    """

    exit_code: int
    output: str
    timed_out: bool
    flooded: bool
    seconds: float


def new_output(settings: SandboxSettings) -> BoundedOutput:
    """An empty output with the settings' bounds."""
    return BoundedOutput(settings.output_chars, settings.output_bytes)


def result(output: BoundedOutput, exit_code: int, timed_out: bool, seconds: float) -> CommandResult:
    """The result of a command that ran; exit_code is its own if it was not ended by a limit."""
    if output.flooded:
        exit_code, timed_out = FLOODED_CODE, False
    elif timed_out:
        exit_code = TIMED_OUT_CODE
    return CommandResult(exit_code, output.text(), timed_out, output.flooded, seconds)


def refuse(command: str) -> CommandResult | None:
    """The result for text that cannot be a command line; None for any other text."""
    if "\0" in command:
        why = "bash: the command holds a NUL character"
    elif len(command.encode(errors="replace")) > _COMMAND_BYTES:
        why = "bash: the command is too long"
    else:
        return None
    return CommandResult(NOT_RUN_CODE, why, timed_out=False, flooded=False, seconds=0.0)


def bash_line(command: str, bash: str) -> list[str | bytes]:
    """The argument vector that runs `command`, which may begin with a dash."""
    return [bash, "-c", "--", command.encode(errors="replace")]


def prlimit_line(settings: SandboxSettings, prlimit: str, *, count_processes: bool) -> list[str]:
    """prlimit's argument vector up to the command.

    A limit above this process's own hard limit could not be set, so the lower one is taken.
    count_processes: only where the user is the sandbox's own; the host's user runs other things.
    """
    limits = {
        "fsize": (resource.RLIMIT_FSIZE, settings.file_bytes),
        "cpu": (resource.RLIMIT_CPU, settings.cpu_seconds),
        "as": (resource.RLIMIT_AS, settings.memory_bytes),
        # Too small for a file, and the only size that keeps the kernel from starting core_pattern's
        # program, which would run on the host as root (fs/coredump.c); with 0 it would start.
        "core": (resource.RLIMIT_CORE, 1),
        "nofile": (resource.RLIMIT_NOFILE, settings.open_files),
        # Pending signals and timers, counted over all processes of a user.
        "sigpending": (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
        # A command must not use real-time priority, even if this user may: it would run before us.
        "rtprio": (resource.RLIMIT_RTPRIO, 0),
        "nice": (resource.RLIMIT_NICE, 0),
    }
    if count_processes:
        limits["nproc"] = (resource.RLIMIT_NPROC, settings.processes)
    line = [prlimit]
    for name, (number, wanted) in limits.items():
        hard = resource.getrlimit(number)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        line.append(f"--{name}={value}")
    return [*line, "--"]


def find_tools(*names: str) -> Mapping[str, str]:
    """The paths of the host's programs. Raises `Unavailable` that names the package of a missing
    one."""
    found = {name: shutil.which(name, path=_TOOL_PATH) for name in names}
    packages = {"bwrap": "bubblewrap", "bash": "bash", "tar": "tar", "chmod": "coreutils"}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        needed = sorted({packages.get(name, "util-linux") for name in missing})
        raise Unavailable(
            f"the sandbox needs {', '.join(missing)}, which this machine lacks; "
            f"`sudo apt-get install {' '.join(needed)}`"
        )
    return {name: path for name, path in found.items() if path is not None}
