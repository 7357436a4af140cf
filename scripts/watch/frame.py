"""One frame of `grpo watch`: renders a `Sight` for a terminal of 80 columns.

The most important parts come first, and the transcript takes the remaining rows, so a small
terminal loses only transcript.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fieldkit.gate.memory import GIB
from fieldkit.records import Outcome, Signal, StepSummary
from rollout.arm import EvalSummary
from rollout.yardsticks import YARDSTICKS
from scripts.base.display import to_the_second
from scripts.base.invocation import typeable
from scripts.evidence.step_figures import KL, NOTHING, PASSES, REWARD, STOPS, TURNS, by_step
from scripts.evidence.transcripts import TurnView, turn_views
from scripts.run.programs import Memory, Program
from scripts.watch.activity import State
from scripts.watch.sight import Episode, Progress, Sight
from scripts.words.quantities import clock, counted, duration, plain
from scripts.words.visible import shortened, visible

BARS = "▁▂▃▄▅▆▇█"

SPARK_WIDTH = 18
BAR_WIDTH = 36

STEP_ROWS, FEW_STEP_ROWS = 6, 3
"""Rows of the table of steps, on a normal and on a small terminal."""

SMALL_HEIGHT = 30
"""Terminals with fewer lines are small."""

ONCE_ROWS = 18
"""Lines of transcript if no terminal sets a limit."""

WHY_CHARS = 300
"""Most characters of a failure; the journal has all of it."""

OUTPUT_LINES = 2
"""Lines shown of a command's output."""

EVALS = 3
"""Number of newest evaluations shown."""

STATE_STYLE = {
    State.WORKING: "green",
    State.BETWEEN: "green",
    State.DONE: "bold green",
    State.CONVERGED: "bold green",
    State.STOPPED: "bold red",
}


def frame(sight: Sight, console: Console, height: int | None = None) -> RenderableType:
    """The whole page. height: lines of the terminal; None for no limit."""
    small = height is not None and height < SMALL_HEIGHT
    above: list[RenderableType] = [
        _header(sight),
        _steps(sight.played, FEW_STEP_ROWS if small else STEP_ROWS),
        *_sparks(sight.played),
        *_evals(sight.evals),
        _memory(sight.memory),
        _programs(sight.programs),
        *(Text(f"! {line}", style="yellow") for line in map(visible, sight.troubles)),
    ]
    if sight.episode is None:
        return Group(*above)
    room = ONCE_ROWS
    if height is not None:
        room = height - len(console.render_lines(Group(*above)))
    return Group(*above, *_transcript(sight.episode, room))


# --- the top --------------------------------------------------------------------------------------


def _header(sight: Sight) -> Panel:
    doing = sight.activity
    body: list[RenderableType] = [_now(sight)]
    if sight.progress is not None:
        body.append(_bar(sight.progress))
    if sight.said:
        body.append(_line(Text(visible(sight.said), style="dim")))
    title = [sight.name]
    if sight.planned is not None:
        title.append(f"step {sight.step}/{sight.planned}")
    elif sight.step:
        title.append(f"step {sight.step}")
    title.append(doing.phases if doing.state is State.WORKING else doing.state.value)
    return Panel(
        Group(*body),
        title=Text(" · ".join(title), style=STATE_STYLE.get(doing.state, "yellow")),
        title_align="left",
        subtitle=Text(time.strftime("%H:%M:%S", time.localtime(sight.at)), style="dim"),
        subtitle_align="right",
    )


def _now(sight: Sight) -> Text:
    """One line: elapsed time, time left and host; or why the run is idle and what to type."""
    doing = sight.activity
    if doing.state is State.FRESH:
        return Text(typeable(f"{doing.state.value}; `grpo run {sight.to_play}` starts it"))
    if doing.state in (State.IDLE, State.STOPPED):
        why = shortened(visible(doing.why), WHY_CHARS) or doing.state.value
        style = "red" if doing.state is State.STOPPED else ""
        return Text(why, style=style) + Text(typeable(f"\n`grpo run {sight.to_play}` goes on"))
    if doing.state is State.WAITING:
        again = f"the {doing.phase} phase is done once more at {clock(doing.until)}; it ended with "
        return Text(again + shortened(visible(doing.why), WHY_CHARS), style="yellow")
    if sight.is_over:
        said = f"{doing.state.value}; `grpo table {sight.typed}` tells what came of it"
        return Text(typeable(said))
    parts = []
    if doing.state is State.WORKING:
        # The clock may have been set back since the phase began.
        parts.append(f"{doing.phases} for {to_the_second(max(0.0, sight.at - doing.since))}")
    if sight.left is not None:
        end = clock(sight.at + sight.left)
        parts.append(f"about {duration(sight.left)} left, until {end}")
    if sight.host:
        parts.append(f"on host {sight.host}")
    return Text(" · ".join(parts) or doing.state.value)


def _bar(progress: Progress) -> Table:
    row = Table.grid(padding=(0, 1))
    done = min(progress.done, progress.total)
    told = f"{progress.done:.0f} of {progress.total:.0f} {progress.unit}"
    if progress.unit == "s":
        told = f"{progress.done:.0f} s, the last took {progress.total:.0f} s"
    row.add_row(ProgressBar(progress.total, done, width=BAR_WIDTH), Text(told))
    return row


# --- steps ----------------------------------------------------------------------------------------


COLUMNS = (REWARD, STOPS, PASSES, TURNS, KL)
SPARKS = (REWARD, STOPS, TURNS, KL)
"""The figures with a column in the table of steps, and those with a sparkline."""


def _steps(steps: Sequence[StepSummary], rows: int) -> RenderableType:
    if not steps:
        return Text("no step is finished yet", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for column in ("step", *[f.symbol for f in COLUMNS], "rewards differ", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    for s in steps[-rows:]:
        wall = s.seconds.get("wall")
        table.add_row(
            str(s.step),
            *[f.written(f.read(s)) for f in COLUMNS],
            f"{s.groups.get(Signal.LEARNABLE, 0)}/{sum(s.groups.values())}",
            NOTHING if wall is None else plain(wall, 0),
            style="dim" if s.outcome is Outcome.NO_SIGNAL else None,
        )
    return table


def _sparks(steps: Sequence[StepSummary]) -> Iterator[RenderableType]:
    """Sparklines, two to a row, each with its first and last value."""
    drawn = []
    for figure in SPARKS:
        values = [v for _, v in by_step(steps, figure)]
        if len(values) > 1:
            first, last = (figure.written(values[i], figure.digits - 1) for i in (0, -1))
            limits = (0.0, 1.0) if figure.is_rate else None
            drawn.append((figure.symbol, spark(values, SPARK_WIDTH, limits), f"{first} → {last}"))
    grid = Table.grid(padding=(0, 1))
    for left, right in zip(drawn[::2], [*drawn[1::2], ("", "", "")], strict=False):
        (a, line_a, ends_a), (b, line_b, ends_b) = left, right
        grid.add_row(
            Text(a, style="dim"), Text(line_a, style="cyan"), Text(ends_a),
            Text(b, style="dim"), Text(line_b, style="cyan"), Text(ends_b),
        )  # fmt: skip
    if drawn:
        yield grid


def spark(values: Sequence[float], width: int, limits: tuple[float, float] | None = None) -> str:
    """At least one value as at most `width` bars; with more values, each bar is a mean.

    limits: values of the lowest and the highest bar; None: the range of the bars.
    """
    n = min(width, len(values))
    edges = [i * len(values) // n for i in range(n + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = limits or (min(means), max(means))
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((min(max(m, low), high) - low) * scale)] for m in means)


def _evals(evals: Sequence[EvalSummary]) -> Iterator[Text]:
    """One line for each of the newest evaluations, without the yardsticks."""
    played = [e for e in evals if e.arm not in YARDSTICKS]
    for e in played[-EVALS:]:
        yield _line(
            Text("held-out ", style="dim")
            + Text(
                f"{e.arm}: passed {e.n_passed}/{e.n_trajectories}, "
                f"stops {STOPS.written(e.stop_rate)}, {e.mean_turns:.1f} turns"
            )
        )


# --- the machine ----------------------------------------------------------------------------------


def _memory(memory: Memory) -> Text:
    parts = [_available(memory.available.host, memory.host_total)]
    if memory.available.gpu is not None and memory.gpu_total is not None:
        parts.append(f"GPU {_available(memory.available.gpu, memory.gpu_total)}")
    return Text("memory ", style="dim") + Text(", ".join(parts))


def _available(available: int, total: int) -> str:
    return f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"


def _programs(programs: Sequence[Program]) -> RenderableType:
    if not programs:
        return Text("no process of this run lives here", style="dim")
    table = Table.grid(padding=(0, 2, 0, 0))
    for p in programs:
        more = f" and {len(p.pids) - 1} more" if len(p.pids) > 1 else ""
        cpu = "" if p.cpu is None else f"{p.cpu:.1f} cores"
        table.add_row(
            Text(p.name, style="dim"),
            f"pid {p.pids[0]}{more}",
            f"{p.held / GIB:.1f} GiB",
            cpu,
        )
    return table


# --- the transcript -------------------------------------------------------------------------------


def _transcript(episode: Episode, room: int) -> Iterator[RenderableType]:
    """The last finished episode in at most `room` lines; a longer one loses its middle."""
    t = episode.trajectory
    by_itself = t.stop_reason.by_itself
    title = Text(f"last finished: {visible(t.task_id)}, attempt {t.k} of {episode.of}")
    came_of_it = Text(
        f"{'passed' if t.grade.passed else 'failed'} "
        f"({t.grade.n_passed}/{t.grade.n_total} assertions), "
        f"{'stopped by itself' if by_itself else t.stop_reason.value} after "
        f"{counted(len(t.turns), 'turn')}, reward {t.reward:.2f}",
        style="green" if t.grade.passed else "yellow",
    )
    yield from (_line(title), _line(came_of_it))
    lines = [line for turn in turn_views(t) for line in _turn(turn)]
    rows = max(0, room - 2)
    if len(lines) > rows > 0:
        tail = rows * 2 // 3
        head = rows - tail - 1
        cut = len(lines) - head - tail
        between = Text(f"  … {cut} lines …", style="dim")
        lines = [*lines[: max(0, head)], between, *lines[len(lines) - tail :]]
    yield from map(_line, lines[:rows])


def _turn(turn: TurnView) -> Iterator[Text]:
    """A turn: its command or its reply, and the first lines of the output."""
    label = turn.label if turn.repeated == 1 else f"{turn.label} (the same)"
    said = turn.command or turn.reply or "(nothing)"
    first, *rest = said.splitlines() or [""]
    mark = "$ " if turn.command else ""
    yield Text(f"  {label}  ", style="dim") + Text(f"{mark}{first}")
    for line in rest:
        yield Text(f"    {line}")
    if turn.command and turn.done:
        yield Text("    and says that it is done", style="green")
    if turn.output:
        out = turn.output.splitlines()
        for line in out[:OUTPUT_LINES]:
            yield Text(f"    {line}", style="dim")
        if len(out) > OUTPUT_LINES:
            yield Text(f"    … {counted(len(out) - OUTPUT_LINES, 'more line')}", style="dim")


def _line(text: Text) -> Text:
    """Keep the text on one line at any width."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
