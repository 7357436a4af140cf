"""Files that appear whole or not at all.

A program may be killed between any two instructions, so it must leave either its complete output
or nothing. Writers here use a temporary name in the same folder, fsync the data, rename, and fsync
the folder (otherwise a power failure can undo the rename). This module does not know what the files
mean.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import lzma
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from fieldkit.errors import BadInput, MissingFile
from fieldkit.files.json_text import parse_json

TMP_MARK = ".tmp-"
"""In the name of a file or folder that is still being written."""

_OLD = "old-"  # after the mark: a folder that was moved aside for its successor
_OWN_NAME = re.compile(rf"(.+){re.escape(TMP_MARK)}({_OLD})?(\d+)-[0-9a-f]{{8}}", re.DOTALL)
_NAME_BYTES = 255  # of a file's name, on every file system that Linux has in use
_CLOCK_SECONDS = 1.0  # by which the start of a process and the time of a file may differ

_POLL_SECONDS = 0.1  # a lock of the kernel has no time limit

_BLOCK = 2**14  # bytes that are read at once in search of the last line

PACKED = ".xz"
"""The suffix of a compressed file: `read_lines` reads it as the file that was compressed."""


def fsync_dir(path: Path) -> None:
    """Make renames inside `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_tree(folder: Path) -> None:
    """Make everything below `folder`, and its own entries, durable."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            fsync_dir(path)
        elif path.is_file():
            with open(path, "rb") as f:
                os.fsync(f.fileno())
    fsync_dir(folder)


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """An `OSError` that names no file, as that of a write to an open one, names `path`."""
    try:
        yield
    except OSError as e:
        if e.filename is None:
            e.filename = str(path)
        raise


def _beside(path: Path, mark: str) -> Path:
    """A name in the folder of `path` that no other call has, in this or another process."""
    return path.with_name(f"{path.name}{mark}{os.getpid()}-{secrets.token_hex(4)}")


def _temporary(path: Path) -> Path:
    """The same for a file, whose own name may be as long as a name can be."""
    end = _beside(Path("_"), TMP_MARK).name[1:]
    begin = os.fsdecode(os.fsencode(path.name)[: _NAME_BYTES - len(end)])
    return path.with_name(begin + end)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` atomically and durably. A file that is replaced keeps its mode."""
    path = Path(path)
    tmp = _temporary(path)
    try:
        with naming(path), open(tmp, "xb") as f:
            with suppress(FileNotFoundError):
                os.fchmod(f.fileno(), stat.S_IMODE(path.stat().st_mode))
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, path)
    except BaseException:
        tmp.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically and durably."""
    write_bytes(path, text.encode())


def write_packed(path: Path, pieces: Iterable[bytes]) -> None:
    """Write pieces one after another compressed, atomically and durably. The name of `path` ends in
    `PACKED`."""
    packer = lzma.LZMACompressor(preset=9 | lzma.PRESET_EXTREME)
    write_bytes(path, b"".join([*map(packer.compress, pieces), packer.flush()]))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON with a final newline. Raises `ValueError` for NaN, ±∞.

    Text that UTF-8 cannot hold, as a file's name may be, is escaped and read back as it was.
    """
    try:
        data = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        data = json.dumps(value, indent=2, allow_nan=False).encode()
    write_bytes(path, data + b"\n")


def read_json(path: str | Path) -> Any:
    """Read one JSON document. Raises `MissingFile`, and `BadInput` naming file and line."""
    with _opened(path) as f:
        return parse_json(f.read(), str(path), names_line=False)


@contextmanager
def whole_dir(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` on success and is removed on failure.

    An existing `path` is replaced: the old folder is moved aside first and removed last, so a
    reader never sees a mixture of the two. `sweep_temporaries` puts it back where a kill came
    between.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp()) / "adapter"
    >>> with whole_dir(folder) as being_written:
    ...     write_json(being_written / "config.json", {"r": 8})
    ...     folder.exists()
    False
    >>> read_json(folder / "config.json")
    {'r': 8}
    """
    path = Path(path)
    tmp = _beside(path, TMP_MARK)
    tmp.mkdir(parents=True)
    try:
        yield tmp
        fsync_tree(tmp)
        if os.path.lexists(path):
            aside = _beside(path, TMP_MARK + _OLD)
            try:
                os.rename(path, aside)
                os.rename(tmp, path)
            except BaseException:
                if not os.path.lexists(path):
                    os.rename(aside, path)
                raise
            _remove(aside)
        else:
            os.rename(tmp, path)
        fsync_dir(path.parent)
    except BaseException:
        shutil.rmtree(tmp, ignore_errors=True)
        raise


def sweep_temporaries(folder: str | Path) -> list[Path]:
    """Remove dead writers' temporaries from `folder` itself; return what was removed.

    A folder that its killed writer had moved aside is put back where its successor is missing. What
    a live writer is writing stays, and so does any file whose name only looks similar. A writer is
    known by its pid: one in another container, or on another host that shares the folder, counts as
    dead.
    """
    removed = []
    for found, name, is_old in _left_behind(Path(folder)):
        with suppress(FileNotFoundError):  # another program sweeps too
            if is_old and not os.path.lexists(name):
                os.rename(found, name)
            else:
                _remove(found)
                removed.append(found)
    fsync_dir(Path(folder))
    return removed


def _left_behind(folder: Path) -> list[tuple[Path, Path, bool]]:
    """(temporary, what it stands for, whether it was moved aside) of dead writers, newest first."""
    left = []
    for path in folder.iterdir():
        own = _OWN_NAME.fullmatch(path.name)
        with suppress(FileNotFoundError):  # its writer has finished just now
            if own and not _may_be_written(int(own[3]), changed := path.lstat().st_ctime):
                left.append((changed, path, folder / own[1], own[2] is not None))
    return [(path, name, is_old) for _, path, name, is_old in sorted(left, reverse=True)]


def _may_be_written(pid: int, changed: float) -> bool:
    """Whether a process of that pid lives that is older than the file's last change (Unix seconds):
    a younger one has the pid of a writer that is gone, as in a container that was started again."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return bool(process.create_time() <= changed + _CLOCK_SECONDS)
    except psutil.Error as e:
        return isinstance(e, psutil.AccessDenied)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


@contextmanager
def locked(path: str | Path) -> Iterator[IO[bytes]]:
    """Hold the kernel's exclusive lock on a file, made where it is missing; yield it open.

    Waits for another holder. The lock ends with its process, however that ends.
    """
    with open(path, "ab+") as f, _exclusively(f):
        yield f


@contextmanager
def _exclusively(f: IO[bytes]) -> Iterator[None]:
    """Hold the lock of an open file. Closing it would not end it where a child was forked
    meanwhile, which has the file open too."""
    fcntl.flock(f, fcntl.LOCK_EX)
    try:
        yield
        f.flush()
    finally:
        fcntl.flock(f, fcntl.LOCK_UN)


def take_lock(fd: int, waiting: Callable[[float], None]) -> None:
    """Take the kernel's exclusive lock on an open file.

    While another holds it, `waiting` gets the seconds so far, ten times a second; what it raises
    ends the wait.
    """
    began = time.monotonic()
    while not _took(fd):
        waiting(time.monotonic() - began)
        time.sleep(_POLL_SECONDS)


def _took(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def append_line(path: str | Path, line: str) -> None:
    """Append one line and fsync it. A torn last line of an earlier crash is cut off first.

    Several processes may append to one file: each waits until the other's line is whole. Raises
    `ValueError` for a line that holds a newline.
    """
    if "\n" in line:
        raise ValueError("a line holds no newline")
    path = Path(path)
    fresh = not path.exists()
    with naming(path), open(path, "ab+") as f, _exclusively(f):
        f.seek(0, os.SEEK_END)
        if f.tell() > 0:
            f.seek(-1, os.SEEK_END)
            if f.read(1) != b"\n":
                drop_torn_tail(path)
        f.seek(0, os.SEEK_END)
        f.write(line.encode() + b"\n")
        f.flush()
        os.fsync(f.fileno())
    if fresh:
        fsync_dir(path.parent)


def drop_torn_tail(path: str | Path) -> int:
    """Cut a last line that lacks its newline (a write the crash interrupted); return bytes cut."""
    data = Path(path).read_bytes()
    keep = data.rfind(b"\n") + 1
    if keep < len(data):
        os.truncate(path, keep)
    return len(data) - keep


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, text) of every complete line; a torn last line is not yielded.

    A file whose name ends in .xz is decompressed as it is read. Raises `MissingFile`, and
    `BadInput` naming the line that is not UTF-8, or the file that is not whole.
    """
    with _opened(path) as raw_f, lzma.open(raw_f) if Path(path).suffix == PACKED else raw_f as f:
        try:
            for number, raw in enumerate(f, start=1):
                if raw.endswith(b"\n"):
                    yield number, decode_line(raw, f"{path}:{number}")
        except (lzma.LZMAError, EOFError) as e:
            raise BadInput(f"{path}: not a whole .xz file ({e}); restore it") from None


def _opened(path: str | Path) -> BufferedReader:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None


def decode_line(raw: bytes, where: str) -> str:
    """The text of a line, without its newline. Raises `BadInput` that begins with `where`."""
    try:
        return raw.removesuffix(b"\n").decode()
    except UnicodeDecodeError as e:
        raise BadInput(f"{where}: not UTF-8 ({e})") from None


def last_line(f: IO[bytes], end: int) -> tuple[bytes, int]:
    """The last whole line of a file's first `end` bytes, with its newline, and the place where it
    ends; (b"", 0) without one. Reads backwards, and only as far as that line begins."""
    at, tail = end, b""
    while at > 0 and b"\n" not in tail[: tail.rfind(b"\n")]:
        n = min(_BLOCK, at)
        at -= n
        f.seek(at)
        tail = f.read(n) + tail
    whole = tail[: tail.rfind(b"\n") + 1]
    return whole[whole.rfind(b"\n", 0, -1) + 1 :], at + len(whole)


def read_raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, bytes) of every line, also of a last one without a newline, as a
    file written by hand may have."""
    with open(path, "rb") as f:
        for number, raw in enumerate(f, start=1):
            yield number, raw.removesuffix(b"\n")


def read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file:line, object) of every line of a JSONL file; blank lines are left out.

    Raises `MissingFile`, and `BadInput` with file and line for a line that is no JSON object.
    """
    if not path.is_file():
        raise MissingFile(f"{path}: no such file")
    for number, line in read_raw_lines(path):
        where = f"{path}:{number}"
        if line.strip():
            value = parse_json(line, where)
            if not isinstance(value, dict):
                raise BadInput(f"{where}: expected an object, found {type(value).__name__}")
            yield where, value


def sha256_file(path: str | Path) -> str:
    """Hex SHA-256 of a file's bytes. Raises `MissingFile`."""
    with _opened(path) as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def sha256_text(text: str) -> str:
    """Hex SHA-256 of a string's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
