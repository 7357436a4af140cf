"""A comparison in four forms: terminal, Markdown, JSON and one HTML page.

All four show the same computed numbers. The sentences claim a difference only if its interval and
its test, adjusted over the compared arms, agree.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fieldkit.codec import SCHEMA
from scripts.compare.compare import Compared, Comparison
from scripts.compare.seed_forms import CHANGES_COLUMNS, changes_row, passes
from scripts.compare.shown import Shown, markdown_form, rich_form
from scripts.evidence.conditions import payment, surroundings
from scripts.evidence.findings import Findings
from scripts.evidence.run_tables import Section, page_tables
from scripts.evidence.tables import (
    DIFFERENCES_NOTE,
    HOLM_NOTE,
    SCOPE_NOTE,
    arms_table,
    differences_table,
    endings_table,
    moved,
)
from scripts.evidence.verdict import room
from scripts.report.provenance import SHA_DIGITS
from scripts.run.manifest import model_identity
from scripts.words.quantities import listed
from scripts.words.table import Table

if TYPE_CHECKING:
    from rich.console import Group

SEVERAL_NOTE = (
    f"{HOLM_NOTE} So of many arms one may stand out in assertions, turns or tokens by luck."
)
TWO_ARMS_NOTE = (
    "By persona, difficulty, template and assertion kind: compare two arms, and it is shown."
)

MEAN_NOTE = (
    "Of every task the mean over these arms counts. p: sign-flip permutation test over the tasks."
    " Brackets: 95 % intervals, bootstrap over tasks. Both speak of other tasks made as these were,"
    " for these very arms."
)

ARM_COLUMNS = ("arm", "passed", "assertions", "ended by itself", "… and passed", "turns", "tokens")
"""Short headings, to leave room for the arms' names on a narrow terminal."""


def title(c: Comparison) -> str:
    """The title of the comparison."""
    return f"{listed(list(c.arms))} on the same {c.n_tasks} {c.played_on.value} tasks"


def sentences(c: Comparison) -> tuple[str, ...]:
    """One sentence on each arm against the reference, and one on their mean."""
    of_each = tuple(_sentence(one) for one in c.compared)
    if c.mean is None:
        return of_each
    return (*of_each, f"{_mean_of(c)}: {passes(c.mean['passed'], f'with {c.reference}')}")


def _mean_of(c: Comparison) -> str:
    return f"The mean of {listed([one.row.name for one in c.compared])}"


def _sentence(one: Compared) -> str:
    row = one.adjusted
    left_open = room(row) if not row.passed.sign else ""
    found = ", ".join(moved(row))
    said = f"{found}; the rest can be luck" if found else "nothing can be told from luck"
    return f"{row.name} against {row.reference}: {said}{f'; {left_open}' if left_open else ''}."


def tables(c: Comparison) -> tuple[Table, ...]:
    """Every table, in reading order; for two arms, also the split tables."""
    where: list[Table] = []
    if c.pair is not None:
        first = next(iter(c.arms.values()))
        where = page_tables(Findings(first.folder, evidence=c.pair), Section.SPLITS)
    return (_arms(c), _differences(c), *_mean(c), endings_table(c.stops), *where)


def _arms(c: Comparison) -> Table:
    notes = (_conditions_note(c),)
    table = arms_table(f"{c.played_on.heading} ({c.n_tasks})", c.rows, notes, wide=False)
    return replace(table, columns=ARM_COLUMNS)


def _conditions_note(c: Comparison) -> str:
    limits = c.conditions
    return (
        f"Every arm: T = {limits['eval.temperature']:g}, at most {limits['rollout.max_turns']}"
        f" turns of {limits['rollout.max_new_tokens']} tokens, sandbox {limits['sandbox.kind']},"
        " the same sampling seeds."
    )


def _differences(c: Comparison) -> Table:
    several = (SEVERAL_NOTE, TWO_ARMS_NOTE) if c.pair is None else ()
    return differences_table(
        f"Against {c.reference}",
        [one.adjusted for one in c.compared],
        (f"{DIFFERENCES_NOTE} {SCOPE_NOTE}", *several),
    )


def _mean(c: Comparison) -> tuple[Table, ...]:
    if c.mean is None:
        return ()
    row = changes_row(_mean_of(c), c.mean)
    return (Table(f"Their mean against {c.reference}", CHANGES_COLUMNS, (row,), (MEAN_NOTE,)),)


def rich_page(c: Comparison) -> Group:
    """The comparison for the terminal."""
    return rich_form(tables(c), sentences(c), c.remarks)


def markdown(c: Comparison) -> str:
    """The comparison as Markdown."""
    return markdown_form(title(c), tables(c), sentences(c), c.remarks)


def plain(c: Comparison) -> dict[str, Any]:
    """Every number and the folder of each arm, as JSON-ready values."""
    unpaid = dict.fromkeys(("mean_reward", "reward_sd")) if payment(c.arms) else {}
    where = None
    if c.pair is not None:
        pair = c.pair.plain()
        where = {**pair["splits"], "kind": pair["kinds"]}
    return {
        "schema": SCHEMA,
        "n_tasks": c.n_tasks,
        "reference": c.reference,
        "sentences": list(sentences(c)),
        "remarks": list(c.remarks),
        "conditions": dict(c.conditions),
        "arms": [{**_identity(c, row.name), **asdict(row), **unpaid} for row in c.rows],
        "differences": [
            {**_difference(one), **({"reward": None} if unpaid else {})} for one in c.compared
        ],
        **({} if c.mean is None else {"mean": {m: asdict(found) for m, found in c.mean.items()}}),
        "stops": {name: dict(counts) for name, counts in c.stops.items()},
        "by": where,
    }


def _identity(c: Comparison, label: str) -> dict[str, Any]:
    arm = c.arms[label]
    summary = arm.played.summary
    return {
        "run": str(arm.folder.path),
        "arm": arm.arm,
        "adapter": None if arm.adapter is None else str(arm.adapter),
        "adapter_sha": summary.adapter_sha,
        "model": model_identity(arm.manifest),
        "eval": str(arm.folder.evals / summary.key),
        "played_with": surroundings(arm),
    }


def _difference(one: Compared) -> dict[str, Any]:
    return {
        **asdict(one.row),
        "holm_p": {"passed": one.passed_p, "stopped": one.stopped_p},
        "won": list(one.won),
        "lost": list(one.lost),
    }


def html(c: Comparison) -> str:
    """The comparison as one HTML page in the report's style that opens without a network."""
    from scripts.report import drawing
    from scripts.report.page import environment
    from scripts.report.sections import differences_chart

    with drawing.style():
        chart = differences_chart([one.adjusted for one in c.compared], "the first arm")
    arms, differences, *others = tables(c)
    return (
        environment()
        .get_template("compare.html.j2")
        .render(
            title=title(c),
            made=time.strftime("%Y-%m-%d %H:%M"),
            reference=c.reference,
            sentences=sentences(c),
            remarks=c.remarks,
            arms=arms,
            differences=differences,
            others=others,
            chart=chart,
            flips=c.compared,
            played=_played(c),
            conditions=c.conditions,
        )
    )


def _played(c: Comparison) -> Table:
    """The table of each arm's folder, hashes and evaluation key."""
    rows = []
    for label, arm in c.arms.items():
        summary = arm.played.summary
        adapter = "none" if arm.adapter is None else summary.adapter_sha[:SHA_DIGITS]
        model = model_identity(arm.manifest)
        rows.append((label, str(arm.folder.path), adapter, model, summary.key))
    return Table("", ("arm", "run", "adapter", "base model", "evaluation"), tuple(rows))


def shown(c: Comparison) -> Shown:
    """The comparison in each of its forms."""
    return Shown(partial(rich_page, c), partial(markdown, c), partial(plain, c), partial(html, c))
