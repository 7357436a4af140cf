"""Proof that the adapter which answers is the adapter that was trained.

A server answers 200 to a name it confuses, an adapter it half loads, or weights it does not use.
The trainer writes `canary.json` next to the weights: token ids, and their logprobs under the base
model, the previous and the new adapter. Here the server's own logprobs of those ids are compared
with the three. Where the adapters are too similar to tell apart the verdict is INDISTINGUISHABLE.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
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

_RESOLUTION = 1e-6  # a smaller difference of two logprobs is none, in float32

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
    """They fit the new adapter, but a rival fits as well: the change is below the noise. Or they
    are closer to it than to a rival, and neither's."""
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
    coin's toss for each token (a sign test), for any rounding whose median is 0, so a high count
    rules the rival out. New is ruled out likewise. The server is refused where new is and the rival
    is not, or where its answers are closer to the rival, as those of a half-loaded adapter are to
    the base. A canary that is not exact has a rounding of its own, which counts in all of these;
    then only what is closer is asked, for the tokens where the two differ by more than the noise. A
    token counts once though several sequences begin alike up to it: its logprobs are the same
    numbers in all of them, and no further toss. Sizes are not used, because in bf16 a few unlikely
    tokens carry most of the rounding. Raises `Unavailable` where a rival or something else answers;
    remedy: what to do then, in a sentence.
    """
    got, new = _each_once(canary, served), _each_once(canary, canary.new)
    mean_abs = sum(abs(g - n) for g, n in zip(got, new, strict=True)) / len(got)
    figures = f"mean |served - trained| {mean_abs:.2g} over {len(got)} tokens"

    rivals = {"the base model": _each_once(canary, canary.base)}
    if canary.previous is not None:
        rivals["the previous adapter"] = _each_once(canary, canary.previous)
    as_close, between = [], []
    for label, rival in rivals.items():
        least = _RESOLUTION if canary.exact else canary.noise
        pairs = [(g, n, r) for g, n, r in zip(got, new, rival, strict=True) if abs(n - r) > least]
        middle = _Toss.of((g, (n + r) / 2, r) for g, n, r in pairs)
        to_rival = _Toss.of((g, n, r) for g, n, r in pairs) if canary.exact else middle
        to_new = _Toss.of((g, r, n) for g, n, r in pairs) if canary.exact else middle.other
        if middle.is_unlikely or (to_rival.is_unlikely and not to_new.is_unlikely):
            raise Unavailable(
                f"{name}: the server answers with {label}, not with the adapter it was given (of "
                f"{to_rival.tosses} tokens that tell them apart {to_rival.heads} lie towards"
                f" {label}; {figures}). {remedy}"
            )
        if not to_new.is_unlikely:
            as_close.append(label)
        elif to_rival.is_unlikely:
            between.append(label)
    floor = _MAX_MEAN_FLOOR.get(canary.dtype, max(_MAX_MEAN_FLOOR.values()))
    if mean_abs > max(floor, _MAX_MEAN_IN_NOISE * canary.noise):
        raise Unavailable(
            f"{name}: the server's logprobs are not the adapter's: {figures} in "
            f"{canary.dtype}. Is the model folder the one it was trained on, and does the server "
            f"compute in {canary.dtype} (engine.dtype)? `grpo prove` writes a new canary."
        )
    if as_close:
        told = f"its answers are as close to those of {' and '.join(as_close)}: a step this small "
        told += "is within the rounding"
        return Proof(Verdict.INDISTINGUISHABLE, mean_abs, f"{told}; {figures}")
    if between:
        told = f"its answers lie between its own and those of {' and '.join(between)}"
        return Proof(Verdict.INDISTINGUISHABLE, mean_abs, f"{told}; {figures}")
    return Proof(Verdict.PROVEN, mean_abs, figures)


@dataclass(frozen=True)
class _Toss:
    """Tosses of a fair coin, if a rounding is all that there is."""

    heads: int
    tosses: int

    @classmethod
    def of(cls, tokens: Iterable[tuple[float, float, float]]) -> _Toss:
        """tokens: (served, from, to). Heads: served lies on the side of from that to lies on."""
        sides = [(got > at) == (to > at) for got, at, to in tokens if got != at]
        return cls(sum(sides), len(sides))

    @property
    def other(self) -> _Toss:
        """Tails for heads."""
        return _Toss(self.tosses - self.heads, self.tosses)

    @property
    def is_unlikely(self) -> bool:
        """Whether at least so many heads have a probability below `_BY_CHANCE`."""
        ways = sum(math.comb(self.tosses, i) for i in range(self.heads, self.tosses + 1))
        return Fraction(ways, 2**self.tosses) < _BY_CHANCE


def _each_once(canary: Canary, rows: Sequence[Sequence[float]]) -> list[float]:
    """The logprobs of rows as in `canary.new`, without those of ids that an earlier sequence has
    too, up to there."""
    once: dict[tuple[int, ...], float] = {}
    for ids, row in zip(canary.ids, rows, strict=True):
        for end, value in enumerate(row, len(ids) - len(row) + 1):
            once.setdefault(ids[:end], value)
    return list(once.values())
