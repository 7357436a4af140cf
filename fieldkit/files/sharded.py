"""A file of JSON lines that becomes a folder of compressed shards where it is large.

Callers name one path, `x.jsonl`. Up to `SHARD_BYTES` that is an ordinary file. A larger one is the
folder `x.jsonl.shards`: zstd files of at most that many bytes of lines, and an index that lists
them. Both forms have the same lines in the same order and the same hash, that of the lines. Reader
and writer hold one shard at a time. What the lines mean is not known here.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import (
    decode_line,
    fsync_dir,
    last_line,
    read_json,
    read_lines,
    sha256_file,
    whole_dir,
    write_bytes,
    write_json,
)

SCHEMA = 1

SHARDS = ".shards"
"""Added to the name of a file whose lines are in a folder of shards."""

INDEX = "index.json"

SHARD_BYTES = 4 * 2**20
"""The most bytes of lines in a JSONL file, or in a shard before compression; a single line may have
more. A bundle of 64 attempts has a fifth of it, so it stays text that any program reads. One of a
thousand episodes has more, and is compressed to a quarter or a sixth."""

LEVEL = 3
"""zstd's default. Level 9 takes twice as long and saves another tenth."""


@dataclass(frozen=True)
class _Shard:
    """One compressed file of a folder. sha256: of its bytes, as the index says."""

    path: Path
    lines: int
    sha256: str


def shards_of(path: Path) -> Path:
    """The folder that holds the lines of `path` where it is large."""
    return path.with_name(path.name + SHARDS)


def stored(path: Path) -> Path | None:
    """What is on disk for `path`: the file, or the folder of its shards; None without either."""
    if path.is_file():
        return path
    folder = shards_of(path)
    return folder if folder.is_dir() else None


def write_records(path: Path, lines: Iterable[str], most: int | None = None) -> str:
    """Write lines (without newlines) atomically and durably, in the form that their size asks for.

    Whatever was stored for `path` is replaced. Returns the hex SHA-256 of the lines, each with its
    newline. most: bytes, instead of `SHARD_BYTES`.
    """
    blocks = _blocks(lines, SHARD_BYTES if most is None else most)
    begun = list(itertools.islice(blocks, 2))
    folder = shards_of(path)
    if len(begun) < 2:
        data = b"".join(itertools.chain.from_iterable(begun))
        write_bytes(path, data)  # a reader takes the file before the folder
        shutil.rmtree(folder, ignore_errors=True)
        return hashlib.sha256(data).hexdigest()
    whole = hashlib.sha256()
    remaining = itertools.chain(begun, blocks)
    del begun  # so that its blocks go when they are written
    with whole_dir(folder) as inside:
        shards: list[_Shard] = []
        for block in remaining:
            data = b"".join(block)
            whole.update(data)
            shards.append(_write_shard(inside / f"{len(shards):05d}.jsonl.zst", data, len(block)))
        index = [{"name": s.path.name, "lines": s.lines, "sha256": s.sha256} for s in shards]
        write_json(inside / INDEX, {"schema": SCHEMA, "sha256": whole.hexdigest(), "shards": index})
    path.unlink(missing_ok=True)  # until here a kill leaves the file that was there
    fsync_dir(path.parent)
    return whole.hexdigest()


def _blocks(lines: Iterable[str], most: int) -> Iterator[list[bytes]]:
    """The lines with their newlines, in lists of at most `most` bytes, or of one line."""
    block: list[bytes] = []
    size = 0
    for line in lines:
        data = line.encode() + b"\n"
        if block and size + len(data) > most:
            yield block
            block, size = [], 0
        block.append(data)
        size += len(data)
    if block:
        yield block


def _write_shard(path: Path, data: bytes, lines: int) -> _Shard:
    import zstandard  # only where there is a shard

    packed = zstandard.ZstdCompressor(level=LEVEL).compress(data)
    path.write_bytes(packed)
    return _Shard(path, lines, hashlib.sha256(packed).hexdigest())


def read_records(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (file:line, text) of every line. A torn last line of a file is not yielded.

    Raises `BadInput` where nothing is stored, and for a line that is not UTF-8 and a damaged or
    missing shard, naming the file.
    """
    found = _require(path)
    if found == path:
        for number, line in read_lines(path):
            yield f"{path}:{number}", line
        return
    for shard in _shards(found):
        yield from _lines_of(shard)


def last_record(path: Path) -> tuple[str, str] | None:
    """The last line as (file, text); None where nothing is stored, or no line. Reads a file from
    its end, and of shards the last. Raises as `read_records`."""
    found = stored(path)
    if found is None:
        return None
    if found == path:
        line = _last_line(path)
        return None if line is None else (str(path), line)
    *_, last = _lines_of(_shards(found)[-1])
    return last


def sha256_records(path: Path) -> str:
    """Hex SHA-256 of the lines, in whichever form they are stored: what `write_records` returned.

    Raises as `read_records`.
    """
    found = _require(path)
    if found == path:
        return sha256_file(path)
    whole = hashlib.sha256()
    for shard in _shards(found):
        whole.update(_data_of(shard))
    return whole.hexdigest()


def _require(path: Path) -> Path:
    found = stored(path)
    if found is None:
        raise BadInput(f"{path}: no such file")
    return found


def _shards(folder: Path) -> list[_Shard]:
    """The shards that the index names: at least one."""
    path = folder / INDEX
    try:
        value = read_json(path)
    except BadInput as e:
        raise BadInput(f"{e}; {_remedy(folder)}") from None
    try:
        if value["schema"] != SCHEMA:
            raise BadInput(f"{path}:1: schema is {value['schema']!r}, this version reads {SCHEMA}")
        found = [
            _Shard(folder / str(s["name"]), int(s["lines"]), str(s["sha256"]))
            for s in value["shards"]
        ]
    except (KeyError, TypeError, ValueError) as e:
        if isinstance(e, BadInput):
            raise
        raise BadInput(f"{path}:1: not an index of shards ({e!r}); {_remedy(folder)}") from None
    if not found:
        raise BadInput(f"{path}:1: names no shard; {_remedy(folder)}")
    return found


def _data_of(shard: _Shard) -> bytes:
    """A shard's lines with their newlines."""
    import zstandard

    try:
        packed = shard.path.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"{shard.path}: no such file; {_remedy(shard.path.parent)}") from None
    if hashlib.sha256(packed).hexdigest() != shard.sha256:
        raise BadInput(
            f"{shard.path}: damaged: not the bytes that {INDEX} names; {_remedy(shard.path.parent)}"
        )
    return zstandard.ZstdDecompressor().decompress(packed)


def _lines_of(shard: _Shard) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(_data_of(shard).split(b"\n")[:-1], start=1):
        yield f"{shard.path}:{number}", decode_line(line, f"{shard.path}:{number}")


def _remedy(folder: Path) -> str:
    return (
        f"copy it back. Of a run's training step, `rm -r {shlex.quote(str(folder))}` and `grpo run`"
        " play again what is not trained on yet, and the rest goes on without these episodes"
    )


def _last_line(path: Path) -> str | None:
    """The last line of a file that is whole; None where there is none."""
    with open(path, "rb") as f:
        line, _ = last_line(f, f.seek(0, os.SEEK_END))
    return decode_line(line, f"{path}: its last line") if line else None
