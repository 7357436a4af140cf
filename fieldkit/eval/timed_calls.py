"""Call a function on many inputs, and keep how long each call took and what it measured."""

from __future__ import annotations

import json
import math
import numbers
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_text


def summarize_metric(values: Iterable[float | None]) -> dict[str, float | int]:
    """n, mean (two decimals), median, min and max of the values that are not None.

    Of an even number of values the median is the upper of the two in the middle. Without a value
    the result is {"n": 0}. Raises `BadInput` for a value that is not a finite number.

    >>> summarize_metric([3.0, None, 1.0])
    {'n': 2, 'mean': 2.0, 'median': 3.0, 'min': 1.0, 'max': 3.0}
    """
    found = sorted(v for v in values if v is not None)
    if not found:
        return {"n": 0}
    for value in found:
        if not math.isfinite(value):
            raise BadInput(f"{value} is not a finite number: it has no place in a summary")
    n = len(found)
    middle, mean = found[n // 2], round(sum(found) / n, 2)
    return {"n": n, "mean": mean, "median": middle, "min": found[0], "max": found[-1]}


@dataclass
class BenchCall:
    """One call. latency_ms: milliseconds. error: the exception's class and text, or None."""

    input: Any
    output: Any
    latency_ms: float
    success: bool = True
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)


@dataclass
class Bench:
    """Times calls and sums up what they return.

    metrics: keys of a returned dict whose numbers are kept; metrics_key: the key of a dict inside
    it that holds them. As a context manager it also measures the time between its ends.

    >>> bench = Bench("doubler", metrics=["twice"])
    >>> bench.run(lambda x: {"twice": 2 * x}, [1, 2, 4]).summary()["twice"]["max"]
    8.0
    """

    name: str
    metrics: list[str] = field(default_factory=list)
    metrics_key: str | None = None
    calls: list[BenchCall] = field(default_factory=list)
    wall_seconds: float = 0.0
    _start: float | None = field(default=None, init=False, repr=False)

    def __enter__(self) -> Bench:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._start is not None:
            self.wall_seconds = time.perf_counter() - self._start

    def run(
        self,
        fn: Callable[[Any], Any],
        inputs: Iterable[Any],
        *,
        on_error: Literal["record", "raise"] = "record",
        tag_fn: Callable[[Any], dict[str, Any]] | None = None,
    ) -> Bench:
        """Call `fn` on each input, one after the other, and return this bench.

        on_error: "record" keeps an exception as a failed call and goes on, "raise" lets the first
        one through. tag_fn: what else to keep of an input. Raises `BadInput` for another
        `on_error`.
        """
        if on_error not in ("record", "raise"):
            raise BadInput(f"on_error: {on_error!r} is unknown; use record or raise")
        for value in inputs:
            tags = tag_fn(value) if tag_fn else {}
            start = time.perf_counter()
            try:
                output = fn(value)
            except Exception as e:
                if on_error == "raise":
                    raise
                error = f"{type(e).__name__}: {e}"
                self.calls.append(BenchCall(value, None, _ms_since(start), False, error, tags=tags))
                continue
            latency = _ms_since(start)
            self.calls.append(
                BenchCall(value, output, latency, metrics=self._numbers(output), tags=tags)
            )
        return self

    def record(
        self,
        *,
        input: Any = None,
        output: Any = None,
        latency_ms: float,
        success: bool = True,
        error: str | None = None,
        tags: dict[str, Any] | None = None,
        **metrics: float,
    ) -> BenchCall:
        """Add a call that was timed elsewhere."""
        call = BenchCall(input, output, latency_ms, success, error, dict(metrics), tags or {})
        self.calls.append(call)
        return call

    def _numbers(self, output: Any) -> dict[str, float]:
        held = output if isinstance(output, dict) else {}
        if self.metrics_key:
            held = held.get(self.metrics_key, {})
        if not isinstance(held, dict):
            return {}
        return {
            key: float(held[key])
            for key in self.metrics
            if isinstance(held.get(key), numbers.Real) and not isinstance(held[key], bool)
        }

    def summary(self) -> dict[str, Any]:
        """Counts, and `summarize_metric` of the latency and of each metric over the successes."""
        if not self.calls:
            return {"name": self.name, "n": 0}
        passed = [c for c in self.calls if c.success]
        return {
            "name": self.name,
            "n": len(self.calls),
            "n_success": len(passed),
            "n_failure": len(self.calls) - len(passed),
            "latency_ms": summarize_metric(c.latency_ms for c in passed),
            **{key: summarize_metric(c.metrics.get(key) for c in passed) for key in self.metrics},
            **({"wall_seconds": round(self.wall_seconds, 3)} if self.wall_seconds else {}),
        }

    def report(self) -> str:
        """The summary as a Markdown table, a row a metric; a dash where nothing was measured."""
        found = self.summary()
        lines = [f"### Bench: {self.name} (n={found['n']})"]
        if found.get("n_failure"):
            lines.append(
                f"- success: {found['n_success']} / {found['n']}, failures: {found['n_failure']}"
            )
        if self.wall_seconds:
            lines.append(f"- wall: {round(self.wall_seconds, 3)}s")
        columns = ("mean", "median", "min", "max")
        lines += ["", f"| metric | {' | '.join(columns)} |", "|---|---:|---:|---:|---:|"]
        for key in ("latency_ms", *self.metrics):
            values = found.get(key, {})
            cells = [str(values.get(column, "—")) for column in columns]
            lines.append(f"| {key} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def to_dict(self, *, include_outputs: bool = False) -> dict[str, Any]:
        """The summary and every call; the outputs only on request, for they may be large.

        Where a number is not finite, the summary is what `summary` raises, under "error".
        """
        names = [f.name for f in fields(BenchCall) if include_outputs or f.name != "output"]
        calls = [{name: _plain(getattr(call, name)) for name in names} for call in self.calls]
        try:
            summary = self.summary()
        except BadInput as e:
            summary = {"name": self.name, "n": len(self.calls), "error": str(e)}
        return {"summary": summary, "calls": calls}

    def dump(self, path: str | Path, *, include_outputs: bool = False) -> Path:
        """Write `to_dict` as JSON, whole or not at all, and return the path."""
        found = self.to_dict(include_outputs=include_outputs)
        write_text(Path(path), json.dumps(found, indent=2, default=_jsonable))
        return Path(path)


def _ms_since(start: float) -> float:
    return round((time.perf_counter() - start) * 1000, 2)


def _plain(value: Any) -> Any:
    """Dataclasses as dicts, also inside others; everything else as it is, for not all of what a
    call takes and gives can be copied."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _jsonable(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return vars(value) if hasattr(value, "__dict__") else str(value)
