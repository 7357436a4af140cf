"""The C++ kernels that torch compiles for a server, kept from one server to the next.

torch's inductor calls g++ when a server computes its first request, after it is ready, and keeps
the libraries in a folder below TMPDIR, which is a server's own and is removed with it. It writes
them in place, so a killed server leaves torn ones in a folder that it shares. Hence each server
compiles in its own folder; kept files are copied there before its start, and new ones are kept,
each by rename, once it has proven an adapter. Nothing here decides whether a kernel fits: inductor
names files by a hash of their source.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
from pathlib import Path

from fieldkit.files.atomic import TMP_MARK, write_bytes
from fieldkit.files.user_cache import cache_dir
from fieldkit.gate.processor import cpu_features

_LOCKS = "locks"  # inductor's, of one server


def environment(folder: Path) -> dict[str, str]:
    """Variables for a server that compiles in `folder`.

    A precompiled header would be made anew at every start, in a folder of its own below TMPDIR; the
    one kernel that includes it compiles in less time than the header.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    }


def kept_folder() -> Path:
    """Where kernels are kept for this torch and this processor: they are compiled for its own
    instructions, and the user's cache may be on a disk that several machines share."""
    words = [importlib.metadata.version("torch"), *sorted(cpu_features())]
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
    return cache_dir() / "kernels" / key


def fill(folder: Path) -> None:
    """Copy every kept kernel into a server's new folder. Raises `OSError`."""
    kept = kept_folder()
    folder.mkdir()
    for file in _files(kept):
        target = folder / file.relative_to(kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def keep(folder: Path) -> None:
    """Keep what a server has compiled. Call it when a request is answered, so that every file is
    whole. Two servers that keep the same file write the same bytes. Raises `OSError`."""
    kept = kept_folder()
    for file in _files(folder):
        target = kept / file.relative_to(folder)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, file.read_bytes())


def forget() -> None:
    """Remove the kept kernels after a failed proof, because one of them may be the reason. A
    failed start is no reason: a server computes nothing before it is ready."""
    shutil.rmtree(kept_folder(), ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    """What inductor wrote there. Without locks, and without what a killed `keep` left."""
    found = (f for f in folder.rglob("*") if f.is_file() and TMP_MARK not in f.name)
    return sorted(f for f in found if f.relative_to(folder).parts[0] != _LOCKS)
