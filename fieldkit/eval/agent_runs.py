"""Records of agents from other benchmarks, read into one shape and summed up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.timed_calls import summarize_metric
from fieldkit.files.atomic import read_objects

_TURN_KEYS = frozenset(
    ("turn", "action", "duration", "duration_s", "input_tokens", "output_tokens")
)


@dataclass(frozen=True, slots=True)
class TurnDetail:
    """One turn of an agent. turn: from 1. duration_s: seconds. extras: the record's other keys."""

    turn: int
    action: str
    duration_s: float
    input_tokens: int | None = None
    output_tokens: int | None = None
    extras: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; `extras` only where there are some."""
        return {
            "turn": self.turn,
            "action": self.action,
            "duration_s": round(self.duration_s, 2),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            **({"extras": dict(self.extras)} if self.extras else {}),
        }


@dataclass
class AgentRun:
    """How an agent fared on one question. raw: the record it was read from."""

    question_id: str
    status: str
    wall_seconds: float
    n_turns: int
    n_candidates: int
    turns: list[TurnDetail]
    raw: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_record(
        cls,
        raw: dict[str, Any],
        *,
        question_id_field: str = "arxiv_id",
        question_id_path: tuple[str | int, ...] = ("input_data",),
        inference_path: tuple[str | int, ...] = ("inference_results", 0),
        status_field: str = "status",
        wall_field: str = "total_time",
        turns_field: str = "turn_details",
        candidates_field: str = "final_candidates",
    ) -> AgentRun:
        """Read one record. The defaults are the layout of AutoResearchBench.

        The paths lead to the objects that hold the question's id and the attempt, a step being a
        key or an index of a list; the fields are keys in those. What is missing is "" or 0 or
        empty. Raises `BadInput` for a value of another type than its field has.
        """
        question = _walk(raw, (*question_id_path, question_id_field), "")
        attempt = _walk(raw, inference_path, {})
        if not isinstance(attempt, Mapping):
            raise BadInput(f"{_path(inference_path)}: expected an object, found {attempt!r}")
        turns = _listed(attempt, turns_field)
        candidates = _listed(attempt, candidates_field)
        return cls(
            question_id=str(question),
            status=str(attempt.get(status_field, "")),
            wall_seconds=round(_number(attempt.get(wall_field), wall_field), 2),
            n_turns=len(turns),
            n_candidates=len(candidates),
            turns=[_turn(t, i) for i, t in enumerate(turns, start=1)],
            raw=raw,
        )

    @classmethod
    def from_jsonl(
        cls, path: str | Path, *, parser: Callable[[dict[str, Any]], AgentRun] | None = None
    ) -> list[AgentRun]:
        """The records of a JSONL file, one a line; blank lines are left out.

        parser: reads one record, `from_record` by default. Raises `BadInput` with file and line for
        a line that is not a record.
        """
        parse = parser or cls.from_record
        runs = []
        for where, record in read_objects(Path(path)):
            try:
                runs.append(parse(record))
            except ValueError as e:
                raise BadInput(f"{where}: {e}") from None
        return runs

    def tool_calls(self) -> int:
        """Turns whose action is "tool"."""
        return sum(t.action == "tool" for t in self.turns)

    def tool_format_errors(self) -> int:
        """Turns whose action is "error"."""
        return sum(t.action == "error" for t in self.turns)

    def total_input_tokens(self) -> int:
        """Tokens read over all turns that count them."""
        return sum(t.input_tokens or 0 for t in self.turns)

    def total_output_tokens(self) -> int:
        """Tokens written over all turns that count them."""
        return sum(t.output_tokens or 0 for t in self.turns)

    def succeeded(self) -> bool:
        """Whether the status is "finished" and there is a candidate."""
        return self.status == "finished" and self.n_candidates > 0

    def to_dict(self, *, include_raw: bool = False) -> dict[str, Any]:
        """JSON-ready values; the record itself on request."""
        return {
            "question_id": self.question_id,
            "status": self.status,
            "wall_seconds": self.wall_seconds,
            "n_turns": self.n_turns,
            "n_candidates": self.n_candidates,
            "tool_calls": self.tool_calls(),
            "tool_format_errors": self.tool_format_errors(),
            "input_tokens": self.total_input_tokens(),
            "output_tokens": self.total_output_tokens(),
            "turns": [t.to_dict() for t in self.turns],
            **({"raw": self.raw} if include_raw else {}),
        }


def summarize_agent_runs(runs: Sequence[AgentRun], *, label: str = "") -> dict[str, Any]:
    """Counts by status, and `summarize_metric` of times, turns, candidates and tool calls."""
    if not runs:
        return {"label": label, "n_questions": 0, "status_counts": {}}
    return {
        "label": label,
        "n_questions": len(runs),
        "n_succeeded": sum(r.succeeded() for r in runs),
        "status_counts": dict(sorted(Counter(r.status for r in runs).items())),
        "wall_seconds": summarize_metric(r.wall_seconds for r in runs),
        "turns": summarize_metric(float(r.n_turns) for r in runs),
        "candidates": summarize_metric(float(r.n_candidates) for r in runs),
        "tool_calls": summarize_metric(float(r.tool_calls()) for r in runs),
        "tool_format_errors": summarize_metric(float(r.tool_format_errors()) for r in runs),
    }


def _walk(value: Any, path: Sequence[str | int], default: Any) -> Any:
    for step in path:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return default
    return value


def _path(path: Sequence[str | int]) -> str:
    return ".".join(str(step) for step in path)


def _listed(attempt: Mapping[str, Any], key: str) -> list[Any]:
    value = attempt.get(key) or []
    if not isinstance(value, list):
        raise BadInput(f"{key}: expected a list, found {type(value).__name__}")
    return value


def _number(value: Any, where: str) -> float:
    try:
        number = float(value or 0.0)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{where}: expected a finite number, found {value!r}")
    return number


def _turn(value: Any, position: int) -> TurnDetail:
    if not isinstance(value, Mapping):
        raise BadInput(f"turn {position}: expected an object, found {value!r}")

    def tokens(key: str) -> int | None:
        found = value.get(key)
        return None if found is None else int(_number(found, f"turn {position}.{key}"))

    return TurnDetail(
        turn=int(_number(value.get("turn"), "turn")) or position,
        action=str(value.get("action") or ""),
        duration_s=round(_number(value.get("duration") or value.get("duration_s"), "duration"), 2),
        input_tokens=tokens("input_tokens"),
        output_tokens=tokens("output_tokens"),
        extras={k: v for k, v in value.items() if k not in _TURN_KEYS},
    )
