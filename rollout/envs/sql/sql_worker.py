"""The process in which a policy's SQL runs: it can be killed, and there is little that it can do.

Standard library only, and started by its path: `locked_db` asks over a pipe, one JSON line a query,
and kills it where a query does not end. Every query gets a connection of its own, read-only and
immutable, so that nothing of one query is left for the next. This module must not write anything
but its answers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

_SCALAR = """abs coalesce date datetime glob ifnull iif instr julianday length like lower ltrim
nullif replace round rtrim sign strftime substr substring time trim typeof unixepoch upper"""
_AGGREGATE = "avg count group_concat max min sum total"
_WINDOW = """cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank
rank row_number"""
FUNCTIONS = frozenset(f"{_SCALAR} {_AGGREGATE} {_WINDOW}".split())
"""What a query may call. Left out on purpose: what makes a large value of a small argument
(zeroblob, randomblob, printf, hex), what differs from call to call (random, changes), and what
reaches outside (load_extension, fts3_tokenizer, writefile). The date functions are the only ones
that can tell the time."""

SCHEMA_TABLES = frozenset({"sqlite_master", "sqlite_schema"})
PRAGMAS = frozenset({"table_info", "table_list", "foreign_key_list"})
"""Pragmas that only tell; every other one is refused."""

STEP_BATCH = 10_000
"""VM steps between two looks at the limit."""

SQLITE_LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 8_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 25_000,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 16,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
"""By SQLite's own numbers; the length of a value is the caller's to say."""

_OK, _DENY = sqlite3.SQLITE_OK, sqlite3.SQLITE_DENY


class _Run:
    """One query on a connection of its own: what it may do, what it read, how far it has come."""

    def __init__(self, path: str, limits: Mapping[str, int]) -> None:
        self.read: set[tuple[str, str]] = set()
        """(table, column) of everything that the query's text reads; column "" for count(*)."""
        self.refused = ""
        self.stopped = False
        self._steps_left = limits["steps"]
        # Names may hold characters that mean something in a URI.
        quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        self.db = sqlite3.connect(
            f"file:{quoted}?mode=ro&immutable=1", uri=True, isolation_level=None
        )
        self.db.text_factory = lambda raw: raw.decode(errors="replace")
        self.db.execute(f"PRAGMA hard_heap_limit={limits['heap_bytes']}")
        self.db.execute("PRAGMA temp_store=MEMORY")
        self.db.execute("PRAGMA trusted_schema=OFF")
        self.db.execute("PRAGMA query_only=ON")
        named = self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self._tables = {name.lower() for (name,) in named} | SCHEMA_TABLES
        for which, most in SQLITE_LIMITS.items():
            self.db.setlimit(which, most)
        self.db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits["length"])
        self.db.set_authorizer(self._allow)
        self.db.set_progress_handler(self._go_on, STEP_BATCH)

    def _allow(self, action: int, one: str | None, two: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_SELECT:
            return _OK
        if action == sqlite3.SQLITE_READ:
            if (one or "").lower() in self._tables:
                self.read.add(((one or "").lower(), (two or "").lower()))
                return _OK
            return self._refuse(f"table {one}")
        if action == sqlite3.SQLITE_FUNCTION:
            return _OK if (two or "").lower() in FUNCTIONS else self._refuse(f"function {two}()")
        if action == sqlite3.SQLITE_PRAGMA:
            return _OK if (one or "").lower() in PRAGMAS else self._refuse(f"PRAGMA {one}")
        if action == sqlite3.SQLITE_RECURSIVE:
            return self._refuse("a recursive query")
        return self._refuse("anything but SELECT")

    def _refuse(self, what: str) -> int:
        self.refused = self.refused or what
        return _DENY

    def _go_on(self) -> int:
        self._steps_left -= STEP_BATCH
        self.stopped = self._steps_left <= 0
        return int(self.stopped)


def _plain(value: Any, cell: int) -> Any:
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, str) and len(value) > cell:
        return value[:cell] + "…"
    if isinstance(value, float) and math.isinf(value):  # JSON has none, and SQLite has no NaN
        return str(value)
    return value


def answer(path: str, sql: str, limits: Mapping[str, int]) -> dict[str, Any]:
    """Run one query and say what came of it: columns, rows, more, read; or error.

    limits: rows, cell (characters of a value shown), steps, heap_bytes, length.
    """
    run = _Run(path, limits)
    try:
        with contextlib.closing(run.db):
            cursor = run.db.execute(sql)
            found = cursor.fetchmany(limits["rows"] + 1)
            if cursor.description is None:
                return {"error": "this is no query: write one SELECT"}
            return {
                "columns": [_plain(name, limits["cell"]) for name, *_ in cursor.description],
                "rows": [
                    [_plain(v, limits["cell"]) for v in row] for row in found[: limits["rows"]]
                ],
                "more": len(found) > limits["rows"],
                "read": sorted(run.read),
            }
    except (sqlite3.Error, sqlite3.Warning, ValueError, UnicodeError) as e:
        if run.refused:
            return {"error": f"not allowed here: {run.refused}"}
        if run.stopped:
            return {"error": "stopped: the query takes too much work"}
        return {"error": str(e)[: limits["cell"]]}
    except MemoryError:
        return {"error": "stopped: the query takes too much memory"}


def _die_with(parent: int) -> None:
    """End this process when the one that started it ends.

    Not by PR_SET_PDEATHSIG: the kernel ties that to the thread that starts a process, and tools are
    called in threads that come and go.
    """
    descriptor = os.pidfd_open(parent)
    if os.getppid() != parent:  # it ended before the line above, and its number may be another's
        os._exit(0)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)

    def watch() -> None:
        poll.poll()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _bound(memory_bytes: int) -> None:
    """What the kernel keeps this process to, whatever SQLite does."""
    for which, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 16),
    ):
        resource.setrlimit(which, (most, most))


def _limit_processor(seconds: int) -> None:
    """SIGXCPU after `seconds` more of processor time, which ends the process."""
    used = time.process_time()
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + seconds + 1, hard))


def serve(
    limits: Mapping[str, int], receive: Callable[[], bytes], send: Callable[[bytes], object]
) -> None:
    """Answer queries until there are no more.

    The alarm ends this process a second after its parent ought to have killed it: a last resort
    where nobody is left to do so.
    """
    while line := receive():
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, limits["seconds"] + 1)
        _limit_processor(limits["seconds"] + 1)
        try:
            told = answer(asked["path"], asked["sql"], limits)
        except sqlite3.Error as e:  # the file itself: it is gone, or no database
            told = {"broken": str(e)}
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(json.dumps(told).encode() + b"\n")


def main() -> None:
    """`python -I -S sql_worker.py PARENT LIMITS`: LIMITS as JSON, queries on stdin."""
    limits = json.loads(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    _die_with(int(sys.argv[1]))
    _bound(limits["memory_bytes"])

    def send(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    send(b"{}\n")  # ready
    serve(limits, sys.stdin.buffer.readline, send)


if __name__ == "__main__":
    main()
