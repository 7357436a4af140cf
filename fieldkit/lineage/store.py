"""The table of trials: `results.tsv` in a folder, to which any number of processes append.

A row that a crash tore is not read, and the next `append` cuts it off; whole rows are never
changed. The file is that of the index's fieldkit 0.34.1, which reads ours and whose own is read.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from fieldkit.errors import BadInput
from fieldkit.files.atomic import fsync_dir, locked
from fieldkit.lineage.rendering import LineageSnapshot, render, tree
from fieldkit.lineage.trial import FailureLabel, Trial


class _UnknownTrial(BadInput, KeyError):
    """There is no trial of that exp_id."""

    __str__ = BadInput.__str__  # KeyError's would quote the message


_STANDING = (FailureLabel.KEEP, FailureLabel.BASELINE)
"""The endings of a trial that another can be made from."""


class LineageStore:
    """The trials of one folder. lower_is_better: which way `core_metric` ranks them.

    An exp_id that is appended again is a correction: the newer row stands for the trial, but for
    `all_trials` and `latest`, which have every row.
    """

    RESULTS_FILENAME = "results.tsv"

    def __init__(self, root: str | Path, *, lower_is_better: bool = True) -> None:
        self.root = Path(root)
        self.lower_is_better = lower_is_better
        self.results_path = self.root / self.RESULTS_FILENAME

    def append(self, trial: Trial) -> None:
        """Add one row durably, the file and its header first where there is none.

        Safe with other writers, also in other processes: each locks the file. Raises `BadInput` for
        a trial that could not be read again, that has no exp_id or is its own parent, and for a
        file that is no lineage table.
        """
        if not trial.exp_id or trial.exp_id == trial.parent_exp:
            what = "is its own parent" if trial.exp_id else "has no exp_id"
            raise BadInput(f"trial {trial.exp_id!r} {what}")
        row = trial.to_row()
        Trial.from_row(dict(zip(Trial.header(), row, strict=True)))
        if any("\0" in cell for cell in row):
            raise BadInput(f"trial {trial.exp_id}: a cell holds a NUL character")
        if max(map(len, row)) > csv.field_size_limit():
            raise BadInput(f"trial {trial.exp_id}: a cell is longer than {csv.field_size_limit()}")
        try:
            line = _line(row)
        except UnicodeEncodeError as e:
            raise BadInput(f"trial {trial.exp_id!r}: a cell that UTF-8 cannot hold ({e})") from None
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.results_path) as file:
            file.seek(0)
            _, end = _table(file.read(), self.results_path)
            file.truncate(end)
            head = b"" if end else _line(Trial.header())
            file.write(head + line)
            file.flush()
            os.fsync(file.fileno())
        fsync_dir(self.root)

    def all_trials(self) -> list[Trial]:
        """Every whole row, in the order of appending.

        Raises `BadInput` with file and line for a whole row that is no trial.
        """
        if not self.results_path.is_file():
            return []
        rows, _ = _table(self.results_path.read_bytes(), self.results_path)
        trials = []
        for number, cells in rows[1:]:
            try:
                if len(cells) != len(Trial.header()):
                    raise BadInput(f"{len(cells)} cells, a row has {len(Trial.header())}")
                trials.append(Trial.from_row(dict(zip(Trial.header(), cells, strict=True))))
            except BadInput as e:
                raise BadInput(f"{self.results_path}:{number}: {e}") from None
        return trials

    def latest(self, n: int = 30) -> tuple[Trial, ...]:
        """The last n trials, oldest first."""
        return tuple(self.all_trials()[-n:]) if n > 0 else ()

    def best(self) -> Trial | None:
        """The best `core_metric` of the baseline and of what was kept, the first of equals.

        The first trial where none of these has a metric; None in an empty store.
        """
        return self._best_of(_corrected(self.all_trials()))

    def _best_of(self, trials: Sequence[Trial]) -> Trial | None:
        scored = [t for t in trials if t.core_metric is not None and t.status in _STANDING]
        if not scored:
            return trials[0] if trials else None
        return min(scored, key=self._rank)

    def _rank(self, trial: Trial) -> float:
        """Small for a good trial."""
        if trial.core_metric is None:
            return float("inf")
        return trial.core_metric if self.lower_is_better else -trial.core_metric

    def chain_to(self, exp_id: str) -> tuple[Trial, ...]:
        """From the first known ancestor to the trial itself.

        Raises `BadInput`, which is a `KeyError` too, for an exp_id that is not in the store, and
        `BadInput` where a trial would be its own ancestor.
        """
        return self._chain(self.all_trials(), exp_id)

    def _chain(self, trials: list[Trial], exp_id: str) -> tuple[Trial, ...]:
        by_id = {t.exp_id: t for t in trials}
        if exp_id not in by_id:
            raise _UnknownTrial(f"{exp_id!r} is not in {self.results_path}")
        chain: list[Trial] = []
        at: Trial | None = by_id[exp_id]
        while at is not None:
            if at in chain:
                raise BadInput(f"{self.results_path}: {at.exp_id} is its own ancestor")
            chain.append(at)
            at = by_id.get(at.parent_exp) if at.parent_exp else None
        return tuple(reversed(chain))

    def render_prompt(
        self,
        for_specialist: str,
        *,
        top_k: int = 20,
        recent_n: int = 30,
        last_m_full: int = 10,
        session_timestamp: str = "",
    ) -> LineageSnapshot:
        """What an agent should know before it tries the next thing, as data and as Markdown.

        top_k: kept trials, best first; recent_n: the latest in a table; last_m_full: the latest
        with their whole hypothesis. The same table and arguments give the same text.
        """
        trials = self.all_trials()
        now = _corrected(trials)
        best = self._best_of(now)
        kept = sorted((t for t in now if t.status is FailureLabel.KEEP), key=self._rank)
        return render(
            for_specialist,
            session_timestamp,
            best,
            self._chain(trials, best.exp_id) if best else (),
            tuple(kept[:top_k]),
            tuple(trials[-recent_n:]) if recent_n > 0 else (),
            tuple(trials[-last_m_full:]) if last_m_full > 0 else (),
        )

    def tree(self) -> str:
        """Every trial below its parent, a line each; a parent that is not here is a root."""
        return tree(self.all_trials())


def _corrected(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The newest row of each exp_id, in the order in which they were first appended."""
    return tuple({trial.exp_id: trial for trial in trials}.values())


def _line(cells: tuple[str, ...] | list[str]) -> bytes:
    text = io.StringIO()
    # A carriage return ends a row where csv reads it, but csv does not quote it of itself.
    returns = any("\r" in cell for cell in cells)
    quoting: Literal[0, 1] = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    csv.writer(text, delimiter="\t", lineterminator="\n", quoting=quoting).writerow(cells)
    return text.getvalue().encode()


def _table(data: bytes, path: Path) -> tuple[list[tuple[int, list[str]]], int]:
    """(line, cells) of each whole row, the header first, and the bytes up to the end of the last.

    What follows was never acknowledged to its writer: a row whose quoted cell or whose line has no
    end. Raises `BadInput` for anything else that is no lineage table.
    """
    whole = data[: data.rfind(b"\n") + 1]
    try:
        lines = io.StringIO(whole.decode(), newline="\n").readlines()
    except UnicodeDecodeError as e:
        raise BadInput(f"{path}: not UTF-8 ({e})") from None
    rows: list[tuple[int, list[str]]] = []
    reader, ended = csv.reader(lines, delimiter="\t", strict=True), 0
    try:
        for cells in reader:
            rows.append((ended + 1, cells))
            ended = reader.line_num
    except csv.Error as e:
        if reader.line_num < len(lines) or "end of data" not in str(e):
            raise BadInput(f"{path}:{ended + 1}: {e}") from None
        if any(map(_is_row, lines[ended + 1 :])):
            raise BadInput(
                f"{path}:{ended + 1}: a quote opens a cell that nothing closes, and whole rows "
                "follow; close or remove it"
            ) from None
    if rows and tuple(rows[0][1]) != Trial.header():
        columns = ", ".join(rows[0][1])[:200]
        raise BadInput(f"{path}:1: the columns are not those of a lineage table: {columns}")
    header = _line(Trial.header())
    if not rows and not header.startswith(data[: len(header)]):
        raise BadInput(f"{path}:1: not the header of a lineage table")
    return rows, len("".join(lines[:ended]).encode())


def _is_row(line: str) -> bool:
    """Whether a line by itself is a trial, so that it can hardly be part of a torn row's text."""
    try:
        cells = next(csv.reader([line], delimiter="\t", strict=True))
        Trial.from_row(dict(zip(Trial.header(), cells, strict=True)))
    except (csv.Error, ValueError):
        return False
    return True
