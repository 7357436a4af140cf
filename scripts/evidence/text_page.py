"""The findings as the terminal's page, evidence.md and evidence.json, all with the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fieldkit.codec import SCHEMA, plain
from scripts.base.invocation import typeable
from scripts.evidence.ending import EndKind, ending, next_steps
from scripts.evidence.findings import Findings
from scripts.evidence.run_tables import text_tables
from scripts.run.manifest import evaluated_adapter
from scripts.words.quantities import counted
from scripts.words.visible import visible

if TYPE_CHECKING:
    from rich.console import Group


def no_verdict(f: Findings) -> str:
    """Why there is evidence and no verdict."""
    if adapter := evaluated_adapter(f.manifest):
        return (
            f"An evaluation of {adapter}, which the tables call the warm start."
            " `grpo compare` holds it against other arms."
        )
    if not f.is_untrained:
        return "No trained adapter has been evaluated yet: this is where the night starts from."
    n = counted(len(f.steps) - 1, "step")
    return f"Nothing was trained in {n}: no group had rewards that differ. This is the start."


def markdown(f: Findings) -> str:
    """The whole page as Markdown: verdict, tables and milestones."""
    v = f.verdict
    first = f"**{v.headline}**" if v else no_verdict(f)
    said = [first, "", *_bullets([*_around(f), *(v.details if v else ()), *_next(f)])]
    parts = (
        "\n".join([f"# Run {f.name}", "", *said]) + "\n",
        *[table.markdown() for table in text_tables(f)],
        "\n".join(["## Milestones", "", *_bullets(f.milestones.sentences)]) + "\n",
    )
    return "\n".join(parts)


def _around(f: Findings) -> tuple[str, ...]:
    """What the verdict must not be read without: how the night ended, gaps and warnings."""
    end = ending(f)
    return (
        f"{end.sentence}{f' The error: {_on_a_line(end.failure)}' if end.failure else ''}",
        *(f"Missing: {gap.what}: {_on_a_line(gap.why)}" for gap in f.gaps),
        *(f"Warning: {w.title}. {w.seen} {w.meaning} {w.remedy}" for w in f.warnings),
    )


def _on_a_line(text: str) -> str:
    return visible(" ".join(text.split()))


def _next(f: Findings) -> tuple[str, ...]:
    """What to type next, if the night is over: a loop that still runs goes on by itself."""
    end = ending(f)
    return next_steps(f, end) if end.kind in (EndKind.COMPLETE, EndKind.CONVERGED) else ()


def _bullets(lines: Sequence[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def rich_page(f: Findings) -> Group:
    """The same for the terminal, with the verdict last, next to the prompt."""
    from rich.console import Group
    from rich.text import Text

    v = f.verdict
    said = [Text(v.headline, style="bold") if v else Text(no_verdict(f))]
    said += [Text(typeable(line)) for line in (*_around(f), *(v.details if v else ()))]
    said += [Text(typeable(line), style="bold") for line in _next(f)]
    reached = [Text(f"• {s}") for s in f.milestones.sentences]
    shown = [part for t in text_tables(f) for part in (t.rich(), Text())]
    return Group(*shown, *reached, Text(), *said)


def plain_page(f: Findings) -> dict[str, Any]:
    """Every number of the page and the verdict's enums, as JSON-ready values."""
    return {
        "schema": SCHEMA,
        "verdict": plain(f.verdict) if f.verdict else None,
        "milestones": plain(f.milestones),
        **f.require_evidence().plain(),
    }
