"""One command of a policy: what it may use, what it did, and how it is put to bash.

Shared by every kind of sandbox, so that a command means the same in each. Whatever a policy can
bring about by itself (a failure, a flood, text that no shell can be given) is a `CommandResult`.
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
"""Exit code of a command that printed too much: 128 + SIGPIPE, as if its reader had gone."""
NOT_RUN_CODE = 126
"""Exit code of text that bash could not be given, as shells give for what they cannot run."""

BOX_PATH = "/usr/bin:/bin"
"""PATH of a command."""

_COMMAND_BYTES = 100_000  # below MAX_ARG_STRLEN (131,072), beyond which exec fails like a bad box
_PENDING_SIGNALS = 256  # shells need none; a machine's default is tens of thousands
_TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

SandboxKind = Literal["bwrap", "none"]


@settings("sandbox")
class SandboxSettings:
    """What a command may use."""

    kind: Annotated[SandboxKind, Change.TYPED] = "bwrap"
    """"none" runs commands as this user on this machine: limits, but no isolation. No run.toml can
    say it, only `--sandbox none`."""
    command_seconds: Annotated[PositiveFloat, Unit("seconds")] = 10.0
    """Wall seconds a command."""
    output_chars: Annotated[PositiveInt, Unit("characters")] = 600
    """Characters of a command's output that are kept, from its head and its tail."""
    output_bytes: Annotated[PositiveInt, Unit("bytes")] = 4 * 2**20
    """A command that prints more bytes than this is ended."""
    workspace_bytes: Annotated[PositiveInt, Unit("bytes")] = 32 * 2**20
    """Bytes of workspace and /tmp together. They are memory, and last for an episode."""
    workspace_inodes: PositiveInt = 2000
    """Files and folders of workspace and /tmp together."""
    processes: PositiveInt = 64
    """Processes and threads of a command."""
    cpu_seconds: Annotated[PositiveInt, Unit("seconds")] = 30
    """Processor seconds of one process."""
    memory_bytes: Annotated[PositiveInt, Unit("bytes")] = 4 * 2**30
    """Address space of one process, and memory of all processes of a command together."""
    file_bytes: Annotated[PositiveInt, Unit("bytes")] = 64 * 2**20
    """Size of one written file."""
    open_files: PositiveInt = 256
    """Open files of one process."""


@dataclass(frozen=True)
class CommandResult:
    """What a command did.

    exit_code: the command's own, or one of the `*_CODE` constants where it was ended or not run.
    output: stdout and stderr in the order they were written, bounded.
    flooded: it was ended because it printed too much.
    seconds: wall time; goes into no observation.
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
    """What a command that ran came to; exit_code is its own, where it was not ended from here."""
    if output.flooded:
        exit_code, timed_out = FLOODED_CODE, False
    elif timed_out:
        exit_code = TIMED_OUT_CODE
    return CommandResult(exit_code, output.text(), timed_out, output.flooded, seconds)


def refuse(command: str) -> CommandResult | None:
    """The result of text that cannot be a command line; None for all other text."""
    if "\0" in command:
        why = "bash: the command holds a NUL character"
    elif len(command.encode(errors="replace")) > _COMMAND_BYTES:
        why = "bash: the command is too long"
    else:
        return None
    return CommandResult(NOT_RUN_CODE, why, timed_out=False, flooded=False, seconds=0.0)


def bash_line(command: str, bash: str) -> list[str | bytes]:
    """The argument vector that has `command` run, also where it begins with a dash."""
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
        # Too small for a file, and the one size that keeps the kernel from starting core_pattern's
        # program, which would run on the host, as root (fs/coredump.c). 0 would not.
        "core": (resource.RLIMIT_CORE, 1),
        "nofile": (resource.RLIMIT_NOFILE, settings.open_files),
        # Signals and timers that wait; one count for all of a user's processes.
        "sigpending": (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
        # Where this user may use such a priority, a command must not: it would come before us.
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
    """Where the host's programs are. Raises `Unavailable` naming the package of a missing one."""
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
