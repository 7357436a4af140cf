"""A command on a node behaves as one here does: lines, exit code, end; and a lost node is told."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rollout.cluster.cluster_settings import ClusterSettings
from rollout.cluster.placed import LOST, prefix
from scripts.base.checkout import ROOT
from tests.rollout.cluster.nodes import Nodes, at_work, local_nodes, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

WAITS = """
import os, pathlib, signal, subprocess, sys
stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
signal.pause()
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with local_nodes() as found:
        found.add("a", train=1.0)
        yield found


@pytest.fixture
def settings(nodes: Nodes) -> ClusterSettings:
    return nodes.settings(room_seconds=20.0)


def start(cluster: ClusterSettings, *command: str) -> subprocess.Popen[str]:
    """The program that runs a command there."""
    return subprocess.Popen(
        [*prefix(cluster, "trainer_needs", "the trainer"), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


class Waiting:
    """A command that waits forever on a node, with a child that does not end by itself."""

    def __init__(self, cluster: ClusterSettings, notes: Path) -> None:
        self.program = start(cluster, sys.executable, "-c", WAITS, str(notes))
        wait_for(lambda: notes.exists() and notes.read_text(encoding="utf-8"), "the command waits")
        self.pids = [int(pid) for pid in notes.read_text(encoding="utf-8").split()]

    def is_over(self) -> bool:
        return not any(map(psutil.pid_exists, self.pids)) and not at_work()


def test_lines_and_exit_code_come_back(settings: ClusterSettings) -> None:
    said = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(5)"
    program = start(settings, sys.executable, "-c", said)
    out, err = program.communicate()
    assert (program.returncode, out) == (5, "one\n")
    assert err.splitlines()[0].startswith("the trainer: on node ")
    assert err.splitlines()[0].endswith(", with 1 train")
    assert "two" in err


def test_lines_come_while_the_command_runs(settings: ClusterSettings, tmp_path: Path) -> None:
    more = tmp_path / "more"
    waits = (
        "import pathlib, sys, time\nprint('first', flush=True)\n"
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)"
    )
    program = start(settings, sys.executable, "-c", waits, str(more))
    assert program.stdout is not None
    assert program.stdout.readline() == "first\n"
    more.touch()
    program.communicate()
    assert program.returncode == 0


def test_a_killed_command_is_told_as_one(settings: ClusterSettings) -> None:
    dies = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    program = start(settings, sys.executable, "-c", dies)
    program.communicate()
    assert program.returncode == 128 + signal.SIGKILL


def test_the_command_has_the_cores_of_its_node_and_our_variables(
    settings: ClusterSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_TEST_TAKEN_ALONG", "here")
    monkeypatch.setenv("OF_THIS_MACHINE_ONLY", "here")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = ["GRPO_TEST_TAKEN_ALONG", "OF_THIS_MACHINE_ONLY", "OMP_NUM_THREADS"]
    told = f"import os; print([os.environ.get(n) for n in {names}])"
    out, err = start(settings, sys.executable, "-c", told).communicate()
    assert out == "['here', None, None]\n", err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_command_ends_with_the_program_here(
    settings: ClusterSettings, tmp_path: Path, number: signal.Signals
) -> None:
    waiting = Waiting(settings, tmp_path / "pids")
    waiting.program.send_signal(number)
    waiting.program.communicate()
    wait_for(waiting.is_over, "the command and its child have ended")


def test_a_node_that_is_removed_is_told_and_nothing_is_left(nodes: Nodes, tmp_path: Path) -> None:
    nodes.add("b", fleeting=1.0)
    settings = nodes.settings(trainer_needs={"fleeting": 1.0})
    waiting = Waiting(settings, tmp_path / "pids")
    nodes.remove("b")
    _, err = waiting.program.communicate()
    assert waiting.program.returncode == LOST
    assert "error: the node that the trainer was on is lost (" in err
    assert "the same command goes on; `ray status` shows the nodes" in err
    wait_for(waiting.is_over, "the command and its child have ended")


def test_what_no_node_can_hold_is_told_at_once(nodes: Nodes) -> None:
    began = time.monotonic()
    settings = nodes.settings(trainer_needs={"GPU": 1.0}, room_seconds=600.0)
    program = start(settings, sys.executable, "--version")
    _, err = program.communicate()
    assert program.returncode == 4
    assert "no node of the Ray cluster can hold the trainer: cluster.trainer_needs asks for" in err
    assert time.monotonic() - began < settings.room_seconds


def test_what_finds_no_room_waits_so_long_and_no_longer(
    settings: ClusterSettings, nodes: Nodes, tmp_path: Path
) -> None:
    first = Waiting(settings, tmp_path / "pids")
    second = start(nodes.settings(room_seconds=2.0), sys.executable, "--version")
    _, err = second.communicate()
    assert second.returncode == 4
    assert "had room for the trainer within 2 s (cluster.trainer_needs: 1 train)" in err
    first.program.terminate()
    first.program.communicate()
    wait_for(first.is_over, "the first one has ended")


def test_a_path_that_the_node_does_not_see_is_named(settings: ClusterSettings) -> None:
    program = start(settings, "/no/such/python")
    _, err = program.communicate()
    assert program.returncode == 4
    assert "the trainer cannot start on node" in err
    assert "/no/such/python: no such path there; every node has to see the checkout" in err


def test_an_address_where_nobody_is_is_exit_4(nodes: Nodes) -> None:
    program = start(ClusterSettings(kind="ray", address="127.0.0.1:9"), sys.executable)
    _, err = program.communicate()
    assert program.returncode == 4
    assert 'cluster.address is "127.0.0.1:9", and no Ray cluster answers there' in err
    assert "Traceback" not in err
