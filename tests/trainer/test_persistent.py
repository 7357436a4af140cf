"""The trainer that stays: a real process, asked over its socket."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from tests.trainer.scoring.test_kept_model import written
from tests.trainer.test_step import SETTINGS, follow, step
from trainer import persistent
from trainer.inputs import StepInputs
from trainer.persistent import Request

ROOT = Path(__file__).resolve().parents[2]

SECONDS = 120

MODULE = ("-P", "-m", "trainer.persistent")

_WITH_A_BUG = """
import socket, sys
from trainer import persistent
persistent.train = lambda *_: 1 / 0
persistent.serve(socket.socket(fileno=int(sys.argv[1])))
"""


_IMPORTS_AHEAD = """
import socket, sys
from trainer import persistent
persistent._import_ahead(socket.socket(fileno=int(sys.argv[1])))
print(*sys.modules)
"""


class Trainer:
    """One process and the socket that it listens at."""

    def __init__(self, folder: Path, *program: str) -> None:
        self.path = str(folder / "socket")
        self.own_log = folder / "own.log"
        with socket.socket(socket.AF_UNIX) as listener, open(self.own_log, "ab") as log:
            listener.bind(self.path)
            listener.listen()
            self.process = subprocess.Popen(
                [sys.executable, *(program or MODULE), str(listener.fileno())],
                cwd=ROOT,
                pass_fds=(listener.fileno(),),
                stderr=log,
            )

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(SECONDS)
        connection.connect(self.path)
        return connection

    def ask(self, line: str) -> list[dict[str, Any]]:
        """All lines of the answer."""
        with self.connect() as connection:
            connection.sendall(line.encode())
            with connection.makefile(encoding="utf-8") as answer:
                return [json.loads(text) for text in answer]


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    found = Trainer(tmp_path)
    yield found
    found.process.kill()
    found.process.wait()


@pytest.fixture
def inputs(
    bundle: Path, adapter: Path, reference: Path, tiny_model: Path, tmp_path: Path
) -> StepInputs:
    return StepInputs(bundle, adapter, reference, tiny_model, None, tmp_path / "step-001")


def request(inputs: StepInputs, tmp_path: Path) -> Request:
    return Request(inputs, SETTINGS, tmp_path / "train.log")


def test_a_request_is_read_as_it_was_written(inputs: StepInputs, tmp_path: Path) -> None:
    asked = request(inputs, tmp_path)
    assert Request.read(asked.line()) == asked


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"inputs": {}}', "7", "nonsense"])
def test_a_line_that_is_no_request_is_an_error(line: str) -> None:
    with pytest.raises(BadInput):
        Request.read(line)


def test_two_steps_in_one_process_leave_the_bytes_of_two_processes(
    trainer: Trainer, inputs: StepInputs, tmp_path: Path
) -> None:
    answer = trainer.ask(request(inputs, tmp_path).line())
    assert answer[-1] == {"event": "end", "code": 0, "error": ""}
    assert {line["event"] for line in answer[:-1]} == {"line", "microbatch"}
    second = follow(inputs, tmp_path)
    assert trainer.ask(request(second, tmp_path).line())[-1]["code"] == 0
    alone = dataclasses.replace(second, out_dir=tmp_path / "alone")
    step(alone)
    assert written(second.out_dir) == written(alone.out_dir)
    log = (tmp_path / "train.log").read_text()
    assert log.count("[trainer] used 4/7 rollouts") == 1
    assert log.count("wall") == 2
    assert "imported in 0.0 s" in log  # the second step


@pytest.mark.parametrize("is_asked", [False, True])
def test_what_a_step_takes_is_imported_while_none_is_asked_for(
    is_asked: bool, tmp_path: Path
) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as asker:
        listener.bind(path)
        listener.listen()
        if is_asked:
            asker.connect(path)
        fd = listener.fileno()
        program = [sys.executable, "-P", "-c", _IMPORTS_AHEAD, str(fd)]
        said = subprocess.run(
            program, cwd=ROOT, pass_fds=(fd,), capture_output=True, text=True, check=True
        ).stdout
    imported = said.split()
    assert ("peft" in imported) is not is_asked
    assert ("transformers.models.auto.modeling_auto" in imported) is not is_asked


def test_bad_input_is_answered_and_the_next_step_is_taken(
    trainer: Trainer, inputs: StepInputs, tmp_path: Path
) -> None:
    missing = dataclasses.replace(inputs, bundle=tmp_path / "none.jsonl")
    end = trainer.ask(request(missing, tmp_path).line())[-1]
    assert end["code"] == BadInput.exit_code
    assert "none.jsonl" in end["error"]
    assert "Traceback" not in (tmp_path / "train.log").read_text()
    assert trainer.ask("nonsense\n")[-1]["code"] == BadInput.exit_code
    assert trainer.ask(request(inputs, tmp_path).line())[-1]["code"] == 0


def test_who_hangs_up_in_a_step_ends_the_process_and_leaves_no_half_step(
    trainer: Trainer, inputs: StepInputs, tmp_path: Path
) -> None:
    with trainer.connect() as connection:
        connection.sendall(request(inputs, tmp_path).line().encode())
        assert connection.recv(1)  # it has begun
    assert trainer.process.wait(SECONDS) == 1
    assert not (inputs.out_dir / "train.json").exists()
    step(inputs)  # what is left of the first try does not disturb the second
    assert sorted(p.name for p in inputs.out_dir.iterdir()) == [
        "adapter",
        "train.json",
        "trainer_state",
    ]


def test_who_hangs_up_without_reading_every_line_ends_the_process_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux tells the other side of such a socket by an error and not by an end of file."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(b"a line of progress")
        theirs.close()
        persistent._end_with(ours, threading.Event())
    assert codes == [1]


def test_who_connects_and_asks_nothing_ends_nothing(
    trainer: Trainer, inputs: StepInputs, tmp_path: Path
) -> None:
    trainer.connect().close()
    assert trainer.ask(request(inputs, tmp_path).line())[-1]["code"] == 0


def test_an_error_that_nobody_foresaw_ends_the_process_with_its_traceback_in_the_step_s_log(
    inputs: StepInputs, tmp_path: Path
) -> None:
    trainer = Trainer(tmp_path, "-c", _WITH_A_BUG)
    end = trainer.ask(request(inputs, tmp_path).line())[-1]
    assert end == {"event": "end", "code": 1, "error": "ZeroDivisionError: division by zero"}
    assert trainer.process.wait(SECONDS) == 1
    for log in (tmp_path / "train.log", trainer.own_log):
        assert "Traceback" in log.read_text()
