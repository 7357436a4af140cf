"""The worker's end: with its owner, whatever its tools do, and with all that it started."""

import asyncio
import contextlib
import json
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import psutil
import pytest

from fieldkit.errors import Unavailable
from rollout.envs.foreign import foreign_worker
from rollout.envs.foreign.foreign_process import ForeignProcess
from scripts.base.checkout import ROOT
from tests.rollout.envs.foreign.gone import wait_until_gone

WORKER = f"""
import asyncio, os, re, subprocess, sys
sys.path.insert(0, {str(Path(foreign_worker.__file__).parent)!r})
import foreign_worker

foreign_worker.CLOSE_SECONDS = 0.2

class Theirs(foreign_worker.Worker):
    async def load(self, use, config):
        self.child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        return {{"child": self.child.pid}}

    async def reply(self, episode, **reply):
        print("playing", flush=True)
        if reply["text"] == "cancelled":
            raise asyncio.CancelledError
        if reply["text"] == "regex":  # which holds the interpreter's lock
            re.match(r"(a+)+$", "a" * 60 + "b")
        await asyncio.sleep(3600)

foreign_worker.run(Theirs())
"""

OWNER = """
import asyncio, json, os, signal, sys
from pathlib import Path
from rollout.envs.foreign.foreign_process import ForeignProcess

async def main(text):
    log = Path("log.txt")
    process = ForeignProcess(Path(sys.executable), Path("worker.py").resolve(), log)
    child = (await process.ask("load", 20, use="", config={}))["child"]
    asyncio.ensure_future(process.ask("reply", 3600, episode=0, text=text))
    while "playing" not in log.read_text():
        await asyncio.sleep(0.01)
    print(json.dumps([process.pid, child]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("tool", ["waits", "regex"])
def test_a_killed_owner_takes_along_the_worker_and_what_it_started(
    tool: str, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text(textwrap.dedent(WORKER))
    done = subprocess.run(
        [sys.executable, "-c", OWNER, tool],
        capture_output=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )
    for pid in json.loads(done.stdout):
        with contextlib.suppress(psutil.NoSuchProcess):  # it had ended before anybody looked
            wait_until_gone(psutil.Process(pid))


def test_an_error_names_the_line_that_called_pythons_own_library() -> None:
    with pytest.raises(ValueError, match="Expecting value") as raised:
        json.loads("")
    where = foreign_worker.error_of(raised.value)["where"]
    assert where.startswith(f"{__file__}:")


def test_a_reward_function_that_a_library_fails_is_named_by_its_own_line() -> None:
    """As a judge that is not reached: the cause was raised deep in the packages that it uses."""

    def judged() -> None:
        textwrap.dedent(None)  # type: ignore[arg-type]  # raised in the library

    first = judged.__code__.co_firstlineno
    with pytest.raises(TypeError) as raised:
        judged()
    assert foreign_worker.line_in(judged, raised.value) == f"{__file__}:{first + 1}"
    outside = ValueError("raised before anything of the function ran")
    assert foreign_worker.line_in(judged, outside) == f"{__file__}:{first}"
    assert foreign_worker.line_in(len, outside) == ""


def test_a_frame_of_a_package_or_of_the_worker_is_not_where_an_author_looks() -> None:
    package = (f"{sysconfig.get_path('purelib')}/httpcore/_exceptions.py", 16)
    worker, library = (foreign_worker.__file__, 1), (json.__file__, 2)
    assert foreign_worker.last_line([worker, ("/my/env.py", 6), package]) == "/my/env.py:6"
    assert foreign_worker.last_line([worker, package, library]) == "{}:{}".format(*package)
    assert foreign_worker.last_line([]) == ""


def test_an_episode_that_cancels_itself_is_answered_with_an_error(tmp_path: Path) -> None:
    """Without an answer the whole program would be ended after `call_seconds`."""
    (tmp_path / "worker.py").write_text(textwrap.dedent(WORKER))
    process = ForeignProcess(Path(sys.executable), tmp_path / "worker.py", tmp_path / "log")
    try:
        with pytest.raises(Unavailable, match="CancelledError"):
            asyncio.run(process.ask("reply", 20, episode=0, text="cancelled"))
        assert process.alive
    finally:
        process.close()
