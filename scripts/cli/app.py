"""The command `grpo`: every program of the house under one name.

Commands are thin: they read what was typed, call one function and print. Imports are inside them,
because `grpo next` is asked between any two phases. Those that run a night are here, those that
look at one in `cli_look`, those around what it is made from in `cli_make`. Exit codes are those of
`fieldkit.errors`; what nobody foresaw is a bug, exit 1, with its traceback in the run's log/, or on
the screen where nothing was to be run.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from fieldkit.errors import FieldkitError, Interrupted, foreseen
from scripts.cli import look, make
from scripts.cli.look import Run, Sandbox, table

if TYPE_CHECKING:
    from rollout.sandbox.command import SandboxKind
    from scripts.base.display import Display

app = typer.Typer(
    name="grpo",
    help="One box, one night: GRPO on a command-line agent, and honest evidence in the morning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Events = Annotated[bool, typer.Option("--events", hidden=True)]
SkipPreflight = Annotated[
    bool, typer.Option("--skip-preflight", help="Start even where no preflight says that it pays.")
]


@app.command()
def new(
    run: Run,
    preset: Annotated[
        str, typer.Option(help="smol, spark, or another file of scripts/prepare/presets.")
    ] = "smol",
) -> None:
    """Make a run folder with its run.toml."""
    from scripts.prepare.presets import new_run
    from scripts.run.folder import resolve_run

    folder = resolve_run(run)
    new_run(folder, preset)
    print(f"{folder.config}; `grpo run {run}` starts it")


@app.command("run")
def run_(
    run: Run,
    steps: Annotated[int | None, typer.Option(min=0, help="GRPO steps in all.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Fit the steps into this.")] = None,
    eval_every: Annotated[int | None, typer.Option(min=0, help="Steps between evals.")] = None,
    until: Annotated[
        str | None, typer.Option(metavar="HH:MM", help="Be done by then, tables and page included.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Survive the closed terminal.")] = False,
    skip_preflight: SkipPreflight = False,
    keep_engine: Annotated[
        bool, typer.Option("--keep-engine", help="Leave the server running at the end.")
    ] = False,
    sandbox: Sandbox = "bwrap",
) -> None:
    """Run a night: start, evaluate, roll out, train, until done. Resumes where it stopped."""
    from scripts.night.loop import LoopOptions, run_loop
    from scripts.run.folder import open_run

    folder = open_run(run)
    options = LoopOptions(steps, minutes, eval_every, until, skip_preflight, keep_engine, sandbox)
    if detach:
        from scripts.night.detach import detach as start_detached

        pid, log = start_detached(folder, options.words())
        print(f"run {folder.name} goes on in the background: pid {pid}, `tail -f {log}`")
        return
    from scripts.base.display import make_display

    _reporting_bugs(run, lambda: run_loop(folder, options, make_display(details=False)))


@app.command("next")
def next_(run: Run) -> None:
    """Print the next phase, or done; exit 3 where the pool has converged."""
    from scripts.run.config import read_config
    from scripts.run.folder import open_run
    from scripts.run.next_phase import Phase
    from scripts.run.state import look as look_at
    from scripts.run.state import raise_converged

    folder = open_run(run)
    config = read_config(folder.config)
    phase, _ = look_at(folder, config)
    if phase is Phase.CONVERGED:
        raise_converged(folder, config)
    print(phase.value)


@app.command()
def start(
    run: Run,
    skip_preflight: SkipPreflight = False,
    sandbox: Sandbox = "bwrap",
    events: Events = False,
) -> None:
    """Check everything, write manifest and step-000, play the preflight."""
    _phase("start", run, events, sandbox, skip_preflight=skip_preflight)


@app.command()
def rollout(run: Run, sandbox: Sandbox = "bwrap", events: Events = False) -> None:
    """Sample the next step's bundle."""
    _phase("rollout", run, events, sandbox)


@app.command()
def train(run: Run, sandbox: Sandbox = "bwrap", events: Events = False) -> None:
    """Train on the bundle that is there and finish the step."""
    _phase("train", run, events, sandbox)


@app.command("eval")
def eval_(run: Run, sandbox: Sandbox = "bwrap", events: Events = False) -> None:
    """Evaluate what is missing of the start's arms, and the newest adapter; print the table."""
    _phase("eval", run, events, sandbox)
    if not events:
        table(run)


@app.command()
def preflight(run: Run, sandbox: Sandbox = "bwrap") -> None:
    """Play four tasks, K times each, with the newest adapter: rewards, advantages, stops."""
    from scripts.phases.smoke import preflight_newest

    display = _display()
    _reporting_bugs(run, lambda: preflight_newest(run, display.tell, sandbox), display.close)


@app.command()
def stop(run: Run) -> None:
    """Stop the run's engine (only ours). A running loop is stopped with Ctrl-C."""
    from scripts.phases.stop import stop_idle_engine
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    folder = open_run(run)
    print(stop_idle_engine(folder, read_config(folder.config), print))


@app.command()
def takeover(run: Run) -> None:
    """Make a run that came from another host this host's."""
    from scripts.run.folder import open_run
    from scripts.run.takeover import takeover as take

    print(take(open_run(run)))


@app.command()
def doctor(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Also whether this run would start.")
    ] = None,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="End what runs have left behind.")
    ] = False,
    sandbox: Sandbox = "bwrap",
) -> None:
    """Check this machine; exit 4 where something would stop a night."""
    from fieldkit.errors import Unavailable
    from rollout.sandbox.command import SandboxSettings
    from scripts.doctor import checkup
    from scripts.run.config import RunConfig

    if reclaim:
        from scripts.doctor import ownership

        print("\n".join(ownership.reclaim()) or "nothing to reclaim")
    if run is None:
        findings = checkup.examine(RunConfig(sandbox=SandboxSettings(kind=sandbox)))
    else:
        from scripts.doctor.run_checks import examine_machine_for, examine_run
        from scripts.run.folder import open_run

        folder = open_run(run)
        findings = [*examine_machine_for(folder, sandbox), *examine_run(folder)]
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'BAD '} {finding.name:10} {finding.text}")
    bad = [f.name for f in findings if not f.ok]
    if bad:
        raise Unavailable(f"{len(bad)} of {len(findings)} checks failed: {', '.join(bad)}")


app.add_typer(look.app)
app.add_typer(make.app)


# --- how commands end -----------------------------------------------------------------------------


def _display() -> Display:
    from scripts.base.display import make_display

    return make_display(details=True)


def _phase(
    name: str, run: str, events: bool, sandbox: SandboxKind, *, skip_preflight: bool = False
) -> None:
    """One phase, told to the parent (`--events`) or to the person."""
    from scripts.base.events import Event, EventKind, tell_parent
    from scripts.phases.run_phase import run_phase
    from scripts.run.next_phase import Phase

    display = None if events else _display()
    tell = tell_parent if display is None else display.tell

    def work() -> None:
        done = run_phase(Phase(name), run, tell, sandbox, skip_preflight=skip_preflight)
        tell(Event(EventKind.FINISHED, done.text))

    try:
        _reporting_bugs(run, work, display.close if display else None)
    except FieldkitError as e:
        if events:
            tell(Event(EventKind.FAILED, str(e), figures={"exit_code": e.exit_code}))
        raise


def _reporting_bugs(
    run: str, work: Callable[[], object], close: Callable[[], None] | None = None
) -> None:
    """Do `work`; what nobody foresaw leaves its traceback in the run's log/."""
    try:
        work()
    except FieldkitError:
        raise
    except Exception as e:
        if (known := foreseen(e)) is not None:
            raise known from e
        from scripts.phases.run_phase import keep_traceback
        from scripts.run.folder import resolve_run

        path = keep_traceback(resolve_run(run), type(e).__name__)
        print(f"error: a bug: {type(e).__name__}: {e}; its traceback: {path}", file=sys.stderr)
        raise SystemExit(1) from e
    finally:
        if close is not None:
            close()


def main() -> None:
    """Entry point: run the app and end with the exit code of the contract."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except (FieldkitError, OSError) as e:
        if (known := foreseen(e)) is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        raise SystemExit(known.exit_code) from None


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C where no phase listens for it: nothing is half-written, so simply end."""
    raise Interrupted("interrupted")
