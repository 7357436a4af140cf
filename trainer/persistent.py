"""`python -m trainer.persistent FD`: a trainer that takes step after step in one process.

Importing torch and loading a model takes seconds, each step anew. This process stays between steps
with its model loaded; where no step is asked for yet, it imports what one takes. It listens at an
open socket that it inherits, takes one request at a time, and answers with the lines of `JsonLines`
and a last one, `end`. It keeps nothing of a step: a step reads its files and writes its files as in
`python -m trainer`, and a killed process costs a load.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TextIO

from fieldkit.errors import BadInput, foreseen
from fieldkit.files.json_text import parse_json
from fieldkit.process.descriptor import READ, is_ready
from trainer.inputs import StepInputs
from trainer.progress import JsonLines, Lines
from trainer.scoring.kept_model import KeptModel, give_back, held_on_gpu
from trainer.settings import TrainerSettings
from trainer.step import train

BUG = 1
"""The exit code of an error that nobody foresaw; its traceback is in the step's log."""

_HUNG_UP = 1


@dataclass(frozen=True)
class Request:
    """One step. log: a file to which lines for a person are added."""

    inputs: StepInputs
    settings: TrainerSettings
    log: Path

    def line(self) -> str:
        """As one line of JSON, with a newline."""
        paths = {name: value and str(value) for name, value in vars(self.inputs).items()}
        plain = {"inputs": paths, "settings": asdict(self.settings), "log": str(self.log)}
        return json.dumps(plain, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, line: str) -> Request:
        """From `line`. Raises `BadInput` for anything else."""
        try:
            plain = parse_json(line, "request")
            paths = {f.name: plain["inputs"][f.name] for f in fields(StepInputs)}
            inputs = {name: None if path is None else Path(path) for name, path in paths.items()}
            return cls(
                StepInputs(**inputs),  # type: ignore[arg-type]
                TrainerSettings(**plain["settings"]),
                Path(plain["log"]),
            )
        except (KeyError, TypeError) as e:
            raise BadInput(f"not a request to the trainer: {type(e).__name__}: {e}") from e


def serve(listener: socket.socket) -> None:
    """Answer requests until this process is ended."""
    _import_ahead(listener)
    model = KeptModel()
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rw", encoding="utf-8") as talk:
            _answer(connection, talk, model)
        give_back()  # the engine works next


def _import_ahead(listener: socket.socket) -> None:
    """Import what a step takes, unless one is asked for already: without signal it takes none."""
    if not is_ready(listener.fileno(), READ):
        import trainer.update  # noqa: F401


def _answer(connection: socket.socket, talk: TextIO, model: KeptModel) -> None:
    line = talk.readline()
    if not line:
        return
    finished = threading.Event()
    watcher = threading.Thread(target=_end_with, args=(connection, finished), daemon=True)
    watcher.start()
    code, error = _step(line, talk, model)
    finished.set()
    held = {"on_gpu": n} if (n := held_on_gpu()) else {}
    talk.write(json.dumps({"event": "end", "code": code, "error": error, **held}) + "\n")
    talk.flush()
    connection.shutdown(socket.SHUT_RDWR)  # which ends the watcher too
    watcher.join()
    if code == BUG:
        raise SystemExit(BUG)  # nobody knows what state it left


def _step(line: str, talk: TextIO, model: KeptModel) -> tuple[int, str]:
    """Do the step; returns the exit code that `python -m trainer` has, and the error's text."""
    try:
        request = Request.read(line)
        with open(request.log, "a", encoding="utf-8") as log, _tracing(log):
            train(request.inputs, request.settings, JsonLines(talk, Lines(log)), model)
    except Exception as e:
        if (known := foreseen(e)) is not None:
            return known.exit_code, str(known)
        traceback.print_exc()
        return BUG, f"{type(e).__name__}: {e}"
    return 0, ""


@contextmanager
def _tracing(log: TextIO) -> Iterator[None]:
    """Leave the traceback of an error that nobody foresaw in the step's log, which is the one that
    its message names; this process's own is another file."""
    try:
        yield
    except Exception as e:
        if foreseen(e) is None:
            traceback.print_exc(file=log)
        raise


def _end_with(connection: socket.socket, finished: threading.Event) -> None:
    """End this process at once when who asked is gone before the answer: as a kill would, from
    which every step recovers."""
    try:
        gone = not connection.recv(1)
    except ConnectionResetError:  # it went before it had read every line
        gone = True
    if gone and not finished.is_set():
        os._exit(_HUNG_UP)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as _listener:
        serve(_listener)
