"""A workspace: a small tmpfs that the namespaces of one process hold for one episode.

So a workspace has a quota of bytes and files, nobody meets it on the host by accident, and it is
gone when that process is, which is when this one is, however that came about: nothing has to be
swept after a crash, and no tree is too deep to remove. It runs none of a policy's commands, and it
alone of a sandbox carries the marks of the phase that started it, so that one that stays is found.
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
"""Where its process's namespace has the workspace."""
KEPT_SCRATCH = "/tmp/scratch"
"""Where its process's namespace has the episode's /tmp."""

_NOBODY = DROPPED_UID  # the box's user where we are root, whom RLIMIT_NPROC does not bind
_START_SECONDS = 60.0  # to make a workspace; it takes some 10 ms, but the machine may be starved

# Of every file in a seed: 2024-01-01 00:00 UTC, so that `ls -l` looks the same every time.
_SEED_TIME = 1_704_067_200

# Mounted over /tmp because every machine has one, and the process has no other use for it. The last
# line waits for the other end of descriptor $4 to close, which the kernel sees to at the latest.
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
    """Starts at once; `ready` must be awaited before the rest, and `close` called at the end.

    files: relative path -> bytes; tools: where bwrap, setpriv and bash are.
    Raises `Unavailable` where it cannot start.
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
        """nsenter's arguments to get into the namespaces. Raises `Unavailable` if they are gone."""
        if not self._child.running:
            raise Unavailable("the sandbox's workspace is gone: its process has ended")
        entrance = ["--target", str(self._pid), "--user", "--mount"]
        return entrance if os.geteuid() == 0 else [*entrance, "--preserve-credentials"]

    def unlock(self) -> None:
        """Give the workspace folder its owner's permissions back.

        Without them bubblewrap cannot enter, and a policy's `chmod 000 .` would look like a
        broken box.
        """
        mode = stat.S_IMODE(os.fstat(self._workspace_fd).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            self.path.chmod(mode | stat.S_IRWXU)

    def close(self) -> None:
        """End the process, and with it the workspace."""
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

    The workspace belongs to a user namespace that root of the host has no part in, so its first
    files, too, are written from within.
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
