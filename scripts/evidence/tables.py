"""The tables of matched arms.

Every table that compares arms shows tests and intervals. This module selects and formats numbers
and computes none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fieldkit.eval.matched import ArmRow, PairedRow, holm_adjusted
from fieldkit.eval.stats import Estimate, PairedProportions
from rollout.yardsticks import DO_NOTHING, YARDSTICKS
from scripts.evidence.collect import Evidence, SplitRow
from scripts.evidence.played import BASE
from scripts.evidence.step_figures import NOTHING
from scripts.evidence.verdict import room
from scripts.words import quantities
from scripts.words.table import Table

DIFFERENCES_NOTE = (
    "Differences are paired by task. p: McNemar's exact test, two-sided. Brackets: 95 % intervals"
    " (Newcombe's method 10 for shares of tasks; bootstrap over tasks for assertions, turns and"
    f" tokens), or [{quantities.ALIKE}] where it is the same on all of them."
)
SCOPE_NOTE = (
    "The intervals speak of other tasks made as these were, of the same templates, with one attempt"
    " a task by these very adapters: not of other kinds of task, and not of how another night with"
    " another seed would end."
)
WALL_NOTE = (
    "Wall time is an attempt's mean. Attempts run side by side, other work may run beside them, and"
    " an adapter costs more to serve than the base, so compare turns and tokens. The reward is as"
    " the run pays it; its spread is the standard deviation over the tasks."
)
EACH_ALONE_NOTE = (
    "p is of each test by itself; the verdict corrects those that it rests on, of the newest arm."
    " An arm that is picked because it stands out here looks better than it is."
)
LATE_NOTE = "p is of each test by itself; the sentences correct it over these rows (Holm)."
HOLM_NOTE = "p is adjusted over the rows of this table (Holm); brackets are not."
PASS_AT_K_NOTE = (
    "Endings and the parts of the reward count all attempts. The other tables count the first one"
    " at each task: its seeds are matched."
)


def _tested(change: PairedProportions) -> str:
    found = quantities.estimate(change.difference)
    return f"{found}, p {quantities.p_value(change.test.p_value, equals=True)}"


def _of_model(cell: Callable[[ArmRow], str]) -> Callable[[ArmRow], str]:
    """The same cell, empty for a yardstick, which samples nothing."""
    return lambda arm: NOTHING if arm.name in YARDSTICKS else cell(arm)


def _mean_turns(arm: ArmRow) -> str:
    idle = arm.name == DO_NOTHING
    return NOTHING if idle else quantities.turns(arm.mean_turns.value)


def _median_turns(arm: ArmRow) -> str:
    idle = arm.name == DO_NOTHING or arm.median_turns is None
    return NOTHING if idle else f"{arm.median_turns:g}"


def _reward(arm: ArmRow) -> str:
    if arm.mean_reward is None:
        return NOTHING
    return f"{quantities.plain(arm.mean_reward, 2)} (± {arm.reward_sd:.2f})"


@dataclass(frozen=True)
class Measure:
    """One measure of arms: its name, an arm's own cell, and the cell of a paired change.

    column: heading of the column of changes; empty if the measure has none.
    """

    name: str
    own: Callable[[ArmRow], str]
    column: str = ""
    change: Callable[[PairedRow], str] = lambda p: ""
    is_wide: bool = False
    """Left out of tables of a row for each arm on a terminal, which has no room for it."""
    tells: Callable[[Sequence[ArmRow]], bool] = lambda arms: True
    """Whether it says anything of these arms that another measure does not."""


MEASURES = (
    Measure(
        "tasks passed",
        lambda a: quantities.share(a.passed, a.n_tasks),
        "passed",
        lambda p: _tested(p.passed),
    ),
    Measure(
        "assertions that hold",
        lambda a: quantities.share(a.assertions_passed, a.assertions_total),
        "assertions",
        lambda p: quantities.estimate(p.assertion_rate),
    ),
    Measure(
        "… each fact counted once",
        lambda a: quantities.share(*a.once) if a.once else NOTHING,
        "facts",
        lambda p: quantities.estimate(p.once) if p.once else NOTHING,
        is_wide=True,
        tells=lambda arms: any(a.once and a.once[1] != a.assertions_total for a in arms),
    ),
    Measure(
        "ended by itself",
        _of_model(lambda a: quantities.share(a.stopped, a.n_tasks)),
        "ended by itself",
        lambda p: _tested(p.stopped),
    ),
    Measure(
        "… and the task passed",
        _of_model(lambda a: quantities.share(a.stopped_and_passed, a.n_tasks)),
    ),
    Measure(
        "mean turns",
        _mean_turns,
        "turns",
        lambda p: quantities.estimate(p.turns, as_points=False),
    ),
    Measure("median turns", _median_turns, is_wide=True),
    Measure(
        "tokens a task",
        _of_model(lambda a: f"{a.mean_tokens.value:.0f}"),
        "tokens",
        lambda p: quantities.estimate(p.tokens, as_points=False),
    ),
    Measure(
        "wall time, s",
        _of_model(lambda a: quantities.plain(a.mean_seconds)),
        is_wide=True,
    ),
    Measure(
        "reward (± its spread)",
        _reward,
        "reward",
        lambda p: quantities.estimate(p.reward, as_points=False, digits=2) if p.reward else NOTHING,
        is_wide=True,
    ),
)


def main_table(evidence: Evidence) -> Table:
    """One column per arm, and one for the newest arm against the warm start."""
    columns = ["", *[a.name for a in evidence.arms]]
    if evidence.newest:
        columns.append(f"{evidence.newest} − {evidence.reference}")
    rows = []
    for measure in (m for m in MEASURES if m.tells(evidence.arms)):
        row = [measure.name, *map(measure.own, evidence.arms)]
        if evidence.newest:
            row.append(measure.change(evidence.against_reference(evidence.newest)))
        rows.append(tuple(row))
    return Table(
        f"{evidence.played_on.heading} ({evidence.n_tasks}, T = {evidence.temperature:g})",
        tuple(columns),
        tuple(rows),
        (
            *evidence.about_tasks,
            f"{DIFFERENCES_NOTE} {SCOPE_NOTE} Each p here is of its test by itself.",
            WALL_NOTE,
            *_taken_over_note(evidence.taken_over),
        ),
        alarm=unprotected_note(evidence.unprotected),
    )


def _taken_over_note(taken_over: Mapping[str, str]) -> tuple[str, ...]:
    """The note on arms taken over from another run; empty if there are none."""
    if not taken_over:
        return ()
    arms = ", ".join(f"{arm} (run {run})" for arm, run in taken_over.items())
    return (
        f"Not played in this run, but taken over from one on the same model, tasks and limits: "
        f"{arms}.",
    )


def unprotected_note(arms: Sequence[str]) -> str:
    """The note on arms played without a sandbox; empty if there are none."""
    if not arms:
        return ""
    return (
        f"Played without a sandbox (--sandbox none): {', '.join(arms)}. What the model wrote ran as"
        " a user of this machine, with that user's files and network."
    )


def by_arm_table(evidence: Evidence) -> Table:
    """The main table with one row per arm, without the differences."""
    table = main_table(evidence)
    return arms_table(table.title, evidence.arms, table.notes, wide=True)


def arms_table(
    title: str, arms: Sequence[ArmRow], notes: tuple[str, ...] = (), *, wide: bool
) -> Table:
    """Every arm's own numbers, one row per arm, so more evaluations add rows, not columns."""
    shown = [m for m in MEASURES if m.tells(arms) and (wide or not m.is_wide)]
    return Table(
        title,
        ("arm", *[measure.name for measure in shown]),
        tuple((a.name, *[measure.own(a) for measure in shown]) for a in arms),
        notes,
    )


def wide_paired_table(evidence: Evidence) -> Table | None:
    """`paired_table` with every change."""
    wide = [m for m in MEASURES if m.is_wide and m.column and m.tells(evidence.arms)]
    table = paired_table(evidence)
    if table is None:
        return None
    return replace(
        table,
        columns=(*table.columns, *[m.column for m in wide]),
        rows=tuple(
            (*cells, *[m.change(p) for m in wide])
            for cells, p in zip(table.rows, evidence.paired, strict=True)
        ),
    )


def paired_table(evidence: Evidence) -> Table | None:
    """Every arm except the yardsticks against the warm start, with the counts behind the test; None
    before there is such an arm."""
    if not evidence.paired:
        return None
    title = f"Each arm against the {evidence.reference}"
    return differences_table(title, evidence.paired, (EACH_ALONE_NOTE,))


def differences_table(
    title: str, paired: Sequence[PairedRow], notes: tuple[str, ...] = ()
) -> Table:
    """Arms against one reference, one row per arm, with the counts behind the test."""
    return Table(
        title,
        _PAIRED_COLUMNS,
        tuple(_paired_cells(p) for p in paired),
        (
            "won / lost: tasks that only this arm passed, and tasks that only the other passed.",
            *notes,
        ),
    )


_CHANGES = [measure for measure in MEASURES if measure.column and not measure.is_wide]
_PAIRED_COLUMNS = ("arm", "passed", "won / lost", *[m.column for m in _CHANGES[1:]])


def _paired_cells(p: PairedRow) -> tuple[str, ...]:
    passed, *rest = [measure.change(p) for measure in _CHANGES]
    test = p.passed.test
    return (p.name, passed, f"{test.second_only} / {test.first_only}", *rest)


def late_table(evidence: Evidence) -> Table | None:
    """The newest adapter against earlier evaluated adapters; None if there are none."""
    if not evidence.late:
        return None
    return Table(
        "What the last steps bought",
        ("since", *_PAIRED_COLUMNS[1:]),
        tuple((p.reference, *_paired_cells(p)[1:]) for p in evidence.late),
        (*map(_late_sentence, holm_adjusted(evidence.late)), LATE_NOTE),
    )


def _late_sentence(p: PairedRow) -> str:
    """What came after `p.reference`, judged by the held-out tasks."""
    changes = moved(p)
    if not changes:
        left_open = f"; {room(p)}" if room(p) else ""
        return f"After {p.reference} nothing can be told from luck{left_open}."
    return f"After {p.reference}: {', '.join(changes)}; the rest can be luck."


def moved(p: PairedRow) -> tuple[str, ...]:
    """The proven differences from the reference, in a word or two each."""
    signs = {
        "tasks passed": p.passed.sign,
        "assertions": p.assertion_rate.sign,
        "stops": p.stopped.sign,
        "turns": p.turns.sign,
    }
    return tuple(f"{name} {'up' if sign > 0 else 'down'}" for name, sign in signs.items() if sign)


def split_table(evidence: Evidence, tag: str) -> Table | None:
    """The newest adapter against the warm start for each value of a tag; None if a task lacks the
    tag."""
    if tag not in evidence.splits:
        return None
    return _change_table(
        evidence, f"By {tag}", tag, evidence.splits[tag], _split_notes(tag), tasks=True
    )


def _split_notes(tag: str) -> tuple[str, ...]:
    if tag == "template":
        return (
            "unseen: made from templates that neither the pool nor the warm start has.",
            HOLM_NOTE,
        )
    return (HOLM_NOTE,)


def kind_table(evidence: Evidence) -> Table:
    """Assertions by kind."""
    return _change_table(evidence, "By assertion kind", "kind", evidence.kinds, (), tasks=False)


def _change_table(
    evidence: Evidence,
    title: str,
    heading: str,
    splits: Sequence[SplitRow],
    notes: tuple[str, ...],
    *,
    tasks: bool,
) -> Table:
    """Tasks passed (if `tasks`) and assertions that hold, per arm, and the paired change."""
    policies, everyone = _shown(evidence), [DO_NOTHING, *_shown(evidence)]
    present = [n for n in everyone if any(a.name == n for a in evidence.arms)]
    columns = [heading, "tasks"]
    columns += [f"passed: {' / '.join(policies)}"] if tasks else []
    columns += ["Δ passed", "p"] if tasks and evidence.newest else []
    columns += [f"assertions, %: {' / '.join(present)}"]
    columns += ["Δ assertions"] if evidence.newest else []
    return Table(
        title,
        tuple(columns),
        tuple(_change_cells(s, policies if tasks else [], present) for s in splits),
        notes if evidence.newest else (),
    )


def _shown(evidence: Evidence) -> list[str]:
    """The arms of a split table: more arms would make it too wide to read."""
    wanted = (BASE, evidence.reference, evidence.newest)
    return [a.name for a in evidence.arms if a.name in wanted]


def _change_cells(
    split: SplitRow, policies: Sequence[str], present: Sequence[str]
) -> tuple[str, ...]:
    cells = [split.value, str(split.n_tasks)]
    if policies:
        cells.append(" / ".join(str(split.rows[n].passed) for n in policies))
        if split.paired:
            cells += [
                quantities.estimate(split.paired.passed.difference),
                quantities.p_value(split.paired.passed.test.p_value),
            ]
    rates = [split.rows[n].assertion_rate.value for n in present]
    cells.append(" / ".join(quantities.plain(100 * r) for r in rates))
    if split.paired:
        cells.append(quantities.estimate(split.paired.assertion_rate))
    return tuple(cells)


def stops_table(evidence: Evidence) -> Table:
    """Stop reasons by arm, without the yardsticks."""
    return endings_table({n: s for n, s in evidence.stops.items() if n not in YARDSTICKS})


def endings_table(played: Mapping[str, Mapping[str, int]]) -> Table:
    """The table of arm → stop reason → attempts."""
    reasons = sorted({r for s in played.values() for r in s})
    return Table(
        "Why attempts ended",
        ("reason", *played),
        tuple((r, *[str(s.get(r, 0)) for s in played.values()]) for r in reasons),
    )


def pass_at_k_table(evidence: Evidence) -> Table | None:
    """pass@k by arm; None if each task has one attempt."""
    if not evidence.pass_at_k:
        return None
    ks = range(1, evidence.samples + 1)
    arms = evidence.pass_at_k.items()
    rows = [(name, *(percents(by_k[k]) for k in ks)) for name, by_k in arms]
    if gain := evidence.pass_at_k_gain:
        cells = [quantities.estimate(gain[k]) for k in ks]
        rows.append((f"{evidence.newest} − {evidence.reference}, points", *cells))
    columns = ("arm", *[f"pass@{k}" for k in ks])
    return Table("pass@k", columns, tuple(rows), (PASS_AT_K_NOTE,))


def percents(rate: Estimate) -> str:
    """A rate with its interval, in percent."""
    value = quantities.percent(rate.value)
    if rate.interval is None:
        return value
    low, high = quantities.percent(rate.interval.low), quantities.percent(rate.interval.high)
    return f"{value} [{low} to {high}]"
