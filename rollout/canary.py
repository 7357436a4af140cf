"""Proof that the adapter which answers is the adapter that was trained.

A server answers 200 to a name it confuses, an adapter it half loads, or weights it does not use.
The trainer leaves `canary.json` beside the weights: token ids, and their logprobs under the base
model, the previous and the new adapter. Here the server's own logprobs of those ids are held
against the three. Where the adapters are too alike to be told apart the verdict says so.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files import read_json
from rollout.client import EngineClient

CANARY_FILE = "canary.json"
_SCHEMA = 1
_KEYS = ("adapter_sha", "parent_sha", "dtype", "ids", "prompt_len", "base", "new", "noise")

# Served minus a rival, projected on new minus that rival, is 1 if the new adapter answers and 0 if
# the rival does. We demand that the midpoint lies this many standard errors away.
_MIDPOINT = 0.5
_SIGMAS = 4.0

# Root mean square of (served - new) a token above which the weights are wrong whatever they are
# closest to: so many times the canary's noise, and not less than the floor. Sampler and trainer
# differ by 0.008 on average in bf16, by 2e-7 in fp32.
_MAX_RMS_IN_NOISE = 10.0
_MAX_RMS_FLOOR = {"bfloat16": 0.1, "float16": 0.05, "float32": 0.01}


class Verdict(StrEnum):
    """What a canary showed."""

    PROVEN = "PROVEN"
    """The served logprobs are the new adapter's, and no rival's."""
    INDISTINGUISHABLE = "INDISTINGUISHABLE"
    """They fit the new adapter, but a rival fits as well: the change is below the noise."""
    NO_CANARY = "NO_CANARY"
    """The adapter folder has no canary.json; identity rests on hash and name alone."""


@dataclass(frozen=True)
class Canary:
    """canary.json. Each row of base, previous and new holds the logprobs of the last ids of its
    sequence, as many as the row is long. noise: mean |difference| a token of two evaluations of
    the same weights. previous is None for an adapter without a parent."""

    adapter_sha: str
    parent_sha: str | None
    dtype: str
    ids: tuple[tuple[int, ...], ...]
    base: tuple[tuple[float, ...], ...]
    previous: tuple[tuple[float, ...], ...] | None
    new: tuple[tuple[float, ...], ...]
    noise: float


@dataclass(frozen=True)
class Proof:
    """A verdict with its figures. mean_abs: mean |served - new| a token, None without a canary.
    detail: one line for the log."""

    verdict: Verdict
    mean_abs: float | None
    detail: str


def read_canary(path: Path) -> Canary:
    """Read and check a canary.json. Raises `BadInput` naming file and key."""
    value = read_json(path)
    if not isinstance(value, dict) or value.get("schema") != _SCHEMA:
        raise BadInput(f"{path}: not a canary of schema {_SCHEMA}; `grpo prove` writes one")
    for key in _KEYS:
        if key not in value:
            raise BadInput(f"{path}: {key} is missing; `grpo prove` writes a new one")
    ids = tuple(tuple(int(i) for i in row) for row in value["ids"])
    previous = value.get("previous")
    canary = Canary(
        adapter_sha=str(value["adapter_sha"]),
        parent_sha=value["parent_sha"],
        dtype=str(value["dtype"]),
        ids=ids,
        base=_rows(value["base"], ids, f"{path}: base"),
        previous=None if previous is None else _rows(previous, ids, f"{path}: previous"),
        new=_rows(value["new"], ids, f"{path}: new"),
        noise=float(value["noise"]),
    )
    _require_equal_lengths(canary, path)
    return canary


def _rows(value: Any, ids: Sequence[Sequence[int]], where: str) -> tuple[tuple[float, ...], ...]:
    if not isinstance(value, list) or len(value) != len(ids) or not ids:
        raise BadInput(f"{where}: one row for each of the {len(ids)} sequences is needed")
    for i, (row, sequence) in enumerate(zip(value, ids, strict=True)):
        if not isinstance(row, list) or not 0 < len(row) < len(sequence):
            n = len(row) if isinstance(row, list) else "no"
            raise BadInput(f"{where}[{i}]: {n} logprobs for {len(sequence)} ids")
        if not all(isinstance(v, float | int) and math.isfinite(v) for v in row):
            raise BadInput(f"{where}[{i}]: a logprob is not finite")
    return tuple(tuple(float(v) for v in row) for row in value)


def _require_equal_lengths(canary: Canary, path: Path) -> None:
    for key, rows in (("base", canary.base), ("previous", canary.previous or canary.new)):
        for i, (row, new) in enumerate(zip(rows, canary.new, strict=True)):
            if len(row) != len(new):
                raise BadInput(f"{path}: {key}[{i}]: {len(row)} logprobs, but new has {len(new)}")


def prove(client: EngineClient, adapter: Path, adapter_sha: str) -> Proof:
    """Ask the server that `client` is connected to for the canary's logprobs and judge them.

    Raises `Unavailable` where they are not the new adapter's. Call outside an event loop.
    """
    file = adapter / CANARY_FILE
    if not file.exists():
        return Proof(Verdict.NO_CANARY, None, f"{file} is missing; `grpo prove` writes one")
    canary = read_canary(file)
    if canary.adapter_sha != adapter_sha:
        raise BadInput(
            f"{file}: written for adapter {canary.adapter_sha[:12]}, but the weights beside it are "
            f"{adapter_sha[:12]}; `grpo prove` writes a new one"
        )
    return judge(canary, asyncio.run(_served(client, canary)), client.model_name)


async def _served(client: EngineClient, canary: Canary) -> list[tuple[float, ...]]:
    async with client:
        every = await asyncio.gather(*(client.logprobs(ids) for ids in canary.ids))
    return [row[-len(new) :] for row, new in zip(every, canary.new, strict=True)]


def judge(canary: Canary, served: Sequence[Sequence[float]], name: str) -> Proof:
    """Hold the served logprobs (rows as in `canary.new`) against new, previous and base.

    For a rival r with difference d = new - r, the statistic t = (served - r)·d / d·d is 1 for the
    new adapter and 0 for the rival (a matched filter for a known signal in white noise). Its
    standard error is s/|d|, with s the rms of served minus the closer of the two, or the canary's
    noise if that is larger. Raises `Unavailable` where a rival or something else answers.
    """
    got, new = _flat(served), _flat(canary.new)
    mean_abs = sum(abs(g - n) for g, n in zip(got, new, strict=True)) / len(got)
    rms = _rms(got, new)
    figures = f"mean |served - trained| {mean_abs:.2g} over {len(got)} tokens"

    rivals = {"the base model": _flat(canary.base)}
    if canary.previous is not None:
        rivals["the previous adapter"] = _flat(canary.previous)
    doubtful = []
    for label, rival in rivals.items():
        noise = max(canary.noise, min(rms, _rms(got, rival)))
        t, error = _projection(got, new, rival, noise)
        if t < _MIDPOINT - _SIGMAS * error:
            raise Unavailable(
                f"{name}: the server answers with {label}, not with the adapter it was given "
                f"(match {t:.2f}, 1 is right and 0 is {label}; {figures}). Run the same command "
                "again: it starts a fresh server."
            )
        if t <= _MIDPOINT + _SIGMAS * error:
            doubtful.append(label)
    floor = _MAX_RMS_FLOOR.get(canary.dtype, max(_MAX_RMS_FLOOR.values()))
    if rms > max(floor, _MAX_RMS_IN_NOISE * canary.noise):
        raise Unavailable(
            f"{name}: the server's logprobs are not the adapter's: {figures}, rms {rms:.2g} in "
            f"{canary.dtype}. Is the model folder the one it was trained on? `grpo prove` writes "
            "a new canary for it."
        )
    if doubtful:
        return Proof(
            Verdict.INDISTINGUISHABLE, mean_abs, f"as close to {' and '.join(doubtful)}; {figures}"
        )
    return Proof(Verdict.PROVEN, mean_abs, figures)


def _rms(left: Sequence[float], right: Sequence[float]) -> float:
    squares = ((a - b) ** 2 for a, b in zip(left, right, strict=True))
    return math.sqrt(sum(squares) / len(left))


def _flat(rows: Sequence[Sequence[float]]) -> list[float]:
    return [value for row in rows for value in row]


def _projection(
    got: Sequence[float], new: Sequence[float], rival: Sequence[float], noise: float
) -> tuple[float, float]:
    """(t, its standard error) of `judge`; an infinite error where new and rival are equal."""
    delta = [n - r for n, r in zip(new, rival, strict=True)]
    norm2 = sum(d * d for d in delta)
    if norm2 == 0.0:
        return 1.0, math.inf
    t = sum((g - r) * d for g, r, d in zip(got, rival, delta, strict=True)) / norm2
    return t, noise / math.sqrt(norm2)
