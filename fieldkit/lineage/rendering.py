"""A lineage in words: what an agent reads before it tries the next thing, and a tree for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fieldkit.lineage.trial import FailureLabel, Trial

HYPOTHESIS_WIDTH = 80
"""Characters of a hypothesis in a table or tree."""


@dataclass(frozen=True, slots=True)
class LineageSnapshot:
    """What an agent was told, as Markdown and as data. `current_best` of an empty store is a trial
    without an exp_id."""

    rendered_prompt: str
    current_best: Trial
    chain_to_best: tuple[Trial, ...]
    top_k_leaderboard: tuple[Trial, ...]
    recent_n_activity: tuple[Trial, ...]
    last_m_with_full_hypothesis: tuple[Trial, ...]


def render(
    reader: str,
    time: str,
    best: Trial | None,
    chain: tuple[Trial, ...],
    kept: tuple[Trial, ...],
    recent: tuple[Trial, ...],
    full: tuple[Trial, ...],
) -> LineageSnapshot:
    """The snapshot of these parts; `best` is None where nothing was tried."""
    if best is None:
        text = f"# Lineage for {reader}\n\nNothing has been tried yet.\n"
        return LineageSnapshot(text, Trial.of("", FailureLabel.BASELINE), (), (), (), ())
    heads = ("trial", "parent", "status", "metric", "change", "hypothesis")
    lines = [
        f"# Lineage for {reader}" + (f", {time}" if time else ""),
        "",
        f"Best so far: **{best.exp_id}**, core_metric {_metric(best.core_metric)}.",
        "",
        "## How the best came about",
        "",
        *(f"{'  ' * depth}- {_told(t)}" for depth, t in enumerate(chain)),
        "",
        "## Kept, best first",
        "",
        *_table(heads, kept),
        "",
        "## Latest, oldest first",
        "",
        *_table(heads, recent),
        "",
        "## Latest in full",
    ]
    for t in full:
        lines += ["", f"### {t.exp_id} ({t.status.value})", "", t.hypothesis or "(no hypothesis)"]
        if t.expected_delta:
            lines.append(f"- expected: {t.expected_delta}")
        lines.append(f"- core_metric: {_metric(t.core_metric)}")
        if t.notes:
            lines.append(f"- notes: {t.notes}")
    return LineageSnapshot("\n".join(lines) + "\n", best, chain, kept, recent, full)


def tree(trials: Sequence[Trial]) -> str:
    """Every trial below its parent, in order of appending; the newest row of an exp_id counts."""
    by_id = {t.exp_id: t for t in trials}
    below: dict[str, list[Trial]] = {}
    for t in by_id.values():
        below.setdefault(t.parent_exp if t.parent_exp in by_id else "", []).append(t)
    lines: list[str] = []
    waiting = [(t, "", "") for t in reversed(below.get("", []))]
    while waiting:
        t, stem, indent = waiting.pop()
        lines.append(stem + _told(t))
        children = below.get(t.exp_id, []) if t.exp_id else []
        for i, child in reversed(list(enumerate(children))):
            last = i == len(children) - 1
            waiting.append(
                (child, indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  "))
            )
    # A trial that is its own ancestor hangs below no root.
    reached = len(lines)
    if reached < len(by_id):
        lines.append(f"({len(by_id) - reached} trials are their own ancestors)")
    return "\n".join(lines)


def _told(t: Trial) -> str:
    said = _short(t.hypothesis)
    return f"{t.exp_id} {t.status.value} {_metric(t.core_metric)}" + (f": {said}" if said else "")


def _table(heads: Sequence[str], trials: Sequence[Trial]) -> list[str]:
    rows = [
        (
            t.exp_id,
            t.parent_exp,
            t.status.value,
            _metric(t.core_metric),
            "—" if t.delta_vs_best is None else f"{t.delta_vs_best:+.6f}",
            _short(t.hypothesis).replace("|", "\\|"),
        )
        for t in trials
    ]
    if not rows:
        return ["(none)"]
    rule = "|" + "---|" * len(heads)
    return [f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(r)} |" for r in rows)]


def _metric(value: float | None) -> str:
    return "—" if value is None else f"{value:.6f}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= HYPOTHESIS_WIDTH else line[: HYPOTHESIS_WIDTH - 1] + "…"
