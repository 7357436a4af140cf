"""One trial: what was tried, from which parent, and how it ended; one row of a lineage table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from fieldkit.errors import BadInput


class FailureLabel(str, Enum):  # noqa: UP042 (a script may rely on str() of 0.34.1's class)
    """How a trial ended. The value is what the table holds."""

    KEEP = "keep"
    DISCARD = "discard"
    CRASH = "crash"
    EVAL_BUDGET_OVERRUN = "eval_budget_overrun"
    TRAIN_BUDGET_OVERRUN = "train_budget_overrun"
    SIZE_BLOCKED = "size_blocked"
    PREFLIGHT_CRASH = "preflight_crash"
    HARNESS_ABORT = "harness_abort"
    DISQUALIFIED = "disqualified"
    BASELINE = "baseline"

    @property
    def is_informational(self) -> bool:
        """Whether the ending says something about what was tried, as an abort does not."""
        return self is not FailureLabel.HARNESS_ABORT


_NUMBERS = ("core_metric", "val_bpb", "delta_vs_best", "train_s", "total_s")


@dataclass(frozen=True, slots=True)
class Trial:
    """One row, its fields in the order of the columns.

    parent_exp: the exp_id it was made from, empty for a root. core_metric: what trials are ranked
    by; `LineageStore` says which way is better. train_s, total_s: seconds.
    """

    exp_id: str
    timestamp: str
    specialist: str
    parent_exp: str
    baseline_exp: str
    domain: str
    hypothesis: str
    expected_delta: str
    status: FailureLabel
    core_metric: float | None
    val_bpb: float | None
    delta_vs_best: float | None
    train_s: float | None
    total_s: float | None
    job_name: str
    snapshot_path: str
    notes: str

    @classmethod
    def of(cls, exp_id: str, status: FailureLabel, **cells: Any) -> Trial:
        """A trial with these cells, the others empty.

        >>> Trial.of("sft", FailureLabel.BASELINE, core_metric=0.25).parent_exp
        ''
        """
        empty = {name: None if name in _NUMBERS else "" for name in cls.header()}
        return cls(**{**empty, **cells, "exp_id": exp_id, "status": status})

    @classmethod
    def header(cls) -> tuple[str, ...]:
        """The columns, in order."""
        return tuple(f.name for f in fields(cls))

    def to_row(self) -> list[str]:
        """The cells, in order; an empty one for None."""
        values = (getattr(self, name) for name in self.header())
        return [
            v.value if isinstance(v, FailureLabel) else "" if v is None else str(v) for v in values
        ]

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Trial:
        """The trial of a row by column. Raises `BadInput` naming a column that is missing, a status
        that is unknown, or a number that is none."""
        for name in cls.header():
            if row.get(name) is None:
                raise BadInput(f"the column {name!r} is missing")
        try:
            status = FailureLabel(row["status"])
        except ValueError:
            known = ", ".join(label.value for label in FailureLabel)
            raise BadInput(f"status: {row['status']!r} is unknown; known: {known}") from None
        texts = {n: row[n] for n in cls.header() if n not in _NUMBERS and n != "status"}
        numbers = {n: _number(row[n], n) for n in _NUMBERS}
        return cls(**texts, **numbers, status=status)  # type: ignore[arg-type]


def _number(cell: str, name: str) -> float | None:
    if cell == "":
        return None
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadInput(f"{name}: {cell!r} is not a finite number")
    return value
