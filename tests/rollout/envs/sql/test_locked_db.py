"""What a policy may ask, and every way that was tried to do more than asking."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from fieldkit.errors import MissingFile, Unavailable
from rollout.envs.sql.locked_db import LockedDatabase, QueryLimits, WorkerPool

PATIENCE = 20.0


def wait_for_end(pid: int) -> None:
    """Until this process has ended; it is no child of ours."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    try:
        assert poll.poll(PATIENCE * 1000), f"{pid} is still there"
    finally:
        os.close(ended)


def test_a_query_gives_columns_rows_and_what_it_read(database: LockedDatabase) -> None:
    result = database.ask("SELECT name, people FROM cities WHERE country = 'Spain' ORDER BY name")
    assert result.columns == ("name", "people")
    assert result.rows == (("Bilbao", 346_000), ("Madrid", 3_280_000))
    assert not result.more
    assert not result.error
    assert result.read == {("cities", "name"), ("cities", "people"), ("cities", "country")}


def test_a_result_is_cut_at_twenty_rows(database: LockedDatabase) -> None:
    whole = database.ask("SELECT n FROM numbers WHERE n < 20")
    cut = database.ask("SELECT n FROM numbers")
    assert (len(whole.rows), whole.more) == (20, False)
    assert (len(cut.rows), cut.more) == (20, True)


def test_one_worker_answers_many_queries_and_an_error_does_not_end_it(
    database: LockedDatabase, workers: WorkerPool
) -> None:
    database.ask("SELECT 1")
    (first,) = workers.pids()
    assert "no such column" in database.ask("SELECT mayor FROM cities").error
    assert database.ask("SELECT count(*) FROM cities").rows == ((5,),)
    assert workers.pids() == (first,)


FORBIDDEN = {
    "attach": "ATTACH DATABASE '/tmp/other.sqlite' AS other",
    "attach memory": "ATTACH ':memory:' AS m",
    "vacuum into": "VACUUM INTO '/tmp/copy.sqlite'",
    "insert": "INSERT INTO cities VALUES ('x', 'y', 1, 1)",
    "insert returning": "INSERT INTO cities VALUES ('x', 'y', 1, 1) RETURNING name",
    "update": "UPDATE cities SET people = 0",
    "delete": "DELETE FROM cities",
    "drop": "DROP TABLE cities",
    "create": "CREATE TABLE t (x)",
    "temporary table": "CREATE TEMP TABLE t AS SELECT 1",
    "temporary view": "CREATE TEMP VIEW v AS SELECT 1",
    "virtual table": "CREATE VIRTUAL TABLE temp.t USING fts5(x)",
    "begin": "BEGIN",
    "savepoint": "SAVEPOINT s",
    "reindex": "REINDEX",
    "analyze": "ANALYZE",
    "pragma heap": "PRAGMA hard_heap_limit=0",
    "pragma soft heap": "PRAGMA soft_heap_limit=0",
    "pragma query_only": "PRAGMA query_only=OFF",
    "pragma journal": "PRAGMA journal_mode=WAL",
    "pragma schema": "PRAGMA writable_schema=ON",
    "pragma temp": "PRAGMA temp_store_directory='/tmp'",
    "pragma names the file": "PRAGMA database_list",
    "pragma as a table names the file": "SELECT file FROM pragma_database_list",
    "load_extension": "SELECT load_extension('/tmp/x.so')",
    "tokenizer": "SELECT fts3_tokenizer('simple')",
    "readfile": "SELECT readfile('/etc/passwd')",
    "writefile": "SELECT writefile('/tmp/x', 'y')",
    "zeroblob": "SELECT zeroblob(1000000000)",
    "randomblob": "SELECT randomblob(1000000000)",
    "printf": "SELECT printf('%1000000000s', 'x')",
    "format": "SELECT format('%1000000000s', 'x')",
    "hex": "SELECT hex(hex(hex('x')))",
    "random": "SELECT random()",
    "json table": "SELECT value FROM json_each('[1,2]')",
    "series": "SELECT value FROM generate_series(1, 1000000000)",
    "pages": "SELECT data FROM sqlite_dbpage",
    "statistics": "SELECT name FROM dbstat",
    "recursion": "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT * FROM c",
    "two statements": "SELECT 1; DROP TABLE cities",
    "a long pattern": f"SELECT 'x' LIKE '{'%a' * 60}'",
    "a deep expression": f"SELECT {'(' * 200}1{')' * 200}",
    "many columns": f"SELECT {', '.join('1' for _ in range(200))}",
    "many unions": " UNION ALL ".join("SELECT 1" for _ in range(50)),
    "a parameter": "SELECT ?1",
    "a long query": f"SELECT '{'x' * 9000}'",
    "nothing": "",
    "a comment": "-- nothing",
    "a null byte": "SELECT 1\0; DROP TABLE cities",
    "no text": "SELECT '\ud800",
}


@pytest.mark.parametrize("sql", FORBIDDEN.values(), ids=FORBIDDEN)
def test_what_is_not_a_plain_query_is_refused_and_changes_nothing(
    sql: str, cities: Path, shared: LockedDatabase
) -> None:
    before = shared.path.read_bytes()
    result = shared.ask(sql)
    assert result.error
    assert not result.rows
    assert str(shared.path.parent) not in result.error
    assert shared.path.read_bytes() == before
    assert [p.name for p in shared.path.parent.iterdir()] == [shared.path.name]
    assert shared.ask("SELECT count(*) FROM cities").rows == ((5,),)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> LockedDatabase:
    from tests.rollout.envs.sql.conftest import write_cities

    return LockedDatabase(write_cities(tmp_path_factory.mktemp("sql") / "cities.sqlite"))


def test_the_schema_can_be_read(database: LockedDatabase) -> None:
    assert database.ask("SELECT name FROM sqlite_master").rows == (("cities",), ("numbers",))
    assert len(database.ask("PRAGMA table_info(cities)").rows) == 4


def test_honest_queries_of_every_sort_run(database: LockedDatabase) -> None:
    for sql in (
        "SELECT country, count(*) FROM cities GROUP BY 1 HAVING count(*) > 1 ORDER BY 2 DESC",
        "WITH big AS (SELECT * FROM cities WHERE people > 400000) SELECT avg(people) FROM big",
        "SELECT name, rank() OVER (ORDER BY people DESC) FROM cities",
        "SELECT a.name FROM cities a JOIN cities b ON a.country = b.country AND a.name <> b.name",
        "SELECT upper(substr(name, 1, 2)), round(people / 1e3) FROM cities WHERE name LIKE '%o%'",
        "SELECT group_concat(name) FROM cities WHERE founded IS NULL",
        "SELECT strftime('%Y', '2013-04-01'), CASE WHEN 1 THEN 'a' END",
    ):
        assert database.ask(sql).error == "", sql


def test_too_much_work_is_stopped_by_steps_and_the_worker_goes_on(
    database: LockedDatabase, workers: WorkerPool
) -> None:
    database.ask("SELECT 1")
    before = workers.pids()
    pool = WorkerPool(QueryLimits(seconds=30, steps=1_000_000), size=1)
    result = LockedDatabase(database.path, pool).ask(
        "SELECT count(*) FROM numbers a, numbers b, numbers c"
    )
    after = pool.pids()
    pool.close()
    assert result.error == "stopped: the query takes too much work"
    assert len(after) == 1
    assert workers.pids() == before


BIG = f"replace(replace('{'a' * 50}', 'a', '{'a' * 40}'), 'a', '{{}}')"
SLOW = (
    "SELECT sum(instr(big, half || n)) FROM (SELECT "
    + BIG.format("a" * 30)
    + " AS big, "
    + BIG.format("a" * 15)
    + " AS half), numbers"
)
"""A search of 30,000 characters in 60,000 for each row: seconds between two looks at the steps."""


def test_what_no_step_limit_sees_is_killed_in_time_and_the_next_query_has_a_new_worker(
    database: LockedDatabase, workers: WorkerPool
) -> None:
    database.ask("SELECT 1")
    (killed,) = workers.pids()
    began = time.monotonic()
    result = database.ask(SLOW)
    took = time.monotonic() - began
    assert result.error == "stopped: the query takes more than 2 s"
    assert 2 <= took < 2 + PATIENCE
    assert not psutil.pid_exists(killed)
    assert database.ask("SELECT count(*) FROM cities").rows == ((5,),)
    assert workers.pids() != (killed,)


@pytest.mark.parametrize(
    "sql",
    [
        # 4 million rows to sort, a text that grows, a set that grows, long rows to sort.
        "SELECT a.n, b.n, a.n + b.n, a.n || b.n, 1 FROM numbers a, numbers b ORDER BY 4 DESC, 3",
        f"SELECT group_concat({BIG.format('aaaaa')}) FROM numbers",
        "SELECT count(DISTINCT a.n || '-' || b.n || 'xxxxxxxxxxxxx') FROM numbers a, numbers b",
        f"SELECT {BIG.format('a' * 45)} || n AS x FROM numbers ORDER BY x DESC",
    ],
)
def test_memory_is_bounded_and_nothing_lands_on_a_disk(
    sql: str, database: LockedDatabase, workers: WorkerPool
) -> None:
    database.ask("SELECT 1")
    (pid,) = workers.pids()
    most = psutil.Process(pid).memory_info().rss
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.02):
            try:
                most = max(most, psutil.Process(pid).memory_info().rss)
            except psutil.NoSuchProcess:
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = database.ask(sql)
    over.set()
    watcher.join()
    assert result.error
    assert 0 < most < 256 << 20
    assert [p.name for p in database.path.parent.iterdir()] == [database.path.name]


def test_a_worker_can_write_no_file_and_hold_no_more_memory_than_it_is_given(
    database: LockedDatabase, workers: WorkerPool
) -> None:
    database.ask("SELECT 1")
    process = psutil.Process(workers.pids()[0])
    assert process.rlimit(psutil.RLIMIT_FSIZE) == (0, 0)
    assert process.rlimit(psutil.RLIMIT_AS) == (512 << 20, 512 << 20)
    assert process.environ().keys() <= {"LANG", "LC_CTYPE"}


def test_a_value_is_shown_in_part(database: LockedDatabase) -> None:
    ((shown,),) = database.ask(f"SELECT {BIG.format('aa')}").rows
    assert shown == "a" * 200 + "…"


def test_a_worker_that_something_else_ended_is_replaced_and_the_query_answered(
    database: LockedDatabase, workers: WorkerPool
) -> None:
    database.ask("SELECT 1")
    (pid,) = workers.pids()
    os.kill(pid, signal.SIGKILL)
    assert database.ask("SELECT count(*) FROM cities").rows == ((5,),)
    assert workers.pids() != (pid,)


def test_threads_share_the_workers(database: LockedDatabase, workers: WorkerPool) -> None:
    got: list[object] = []

    def ask(n: int) -> None:
        got.append((n, database.ask(f"SELECT n FROM numbers WHERE n = {n}").rows[0][0]))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [(n, n) for n in range(32)]  # type: ignore[type-var]
    assert len(workers.pids()) == 1


def test_a_thread_that_ends_takes_no_worker_with_it(
    database: LockedDatabase, workers: WorkerPool
) -> None:
    thread = threading.Thread(target=database.ask, args=("SELECT 1",))
    thread.start()
    thread.join()
    before = workers.pids()
    assert database.ask("SELECT 1").rows == ((1,),)
    assert workers.pids() == before


def test_a_missing_database_is_said_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(
        MissingFile, match=r"no such database; `\S*python\S* -m rollout\.envs\.sql`"
    ):
        LockedDatabase(tmp_path / "none.sqlite")


def test_a_file_that_is_no_database_is_the_environments_fault_and_not_the_policys(
    tmp_path: Path, workers: WorkerPool
) -> None:
    path = tmp_path / "text.sqlite"
    path.write_text("no database " * 200)
    with pytest.raises(Unavailable, match=r"text\.sqlite: not a database that can be read"):
        LockedDatabase(path, workers).ask("SELECT 1")


def test_a_late_query_of_the_environments_own_is_no_result(cities: Path) -> None:
    """On a busy machine the tables were taken for none, and the episode was played and graded."""
    busy = WorkerPool(QueryLimits(seconds=0))
    assert LockedDatabase(cities, busy).ask("SELECT 1").late
    with pytest.raises(Unavailable, match=r"SELECT 1: stopped: .*is this machine very busy"):
        LockedDatabase(cities, busy).ask_itself("SELECT 1")
    busy.close()


def test_a_name_with_marks_of_a_uri_is_a_name(cities: Path, workers: WorkerPool) -> None:
    odd = cities.with_name("a?mode=rwc#b%41.sqlite")
    shutil.copy(cities, odd)
    assert LockedDatabase(odd, workers).ask("SELECT count(*) FROM cities").rows == ((5,),)


PARENT = """
import sys, threading
from pathlib import Path
from rollout.envs.sql.locked_db import LockedDatabase, POOL
database = LockedDatabase(Path(sys.argv[1]))
database.ask("SELECT 1")
slow = threading.Thread(target=database.ask, args=(sys.argv[2],), daemon=True)
if sys.argv[2]:
    slow.start()
print(*POOL.pids(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("sql", ["", SLOW], ids=["idle", "in the middle of a query"])
def test_kill_9_of_the_parent_leaves_no_worker(cities: Path, sql: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(cities), sql],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 1
    parent.kill()
    parent.communicate()
    for pid in workers:
        wait_for_end(pid)


def test_a_parent_that_ends_leaves_no_worker(cities: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PARENT, str(cities), ""],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    (worker,) = ended.stdout.split()
    wait_for_end(int(worker))
