"""What a kept trial changed in its recipe: its folder against that of its parent."""

from __future__ import annotations

import difflib
import io
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.lineage.trial import Trial


@dataclass(frozen=True, slots=True)
class RecipeEdit:
    """A trial, its folder of files and that of its parent, None for a root."""

    trial: Trial
    snapshot_path: Path
    parent_snapshot_path: Path | None

    def diff(self) -> str:
        """A unified diff over both folders, files that were removed among them; "" for a root.

        A file that is not UTF-8 text in both is named in one line where its bytes differ. Links are
        not followed. Raises `BadInput` where a folder is not there.
        """
        if self.parent_snapshot_path is None:
            return ""
        before, after = Path(self.parent_snapshot_path), Path(self.snapshot_path)
        names = sorted(_files(before) | _files(after))
        return "".join(_file_diff(before, after, name) for name in names)


def _files(folder: Path) -> set[str]:
    if not folder.is_dir():
        raise BadInput(f"{folder}: no such folder; a diff needs both")
    found = (p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return {p.relative_to(folder).as_posix() for p in found}


def _file_diff(before: Path, after: Path, name: str) -> str:
    a, b = (folder / name for folder in (before, after))
    old = a.read_bytes() if a.is_file() else b""
    new = b.read_bytes() if b.is_file() else b""
    if old == new and a.is_file() == b.is_file():
        return ""
    try:
        was, now = (io.StringIO(data.decode(), newline="\n").readlines() for data in (old, new))
    except UnicodeDecodeError:
        return f"Binary files a/{name} and b/{name} differ\n"
    ends = (
        f"a/{name}" if a.is_file() else "/dev/null",
        f"b/{name}" if b.is_file() else "/dev/null",
    )
    if old == new:  # an empty file that came or went
        return "--- {}\n+++ {}\n".format(*ends)
    found = difflib.unified_diff(was, now, fromfile=ends[0], tofile=ends[1])
    return "".join(x if x.endswith("\n") else f"{x}\n\\ No newline at end of file\n" for x in found)
