"""A workspace: a small tmpfs that the namespaces of one process hold for one episode.

So a workspace has a quota of bytes and files and is not visible on the host. It is gone when that
process ends, which happens at the latest when this process ends: nothing needs to be removed after
a crash, and no tree is too deep. The process runs none of a policy's commands. Of a sandbox's
processes only this one has the marks of the phase that started it, so that one left behind can be
found.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fieldkit.errors import Unavailable
from fieldkit.process.owned import DROPPED_UID, own_marks
from rollout.sandbox.child import Child, readable
from rollout.sandbox.command import SandboxSettings, new_output

KEPT_WORKSPACE = "/tmp/workspace"
"""The path of the workspace in the namespace of its process."""
KEPT_SCRATCH = "/tmp/scratch"
"""The path of the episode's /tmp in the namespace of its process."""

_NOBODY = DROPPED_UID  # the box's user if we are root, because RLIMIT_NPROC does not apply to root
_START_SECONDS = 60.0  # to make a workspace; it takes about 10 ms, but the machine may be busy

# The time of every file in a seed: 2024-01-01 00:00 UTC, so that `ls -l` is always the same.
_SEED_TIME = 1_704_067_200

# Mounted over /tmp because every machine has one and the process does not need it. The last line
# waits until the other end of descriptor $4 is closed, at the latest by the kernel.
_SCRIPT = f"""
set -e
mount -t tmpfs -o "size=$1,nr_inodes=$2,mode=0700" workspace /tmp
mkdir {KEPT_WORKSPACE} {KEPT_SCRATCH}
tar -x -f - -C {KEPT_WORKSPACE}
echo "$$" >&"$3"
exec cat <&"$4" >/dev/null
"""
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Workspace:
    """Starts at once. Await `ready` before anything else, and call `close` at the end.

    files: relative path -> bytes. tools: the paths of bwrap, setpriv and bash. Raises `Unavailable`
    if it cannot start.
    """

    def __init__(
        self, files: Mapping[str, bytes], settings: SandboxSettings, tools: Mapping[str, str]
    ) -> None:
        self._output = new_output(settings)
        self._pid = 0
        self._workspace_fd = -1
        self._ready, says_ready = os.pipe()
        held, self._lifeline = os.pipe()
        try:
            with _archive(files) as archive:
                self._child = Child(
                    _command_line(settings, tools, says_ready, held),
                    self._output,
                    env={"PATH": _PATH, "LC_ALL": "C.UTF-8", **own_marks()},
                    stdin=archive,
                    pass_fds=(says_ready, held),
                )
        except OSError as e:
            os.close(self._ready)
            os.close(self._lifeline)
            raise Unavailable(f"the sandbox's workspace could not be made: {e}") from e
        finally:
            os.close(says_ready)
            os.close(held)

    async def ready(self) -> None:
        """Wait until the workspace holds its files. Raises `Unavailable`."""
        try:
            await asyncio.wait_for(readable(self._ready), _START_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"no workspace after {_START_SECONDS:g} s; is the machine busy?"
            ) from None
        answer = os.read(self._ready, 32)
        if not answer.endswith(b"\n"):
            await self._child.drain(_START_SECONDS)
            said = self._output.text().strip()
            raise Unavailable(f"the sandbox's workspace could not be made: {said}")
        self._pid = int(answer)
        try:
            kept = f"/proc/{self._pid}/root{KEPT_WORKSPACE}"
            self._workspace_fd = os.open(kept, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as e:
            raise Unavailable(f"the sandbox's workspace cannot be reached: {e}") from e

    @property
    def path(self) -> Path:
        """The workspace as this process sees it, until `close`."""
        return Path(f"/proc/self/fd/{self._workspace_fd}")

    @property
    def entrance(self) -> list[str]:
        """nsenter's arguments for entering the namespaces. Raises `Unavailable` if they are
        gone."""
        if not self._child.running:
            raise Unavailable("the sandbox's workspace is gone: its process has ended")
        entrance = ["--target", str(self._pid), "--user", "--mount"]
        return entrance if os.geteuid() == 0 else [*entrance, "--preserve-credentials"]

    def unlock(self) -> None:
        """Give the workspace folder its owner's permissions back.

        Without them bubblewrap cannot enter, and a policy's `chmod 000 .` would look like a failed
        box.
        """
        mode = stat.S_IMODE(os.fstat(self._workspace_fd).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            self.path.chmod(mode | stat.S_IRWXU)

    def close(self) -> None:
        """End the process, which removes the workspace."""
        os.close(self._ready)
        os.close(self._lifeline)
        if self._workspace_fd >= 0:
            os.close(self._workspace_fd)
        self._child.close()


def _command_line(
    settings: SandboxSettings, tools: Mapping[str, str], says_ready: int, held: int
) -> list[str]:
    drop = ["--reuid", str(_NOBODY), "--regid", str(_NOBODY), "--clear-groups", "--"]
    namespaces = ["--unshare-user", "--uid", "0", "--gid", "0", "--cap-add", "CAP_SYS_ADMIN"]
    numbers = [settings.workspace_bytes, settings.workspace_inodes, says_ready, held]
    return [
        *([tools["setpriv"], *drop] if os.geteuid() == 0 else []),
        *[tools["bwrap"], *namespaces, "--dev-bind", "/", "/", "--die-with-parent", "--"],
        *[tools["bash"], "-c", _SCRIPT, "workspace", *map(str, numbers)],
    ]


@contextlib.contextmanager
def _archive(files: Mapping[str, bytes]) -> Iterator[int]:
    """A descriptor from which a tar archive of `files` can be read.

    The workspace belongs to a user namespace in which the host's root has no rights, so its first
    files are written from inside as well.
    """
    with open(os.memfd_create("seed"), "w+b") as raw:
        with tarfile.open(fileobj=raw, mode="w") as archive:
            for path, content in sorted(files.items()):
                entry = tarfile.TarInfo(path)
                entry.size, entry.mtime, entry.mode = len(content), _SEED_TIME, 0o644
                archive.addfile(entry, io.BytesIO(content))
        raw.flush()
        os.lseek(raw.fileno(), 0, os.SEEK_SET)
        yield raw.fileno()
