"""A SQLite file that a policy may ask anything and change nothing of, usable alone.

`LockedDatabase(path).ask(sql)` gives at most 20 rows within 5 seconds. Three walls: SQLite opened
read-only, with an authorizer and its own limits (`sql_worker`); a step limit, which ends a query
the same way on every machine; and a process bounded by the kernel and killed where a single
function call outlasts its time, which no step limit sees. Workers are few, shared by all databases
of this process and replaced when killed; they end with this process, even by SIGKILL. This module
must not show a policy a file name or a time.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import select
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import MissingFile, Unavailable
from fieldkit.files.json_text import parse_json, whole_text
from rollout.envs.sql import sql_worker
from rollout.envs.sql.sql_databases import build_command

SQL_CHARACTERS = sql_worker.SQLITE_LIMITS[sqlite3.SQLITE_LIMIT_SQL_LENGTH]
"""Of one query."""


@dataclass(frozen=True)
class QueryLimits:
    """What one query may use."""

    rows: int = 20
    """Of a result; the rest is left out and said to be there."""
    seconds: int = 5
    """Wall time, then its process is killed."""
    steps: int = 60_000_000
    """Of SQLite's virtual machine: about a second, and the same answer on a slow machine."""
    heap_bytes: int = 128 << 20
    """Of SQLite: the default of `PRAGMA hard_heap_limit`."""
    length: int = 100_000
    """Bytes of one value or row."""
    cell: int = 200
    """Characters of a value that are shown."""
    memory_bytes: int = 512 << 20
    """Address space of the process."""


@dataclass(frozen=True)
class Result:
    """What a query gave. Where `error` is set there is nothing else."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    more: bool = False
    """Whether rows were left out."""
    read: frozenset[tuple[str, str]] = frozenset()
    """(table, column) that the query's text reads, in lower case; column "" for count(*)."""
    error: str = ""
    """Why there is no result, for the policy to read."""
    late: bool = False
    """It was stopped because of the time, which may be the machine's fault."""


class _Worker:
    """One process that answers queries, one at a time."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        # `rollout.sandbox.child` would need an event loop; TRL calls tools without one.
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-B", sql_worker.__file__),
                    *(str(os.getpid()), json.dumps(asdict(limits))),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        except OSError as e:
            raise Unavailable(f"no process for SQL queries can be started: {e}") from e
        self._rest = b""
        # A start takes 30 ms; a machine that stands still for a minute is not one to wait for.
        if self._line(60.0) is None:
            said = self._last_words()
            raise Unavailable(f"the process for SQL queries does not start: {said}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, path: str, sql: str) -> dict[str, Any] | None:
        """What the worker says; None where it did not end in time or ended itself. It must be
        ended then."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"path": path, "sql": sql}).encode() + b"\n")
        except BrokenPipeError:
            return None
        line = self._line(self._limits.seconds)
        return None if line is None else parse_json(line, "the process for SQL queries")

    def _line(self, seconds: float) -> bytes | None:
        """The next line of its stdout; None at the end of `seconds` or of the process."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        until = time.monotonic() + seconds
        poll = select.poll()  # select(2) knows no descriptor above 1023
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._process.kill()
        _, said = self._process.communicate()
        return said.decode(errors="replace").strip()[-500:] or f"exit {self._process.returncode}"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Kill and reap it. The number cannot be another's: only this object reaps it."""
        self._process.kill()
        self._process.communicate()


class WorkerPool:
    """A few workers that any thread may ask; a query waits for a free one.

    Made on first use and again after a fork: a child process has no claim on its parent's pipes.
    """

    def __init__(self, limits: QueryLimits | None = None, size: int | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._size = size or min(4, os.cpu_count() or 1)
        self._lock = threading.Lock()
        self._start_over()

    def _start_over(self) -> None:
        self._owner = os.getpid()
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        self._all: set[_Worker] = set()
        for _ in range(self._size):
            self._free.put(None)

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        with self._lock:
            if self._owner != os.getpid():
                self._start_over()
        free = self._free
        worker = free.get()
        try:
            if worker is None or not worker.alive:
                self._end(worker)
                worker = None
                worker = _Worker(self.limits)
                self._all.add(worker)
            yield worker
        finally:
            free.put(worker)

    def _end(self, worker: _Worker | None) -> None:
        if worker is not None:
            worker.end()
            self._all.discard(worker)

    def ask(self, path: Path, sql: str) -> Result:
        """Run one query. Raises `Unavailable` where no worker starts, or the file is no database
        any more."""
        if len(sql) > SQL_CHARACTERS:
            return Result(error=f"a query has at most {SQL_CHARACTERS} characters")
        sql = whole_text(sql)  # half of a surrogate pair is no text for SQLite either
        for attempt in ("first", "second"):
            with self._worker() as worker:
                began = time.monotonic()
                told = worker.ask(str(path), sql)
                if told is None:
                    in_time = time.monotonic() - began < self.limits.seconds
                    worker.end()
            if told is None and in_time and attempt == "first":
                continue  # something else may have ended it: the query gets another chance
            break
        if told is None:
            said = f"stopped: the query takes more than {self.limits.seconds} s"
            return Result(error=said, late=True)
        if "broken" in told:
            raise Unavailable(
                f"{path}: not a database that can be read ({told['broken']});"
                f" `{build_command()}` makes the databases again"
            )
        if "error" in told:
            return Result(error=told["error"])
        return Result(
            tuple(told["columns"]),
            tuple(tuple(row) for row in told["rows"]),
            told["more"],
            frozenset((table, column) for table, column in told["read"]),
        )

    def pids(self) -> tuple[int, ...]:
        """Of the workers that there are now."""
        return tuple(w.pid for w in tuple(self._all) if w.alive)

    def close(self) -> None:
        """End every worker. The pool may be used again."""
        if self._owner == os.getpid():
            for worker in tuple(self._all):
                self._end(worker)


POOL = WorkerPool()
"""The workers of this process; none is started before the first query."""
atexit.register(POOL.close)


class LockedDatabase:
    """One SQLite file.

    >>> LockedDatabase(Path("/no/such.sqlite"))
    Traceback (most recent call last):
    ...
    fieldkit.errors.MissingFile: /no/such.sqlite: no such database; ...
    """

    def __init__(self, path: Path, pool: WorkerPool = POOL) -> None:
        if not path.is_file():
            raise MissingFile(f"{path}: no such database; `{build_command()}` makes the databases")
        self.path = path.resolve()
        self._pool = pool

    def ask(self, sql: str) -> Result:
        """As `WorkerPool.ask`."""
        return self._pool.ask(self.path, sql)

    def ask_itself(self, sql: str) -> Result:
        """The same for a query that the policy did not write. Raises `Unavailable` too where it is
        late: what follows from its result would be wrong, and the policy's fault in no case."""
        result = self.ask(sql)
        if result.late:
            raise Unavailable(f"{self.path}: {sql}: {result.error}; is this machine very busy?")
        return result
