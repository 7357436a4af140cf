"""Commands without a sandbox, for machines that forbid one.

They run as this user in a folder of the host, with the same limits on time and output, and see
whatever this user sees. Only `--sandbox none` on the command line chooses this, and the run's
manifest records it; nothing falls back to it.
"""

from __future__ import annotations

import asyncio
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fieldkit.errors import Unavailable
from fieldkit.process.owned import own_marks
from rollout.sandbox.child import Child, Ending
from rollout.sandbox.command import (
    BOX_PATH,
    CommandResult,
    SandboxSettings,
    bash_line,
    find_tools,
    new_output,
    prlimit_line,
    refuse,
    result,
)
from rollout.sandbox.output import BoundedOutput

_DRAIN_SECONDS = 0.5  # for output left in the pipe when the command's group has ended
_REMOVE_SECONDS = 60.0  # for a workspace of any size to be removed


class UnprotectedSandbox:
    """A workspace in a folder of its own below `scratch`, and commands in it; one an episode.

    The workspace is HOME, and a command may remove or move it: then it is there again, empty.
    A command's process group ends with it. A daemon that left the group survives, because no
    namespace holds it. It has the marks of the phase that started it, so it can be found.
    """

    def __init__(self, settings: SandboxSettings, scratch: Path) -> None:
        self._settings = settings
        self._scratch = scratch
        self._tools = find_tools("prlimit", "bash", "chmod", "rm")
        self._folder: Path | None = None

    @property
    def workspace(self) -> Path:
        """The path of the workspace, between `open` and `close`."""
        if self._folder is None:
            raise RuntimeError("the sandbox is not open")
        return self._folder / "workspace"

    async def open(self, files: Mapping[str, bytes]) -> None:
        """Make a workspace that holds `files`."""
        await self.close()
        self._scratch.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="workspace-", dir=self._scratch)).resolve()
        self._restore()
        for path, content in files.items():
            file = self.workspace / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    async def run(self, command: str) -> CommandResult:
        """Run `command` with bash in the workspace. Raises `Unavailable` if it cannot start."""
        self._restore()
        refused = refuse(command)
        if refused is not None:
            return refused
        output = new_output(self._settings)
        argv = [
            *prlimit_line(self._settings, self._tools["prlimit"], count_processes=False),
            *bash_line(command, self._tools["bash"]),
        ]
        home = str(self.workspace)
        env = {"PATH": BOX_PATH, "HOME": home, "LANG": "C.UTF-8", **own_marks()}
        try:
            child = Child(argv, output, env=env, cwd=home)
        except OSError as e:
            raise Unavailable(f"a command could not be started: {e}") from e
        try:
            return await self._finish(child, output)
        finally:
            self._restore()

    async def close(self) -> None:
        """Remove the workspace, whatever its depth and permissions. May be called again."""
        folder, self._folder = self._folder, None
        if folder is None:
            return
        # These programs can remove folders that are too deep for a path or lack permissions.
        for line in (["chmod", "-R", "u+rwX", "--"], ["rm", "-rf", "--"]):
            argv = [self._tools[line[0]], *line[1:], str(folder)]
            child = Child(argv, BoundedOutput(600, 2**20), env={})
            try:
                await child.over(_REMOVE_SECONDS)
            finally:
                child.close()
        if await asyncio.to_thread(folder.exists):
            raise Unavailable(f"{folder} could not be removed; remove it by hand")

    def _restore(self) -> None:
        """Have the workspace be a folder of ours that can be entered, whatever was done to it."""
        for folder in (self.workspace.parent, self.workspace):
            if folder.is_symlink() or not folder.is_dir():
                folder.unlink(missing_ok=True)
                folder.mkdir(parents=True)
            folder.chmod(stat.S_IRWXU)

    async def _finish(self, child: Child, output: BoundedOutput) -> CommandResult:
        try:
            try:
                ending = await child.over(self._settings.command_seconds)
            finally:
                child.kill()
                code = await child.reap()
            await child.drain(_DRAIN_SECONDS)
            seconds = child.seconds
        finally:
            child.close()
        return result(output, code, ending is Ending.TIMED_OUT, seconds)
