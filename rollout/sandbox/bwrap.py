"""Commands in bubblewrap: a fresh box for each command, over a workspace that lasts an episode.

A box has namespaces of its own and shares only the workspace and /tmp with the previous box. Its
exit-code record distinguishes a failed command, which is data, from a failed box, which is
`Unavailable`. No process outlives its command: the pid namespace has ended before the result is
known.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fieldkit.errors import Unavailable
from fieldkit.files.json_text import parse_json
from rollout.sandbox.child import GONE_SECONDS, Child, Ending
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
from rollout.sandbox.cpus import BUSY_SECONDS, first_cpu, put_behind
from rollout.sandbox.output import BoundedOutput
from rollout.sandbox.seccomp import make_filter
from rollout.sandbox.workspace import KEPT_SCRATCH, KEPT_WORKSPACE, Workspace

_STATUS_BYTES = 65536  # far more than bubblewrap's records, about 200 bytes
_LOOK_SECONDS = 0.1  # between two checks of a box; in that time two CPUs fill about 0.4 GiB
_TOOLS = ("bwrap", "nsenter", "choom", "taskset", "prlimit", "setpriv", "bash", "tar")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CPUCLOCK_SCHED = 2  # linux/posix-timers.h: the processor time of all of a process's threads

_CHECKOUT = Path(__file__).resolve().parents[2]


def hidden(folder: Path) -> list[str]:
    """The words that hide a folder below /usr, which boxes see otherwise: a checkout there, as in
    an image's /usr/src/app, has the answers to its tasks."""
    if not folder.is_relative_to("/usr"):
        return []
    return ["--tmpfs", str(folder), "--remount-ro", str(folder)]


_BOX = [
    *["--unshare-all", "--unshare-user", "--disable-userns", "--assert-userns-disabled"],
    *["--as-pid-1", "--die-with-parent", "--new-session"],
    *["--clearenv", "--setenv", "PATH", BOX_PATH, "--setenv", "LANG", "C.UTF-8"],
    *["--setenv", "HOME", "/workspace"],
    *["--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"],
    *["--symlink", "usr/lib64", "/lib64", "--symlink", "usr/sbin", "/sbin", "--dir", "/etc"],
    *hidden(_CHECKOUT),
    *["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"],
    *["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"],
    *["--proc", "/proc", "--dev", "/dev"],
    # Both count against the workspace's quota; a tmpfs of their own would not limit inodes.
    *["--bind", KEPT_SCRATCH, "/tmp", "--bind", KEPT_SCRATCH, "/dev/shm"],
    *["--bind", KEPT_WORKSPACE, "/workspace", "--chdir", "/workspace"],
    *["--hostname", "sandbox", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"],
    # In /proc a command could undo what was set for it: that it is among the first to be killed
    # when memory is full (oom_score_adj), and that others run before it (autogroup).
    *["--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/"],
]


# The box's first process. Its end ends every other process of the box. Bubblewrap, its parent, then
# reports the exit code and leaves no zombie; bubblewrap's own reaper, which runs here without
# --as-pid-1, does neither. Its own stderr is /dev/null, because bash would report a killed command
# there.
_INIT = 'exec 3>&2 2>/dev/null; (exec "$@" 2>&3 3>&-); exit "$?"'


class BwrapSandbox:
    """One workspace and the boxes around its commands; one an episode.

    Not for two commands at a time. Raises `Unavailable` where a tool is missing.
    """

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._tools = find_tools(*_TOOLS)
        self._open: Workspace | None = None

    @property
    def workspace(self) -> Path:
        """Where this process sees the workspace, between `open` and `close`."""
        return self._kept().path

    async def open(self, files: Mapping[str, bytes]) -> None:
        """Make a workspace that holds `files`. Raises `Unavailable`."""
        await self.close()
        workspace = Workspace(files, self._settings, self._tools)
        try:
            await workspace.ready()
        except BaseException:
            workspace.close()
            raise
        self._open = workspace

    async def run(self, command: str) -> CommandResult:
        """Run `command` with bash in the workspace. Raises `Unavailable` if the box fails."""
        entrance = self._kept().entrance
        self._kept().unlock()
        refused = refuse(command)
        if refused is not None:
            return refused
        output = new_output(self._settings)
        try:
            status = _Status()
        except OSError as e:
            raise _not_started(e) from e
        try:
            child = self._start(entrance, command, output, status)
            watch = _Watch(status, output, self._settings.memory_bytes)
            try:
                ending = await child.over(self._settings.command_seconds)
            finally:
                watch.stop()
                await _end(child, status)
            return self._judge(ending, status, output, child.seconds)
        finally:
            status.close()

    async def close(self) -> None:
        """Remove the workspace. May be called again."""
        workspace, self._open = self._open, None
        if workspace is not None:
            workspace.close()

    def _kept(self) -> Workspace:
        if self._open is None:
            raise RuntimeError("the sandbox is not open")
        return self._open

    def _start(
        self, entrance: list[str], command: str, output: BoundedOutput, status: _Status
    ) -> Child:
        tools = self._tools
        with contextlib.ExitStack() as held:
            held.callback(status.watch)
            try:
                # Pass arguments by descriptor, because the box could read them on the command line.
                forbidden = _pipe_with(make_filter(), held)
                box = [*_BOX, "--seccomp", str(forbidden)]
                arguments = _pipe_with(b"".join(a.encode() + b"\0" for a in box), held)
                argv = [
                    *[tools["choom"], "-n", "1000", "--"],
                    *[tools["taskset"], "--cpu-list", str(first_cpu())],
                    *[tools["nsenter"], *entrance, "--"],
                    *[tools["bwrap"], "--args", str(arguments)],
                    *["--json-status-fd", str(status.write_end), "--", "sh", "-c", _INIT, "sh"],
                    *prlimit_line(self._settings, tools["prlimit"], count_processes=True),
                    *bash_line(command, "bash"),
                ]
                passed = (arguments, forbidden, status.write_end)
                # Without the workspace's marks: a command must not learn of the host's runs.
                return Child(argv, output, env={}, pass_fds=passed)
            except OSError as e:
                raise _not_started(e) from e

    def _judge(
        self, ending: Ending, status: _Status, output: BoundedOutput, seconds: float
    ) -> CommandResult:
        """The command's result. Without a record of it the box did not run it."""
        timed_out = ending is Ending.TIMED_OUT
        if not output.flooded and timed_out and not status.started:
            raise Unavailable(f"the sandbox did not start in {seconds:.0f} s; is the machine busy?")
        if not output.flooded and not timed_out and status.exit_code is None:
            said = output.text().strip()
            raise Unavailable(f"the sandbox failed, not its command: {said or 'no word'}")
        return result(output, status.exit_code or 0, timed_out, seconds)


def _not_started(error: OSError) -> Unavailable:
    return Unavailable(f"the sandbox could not be started: {error}")


def _pipe_with(content: bytes, held: contextlib.ExitStack) -> int:
    """The read end of a pipe that holds `content` (less than a pipe's 64 KiB) and nothing more, to
    be closed with `held`."""
    read_end, write_end = os.pipe()
    held.callback(os.close, read_end)
    os.write(write_end, content)
    os.close(write_end)
    return read_end


async def _end(child: Child, status: _Status) -> None:
    """End all processes of a command, and read bubblewrap's last record of it."""
    try:
        status.take()
        if child.running and not status.kill_box():
            child.kill()
        # bubblewrap waits for the box's first process, and that one ends after all the others.
        await child.reap()
        await child.drain(GONE_SECONDS)
        status.take()
    finally:
        child.close()


class _Status:
    """bubblewrap's records of one box: its first process, then the command's exit code."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._text = b""
        self._box: int | None = None
        self._box_pid = 0
        self.started = False
        self.exit_code: int | None = None

    def watch(self) -> None:
        """Read records as they come, once the box has the write end."""
        os.close(self.write_end)
        asyncio.get_running_loop().add_reader(self._read_end, self.take)

    @property
    def box_pid(self) -> int | None:
        """The pid of the box's first process; None before its start and after its end."""
        if self._box is None:
            return None
        try:
            signal.pidfd_send_signal(self._box, 0)
        except ProcessLookupError:
            return None
        return self._box_pid

    def kill_box(self) -> bool:
        """SIGKILL the box's first process, and so the whole box; false if none is known. Only while
        bubblewrap runs: only bubblewrap reaps that process, so until then the pidfd refers to it.
        """
        if self._box is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._box, signal.SIGKILL)
        return True

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)
        if self._box is not None:
            os.close(self._box)

    def take(self) -> None:
        """Read the records that are there."""
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._read_end, _STATUS_BYTES)
            if not chunk:
                asyncio.get_running_loop().remove_reader(self._read_end)
            self._text += chunk
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            self._record(parse_json(line, "bwrap's status"))

    def _record(self, record: dict[str, int]) -> None:
        if "child-pid" in record:
            self.started = True
            # If it has ended already, there is nothing to wait for.
            with contextlib.suppress(ProcessLookupError):
                self._box_pid = record["child-pid"]
                self._box = os.pidfd_open(self._box_pid)
        if "exit-code" in record:
            self.exit_code = record["exit-code"]


class _Watch:
    """Checks a running box at intervals for what limits on one process cannot see.

    The kernel's limits apply to one process, and a command may have many. A command that has used
    its share of the CPUs gets a lower priority than other episodes. A command whose processes
    together hold more memory than `memory_bytes` is ended, as the kernel would do once the machine
    ran out.
    """

    def __init__(self, status: _Status, output: BoundedOutput, memory_bytes: int) -> None:
        self._status = status
        self._output = output
        self._memory_bytes = memory_bytes
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_later(_LOOK_SECONDS, self._look)

    def stop(self) -> None:
        self._next.cancel()

    def _look(self) -> None:
        self._next = self._loop.call_later(_LOOK_SECONDS, self._look)
        box = self._status.box_pid
        if box is None:
            return
        seconds, resident = {}, {}
        for pid in _family(box):
            # The time of a process that has ended is counted with its parent's.
            with contextlib.suppress(OSError):
                seconds[pid], resident[pid] = _used(pid)
        if sum(seconds.values()) > BUSY_SECONDS:
            put_behind(box, seconds)
        # Shared memory is in the size of every process that shares it: a cheap upper bound.
        if sum(resident.values()) > self._memory_bytes:
            held = sum(_proportional(pid, size) for pid, size in resident.items())
            if held > self._memory_bytes:
                self.stop()
                self._output.feed(b"Killed: out of memory\n")
                self._status.kill_box()


def _family(pid: int) -> Iterator[int]:
    """A process of ours and all its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from _family(int(child))


def _used(pid: int) -> tuple[float, int]:
    """Processor seconds of a process and its ended children, and its resident bytes."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    # Read its own seconds from its clock (clock_getcpuclockid(3), whose number the C library
    # computes like this): stat counts whole ticks, so fifty processes of less than a tick each
    # would count as none.
    own = time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    # proc_pid_stat(5) counts from 1, and the first two fields are cut off: 16, 17, and 24.
    return own + sum(map(int, fields[13:15])) / _TICKS, int(fields[21]) * _PAGE


def _proportional(pid: int, resident: int) -> int:
    """Its resident bytes, with shared memory divided among the processes that share it."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    except ProcessLookupError:
        return 0
    except OSError:  # it may forbid reading (PR_SET_DUMPABLE), and gains nothing by that
        return resident
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line[:4] == "Pss:")
