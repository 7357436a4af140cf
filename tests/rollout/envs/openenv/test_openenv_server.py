"""A server on this machine: it answers, it is owned, and it never outlives its owner."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fieldkit.errors import BadInput, Unavailable
from fieldkit.process.ledger import Ledger
from fieldkit.process.owned import family, is_running, start_time, wait_ended
from rollout.envs.openenv import openenv_server
from rollout.envs.openenv.openenv_client import fetch_schema
from rollout.sandbox.child import readable
from scripts.base.checkout import ROOT
from tests.rollout.envs.openenv.openenv_double import ACTION
from tests.rollout.envs.openenv.openenv_local import (
    DOUBLE,
    QUICK,
    count,
    launch,
    local,
    sessions,
)

OWNER = """
import asyncio, sys
from pathlib import Path
from tests.rollout.envs.openenv.openenv_local import launch, local
with local(launch(), Path(sys.argv[1])) as server:
    print(asyncio.run(server.address()), flush=True)
    sys.stdin.readline()
"""


def owner(folder: Path) -> subprocess.Popen[str]:
    """Another process that starts a server, and has it once it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    return process


async def test_a_server_answers_on_a_free_port_and_is_in_the_ledger(tmp_path: Path) -> None:
    said: list[str] = []
    with local(launch(), tmp_path, said.append) as server:
        url = await server.address()
        assert await fetch_schema(url, QUICK) == ACTION
        owned = Ledger(tmp_path / "ledger.json").get("env-guess")
        assert owned is not None
        assert is_running(owned)
        assert owned.pid == server.pid
        assert os.getsid(server.pid or 0) == server.pid
        assert Path(owned.log).parent == tmp_path / "log"
        assert await server.address() == url
    assert not family(owned.marker)
    assert Ledger(tmp_path / "ledger.json").entries() == []
    assert [line.partition(" after ")[0] for line in said] == ["envs.guess: its server is ready"]


async def test_many_who_ask_at_once_start_one_server(tmp_path: Path) -> None:
    with local(launch(), tmp_path) as server:
        assert len(set(await asyncio.gather(*(server.address() for _ in range(20))))) == 1
        assert len(list((tmp_path / "log").iterdir())) == 1


def test_a_server_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    """Each evaluation of a phase has a loop of its own."""
    with local(launch(), tmp_path) as server:
        of = sessions(server, 1)

        async def episode() -> None:
            session, _ = await of.begin({})
            await of.end(session)

        for _ in range(2):
            asyncio.run(episode())
        assert asyncio.run(count(server)) == {"open": 0, "closed": 2}


async def test_a_server_that_was_killed_is_started_again_and_its_end_is_said(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    with local(launch(), tmp_path, said.append) as server:
        await server.address()
        ended = os.pidfd_open(server.pid or 0)
        os.kill(server.pid or 0, signal.SIGKILL)
        await readable(ended)  # its first thread may be gone before the others
        os.close(ended)
        assert await fetch_schema(await server.address(), QUICK) == ACTION
    assert said[1].startswith("envs.guess: its server ended (signal SIGKILL)")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_a_server_ends_with_its_owner_however_that_ends(
    tmp_path: Path, end: signal.Signals | None
) -> None:
    process = owner(tmp_path)
    owned = Ledger(tmp_path / "ledger.json").get("env-guess")
    assert owned is not None
    assert is_running(owned)
    if end is None:
        process.communicate("\n")
    else:
        process.send_signal(end)
    process.wait(10)
    assert wait_ended(owned, 10)
    assert not family(owned.marker)


async def test_what_a_killed_owner_left_is_ended_before_the_next_start(tmp_path: Path) -> None:
    """A server that hangs in a call that holds Python's lock cannot notice its owner's end; here
    it is stopped meanwhile."""
    said: list[str] = []
    process = owner(tmp_path)
    left = Ledger(tmp_path / "ledger.json").get("env-guess")
    assert left is not None
    assert left.pid is not None
    os.kill(left.pid, signal.SIGSTOP)
    process.kill()
    process.wait(10)
    assert is_running(left)
    with local(launch(), tmp_path, said.append) as server:
        assert await fetch_schema(await server.address(), QUICK) == ACTION
        assert not is_running(left)
    assert said[0] == "envs.guess: ending the server that a killed process left"


async def test_the_server_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    process = owner(tmp_path)
    with local(launch(), tmp_path) as server:
        with pytest.raises(Unavailable, match=f"the running process {process.pid} uses its"):
            await server.address()
        owned = Ledger(tmp_path / "ledger.json").get("env-guess")
        assert owned is not None
        assert is_running(owned)
        # Not even the entry of the other's server goes with one that never started.
        server.stop()
        assert Ledger(tmp_path / "ledger.json").get("env-guess") == owned
    process.communicate("\n")


async def test_a_server_that_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    app = write(
        tmp_path,
        "import sys, threading\n"
        "threading.Thread(target=threading.Event().wait).start()\n"  # keeps the process alive
        f"sys.path.append({str(ROOT)!r})\n"
        "from tests.rollout.envs.openenv.openenv_double import app\n",
    )
    with local(launch(app=app), tmp_path) as server:
        await server.address()
        pid = server.pid or 0
        server.stop()
        assert start_time(pid) is None


async def test_an_app_may_be_named_by_its_module(tmp_path: Path) -> None:
    module = "tests.rollout.envs.openenv.openenv_double:app"
    with local(launch(app=module), tmp_path) as server:
        assert await fetch_schema(await server.address(), QUICK) == ACTION


@pytest.mark.parametrize(
    "imports",
    [
        "from ..models import READY\nfrom .game import app\n",  # of textarena_env
        "from models import READY\nfrom server.game import app\n",  # of a container
        "from my_env.server.game import app\n",  # of coding_env
    ],
)
async def test_the_app_of_a_package_as_openenv_init_lays_it_out_is_a_file_that_can_be_served(
    tmp_path: Path, imports: str
) -> None:
    app = write_package(tmp_path, imports)
    with local(launch(app=app), tmp_path) as server:
        assert await fetch_schema(await server.address(), QUICK) == ACTION


def write_package(folder: Path, imports: str) -> str:
    """The app's file; its game is the double."""
    home = folder / "my_env"
    (home / "server").mkdir(parents=True)
    (home / "__init__.py").write_text("from .models import READY\n")
    (home / "models.py").write_text("READY = True\n")
    (home / "server/__init__.py").write_text("from .game import app\n")
    (home / "server/app.py").write_text(imports)
    (home / "server/game.py").write_text(
        f"import sys\nsys.path.append({str(ROOT)!r})\n"
        "from tests.rollout.envs.openenv.openenv_double import app\n"
    )
    return f"{home}/server/app.py:app"


async def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(
    tmp_path: Path,
) -> None:
    app = write(tmp_path, "import no_such_game\n")
    with (
        local(launch(app=app), tmp_path) as server,
        pytest.raises(BadInput, match=r"install --python \S+ no_such_game`") as raised,
    ):
        await server.address()
    assert "envs.guess: serve = " in str(raised.value)
    assert Ledger(tmp_path / "ledger.json").entries() == []


async def test_a_program_that_raises_as_it_starts_is_bad_input_with_its_error(
    tmp_path: Path,
) -> None:
    app = write(tmp_path, "app = 1 / 0\n")
    with (
        local(launch(app=app), tmp_path) as server,
        pytest.raises(BadInput, match=r"ZeroDivisionError: division by zero; its log \S+ ends"),
    ):
        await server.address()


async def test_a_start_that_ends_the_process_shows_the_end_of_its_log(tmp_path: Path) -> None:
    app = write(tmp_path, "import sys\nprint('no board')\nsys.exit(5)\n")
    with (
        local(launch(app=app), tmp_path) as server,
        pytest.raises(Unavailable, match=r"its server ended as it started.*no board"),
    ):
        await server.address()


async def test_a_start_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    app = write(tmp_path, "import threading\nthreading.Event().wait()\n")
    with local(launch(app=app, start_seconds=1.5), tmp_path) as server:
        with pytest.raises(Unavailable, match=r"does not answer after 1\.5 s"):
            await server.address()
        assert server.pid is None
    assert Ledger(tmp_path / "ledger.json").entries() == []


async def test_a_start_that_is_cancelled_ends_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    app = write(tmp_path, "import threading\nthreading.Event().wait()\n")
    with local(launch(app=app), tmp_path) as server:
        start = asyncio.create_task(server.address())
        while not (owned := Ledger(tmp_path / "ledger.json").get("env-guess")) or not owned.pid:
            await asyncio.sleep(0.02)
        start.cancel()
        await asyncio.wait([start])
    assert wait_ended(owned, 10)
    assert Ledger(tmp_path / "ledger.json").entries() == []


async def test_a_port_that_is_taken_is_named_with_who_holds_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            local(launch(port=port), tmp_path) as server,
            pytest.raises(Unavailable, match=rf"port {port} .*\(held by pid {os.getpid()}, "),
        ):
            await server.address()


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        ("server.py", 'write "module:app" or "path/to/file.py:app"'),
        ("no/such/server.py:app", "no/such/server.py: no such file"),
        ("no_such_module:app", "No module named 'no_such_module'"),
        (
            "json:app",
            r"json has no `app`; no app is there: `app = create_app\(\.\.\.\)` makes one$",
        ),
        (
            f"{DOUBLE}:ap",
            "openenv_double.py has no `ap`; it has `app`, `many`, `two`, `one`, `tools`$",
        ),
    ],
)
async def test_a_wrong_setting_says_what_to_write(tmp_path: Path, app: str, reason: str) -> None:
    with local(launch(app=app), tmp_path) as server, pytest.raises(BadInput, match=reason):
        await server.address()


async def test_a_python_that_is_not_there_is_named_with_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / "venv"
    installs = f"python3 -m venv {venv} && {venv}/bin/pip install openenv`"
    with (
        local(launch(python=venv / "bin/python"), tmp_path) as server,
        pytest.raises(BadInput, match=installs),
    ):
        await server.address()
    monkeypatch.setattr(openenv_server, "_OUR_VENV", venv)  # as the checkout's own one
    with pytest.raises(BadInput, match=r"`\S*scripts/setup/openenv\.sh` makes its virtual"):
        launch(python=venv / "bin/python").check()


def write(folder: Path, text: str) -> str:
    (folder / "server.py").write_text(text)
    return f"{folder}/server.py:app"
