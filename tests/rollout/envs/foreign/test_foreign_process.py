"""A program in another virtual environment: it answers, fails, refuses, hangs, floods and dies."""

import asyncio
import contextlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fieldkit.errors import BadInput, Unavailable
from rollout.envs.foreign import foreign_process
from rollout.envs.foreign.foreign_process import ForeignProcess
from tests.rollout.envs.foreign.gone import wait_until_gone

PROGRAM = """
import json, os, socket, subprocess, sys, threading, time

channel = socket.socket(fileno=int(sys.argv[1]))
lines = channel.makefile("rb")

def say(**answer):
    channel.sendall(json.dumps(answer).encode() + b"\\n")

print("a word of the program", flush=True)
for line in lines:
    request = json.loads(line)
    n, do, given = request["id"], request["do"], request["with"]
    if do == "double":
        say(id=n, ok=2 * given["x"])
    elif do == "where":
        say(id=n, ok=[os.getcwd(), sys.path, sys.flags.isolated, dict(os.environ)])
    elif do == "later":  # out of order
        threading.Timer(given["s"], say, kwargs={"id": n, "ok": "late"}).start()
    elif do == "fail":
        say(id=n, error={"kind": "failed", "text": "KeyError: 'x'", "where": "env.py:7"})
    elif do == "refuse":
        say(id=n, error={"kind": "refused", "text": "only text can be played", "where": ""})
    elif do == "start":
        say(id=n, ok=subprocess.Popen(["sleep", "3600"], start_new_session=given["apart"]).pid)
    elif do == "hang":
        print("it hangs", flush=True)
        time.sleep(3600)
    elif do == "flood":
        while True:
            channel.sendall(b"x" * 65536)
    elif do == "babble":
        channel.sendall(b"no JSON\\n")
    elif do == "die":
        print("ModuleNotFoundError: No module named 'chess'", file=sys.stderr, flush=True)
        os._exit(3)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "some_worker.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@pytest.fixture
def process(program: Path, tmp_path: Path) -> Iterator[ForeignProcess]:
    running = ForeignProcess(Path(sys.executable), program, tmp_path / "log.txt")
    yield running
    running.close()


def ask(process: ForeignProcess, do: str, seconds: float = 20.0, **given: object) -> Any:
    return asyncio.run(process.ask(do, seconds, **given))


def test_it_answers_requests_of_one_event_loop_after_another(process: ForeignProcess) -> None:
    assert ask(process, "double", x=21) == 42
    assert ask(process, "double", x="ab") == "abab"


def test_a_slow_answer_does_not_hold_up_the_others(process: ForeignProcess) -> None:
    async def both() -> list[Any]:
        order: list[Any] = []

        async def note(do: str, **given: object) -> None:
            order.append(await process.ask(do, 20, **given))

        await asyncio.gather(note("later", s=0.2), *(note("double", x=i) for i in range(5)))
        return order

    *quick, last = asyncio.run(both())
    assert sorted(quick) == [0, 2, 4, 6, 8]
    assert last == "late"


def test_it_searches_no_folder_of_ours_and_does_not_get_the_engines_key(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("JUDGE_KEY", "theirs")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = ForeignProcess(Path(sys.executable), program, tmp_path / "log.txt")
    try:
        _, path, isolated, environment = ask(process, "where")
    finally:
        process.close()
    assert isolated
    assert str(tmp_path) not in path
    assert environment["JUDGE_KEY"] == "theirs"
    assert "VLLM_API_KEY" not in environment


def test_what_fails_there_can_be_tried_again_and_what_it_refuses_cannot(
    process: ForeignProcess,
) -> None:
    with pytest.raises(Unavailable, match=r"KeyError: 'x' \(env.py:7\)"):
        ask(process, "fail")
    with pytest.raises(BadInput, match=r"^only text can be played$"):
        ask(process, "refuse")
    assert ask(process, "double", x=1) == 2


def test_a_hang_ends_the_program_and_every_request_that_waits(process: ForeignProcess) -> None:
    async def both() -> list[Any]:
        waiting = asyncio.create_task(process.ask("later", 20, s=30))
        asked = (process.ask("hang", 0.3), waiting)
        return list(await asyncio.gather(*asked, return_exceptions=True))

    found = asyncio.run(both())
    late = "some_worker: no answer to 'hang' in 0.3 s (call_seconds)"
    assert [str(e) for e in found] == [late] * 2
    assert not process.alive
    with pytest.raises(Unavailable, match="no answer to 'hang'"):
        ask(process, "double", x=1)


@pytest.mark.parametrize("apart", [False, True], ids=["in its session", "in a session of its own"])
def test_what_it_started_ends_with_it(process: ForeignProcess, apart: bool) -> None:
    child = psutil.Process(ask(process, "start", apart=apart))
    with pytest.raises(Unavailable, match="no answer to 'hang'"):
        ask(process, "hang", 0.3)
    wait_until_gone(child)


def test_a_program_that_reads_nothing_holds_up_nobody_beyond_the_limit(
    process: ForeignProcess, tmp_path: Path
) -> None:
    async def many() -> list[Any]:
        hang = asyncio.create_task(process.ask("hang", 1.0))
        while "it hangs" not in (tmp_path / "log.txt").read_text(encoding="utf-8"):
            await asyncio.sleep(0.01)
        # Far more than the socket takes, so that whoever sends is held up.
        rows = (process.ask("double", 20, x="x" * 2**20) for _ in range(8))
        return list(await asyncio.gather(hang, *rows, return_exceptions=True))

    found = asyncio.run(many())
    assert [str(e) for e in found] == ["some_worker: no answer to 'hang' in 1 s (call_seconds)"] * 9


def test_a_request_that_is_no_json_is_refused_before_it_is_sent(process: ForeignProcess) -> None:
    with pytest.raises(BadInput, match="some_worker: 'double' cannot be asked: Out of range"):
        ask(process, "double", x=float("nan"))
    assert ask(process, "double", x=1) == 2


def test_the_last_word_of_an_earlier_program_is_not_taken_for_its_own(
    program: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("ValueError: of an earlier program\n", encoding="utf-8")
    program.write_text("raise SystemExit", encoding="utf-8")
    process = ForeignProcess(Path(sys.executable), program, log)
    try:
        with pytest.raises(Unavailable) as e:
            ask(process, "double", x=1)
    finally:
        process.close()
    assert str(e.value) == "some_worker: it died"


def test_its_last_word_is_quoted_when_it_dies(process: ForeignProcess, tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as e:
        ask(process, "die")
    assert str(e.value) == (
        "some_worker: it died: ModuleNotFoundError: No module named 'chess'"
        f" (all of it: {tmp_path / 'log.txt'})"
    )


def test_an_endless_answer_ends_the_program(
    process: ForeignProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_process, "MOST_LINE_BYTES", 10**6)
    # The reader began before the bound was lowered: one request makes it read anew.
    assert ask(process, "double", x=1) == 2
    with pytest.raises(Unavailable, match="an answer exceeds 1000000 bytes"):
        ask(process, "flood")


def test_what_is_no_json_ends_the_program(process: ForeignProcess) -> None:
    with pytest.raises(Unavailable, match="its answer cannot be read"):
        ask(process, "babble")


def test_a_python_that_is_missing_is_named(program: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no/python: cannot be started"):
        ForeignProcess(tmp_path / "no" / "python", program, tmp_path / "log.txt")


def test_a_program_does_not_outlive_a_killed_owner(program: Path, tmp_path: Path) -> None:
    owner = textwrap.dedent(
        f"""
        import asyncio, json, os, signal, sys
        from pathlib import Path
        from rollout.envs.foreign.foreign_process import ForeignProcess
        process = ForeignProcess(Path(sys.executable), Path({str(program)!r}), Path("log.txt"))
        assert asyncio.run(process.ask("double", 20, x=1)) == 2
        print(json.dumps(process.pid), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", owner], capture_output=True, cwd=tmp_path, check=False
    )
    with contextlib.suppress(psutil.NoSuchProcess):  # it had ended before anybody looked
        wait_until_gone(psutil.Process(json.loads(done.stdout)))
