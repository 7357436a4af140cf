"""The sandbox in which a policy's commands run: one workspace an episode, and limits on each
command.

A policy may write any command, so a command gets no network, no host files, no environment and no
capabilities, and has limits on time, output, memory, processes and disk. Any effect of a command is
data. A failure of the sandbox itself is `Unavailable` and is never reported as a command's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from fieldkit.errors import Unavailable
from rollout.sandbox.bwrap import BwrapSandbox
from rollout.sandbox.command import CommandResult, SandboxSettings
from rollout.sandbox.unprotected import UnprotectedSandbox

__all__ = ["CommandResult", "Sandbox", "SandboxSettings", "make_sandbox", "probe"]


class Sandbox(Protocol):
    """One workspace and the commands in it; one an episode, one command at a time."""

    @property
    def workspace(self) -> Path:
        """The workspace's path for this process, between `open` and `close`."""

    async def open(self, files: Mapping[str, bytes]) -> None:
        """Make a workspace that holds `files` (relative path -> bytes). Raises `Unavailable`."""

    async def run(self, command: str) -> CommandResult:
        """Run `command` with bash in the workspace. Raises `Unavailable` if the sandbox failed."""

    async def close(self) -> None:
        """Remove the workspace and end all processes in it. May be called again."""


def make_sandbox(settings: SandboxSettings, scratch: Path) -> Sandbox:
    """A closed sandbox of the kind in the settings; only kind "none" keeps its workspace in
    `scratch`. Raises `Unavailable` if a program is missing.
    """
    if settings.kind == "none":
        return UnprotectedSandbox(settings, scratch)
    return BwrapSandbox(settings)


def probe(settings: SandboxSettings) -> None:
    """Run one command in a sandbox. Raises `Unavailable` with the cause and the remedy. Kind "none"
    always succeeds. May be called with or without an event loop.
    """
    if settings.kind == "none":
        return
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _try_out(settings)).result()
    except Unavailable as e:
        reason = TOO_OLD if "Unknown option" in str(e) else forbidding_setting(_read_host)
        raise Unavailable(f"{e}\n{reason}" if reason else str(e)) from e


async def _try_out(settings: SandboxSettings) -> None:
    sandbox = BwrapSandbox(settings)
    try:
        await sandbox.open({"seed.txt": b"seed\n"})
        result = await sandbox.run("cat seed.txt && echo kept > kept.txt && cat kept.txt")
    finally:
        await sandbox.close()
    if (result.exit_code, result.output) != (0, "seed\nkept\n"):
        raise Unavailable(
            f"a first command in the sandbox ended with {result.exit_code}: {result.output.strip()}"
        )


def _lasting(setting: str) -> str:
    """The command that sets it now and after each start of the machine."""
    file = "/etc/sysctl.d/60-grpo-loop.conf"
    return f"`echo {setting} | sudo tee -a {file}; sudo sysctl --system`"


_FORBIDDING = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "AppArmor forbids user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1): "
        f"{_lasting('kernel.apparmor_restrict_unprivileged_userns=0')}, or an AppArmor profile for "
        "bwrap with `userns,`.",
    ),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "The kernel forbids user namespaces (kernel.unprivileged_userns_clone = 0): "
        f"{_lasting('kernel.unprivileged_userns_clone=1')}.",
    ),
    (
        "/proc/sys/user/max_user_namespaces",
        "0",
        "The kernel allows no user namespace (user.max_user_namespaces = 0): "
        f"{_lasting('user.max_user_namespaces=10000')}.",
    ),
)
"""File of the host, its text if it forbids user namespaces, and how to allow them."""


_OF_CONTAINERS = (
    ("/proc/self/status", "Seccomp:\t2", "a seccomp filter"),
    ("/proc/self/attr/current", "docker-default", "an AppArmor profile"),
    ("/proc/self/mounts", " /proc/kcore ", "a masked /proc"),
)
"""File of the host, a text that it holds where a container runtime set something, and what that is.
Each alone keeps a sandbox from starting."""

TOO_OLD = "The sandbox needs bubblewrap 0.8 or newer, as in Debian 12 and Ubuntu 24.04."


def forbidding_setting(read: Callable[[str], str]) -> str:
    """The setting of the host that forbids user namespaces, and how to change it; empty if none is
    found.

    read: gives the text of a file of the host, empty if it cannot be read.
    """
    why = next((why for file, value, why in _FORBIDDING if read(file).strip() == value), "")
    bounds = [what for file, sign, what in _OF_CONTAINERS if sign in read(file)]
    if not why and bounds:
        why = (
            f"This process has {' and '.join(bounds)}, as in a container: start the container with "
            "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined`."
        )
    return why and (
        f"{why} Without any, `--sandbox none` behind `grpo run RUN` runs the policy's commands as "
        "you, unprotected."
    )


def _read_host(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
