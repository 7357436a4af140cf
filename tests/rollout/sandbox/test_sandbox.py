from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import rollout.sandbox.bwrap
from fieldkit.errors import Unavailable
from fieldkit.process.owned import LEDGER_VARIABLE, MARKER_VARIABLE, family, marked
from rollout.sandbox.base import Sandbox, SandboxSettings, make_sandbox
from rollout.sandbox.child import Child
from tests.rollout.sandbox.looking import GENEROUS, processes_with

REPOSITORY = Path(__file__).parents[3]


def settings(**changes: Any) -> SandboxSettings:
    return SandboxSettings(**{"command_seconds": GENEROUS, **changes})


@pytest_asyncio.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Opens sandboxes with given settings and files, and closes them after the test."""
    sandboxes: list[Sandbox] = []

    async def make(files: dict[str, bytes] | None = None, **changes: Any) -> Sandbox:
        sandbox = make_sandbox(settings(**changes), tmp_path / "scratch")
        sandboxes.append(sandbox)
        await sandbox.open(files or {})
        return sandbox

    try:
        yield make
    finally:
        for sandbox in sandboxes:
            await sandbox.close()


Opened = Callable[..., Any]
both_kinds = pytest.mark.parametrize("kind", ["bwrap", "none"])


# --- a command's result ---------------------------------------------------------------------------


@both_kinds
async def test_output_and_errors_come_in_order_with_the_exit_code(
    opened: Opened, kind: str
) -> None:
    sandbox = await opened(kind=kind)
    result = await sandbox.run("echo out; echo err >&2; echo out again; exit 7")
    assert (result.exit_code, result.output) == (7, "out\nerr\nout again\n")
    assert not result.timed_out
    assert not result.flooded


@both_kinds
async def test_files_last_from_command_to_command(opened: Opened, kind: str) -> None:
    sandbox = await opened({"in/seed.txt": b"seed\n"}, kind=kind)
    await sandbox.run("cp in/seed.txt copy.txt")
    assert (await sandbox.run("cat copy.txt")).output == "seed\n"
    assert (sandbox.workspace / "copy.txt").read_bytes() == b"seed\n"


def descriptors() -> set[int]:
    """The numbers that this process has open."""
    with os.scandir("/proc/self/fd") as open_now:
        return {int(entry.name) for entry in open_now}


async def test_where_descriptors_run_out_the_box_is_unavailable_and_none_is_lost(
    opened: Opened,
) -> None:
    sandbox = await opened()
    await sandbox.run("true")
    before, (soft, hard) = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    free = sorted(set(range(1024)) - before)
    said = []
    for spare in range(14):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], hard))
        try:
            await sandbox.run("true")
        except Unavailable as e:
            said.append(str(e))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert descriptors() == before
    assert 0 < len(said) < 14
    assert all("Too many open files" in text for text in said), said


@both_kinds
async def test_input_is_empty(opened: Opened, kind: str) -> None:
    sandbox = await opened(kind=kind)
    assert (await sandbox.run("cat; echo end")).output == "end\n"


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("-x", 127, "bash: line 1: -x: command not found\n"),
        ("--", 127, "bash: line 1: --: command not found\n"),
        ("", 0, ""),
        ("echo 'one\ntwo'", 0, "one\ntwo\n"),
        ("kill -9 $$", 137, ""),
        ("kill -9 1; echo alive", 0, "alive\n"),
        ("echo a\0b", 126, "bash: the command holds a NUL character"),
        ("echo \ud800", 0, "?\n"),
        ("echo " + "x" * 200_000, 126, "bash: the command is too long"),
        ("printf '\\377\\n'", 0, "\ufffd\n"),
    ],
)
async def test_whatever_is_written_has_a_result(
    opened: Opened, command: str, code: int, output: str
) -> None:
    result = await (await opened()).run(command)
    assert (result.exit_code, result.output) == (code, output)


# --- bounds ---------------------------------------------------------------------------------------


@both_kinds
async def test_a_command_that_runs_too_long_is_ended(opened: Opened, kind: str) -> None:
    sandbox = await opened(kind=kind, command_seconds=1.5)
    result = await sandbox.run("echo begun; sleep 86400.25")
    assert (result.exit_code, result.output, result.timed_out) == (124, "begun\n", True)
    assert result.seconds < 1.5 + GENEROUS
    assert processes_with("86400.25") == []


@both_kinds
async def test_a_flood_is_ended_long_before_its_time(opened: Opened, kind: str) -> None:
    sandbox = await opened(kind=kind, command_seconds=240)
    result = await sandbox.run("yes flood-86401")
    assert result.flooded
    assert result.exit_code == 141
    assert not result.timed_out
    assert len(result.output) < 700
    assert result.seconds < GENEROUS
    assert processes_with("flood-86401") == []


async def test_a_long_output_below_the_flood_limit_lets_the_command_end(opened: Opened) -> None:
    sandbox = await opened()
    result = await sandbox.run("seq 100000; touch finished; exit 3")
    assert (result.exit_code, result.flooded) == (3, False)
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("99999\n100000\n")
    assert (sandbox.workspace / "finished").exists()


async def test_a_silent_command_that_closed_its_output_still_counts(opened: Opened) -> None:
    sandbox = await opened()
    result = await sandbox.run("exec >&- 2>&-; touch finished; exit 5")
    assert (result.exit_code, result.output) == (5, "")
    assert (sandbox.workspace / "finished").exists()


async def test_a_daemon_neither_survives_nor_delays_the_result(opened: Opened) -> None:
    sandbox = await opened(command_seconds=240)
    result = await sandbox.run("setsid sleep 86402.25 & setsid nohup sleep 86402.25 & echo started")
    assert (result.exit_code, result.output) == (0, "started\n")
    assert result.seconds < GENEROUS
    assert processes_with("86402.25") == []


async def test_a_plain_background_job_ends_with_its_command(opened: Opened) -> None:
    sandbox = await opened(kind="none", command_seconds=240)
    result = await sandbox.run("sleep 86403.25 & echo started")
    assert (result.exit_code, result.output) == (0, "started\n")
    assert result.seconds < GENEROUS
    assert processes_with("86403.25") == []


async def test_a_fork_bomb_stays_in_its_box(opened: Opened) -> None:
    sandbox = await opened(command_seconds=2)
    await sandbox.run("bomb() { bomb | bomb & }; bomb; sleep 86404.25")
    assert processes_with("86404.25") == []
    assert (await sandbox.run("for i in $(seq 200); do sleep 3 & done; wait")).output.count(
        "Resource temporarily unavailable"
    )
    assert (await sandbox.run("echo well")).output == "well\n"


@pytest.mark.parametrize(
    "command",
    ["head -c 100M /dev/zero > big", "head -c 100M /dev/zero > /tmp/big", "touch $(seq 5000)"],
)
async def test_disk_has_a_quota(opened: Opened, command: str) -> None:
    sandbox = await opened(workspace_bytes=2**20, workspace_inodes=100)
    result = await sandbox.run(command)
    assert result.exit_code != 0
    assert "No space left on device" in result.output
    assert (await sandbox.run("rm -rf ./* /tmp/big; echo again > f; cat f")).output == "again\n"


async def test_one_full_workspace_leaves_the_others_alone(opened: Opened) -> None:
    full, other = await opened(workspace_bytes=2**20), await opened(workspace_bytes=2**20)
    await full.run("head -c 100M /dev/zero > big")
    assert (await other.run("head -c 500K /dev/zero | tee big | wc -c")).output == "512000\n"


async def test_memory_has_a_limit(opened: Opened) -> None:
    sandbox = await opened(memory_bytes=128 * 2**20)
    result = await sandbox.run("x=$(head -c 400M /dev/zero | tr '\\0' a); echo ${#x}")
    assert result.exit_code != 0
    assert "cannot allocate" in result.output


# --- what a command can see and reach -------------------------------------------------------------


async def test_the_environment_is_the_boxes_own(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_86405", "leak")
    sandbox = await opened()
    result = await sandbox.run("env | sort; tr '\\0' '\\n' < /proc/1/environ | sort")
    names = {line.partition("=")[0] for line in result.output.splitlines()}
    assert names == {"HOME", "LANG", "PATH", "PWD", "SHLVL", "_"}
    assert "HOME=/workspace\n" in result.output


@pytest.fixture
def phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """This process as the phase of a run, by its marks; the marker."""
    marks = {MARKER_VARIABLE: f"rollout-{tmp_path.name}", LEDGER_VARIABLE: str(tmp_path / "ledger")}
    for name, value in marks.items():
        monkeypatch.setenv(name, value)
    yield marks[MARKER_VARIABLE]
    for pid in family(marks[MARKER_VARIABLE]):
        os.kill(pid, signal.SIGKILL)


async def test_the_workspaces_process_carries_the_marks_of_its_phase_and_the_box_does_not(
    opened: Opened, phase: str
) -> None:
    sandbox = await opened()
    known = {m.pid for m in marked() if m.marker == phase}
    assert int(sandbox._open.entrance[1]) in known
    assert set(family(phase)) == known
    result = await sandbox.run("env; tr '\\0' '\\n' < /proc/1/environ; sleep 0.01")
    assert "PATH=" in result.output
    assert phase not in result.output
    assert MARKER_VARIABLE not in result.output
    assert LEDGER_VARIABLE not in result.output


async def test_the_box_drops_what_its_caller_has_in_the_environment(
    opened: Opened, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller is given an empty one; were that forgotten, the box would still keep it out."""

    class Generous(Child):
        def __init__(self, *args: Any, env: Mapping[str, str], **more: Any) -> None:
            super().__init__(*args, env={**os.environ, **env}, **more)

    monkeypatch.setattr(rollout.sandbox.bwrap, "Child", Generous)
    result = await (await opened()).run("env; tr '\\0' '\\n' < /proc/1/environ")
    assert "PATH=" in result.output
    assert phase not in result.output


async def test_what_runs_in_a_box_is_none_of_the_phases_family(opened: Opened, phase: str) -> None:
    sandbox = await opened()
    before = family(phase)
    running = asyncio.create_task(sandbox.run("touch begun; sleep 86408.25"))
    while not (sandbox.workspace / "begun").exists():
        await asyncio.sleep(0.01)
    assert processes_with("86408.25")
    assert family(phase) == before
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_command_that_gives_itself_a_mark_is_not_taken_for_ours(
    opened: Opened, phase: str, tmp_path: Path
) -> None:
    sandbox = await opened()
    forged = f"{MARKER_VARIABLE}=engine-86409 {LEDGER_VARIABLE}={tmp_path}/ledger"
    running = asyncio.create_task(sandbox.run(f"{forged} bash -c 'touch begun; sleep 86409.25'"))
    while not (sandbox.workspace / "begun").exists():
        await asyncio.sleep(0.01)
    assert processes_with("86409.25")
    assert "engine-86409" not in {m.marker for m in marked()}
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_daemon_of_a_plain_command_is_found_by_the_marks_of_its_phase(
    opened: Opened, phase: str
) -> None:
    """Nothing ends it with its command, so somebody has to be able to find it."""
    sandbox = await opened(kind="none")
    # The command goes on when the daemon has left its group, or it would end with it.
    left = "setsid bash -c 'echo left > gate; exec sleep 86410.25'"
    await sandbox.run(f"mkfifo gate\n{left} >/dev/null 2>&1 & read < gate")
    (daemon,) = processes_with("86410.25")
    assert daemon in [m.pid for m in marked() if m.marker == phase]


@pytest.mark.parametrize(
    "place", ["/etc/passwd", "/root", "/home", "/var", "/sys", "/work", "/run"]
)
async def test_host_files_are_not_there(opened: Opened, place: str) -> None:
    assert (await (await opened()).run(f"test -e {place}")).exit_code == 1


async def test_there_is_no_network(opened: Opened) -> None:
    devices = (await (await opened()).run("tail -n +3 /proc/net/dev | cut -d: -f1")).output
    assert devices.split() == ["lo"]


async def test_the_hosts_paths_and_processes_do_not_show(opened: Opened, tmp_path: Path) -> None:
    sandbox = await opened()
    for command in ("cat /proc/self/mountinfo", "cat /proc/*/cmdline", "ls -l /proc/self/fd/"):
        output = (await sandbox.run(command)).output
        assert str(tmp_path) not in output
        assert "json-status" not in output
    assert (await sandbox.run("ls -d /proc/[0-9]* | wc -l")).output.strip() in {"3", "4", "5"}
    assert (await sandbox.run("ls /proc/$$/fd; true")).output.split() == ["0", "1", "2"]


@pytest.mark.parametrize("place", ["/x", "/usr/x", "/dev/x", "/etc/x", "/proc/sys/kernel/hostname"])
async def test_only_workspace_and_tmp_can_be_written(opened: Opened, place: str) -> None:
    assert (await (await opened()).run(f"echo x > {place}")).exit_code == 1


async def test_a_command_has_no_power(opened: Opened) -> None:
    sandbox = await opened()
    assert (await sandbox.run("id -u; grep CapEff /proc/self/status")).output.split() == [
        "1000",
        "CapEff:",
        "0" * 16,
    ]
    assert (await sandbox.run("unshare --user true")).exit_code != 0
    assert (await sandbox.run("mount -t tmpfs x /tmp")).exit_code != 0


async def test_episodes_do_not_see_each_other(opened: Opened) -> None:
    one, two = await opened(), await opened()
    await one.run("touch mine /tmp/mine ~/.config")
    assert (await two.run("ls -A . /tmp /dev/shm")).output == ".:\n\n/dev/shm:\n\n/tmp:\n"


async def test_tmp_lasts_as_long_as_the_workspace(opened: Opened) -> None:
    sandbox = await opened()
    await sandbox.run("echo kept > /tmp/f")
    assert (await sandbox.run("cat /tmp/f")).output == "kept\n"
    await sandbox.open({})
    assert (await sandbox.run("cat /tmp/f")).exit_code == 1


# --- failures of the sandbox ----------------------------------------------------------------------


async def test_a_box_that_fails_is_no_result(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await opened()
    broken = [*rollout.sandbox.bwrap._BOX, "--ro-bind", "/nowhere", "/x"]
    monkeypatch.setattr(rollout.sandbox.bwrap, "_BOX", broken)
    with pytest.raises(Unavailable, match="the sandbox failed, not its command: bwrap: Can't"):
        await sandbox.run("true")


async def test_a_workspace_that_is_gone_is_no_result(opened: Opened) -> None:
    sandbox = await opened()
    sandbox._open._child.kill()
    await sandbox._open._child.reap()
    with pytest.raises(Unavailable, match="workspace is gone"):
        await sandbox.run("true")


async def test_a_workspace_that_cannot_be_made_is_unavailable(opened: Opened) -> None:
    with pytest.raises(Unavailable, match="could not be made: tar: big: Wrote only"):
        await opened({"big": bytes(2**20)}, workspace_bytes=2**16)


async def test_a_policy_cannot_lock_the_sandbox_out(opened: Opened) -> None:
    sandbox = await opened({"a.txt": b"a\n"})
    await sandbox.run("chmod 000 a.txt . /tmp; rm -rf /workspace")
    assert (await sandbox.run("echo in")).output == "in\n"


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf ~",
        'mv "$PWD" ../gone',
        "rmdir ~; touch ~",
        "rmdir ~; ln -s OUTSIDE ~",
        'rm -rf "${PWD%/*}"',
        'rm -rf "${PWD%/*/*}"',
        'rm -rf "${PWD%/*}"; ln -s OUTSIDE "${PWD%/*}"',
        "chmod 000 . ..",
    ],
)
async def test_an_unprotected_workspace_that_a_command_ends_is_there_again_empty(
    opened: Opened, command: str, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    sandbox = await opened({}, kind="none")
    await sandbox.run(command.replace("OUTSIDE", str(outside)))
    assert list(sandbox.workspace.iterdir()) == []
    assert (await sandbox.run("ls -A; echo in > new; cat ~/new")).output == "in\n"
    await sandbox.close()
    assert list(tmp_path.glob("scratch/*")) == []
    assert list(outside.iterdir()) == []
    assert outside.stat().st_mode & 0o777 == 0o750


# --- what is left ---------------------------------------------------------------------------------


@both_kinds
async def test_a_cancelled_command_leaves_nothing(opened: Opened, kind: str) -> None:
    sandbox = await opened(kind=kind)
    running = asyncio.create_task(sandbox.run("touch begun; sleep 86406.25"))
    while not (sandbox.workspace / "begun").exists():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with("86406.25") == []
    assert (await sandbox.run("echo next")).output == "next\n"


async def test_closing_leaves_no_descriptor_and_no_process(opened: Opened) -> None:
    await (await opened()).close()
    before, children = open_descriptors(), children_of(os.getpid())
    sandbox = await opened()
    await sandbox.run("echo x; setsid sleep 1000 &")
    await sandbox.close()
    await sandbox.close()
    assert open_descriptors() == before
    assert children_of(os.getpid()) == children


def open_descriptors() -> set[str]:
    return {fd.name for fd in Path("/proc/self/fd").iterdir()}


def children_of(pid: int) -> set[str]:
    listed = (p.read_text() for p in Path(f"/proc/{pid}/task").glob("*/children"))
    return set(" ".join(listed).split())


TREES = {
    "3000 folders deep": """perl -e 'for (1..3000) { mkdir "d" or die; chdir "d" or die }'""",
    "100000 files": "mkdir d; cd d; seq 100000 | xargs touch",
    "no permissions": "mkdir -p no/in; touch no/in/a; chmod 000 no/in/a no/in no",
    "links to outside": "ln -s OUTSIDE a; ln -s OUTSIDE/file b; ln -s ../../outside c; ln -s / d",
    "links in loops": "ln -s . here; ln -s .. up; ln -s loop loop; ln -s a b; ln -s b a",
    "hard links": "touch one; mkdir d; ln one two; ln one d/one; ln OUTSIDE/file d/file; true",
    "pipes and devices": "mkfifo pipe; mknod zero c 1 5; mknod disk b 7 0; true",
    "a socket": "perl -MSocket -e 'socket S, 1, 1, 0; bind S, pack_sockaddr_un(q(s)) or die'",
    "a sparse terabyte": "truncate -s 1T big",
    "names that are no text": r"touch -- $'\xff\xfe' $'caf\xe9' $'a\nb' -rf; mkdir -- -r $'d\x80'",
}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where many files are made and removed fastest."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@both_kinds
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
async def test_any_tree_can_be_removed(kind: str, tree: str, memory: Path) -> None:
    (memory / "outside").mkdir()
    (memory / "outside" / "file").write_text("kept\n")
    children = children_of(os.getpid())
    changes = {"workspace_inodes": 110_000, "file_bytes": 2**41, "command_seconds": 4 * GENEROUS}
    sandbox = make_sandbox(settings(kind=kind, **changes), memory / "scratch")
    await sandbox.open({})
    result = await sandbox.run(tree.replace("OUTSIDE", str(memory / "outside")))
    assert result.exit_code == 0, result.output
    await sandbox.close()
    assert list(memory.glob("scratch/*")) == []
    assert children_of(os.getpid()) == children
    assert (memory / "outside" / "file").read_text() == "kept\n"


VICTIM = """
import asyncio, sys
from pathlib import Path
from rollout.sandbox.child import Child
from tests.rollout.sandbox.looking import GENEROUS, processes_with
from rollout.sandbox.base import SandboxSettings, make_sandbox

async def main():
    sandbox = make_sandbox(SandboxSettings(command_seconds=600), Path(sys.argv[1]))
    await sandbox.open({})
    running = asyncio.create_task(sandbox.run("touch begun; setsid sleep 86407.25 & wait"))
    while not (sandbox.workspace / "begun").exists():
        await asyncio.sleep(0.01)
    print(sandbox._open.entrance[1], flush=True)
    await running

asyncio.run(main())
"""


def test_a_killed_rollout_leaves_no_process_behind(tmp_path: Path) -> None:
    victim = subprocess.Popen(
        [sys.executable, "-c", VICTIM, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert victim.stdout is not None
    with victim, victim.stdout:
        left = [os.pidfd_open(int(victim.stdout.readline()))]
        left += [os.pidfd_open(pid) for pid in processes_with("86407.25")]
        assert len(left) > 2
        victim.kill()
        victim.wait()
    deadline = time.monotonic() + GENEROUS
    for pidfd in left:
        ended, _, _ = select.select([pidfd], [], [], deadline - time.monotonic())
        os.close(pidfd)
        assert ended


# --- many at once, and other users ----------------------------------------------------------------


async def test_32_episodes_run_at_once(opened: Opened) -> None:
    sandboxes = await asyncio.gather(*(opened({"n": str(n).encode()}) for n in range(32)))
    running = asyncio.gather(*(s.run("mkfifo gate; cat gate n") for s in sandboxes))
    gates = [s.workspace / "gate" for s in sandboxes]
    while not all(gate.exists() for gate in gates):
        await asyncio.sleep(0.01)
    for gate in gates:  # nobody has ended: each waits for its gate
        await asyncio.to_thread(gate.write_text, "open ")
    assert [r.output for r in await running] == [f"open {n}" for n in range(32)]


ORDINARY = """
import asyncio, os, sys
from pathlib import Path
from rollout.sandbox.child import Child
from tests.rollout.sandbox.looking import GENEROUS, processes_with
from rollout.sandbox.base import SandboxSettings, make_sandbox, probe

async def main():
    sandbox = make_sandbox(SandboxSettings(), Path("/nowhere"))
    await sandbox.open({"seed.txt": b"seed\\n"})
    result = await sandbox.run("id -u; cat seed.txt; echo new > new.txt; chmod 000 .")
    again = await sandbox.run("ls")
    print(result.output + again.output + (sandbox.workspace / "new.txt").read_text(), end="")
    await sandbox.close()

probe(SandboxSettings())
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the whole suite already runs as an ordinary user")
def test_an_ordinary_user_gets_the_same_box() -> None:
    as_user = ["setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"]
    python = [*as_user, sys.executable, "-B", "-c"]
    if subprocess.run([*python, "import rollout.sandbox.base"], cwd=REPOSITORY).returncode != 0:
        pytest.skip("other users cannot read this interpreter or this repository")
    done = subprocess.run([*python, ORDINARY], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1000\nseed\nnew.txt\nseed.txt\nnew\n", "")


async def test_a_box_that_does_not_start_in_time_is_no_result(
    opened: Callable[..., Any], tmp_path: Path
) -> None:
    late = tmp_path / "late"
    late.write_text("#!/bin/sh\nexec sleep 60\n")
    late.chmod(0o755)
    sandbox = await opened(command_seconds=0.5)
    sandbox._tools = {**sandbox._tools, "choom": str(late)}
    with pytest.raises(Unavailable, match="did not start in"):
        await sandbox.run("true")
