"""The table of trials: `results.tsv` in a folder, to which any number of processes append.

A row that a crash tore is not read, and the next `append` cuts it off; whole rows are never
changed. The file is that of the index's fieldkit 0.34.1, which reads ours and whose own is read.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from fieldkit.errors import BadInput
from fieldkit.files.atomic import fsync_dir, locked
from fieldkit.lineage.rendering import LineageSnapshot, render, tree
from fieldkit.lineage.trial import FailureLabel, Trial


class LineageStore:
    """The trials of one folder. lower_is_better: which way `core_metric` ranks them.

    An exp_id that is appended again stands for the newer row in `chain_to` and `tree`.
    """

    RESULTS_FILENAME = "results.tsv"

    def __init__(self, root: str | Path, *, lower_is_better: bool = True) -> None:
        self.root = Path(root)
        self.lower_is_better = lower_is_better
        self.results_path = self.root / self.RESULTS_FILENAME

    def append(self, trial: Trial) -> None:
        """Add one row durably, the file and its header first where there is none.

        Safe with other writers, also in other processes: each locks the file. Raises `BadInput` for
        a trial that could not be read again.
        """
        row = trial.to_row()
        Trial.from_row(dict(zip(Trial.header(), row, strict=True)))
        if any("\0" in cell for cell in row):
            raise BadInput(f"trial {trial.exp_id}: a cell holds a NUL character")
        self.root.mkdir(parents=True, exist_ok=True)
        with locked(self.results_path) as file:
            file.seek(0)
            whole = _whole(file.read())
            file.truncate(len(whole))
            head = b"" if whole else _line(Trial.header())
            file.write(head + _line(row))
            file.flush()
            os.fsync(file.fileno())
        fsync_dir(self.root)

    def all_trials(self) -> list[Trial]:
        """Every whole row, in the order of appending.

        Raises `BadInput` with file and line for a whole row that is no trial.
        """
        if not self.results_path.is_file():
            return []
        rows = _rows(_whole(self.results_path.read_bytes()), self.results_path)
        header = next(rows, None)
        if header is None:
            return []
        if tuple(header[1]) != Trial.header():
            raise BadInput(
                f"{self.results_path}:1: the columns are not those of a lineage table: "
                f"{', '.join(header[1])[:200]}"
            )
        trials = []
        for number, cells in rows:
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
        """The best `core_metric` of the trials whose ending says something, the first of equals.

        The first trial where none has a metric; None in an empty store.
        """
        return self._best_of(self.all_trials())

    def _best_of(self, trials: list[Trial]) -> Trial | None:
        scored = [t for t in trials if t.core_metric is not None and t.status.is_informational]
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

        Raises `KeyError` for an exp_id that is not in the store, and `BadInput` where a trial would
        be its own ancestor.
        """
        return self._chain(self.all_trials(), exp_id)

    def _chain(self, trials: list[Trial], exp_id: str) -> tuple[Trial, ...]:
        by_id = {t.exp_id: t for t in trials}
        if exp_id not in by_id:
            raise KeyError(f"{exp_id!r} is not in {self.results_path}")
        chain: list[Trial] = []
        at: Trial | None = by_id[exp_id]
        while at is not None:
            if at in chain:
                raise BadInput(f"{self.results_path}: {at.exp_id} is its own ancestor")
            chain.append(at)
            at = by_id.get(at.parent_exp)
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
        best = self._best_of(trials)
        kept = sorted((t for t in trials if t.status is FailureLabel.KEEP), key=self._rank)
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


def _line(cells: tuple[str, ...] | list[str]) -> bytes:
    text = io.StringIO()
    # A carriage return ends a row where csv reads it, but csv does not quote it of itself.
    returns = any("\r" in cell for cell in cells)
    quoting: Literal[0, 1] = csv.QUOTE_ALL if returns else csv.QUOTE_MINIMAL
    csv.writer(text, delimiter="\t", lineterminator="\n", quoting=quoting).writerow(cells)
    return text.getvalue().encode()


def _whole(data: bytes) -> bytes:
    """`data` up to the end of its last whole row.

    A row ends at a newline outside quotes, so at one before which quotes are even. What follows the
    last such newline was never acknowledged to its writer.
    """
    end = position = quotes = 0
    for line in io.BytesIO(data):
        position += len(line)
        quotes += line.count(b'"')
        if line.endswith(b"\n") and quotes % 2 == 0:
            end = position
    return data[:end]


def _rows(data: bytes, path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row."""
    try:
        text = data.decode()
    except UnicodeDecodeError as e:
        raise BadInput(f"{path}: not UTF-8 ({e})") from None
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", strict=True)
    line = 1
    try:
        for cells in reader:
            yield line, cells
            line = reader.line_num + 1
    except csv.Error as e:
        raise BadInput(f"{path}:{line}: {e}") from None
