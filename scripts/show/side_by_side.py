"""`grpo transcripts`: a few held-out tasks as the random policy, the warm start and the newest
adapter played them, next to each other, as Markdown.

The two adapters' attempts, and the oracle's, are read from the run. The random policy is played on
the spot with the evaluation's seeds, so equal runs give equal pages. Nothing is chosen by hand.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fieldkit.errors import BadInput
from fieldkit.eval.grade import RewardPart
from fieldkit.records import Task, Trajectory
from rollout.sandbox.command import SandboxKind
from rollout.tasks import decode_tasks
from rollout.yardsticks import ORACLE
from scripts.base.checkout import from_checkout
from scripts.evidence.played import WARM_START, read_named
from scripts.evidence.transcripts import TurnView, turn_views
from scripts.run.config import read_config
from scripts.run.folder import open_run
from scripts.run.manifest import typed_to_play
from scripts.run.reader import RunReader
from scripts.show.show import model_dir, play_random
from scripts.words import quantities
from scripts.words.table import Table
from scripts.words.visible import shortened, visible

CALL_CHARS, RESULT_CHARS = 200, 160
"""A longer call or result loses its middle. A result is mostly rows; these are the first and last
few of twenty."""

RANDOM_POLICY = "random policy"


class Kind(StrEnum):
    """What became of a task from the warm start to the newest adapter."""

    WON = "won"
    LOST = "lost"
    ALWAYS = "passed before and after"
    NEVER = "passed neither before nor after"


@dataclass(frozen=True)
class Compared:
    """One task. attempts: by player, in the order of the columns. gold: the oracle's attempt; None
    where the run has none."""

    task: Task
    kind: Kind
    attempts: Mapping[str, Trajectory]
    gold: Trajectory | None


def transcripts_page(run: str, most: int, sandbox: SandboxKind = "bwrap") -> str:
    """The page on at most `most` tasks. sandbox: of the random policy's commands.

    Raises `BadInput` with the next command where the run has no trained adapter's evaluation, and
    what playing the random policy raises.
    """
    folder = open_run(run)
    config, reader = read_config(folder.config, sandbox), RunReader(folder)
    to_play = typed_to_play(folder.typed, reader.manifest)
    evaluation = config.eval.settled(reader.manifest)
    tasks = evaluation.of(decode_tasks(from_checkout(config.data.heldout)))
    arms = read_named(folder.evals, tasks, reader.steps, to_play)
    newest = [*arms][-1]
    if newest == WARM_START:
        raise BadInput(
            f"{folder.path}: no trained adapter has a finished evaluation; `grpo eval {to_play}`"
            " plays the newest"
        )
    before, after = arms[WARM_START].first_attempts, arms[newest].first_attempts
    gold = arms[ORACLE].first_attempts if ORACLE in arms else {}
    kinds = {t.task_id: kind_of(before[t.task_id], after[t.task_id]) for t in tasks}
    model = model_dir(folder, config)
    compared = []
    for task in chosen(tasks, kinds, most):
        name = task.task_id
        by_chance = play_random(config, model, task, 0)
        attempts = {RANDOM_POLICY: by_chance, WARM_START: before[name], newest: after[name]}
        compared.append(Compared(task, kinds[name], attempts, gold.get(name)))
    counts = {kind: sum(k is kind for k in kinds.values()) for kind in Kind}
    head = _head(folder.name, f"grpo transcripts {run} --tasks {most}", counts, compared)
    return "\n".join([head, *map(_section, compared)])


def kind_of(before: Trajectory, after: Trajectory) -> Kind:
    """What became of one task."""
    if after.grade.passed:
        return Kind.ALWAYS if before.grade.passed else Kind.WON
    return Kind.LOST if before.grade.passed else Kind.NEVER


def chosen(tasks: Sequence[Task], kinds: Mapping[str, Kind], most: int) -> list[Task]:
    """The first task of each kind in the file's order, then the second of each, until there are
    `most`; by kind, and in the file's order within one."""
    of_kind = [[t for t in tasks if kinds[t.task_id] is kind] for kind in Kind]
    by_turns = [t for turn in itertools.zip_longest(*of_kind) for t in turn if t is not None]
    taken = {t.task_id for t in by_turns[:most]}
    return [t for same in of_kind for t in same if t.task_id in taken]


# --- as Markdown ----------------------------------------------------------------------------------


def _head(name: str, command: str, counts: Mapping[Kind, int], shown: Sequence[Compared]) -> str:
    """Title, how the page was made, and how many tasks there are of each kind."""
    rows = [
        (kind.value, str(n), str(sum(one.kind is kind for one in shown)))
        for kind, n in counts.items()
    ]
    table = Table("Held-out tasks", ("kind", "tasks", "shown"), tuple(rows))
    return f"""# Side by side: {name}

Made by `{command}`. The first held-out task of each kind in the file's order
is shown, then the second of each, and so on; nothing is chosen by hand. The attempts of adapters
are those of the run's evaluation. The random policy is played with the same seeds. The oracle's
calls stand above each table where it has any. A call of more than {CALL_CHARS} characters and a
result of more than {RESULT_CHARS} lose their middle, and equal turns in a row are told once.
"× 0.6" is the weight of a part of the reward.

{table.markdown()}"""


def _section(one: Compared) -> str:
    title = f"{one.kind.value[0].upper()}{one.kind.value[1:]}: {visible(one.task.task_id)}"
    gold = f"Oracle: {_said(one.gold)}\n\n" if one.gold is not None else ""
    asked = "\n".join(f"> {line}" for line in visible(one.task.prompt).splitlines())
    columns = ("", *one.attempts)
    attempts = [*one.attempts.values()]
    rows = [
        ("passed", *("yes" if t.grade.passed else "no" for t in attempts)),
        ("ended", *(f"{t.stop_reason.value}, {_counted(t)}" for t in attempts)),
        ("last call", *(as_code(_calls(t)[-1:], CALL_CHARS) for t in attempts)),
        *_reward_rows(attempts),
        *_turn_rows(attempts),
    ]
    lines = [_row(columns), _row([":--"] * len(columns)), *map(_row, rows)]
    return f"## {title}\n\n{asked}\n\n{gold}" + "\n".join(lines) + "\n"


def _counted(t: Trajectory) -> str:
    return quantities.counted(len(t.turns), "turn")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _reward_rows(attempts: Sequence[Trajectory]) -> Iterator[tuple[str, ...]]:
    """Each part of the reward with its weight, and their sum, which the loop trains with."""
    names = dict.fromkeys((p.name, p.weight) for t in attempts for p in t.grade.rewards)
    for name, weight in names:
        values = [_part(t.grade.rewards, name) for t in attempts]
        yield (f"{name} × {weight:g}", *values)
    yield ("reward", *(quantities.plain(t.reward, 3) for t in attempts))


def _part(parts: Sequence[RewardPart], name: str) -> str:
    """A part's value; a dash where it does not apply."""
    found = [p.value for p in parts if p.name == name and p.value is not None]
    return quantities.plain(found[0], 3) if found else "–"


def _turn_rows(attempts: Sequence[Trajectory]) -> Iterator[tuple[str, ...]]:
    """Turns with equal numbers in one row; a player's cell is empty after its last."""
    shown = [turn_views(t) for t in attempts]
    for number in range(max(map(len, shown))):
        cells = [_turn(views[number]) if number < len(views) else "" for views in shown]
        yield (f"{number + 1}", *cells)


def _turn(view: TurnView) -> str:
    """A call, and the result below it."""
    call = as_code([view.command or view.reply or "(says nothing)"], CALL_CHARS)
    times = f" {view.repeated} times" if view.repeated > 1 else ""
    result = f"<br>→ {as_code([view.output], RESULT_CHARS)}" if view.output else ""
    return f"{call}{times}{result}"


def _calls(t: Trajectory) -> list[str]:
    """The calls of an attempt; of a turn without one, what was replied."""
    return [view.command or view.reply for view in turn_views(t)]


def _said(gold: Trajectory) -> str:
    return ", ".join(as_code([call], CALL_CHARS) for call in _calls(gold) if call)


def as_code(texts: Sequence[str], most: int) -> str:
    """Texts as code in a cell of a table, a span a line; empty lines are left out."""
    lines = [line for text in texts for line in shortened(text, most).splitlines() if line.strip()]
    return "<br>".join(map(_span, lines))


def _span(line: str) -> str:
    """One line of code. A run of backticks ends at an equal run only, and a bar ends a cell."""
    longest = max((len([*run]) for tick, run in itertools.groupby(line) if tick == "`"), default=0)
    fence = "`" * (longest + 1)
    space = " " if "`" in line else ""
    return f"{fence}{space}{line.strip()}{space}{fence}".replace("|", "\\|")
