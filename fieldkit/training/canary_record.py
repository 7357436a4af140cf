"""adapter/canary.json: what a server must answer if it serves this adapter.

The trainer writes it, and the client of a server compares the answers with it. This module has the
record and its codec: nothing here computes a logprob or requests one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from fieldkit.codec import SCHEMA, decode, plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_json
from fieldkit.training.adapter import CANARY_FILE

Rows = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Canary:
    """A few sequences of token ids and their logprobs at T = 1, in nats; a row of n logprobs is for
    the last n ids of its sequence.

    base, previous, new: under the bare base, the adapter before (None without a parent) and this
    adapter, all weights rounded to dtype, which is the server's. exact: computed in float32, so
    that what separates a right server's logprobs from these is its own rounding; else computed in
    dtype, and these have a rounding too. prompt_len: ids without a logprob. noise: mean
    |difference| a token of two evaluations of the same weights, in dtype and in float32 where it is
    exact.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    adapter_sha: str
    parent_sha: str | None
    dtype: str
    ids: tuple[tuple[int, ...], ...]
    prompt_len: int
    base: Rows
    previous: Rows | None
    new: Rows
    noise: float
    exact: bool = False

    def __post_init__(self) -> None:
        for key, rows in (("new", self.new), ("base", self.base), ("previous", self.previous)):
            if rows is None:
                continue
            if len(rows) != len(self.ids) or not rows:
                raise ValueError(f"{key}: one row for each of the {len(self.ids)} sequences")
            for i, (row, new, ids) in enumerate(zip(rows, self.new, self.ids, strict=True)):
                if not 0 < len(row) < len(ids):
                    raise ValueError(f"{key}[{i}]: {len(row)} logprobs for {len(ids)} ids")
                if len(row) != len(new):
                    raise ValueError(f"{key}[{i}]: {len(row)} logprobs, but new has {len(new)}")


def write_canary(adapter: Path, canary: Canary) -> None:
    """Write canary.json into an adapter folder that is complete otherwise."""
    write_json(adapter / CANARY_FILE, {"schema": SCHEMA, **plain(canary)})


def read_canary(path: Path) -> Canary:
    """Read and check a canary.json. Raises `BadInput` naming file and key."""
    try:
        return decode(Canary, path.read_text(encoding="utf-8"), str(path))
    except BadInput as e:
        raise BadInput(f"{e}; `grpo prove {path.parent}` writes a new one") from None
