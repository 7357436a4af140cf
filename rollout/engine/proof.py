"""Proof that the adapter which answers is the adapter that was trained.

A server answers 200 to a name it confuses, an adapter it half loads, or weights it does not use.
The trainer writes `canary.json` next to the weights: token ids, and their logprobs under the base
model, the previous and the new adapter. Here the server's own logprobs of those ids are compared
with the three. Where the adapters are too similar to tell apart the verdict is INDISTINGUISHABLE.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path

from fieldkit.errors import BadInput, Unavailable
from fieldkit.training.adapter import CANARY_FILE
from fieldkit.training.canary_record import Canary, read_canary
from rollout.engine.client import EngineClient

# The probability by chance of a count in `judge` below which an adapter is ruled out. Tokens of one
# sequence share a past and are not independent, hence far below 0.05.
_BY_CHANCE = 1e-6

# Mean |served - new| a token above which the weights are wrong, whichever adapter is closest: a
# multiple of the canary's noise, and at least the floor. Over the tokens of a prompt it is about
# 0.06 in bf16 (noise 0.05), and 2e-7 in fp32.
_MAX_MEAN_IN_NOISE = 10.0
_MAX_MEAN_FLOOR = {"bfloat16": 0.1, "float16": 0.05, "float32": 0.01}


class Verdict(StrEnum):
    """The result of a canary."""

    PROVEN = "PROVEN"
    """The served logprobs are the new adapter's, and no rival's."""
    INDISTINGUISHABLE = "INDISTINGUISHABLE"
    """They fit the new adapter, but a rival fits as well: the change is below the noise."""
    NO_CANARY = "NO_CANARY"
    """The adapter folder has no canary.json; identity rests on hash and name alone."""

    @property
    def told(self) -> str:
        """The verdict for a person, after the adapter's name."""
        return _TOLD[self]


_TOLD = {
    Verdict.PROVEN: "is loaded, and its answers prove it",
    Verdict.INDISTINGUISHABLE: "is loaded, and known by its name and hash alone",
    Verdict.NO_CANARY: "is loaded, and known by its name and hash alone",
}


@dataclass(frozen=True)
class Proof:
    """A verdict. mean_abs: mean |served - new| a token, None without a canary. detail: one line for
    the log."""

    verdict: Verdict
    mean_abs: float | None
    detail: str


def prove(client: EngineClient, adapter: Path, adapter_sha: str) -> Proof:
    """Ask the server behind `client` for the canary's logprobs and judge them.

    Raises `Unavailable` where they are not the new adapter's. Call it outside an event loop.
    """

    async def ask() -> Proof:
        async with client:
            return await proof_of(client, adapter, adapter_sha)

    return asyncio.run(ask())


async def proof_of(client: EngineClient, adapter: Path, adapter_sha: str) -> Proof:
    """As `prove`, inside an event loop, with an open client."""
    file = adapter / CANARY_FILE
    if not file.exists():
        return Proof(Verdict.NO_CANARY, None, f"{file} is missing; `grpo prove` writes one")
    canary = read_canary(file)
    if canary.adapter_sha != adapter_sha:
        raise BadInput(
            f"{file}: written for adapter {canary.adapter_sha[:12]}, but the weights beside it are "
            f"{adapter_sha[:12]}; `grpo prove` writes a new one"
        )
    every = await asyncio.gather(*(client.logprobs(ids) for ids in canary.ids))
    served = [row[-len(new) :] for row, new in zip(every, canary.new, strict=True)]
    return judge(canary, served, client.model_name, client.remedy)


def judge(canary: Canary, served: Sequence[Sequence[float]], name: str, remedy: str = "") -> Proof:
    """Compare the served logprobs (rows as in `canary.new`) with new, previous and base.

    For each rival: if it is what answers, how often does its rounding lie towards new? That is a
    coin's toss for each token (a sign test), whatever the rounding's distribution, so a high count
    rules the rival out. New is ruled out likewise, and the server is refused where it is and the
    rival is not. A canary that is not exact has a rounding of its own, which counts in both; then
    the toss is whether the served logprob is closer to new or to the rival, for the tokens where
    these differ by more than the noise. A token counts once though several sequences begin alike up
    to it: its logprobs are the same numbers in all of them, and no further toss. Sizes are not
    used, because in bf16 a few unlikely tokens carry most of the rounding. Raises `Unavailable`
    where a rival or something else answers; remedy: what to do then, in a sentence.
    """
    got, new = _each_once(canary, served), _each_once(canary, canary.new)
    mean_abs = sum(abs(g - n) for g, n in zip(got, new, strict=True)) / len(got)
    figures = f"mean |served - trained| {mean_abs:.2g} over {len(got)} tokens"

    rivals = {"the base model": _each_once(canary, canary.base)}
    if canary.previous is not None:
        rivals["the previous adapter"] = _each_once(canary, canary.previous)
    doubtful = []
    for label, rival in rivals.items():
        to_new, of_rival = _towards(new, rival, got, canary)
        to_rival, of_new = _towards(rival, new, got, canary)
        is_rival = _tail(to_new, of_rival) >= _BY_CHANCE
        is_new = _tail(to_rival, of_new) >= _BY_CHANCE
        if is_rival and not is_new:
            raise Unavailable(
                f"{name}: the server answers with {label}, not with the adapter it was given (of "
                f"{of_new} tokens that tell them apart {to_rival} lie towards {label}; {figures})."
                f" {remedy}"
            )
        if is_rival or not is_new:
            doubtful.append(label)
    floor = _MAX_MEAN_FLOOR.get(canary.dtype, max(_MAX_MEAN_FLOOR.values()))
    if mean_abs > max(floor, _MAX_MEAN_IN_NOISE * canary.noise):
        raise Unavailable(
            f"{name}: the server's logprobs are not the adapter's: {figures} in "
            f"{canary.dtype}. Is the model folder the one it was trained on, and does the server "
            f"compute in {canary.dtype} (engine.dtype)? `grpo prove` writes a new canary."
        )
    if doubtful:
        told = f"its answers are as close to those of {' and '.join(doubtful)}: a step this small "
        told += "is within the rounding"
        return Proof(Verdict.INDISTINGUISHABLE, mean_abs, f"{told}; {figures}")
    return Proof(Verdict.PROVEN, mean_abs, figures)


def _each_once(canary: Canary, rows: Sequence[Sequence[float]]) -> list[float]:
    """The logprobs of rows as in `canary.new`, without those of ids that an earlier sequence has
    too, up to there."""
    once: dict[tuple[int, ...], float] = {}
    for ids, row in zip(canary.ids, rows, strict=True):
        for end, value in enumerate(row, len(ids) - len(row) + 1):
            once.setdefault(ids[:end], value)
    return list(once.values())


def _towards(
    goal: Sequence[float], start: Sequence[float], got: Sequence[float], canary: Canary
) -> tuple[int, int]:
    """(tokens where got lies on goal's side of start, tokens that count). Of a canary that is not
    exact: on goal's side of the middle."""
    least, share = (0.0, 0.0) if canary.exact else (canary.noise, 0.5)
    sides = []
    for to, at, g in zip(goal, start, got, strict=True):
        from_start = g - at - share * (to - at)
        if abs(to - at) > least and from_start:
            sides.append((from_start > 0) == (to > at))
    return sum(sides), len(sides)


def _tail(heads: int, tosses: int) -> float:
    """Probability of at least this many heads in so many tosses of a fair coin."""
    outcomes = sum(math.comb(tosses, i) for i in range(heads, tosses + 1))
    return float(Fraction(outcomes, 2**tosses))
