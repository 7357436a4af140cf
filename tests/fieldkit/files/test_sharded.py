"""A large file of lines becomes shards, and nobody who reads it notices."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files import sharded
from fieldkit.files.sharded import (
    INDEX,
    SHARD_BYTES,
    last_record,
    read_records,
    sha256_records,
    shards_of,
    stored,
    write_records,
)

LINES = [f'{{"n": {n}, "text": "schön {"x" * n}"}}' for n in range(40)]
WHOLE = "".join(line + "\n" for line in LINES).encode()
SHA = hashlib.sha256(WHOLE).hexdigest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some folder" / "bundle.jsonl"


@pytest.fixture(autouse=True)
def _folder(path: Path) -> None:
    path.parent.mkdir()


def texts(path: Path) -> list[str]:
    return [text for _, text in read_records(path)]


@pytest.mark.parametrize("most", [None, len(WHOLE), len(WHOLE) - 1, 200, 1])
def test_both_forms_have_the_same_lines_and_the_same_hash(path: Path, most: int | None) -> None:
    assert write_records(path, LINES, most) == SHA
    assert (texts(path), sha256_records(path)) == (LINES, SHA)
    assert last_record(path) is not None
    assert (last_record(path) or ("", ""))[1] == LINES[-1]
    is_file = most is None or most >= len(WHOLE)
    assert stored(path) == (path if is_file else shards_of(path))
    assert path.is_file() == is_file
    if is_file:
        assert path.read_bytes() == WHOLE


def test_no_shard_is_larger_than_asked_for_unless_one_line_is(path: Path) -> None:
    write_records(path, LINES, 100)
    index = json.loads((shards_of(path) / INDEX).read_text())
    found = [s["name"] for s in index["shards"]]
    assert found == sorted(p.name for p in shards_of(path).glob("*.zst"))
    assert sum(s["lines"] for s in index["shards"]) == len(LINES)
    assert index["sha256"] == SHA
    where = [w.rpartition(":") for w, _ in read_records(path)]
    per_file: dict[str, int] = {}
    for (file, _, _), line in zip(where, LINES, strict=True):
        per_file[file] = per_file.get(file, 0) + len(line.encode()) + 1
    assert max(per_file.values()) <= 100
    assert {Path(file).name for file in per_file} == set(found)


def test_any_program_reads_a_shard(path: Path) -> None:
    zstd = shutil.which("zstd")
    if zstd is None:
        pytest.skip("no zstd program here")
    write_records(path, LINES, 300)
    shards = sorted(shards_of(path).glob("*.zst"))
    read = subprocess.run([zstd, "-dc", *map(str, shards)], check=True, capture_output=True)
    assert read.stdout == WHOLE


def test_what_was_there_is_replaced_whatever_its_form(path: Path) -> None:
    for most in (None, 100, None):
        write_records(path, LINES[:10], 10)
        write_records(path, LINES, most)
        assert texts(path) == LINES
        assert len(list(path.parent.iterdir())) == 1


def test_a_writer_that_fails_leaves_what_was_there(path: Path) -> None:
    def broken() -> Iterator[str]:
        yield from LINES
        raise RuntimeError("the disk is full")

    write_records(path, LINES[:3])
    with pytest.raises(RuntimeError, match="disk is full"):
        write_records(path, broken(), 100)
    assert texts(path) == LINES[:3]
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("before", "after", "last"), [(None, 100, "rename"), (100, None, "replace")]
)
def test_a_kill_while_one_form_takes_the_others_place_leaves_the_old_lines(
    path: Path,
    before: int | None,
    after: int | None,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    write_records(path, LINES[:9], before)
    monkeypatch.setattr(os, last, killed)
    with pytest.raises(KeyboardInterrupt):
        write_records(path, LINES, after)
    assert texts(path) == LINES[:9]


def test_nothing_stored(path: Path) -> None:
    assert (stored(path), last_record(path)) == (None, None)
    for read in (texts, sha256_records):
        with pytest.raises(BadInput, match=r"bundle\.jsonl: no such file"):
            read(path)


def test_a_file_without_a_whole_line(path: Path) -> None:
    for text in ("", "torn"):
        path.write_text(text, encoding="utf-8")
        assert (texts(path), last_record(path)) == ([], None)


@pytest.mark.parametrize("length", [1, 2**16 - 1, 2**16, 2**16 + 1, 3 * 2**16])
def test_the_last_line_of_a_long_file_is_found_from_its_end(path: Path, length: int) -> None:
    line = "y" * length
    for before in ("", "first\n", "first\n" * 20_000):
        for after in ("", "torn" * 20):
            path.write_text(f"{before}{line}\n{after}", encoding="utf-8")
            assert last_record(path) == (str(path), line)


def test_a_last_line_that_is_no_text(path: Path) -> None:
    path.write_bytes(b"one\n\xff\n")
    with pytest.raises(BadInput, match=r"bundle\.jsonl: its last line: not UTF-8"):
        last_record(path)


def flip(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


def cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-3])


def swap(shard: Path) -> None:
    other = shard.with_name("00002.jsonl.zst")
    other.rename(shard.with_name("aside"))
    shard.rename(other)
    shard.with_name("aside").rename(shard)


def lose(shard: Path) -> None:
    shard.unlink()


@pytest.mark.parametrize("damage", [flip, cut, swap, lose])
def test_a_damaged_shard_is_named_with_the_next_command(
    path: Path, damage: Callable[[Path], None]
) -> None:
    write_records(path, LINES, 300)
    shard = shards_of(path) / "00001.jsonl.zst"
    damage(shard)
    for read in (texts, sha256_records):
        with pytest.raises(BadInput) as refused:
            read(path)
        message = str(refused.value)
        assert message.startswith(f"{shard}: ")
        assert f"`rm -r {shlex.quote(str(shards_of(path)))}`" in message
    command = message.split("`")[1]
    subprocess.run(command, shell=True, check=True)
    assert stored(path) is None


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ("{}", "not an index of shards"),
        ('{"schema": 2, "shards": []}', "schema is 2, this version reads 1"),
        ('{"schema": 1, "shards": []}', "names no shard"),
        ('{"schema": 1, "shards": [{"name": "a"}]}', "not an index of shards"),
    ],
)
def test_an_index_that_is_none(path: Path, index: str, said: str) -> None:
    write_records(path, LINES, 300)
    (shards_of(path) / INDEX).write_text(index)
    with pytest.raises(BadInput, match=said):
        texts(path)


def tear(index: Path) -> None:
    index.write_text("[1", encoding="utf-8")


@pytest.mark.parametrize("damage", [lose, tear])
def test_a_damaged_index_is_named_with_the_next_command(
    path: Path, damage: Callable[[Path], None]
) -> None:
    write_records(path, LINES, 300)
    index = shards_of(path) / INDEX
    damage(index)
    with pytest.raises(BadInput) as refused:
        texts(path)
    assert str(refused.value).startswith(f"{index}:")
    assert f"`rm -r {shlex.quote(str(shards_of(path)))}`" in str(refused.value)


def test_a_reader_and_a_writer_hold_one_shard(path: Path) -> None:
    """Of 40 MB, in shards of a twentieth of that."""
    most, line = SHARD_BYTES // 2, json.dumps({"ids": list(range(2000))})
    n = 40 * 10**6 // len(line)
    peak = 0
    for work in (
        lambda: write_records(path, (line for _ in range(n)), most),
        lambda: sum(1 for _ in read_records(path)),
        lambda: sha256_records(path),
    ):
        tracemalloc.start()
        work()
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peak < 6 * most


def test_the_size_is_that_of_the_module_unless_one_is_given(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "SHARD_BYTES", 100)
    write_records(path, LINES)
    assert stored(path) == shards_of(path)
