from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval.assertions import (
    ASSERTION_KINDS,
    AssertionKind,
    GraderLimits,
    TreeGrader,
    each_fact_once,
    parse_assertions,
    parse_seed,
)
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.eval.tree import Unmet

SEED = {"notes/a.txt": "one\ntwo\n", "b.csv": "x,y\n1,2\n"}


def info(*assertions: dict[str, Any], seed: dict[str, str] | None = None) -> dict[str, Any]:
    files = [
        {"path": p, "kind": "text", "content": c}
        for p, c in (SEED if seed is None else seed).items()
    ]
    return {"workspace_seed": {"files": files}, "verifiable_assertions": list(assertions)}


def verdict(
    root: Path, assertion: dict[str, Any], limits: GraderLimits | None = None
) -> tuple[bool, str]:
    task = info(assertion)
    grader = TreeGrader(parse_assertions(task, "t"), parse_seed(task, "t"), limits)
    (result,) = grader.grade(root).results
    assert (result.kind, result.path) == (assertion["kind"], assertion["path"])
    assert result.passed == (result.detail == "")
    return result.passed, result.detail


def exists(path: str) -> dict[str, Any]:
    return {"kind": "file_exists", "path": path}


def not_exists(path: str) -> dict[str, Any]:
    return {"kind": "file_not_exists", "path": path}


def contains(path: str, *needles: str) -> dict[str, Any]:
    return {"kind": "file_contents_contain", "path": path, "must_contain": list(needles)}


def matches(path: str, regex: str) -> dict[str, Any]:
    return {"kind": "file_contents_match_regex", "path": path, "regex": regex}


def unchanged(path: str) -> dict[str, Any]:
    return {"kind": "file_unchanged", "path": path}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    for path, content in SEED.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def test_each_kind_holds_where_it_is_true(tree: Path) -> None:
    task = info(
        exists("notes/a.txt"),
        not_exists("notes/c.txt"),
        contains("notes/a.txt", "one", "two"),
        matches("b.csv", r"^x,y\n\d,\d$"),
        unchanged("b.csv"),
    )
    grade = TreeGrader(parse_assertions(task, "t"), parse_seed(task, "t")).grade(tree)
    assert grade.passed
    assert [r.kind for r in grade.results] == [a["kind"] for a in task["verifiable_assertions"]]


@pytest.mark.parametrize(
    ("assertion", "why"),
    [
        (exists("c.txt"), "no such file"),
        (exists("missing/c.txt"), "no such file"),
        (exists("b.csv/c.txt"), "not a folder"),
        (contains("notes", "x"), "a folder"),
        (not_exists("b.csv"), "still there"),
        (not_exists("notes"), "still there"),
        (contains("b.csv", "x,y", "9", "8"), "'9', '8'"),
        (matches("b.csv", r"^1,2"), "does not match"),
        (matches("notes/a.txt", r"one.two"), "does not match"),
    ],
)
def test_a_failed_assertion_says_why(tree: Path, assertion: dict[str, Any], why: str) -> None:
    passed, detail = verdict(tree, assertion)
    assert not passed
    assert why in detail


def test_unchanged_compares_bytes(tree: Path) -> None:
    (tree / "b.csv").write_bytes(b"x,y\r\n1,2\r\n")
    assert verdict(tree, unchanged("b.csv")) == (False, "differs from the seed")


def test_unchanged_fails_for_a_removed_file(tree: Path) -> None:
    (tree / "b.csv").unlink()
    assert verdict(tree, unchanged("b.csv")) == (False, "no such file")


def test_unchanged_reads_a_seed_that_is_not_text(tmp_path: Path) -> None:
    task = info(unchanged("logo.png"), seed={})
    task["workspace_seed"]["files"] = [{"path": "logo.png", "kind": "binary", "hex": "89504eff00"}]
    (tmp_path / "logo.png").write_bytes(b"\x89PN\xff\x00")
    grader = TreeGrader(parse_assertions(task, "t"), parse_seed(task, "t"))
    assert grader.grade(tmp_path).passed


def test_absence_below_a_removed_folder_is_absence(tree: Path) -> None:
    assert verdict(tree, not_exists("gone/deep/c.txt")) == (True, "")


# --- hostile trees --------------------------------------------------------------------------------


def test_a_link_to_a_file_outside_is_not_followed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("answer")
    (tree / "out.txt").symlink_to(tmp_path / "secret")
    for assertion in (exists("out.txt"), contains("out.txt", "answer"), not_exists("out.txt")):
        assert not verdict(tree, assertion)[0]
    assert "symbolic link" in verdict(tree, exists("out.txt"))[1]


def test_a_folder_that_is_a_link_is_not_followed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.txt").write_text("answer")
    (tree / "inner").symlink_to(tmp_path / "outside")
    assert verdict(tree, contains("inner/a.txt", "answer")) == (
        False,
        "inner is a symbolic link",
    )


def test_a_dangling_link_is_not_absence(tree: Path) -> None:
    (tree / "c.txt").symlink_to("nowhere")
    assert not verdict(tree, not_exists("c.txt"))[0]


def test_a_link_on_the_way_does_not_prove_absence(tree: Path, tmp_path: Path) -> None:
    (tree / "away").symlink_to(tmp_path / "nowhere")
    assert not verdict(tree, not_exists("away/c.txt"))[0]


@pytest.mark.parametrize(
    ("links", "path", "why"),
    [
        ({"up": ".."}, "up/secret", "up is a symbolic link"),
        ({"up": "../secret"}, "up", "is a symbolic link, not a file"),
        ({"notes/up": "../b.csv"}, "notes/up", "is a symbolic link, not a file"),
        ({"here": "."}, "here/b.csv", "here is a symbolic link"),
        ({"loop": "loop"}, "loop", "is a symbolic link, not a file"),
        ({"loop": "loop"}, "loop/b.csv", "loop is a symbolic link"),
        ({"a": "b", "b": "a"}, "a/b.csv", "a is a symbolic link"),
        ({"odd": b"caf\xe9/\xff"}, "odd", "is a symbolic link, not a file"),
    ],
)
def test_a_link_is_followed_nowhere_not_even_within_the_tree(
    tree: Path, links: dict[str, str | bytes], path: str, why: str
) -> None:
    (tree.parent / "secret").write_text("x,y\n")
    for name, target in links.items():
        (tree / name).symlink_to(os.fsdecode(target))
    for assertion in (exists(path), contains(path, "x"), matches(path, "x")):
        assert verdict(tree, assertion) == (False, why)
    assert not verdict(tree, not_exists(path))[0]


def test_a_hard_link_is_the_file_that_it_is(tree: Path) -> None:
    outside = tree.parent / "outside"
    outside.write_text("x,y\n1,2\n")
    outside.chmod(0o400)
    (tree / "b.csv").unlink()
    (tree / "b.csv").hardlink_to(outside)
    (tree / "again").hardlink_to(outside)
    before = outside.stat()
    assert verdict(tree, unchanged("b.csv")) == (True, "")
    assert verdict(tree, contains("again", "1,2")) == (True, "")
    assert outside.stat() == before


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["null", "zero", "full", "urandom", "tty"])
def test_a_device_is_neither_opened_nor_read(name: str) -> None:
    for assertion in (exists(name), contains(name, "x"), matches(name, "x")):
        assert verdict(Path("/dev"), assertion) == (False, "is a device, not a file")
    assert verdict(Path("/dev"), not_exists(name)) == (False, "is still there")


@pytest.mark.timeout(20)
def test_a_pipe_does_not_block_the_grader(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    passed, detail = verdict(tree, contains("pipe", "x"))
    assert not passed
    assert "a pipe" in detail


def test_a_socket_is_no_file(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("sock")
        assert "a socket" in verdict(tree, exists("sock"))[1]


def terabyte(path: Path) -> None:
    """Leave a sparse file."""
    with open(path, "wb") as f:
        f.truncate(2**40)


def test_a_huge_file_is_not_read(tree: Path) -> None:
    terabyte(tree / "big")
    passed, detail = verdict(tree, matches("big", "x"))
    assert not passed
    assert "larger than" in detail


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where many files are made and removed fastest."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def deep(memory: Path) -> Iterator[Path]:
    """A file below 3,000 folders, which is longer than any path may be."""
    fd = os.open(memory, os.O_PATH)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("bottom.txt", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    yield memory
    subprocess.run(["rm", "-rf", memory / "d"], check=True)  # too deep for shutil


def test_a_file_3000_folders_deep_is_graded(deep: Path) -> None:
    bottom = "d/" * 3000 + "bottom.txt"
    assert verdict(deep, exists(bottom)) == (True, "")
    assert verdict(deep, contains(bottom, "x")) == (False, "does not contain 'x'")
    assert verdict(deep, not_exists("d/" * 3001 + "bottom.txt")) == (True, "")


def test_100000_files_beside_those_that_are_asked_for_are_not_looked_at(memory: Path) -> None:
    fd = os.open(memory, os.O_RDONLY)
    for i in range(100_000):
        os.mknod(f"{i}.txt", dir_fd=fd)
    os.close(fd)
    begun = time.process_time()
    assert verdict(memory, exists("99999.txt")) == (True, "")
    assert verdict(memory, contains("99999.txt", "x")) == (False, "does not contain 'x'")
    assert verdict(memory, not_exists("100000.txt")) == (True, "")
    graded = time.process_time()
    assert len(list(memory.iterdir())) == 100_000
    assert graded - begun < time.process_time() - graded, "to list them takes as long"


def test_a_name_that_is_not_utf8_is_no_file_that_a_task_can_ask_for(tree: Path) -> None:
    for name in (b"caf\xe9.txt", b"\xff\xfe", b"a\nb\x1b[2J", b"notes/\x80"):
        Path(os.fsdecode(os.fsencode(tree) + b"/" + name)).write_text("odd", encoding="utf-8")
    assert verdict(tree, exists("café.txt")) == (False, "no such file")
    assert verdict(tree, not_exists("café.txt")) == (True, "")
    assert verdict(tree, unchanged("notes/a.txt")) == (True, "")


def test_a_file_that_is_no_text_fails_text_assertions(tree: Path) -> None:
    (tree / "b.csv").write_bytes(b"x,y\xff")
    assert verdict(tree, contains("b.csv", "x,y")) == (False, "is not UTF-8 text")
    assert verdict(tree, matches("b.csv", "x")) == (False, "is not UTF-8 text")


def test_permissions_count_the_same_for_every_grader(tree: Path) -> None:
    (tree / "b.csv").chmod(0)
    assert verdict(tree, contains("b.csv", "x")) == (False, "cannot be read (permissions)")
    (tree / "notes").chmod(0)
    for assertion in (exists("notes/a.txt"), not_exists("notes/zzz")):
        assert verdict(tree, assertion) == (False, "a folder on the way cannot be searched")
    (tree / "notes").chmod(0o755)


def swap_before_open(name: str, swap: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `swap` done where it hurts: `name` was looked at and is about to be opened."""
    really, waiting = os.open, [swap]

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == name and waiting:
            waiting.pop()()
        return really(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("put", "why"),
    [
        (lambda path: None, "cannot be read (No such file or directory)"),
        (lambda path: path.symlink_to("/etc/passwd"), "cannot be read (Too many levels of"),
        (lambda path: path.symlink_to(path.name), "cannot be read (Too many levels of"),
        (os.mkfifo, "is a pipe, not a file"),
        (os.mkdir, "is a folder, not a file"),
        (lambda path: bind(path), "cannot be read (No such device or address)"),
        (lambda path: path.write_text("swapped"), "does not contain 'x,y'"),
        (lambda path: terabyte(path), "larger than"),
    ],
    ids=["nothing", "link", "loop", "pipe", "folder", "socket", "file", "terabyte"],
)
def test_a_file_that_is_swapped_before_it_is_opened_is_an_unmet_assertion(
    tree: Path, put: Callable[[Path], Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tree / "b.csv"

    def swap() -> None:
        file.unlink()
        put(file)

    swap_before_open("b.csv", swap, monkeypatch)
    before = open_descriptors()
    passed, detail = verdict(tree, contains("b.csv", "x,y"))
    assert not passed
    assert why in detail
    assert open_descriptors() == before


def bind(path: Path) -> None:
    """Leave a socket at `path`."""
    with socket.socket(socket.AF_UNIX) as s, contextlib.chdir(path.parent):
        s.bind(path.name)  # a socket's path may have 107 bytes


@pytest.mark.parametrize(
    "put",
    [lambda path: None, lambda path: path.symlink_to("/etc"), Path.touch, os.mkfifo],
    ids=["nothing", "link", "file", "pipe"],
)
def test_a_folder_that_is_swapped_before_it_is_entered_is_an_unmet_assertion(
    tree: Path, put: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def swap() -> None:
        shutil.rmtree(tree / "notes")
        put(tree / "notes")

    swap_before_open("notes", swap, monkeypatch)
    passed, detail = verdict(tree, not_exists("notes/passwd"))
    assert not passed
    assert "cannot be read" in detail


HOLDER = """
import fcntl, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
with open(sys.argv[1], "r+") as file:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.timeout(20)
def test_a_file_under_somebodys_lease_is_not_waited_for(tree: Path) -> None:
    line = [sys.executable, "-c", HOLDER, str(tree / "b.csv")]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        passed, detail = verdict(tree, contains("b.csv", "x"))
        assert not passed
        assert "cannot be read (Resource temporarily unavailable)" in detail


@pytest.fixture
def last_descriptors() -> Iterator[Callable[[int], None]]:
    """Lets this process open so many files more, and no other."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def leave(count: int) -> None:
        highest = max(map(int, open_descriptors()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/", os.O_PATH))
        for _ in range(count):
            os.close(taken.pop())

    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for fd in taken:
        os.close(fd)


@pytest.mark.parametrize("left", range(3))
def test_too_few_descriptors_are_the_machines_failure_and_no_grade(
    tree: Path, left: int, last_descriptors: Callable[[int], None]
) -> None:
    task = info(not_exists("notes/c.txt"), contains("notes/a.txt", "one"))
    grader = TreeGrader(parse_assertions(task, "t"), parse_seed(task, "t"))
    last_descriptors(left)
    with pytest.raises(OSError, match="Too many open files"):
        grader.grade(tree)


def test_a_catastrophic_regex_is_stopped(tree: Path) -> None:
    (tree / "b.csv").write_text("a" * 5000 + "!")
    began = time.process_time()
    passed, detail = verdict(tree, matches("b.csv", r"^(a|aa)+$"), GraderLimits(regex_seconds=0.2))
    assert not passed
    assert "took over 0.2 s" in detail
    assert time.process_time() - began < 5


def test_a_missing_root_is_an_error_and_no_grade(tmp_path: Path) -> None:
    task = info(not_exists("c.txt"))
    with pytest.raises(FileNotFoundError):
        TreeGrader(parse_assertions(task, "t"), {}).grade(tmp_path / "none")


def open_descriptors() -> set[str]:
    return {fd.name for fd in Path("/proc/self/fd").iterdir()}


def test_grading_leaves_no_descriptor_open(tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    (tree / "link").symlink_to("/")
    before = open_descriptors()
    for assertion in (
        exists("notes/a.txt"),
        contains("notes/a.txt", "one"),
        contains("pipe", "x"),
        exists("link/etc/passwd"),
        exists("none/x"),
    ):
        verdict(tree, assertion)
    assert open_descriptors() == before


# --- malformed tasks ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assertion", "says"),
    [
        ({"kind": "file_is_nice", "path": "a"}, "'file_is_nice' is unknown; known: file_exists"),
        ({"path": "a"}, "kind: None is unknown"),
        ({"kind": "file_exists"}, "'path' is missing"),
        ({"kind": "file_exists", "path": "a", "mode": 1}, "unknown key 'mode'"),
        (exists("/etc/passwd"), "absolute"),
        (exists("../a"), "'..'"),
        (exists("a/../../b"), "'..'"),
        (exists("a//b"), "component ''"),
        (exists("a/"), "component ''"),
        (exists("./a"), "component '.'"),
        (exists(""), "relative path"),
        (exists("a\0b"), "cannot be a file name"),
        (exists("x" * 256), "cannot be a file name"),
        (exists("\ud800"), "not valid Unicode"),
        ({"kind": "file_exists", "path": 3}, "relative path"),
        ({"kind": "file_contents_contain", "path": "a"}, "'must_contain' is missing"),
        (contains("a"), "must_contain: expected a list that is not empty"),
        (contains("a", ""), "must_contain.0"),
        ({**contains("a"), "must_contain": "text"}, "must_contain: expected a list"),
        (matches("a", "(unclosed"), "no valid regular expression"),
        (matches("a", ""), "expected a regular expression"),
        (unchanged("c.txt"), "not in workspace_seed"),
        ("file_exists", "expected an object"),
    ],
)
def test_a_malformed_assertion_names_its_place(assertion: Any, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_assertions(info(exists("ok"), assertion), "pool.jsonl:7")
    assert str(caught.value).startswith("pool.jsonl:7: verifiable_assertions.1")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (None, "workspace_seed.files must be a list"),
        ([3], "workspace_seed.files.0: expected an object"),
        ([{"path": "a", "kind": "link", "to": "b"}], "'link' is unknown; known: text, binary"),
        ([{"path": "a", "kind": "text"}], "'content' is missing"),
        ([{"path": "../a", "kind": "text", "content": ""}], "'..'"),
        ([{"path": "a", "kind": "text", "content": 3}], "content: expected text"),
        ([{"path": "a", "kind": "binary", "hex": "xyz"}], "hex"),
        ([{"path": "a", "kind": "text", "content": ""}] * 2, "listed twice"),
        (
            [{"path": p, "kind": "text", "content": ""} for p in ("a", "a/b")],
            "'a/b' lies below another file",
        ),
    ],
)
def test_a_malformed_seed_names_its_place(files: Any, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_seed({"workspace_seed": {"files": files}}, "pool.jsonl:7")
    assert str(caught.value).startswith("pool.jsonl:7: workspace_seed.files")
    assert says in str(caught.value)


def test_a_folder_exists_as_a_file_does(tree: Path) -> None:
    assert verdict(tree, exists("notes")) == (True, "")
    assert not verdict(tree, not_exists("notes"))[0]


def test_an_empty_list_of_assertions_is_read_and_passes_nothing(tree: Path) -> None:
    none = parse_assertions({**info(), "verifiable_assertions": []}, "t1")
    grade = TreeGrader(none, {}).grade(tree)
    assert (none, grade.passed, grade.rate) == ((), False, 0.0)


@pytest.mark.parametrize("listed", [None, {}, "file_exists"])
def test_assertions_that_are_no_list_are_refused(listed: Any) -> None:
    with pytest.raises(BadInput, match="t1: verifiable_assertions must be a list"):
        parse_assertions({**info(), "verifiable_assertions": listed}, "t1")


# --- a kind from outside --------------------------------------------------------------------------


def _longer_than(wanted: int, text: str, limits: GraderLimits) -> None:
    if len(text) <= wanted:
        raise Unmet(f"has {len(text)} characters")


def _whole_number(value: Any, where: str) -> int:
    if not isinstance(value, int):
        raise BadInput(f"{where}: expected a whole number, found {value!r}")
    return value


@pytest.fixture
def longer_than() -> Iterator[None]:
    kind = AssertionKind(of_text=_longer_than, key="characters", parse=_whole_number)
    ASSERTION_KINDS.register("file_longer_than", kind)
    yield
    ASSERTION_KINDS.remove("file_longer_than")


def longer(path: str, characters: Any) -> dict[str, Any]:
    return {"kind": "file_longer_than", "path": path, "characters": characters}


def test_a_kind_from_outside_is_read_and_graded(longer_than: None, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    assert verdict(tmp_path, longer("a.txt", 4)) == (True, "")
    assert verdict(tmp_path, longer("a.txt", 5)) == (False, "has 5 characters")
    with pytest.raises(BadInput, match=r"0\.characters: expected a whole number, found 'x'"):
        parse_assertions(info(longer("a.txt", "x")), "t")
    with pytest.raises(BadInput, match="the key 'characters' is missing"):
        parse_assertions(info({"kind": "file_longer_than", "path": "a"}), "t")


def test_two_kinds_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="assertion kind 'file_exists' is registered twice"):
        ASSERTION_KINDS.register("file_exists", AssertionKind(of_text=_longer_than))


def test_a_kind_that_looks_at_nothing_or_at_two_things_is_refused() -> None:
    with pytest.raises(BadInput, match="one of of_text, of_bytes and of_tree, not 0"):
        AssertionKind(key="characters")
    with pytest.raises(BadInput, match="not 2"):
        AssertionKind(of_text=_longer_than, of_tree=lambda tree, path: None)


def test_an_assertion_that_is_unmet_without_a_word_does_not_hold(tmp_path: Path) -> None:
    def never(wanted: Any, text: str, limits: GraderLimits) -> None:
        raise Unmet

    (tmp_path / "a.txt").write_text("words")
    ASSERTION_KINDS.register("file_never", AssertionKind(of_text=never))
    try:
        found = verdict(tmp_path, {"kind": "file_never", "path": "a.txt"})
    finally:
        ASSERTION_KINDS.remove("file_never")
    assert found == (False, "does not hold")


# --- one fact, once -------------------------------------------------------------------------------


def result(kind: str, path: str, passed: bool) -> AssertionResult:
    return AssertionResult(kind, path, passed, "" if passed else "no")


@pytest.mark.parametrize(
    "kind", ["file_contents_contain", "file_contents_match_regex", "file_unchanged"]
)
def test_a_file_whose_contents_are_checked_is_no_second_fact(kind: str) -> None:
    """2 of 3 hold; without the existence of a.txt, which its contents imply, 1 of 2."""
    other = result("file_exists", "b.txt", True)
    both = Grade((result("file_exists", "a.txt", True), result(kind, "a.txt", False), other))
    once = each_fact_once(both)
    assert (both.n_passed, both.n_total) == (2, 3)
    assert (once.n_passed, once.n_total) == (1, 2)
    assert once.results == (both.results[1], other)


def test_an_absent_file_and_two_checks_of_one_content_are_facts_of_their_own() -> None:
    grade = Grade(
        (
            result("file_not_exists", "a.txt", True),
            result("file_contents_contain", "b.txt", True),
            result("file_contents_match_regex", "b.txt", False),
            result("of_another_program", "c.txt", True),
            result("file_exists", "c.txt", True),
        )
    )
    assert each_fact_once(grade) == grade


def test_wherever_an_assertion_holds_so_does_what_it_implies(tmp_path: Path) -> None:
    """The implication is a claim about the checks themselves, so the checks decide it."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.txt").write_text("one\ntwo\n")
    (tmp_path / "folder").mkdir()
    holding = 0
    for path in ("notes/a.txt", "folder", "missing"):
        asked = [contains(path, "one"), {"kind": "file_contents_match_regex", "path": path}]
        asked[1]["regex"] = "two"
        if path in SEED:
            asked.append({"kind": "file_unchanged", "path": path})
        for assertion in asked:
            if verdict(tmp_path, assertion)[0]:
                holding += 1
                for implied in ASSERTION_KINDS[assertion["kind"]].implies:
                    assert verdict(tmp_path, {"kind": implied, "path": path})[0]
    assert holding == 3


@pytest.mark.parametrize(("size", "fits"), [(0, True), (8, True), (-1, False), (True, False)])
def test_a_stub_of_so_many_zero_bytes_is_a_seed(tmp_path: Path, size: int, fits: bool) -> None:
    task = info({"kind": "file_unchanged", "path": "stub.bin"})
    stub = {"path": "stub.bin", "kind": "binary-stub", "content": size}
    task["workspace_seed"]["files"].append(stub)
    if not fits:
        with pytest.raises(BadInput, match=r"content: expected a size of 0 to \d+ bytes"):
            parse_seed(task, "t")
        return
    grader = TreeGrader(parse_assertions(task, "t"), parse_seed(task, "t"))
    (tmp_path / "stub.bin").write_bytes(bytes(size))
    assert grader.grade(tmp_path).passed
    (tmp_path / "stub.bin").write_bytes(bytes(size + 1))
    assert not grader.grade(tmp_path).passed
