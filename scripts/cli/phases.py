"""One command for each phase of `scripts.phases.registry`.

Every command calls `run_phase`. The registry entry gives its name, help and flags. `grpo eval` has
a file of its own, because it also evaluates arms that belong to no run.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldkit.errors import FieldkitError
from scripts.cli.arguments import Engine, Json, Run, Sandbox, print_json, write_engine
from scripts.cli.bugs import reporting_bugs
from scripts.phases.registry import PHASES, PhaseEntry

if TYPE_CHECKING:
    from rollout.sandbox.command import SandboxKind

app = typer.Typer()

Events = Annotated[bool, typer.Option("--events", hidden=True)]


def add_phase(commands: typer.Typer, phase: PhaseEntry) -> None:
    """Add the command that runs `phase`."""

    def command(
        run: str, engine: str | None, sandbox: SandboxKind, events: bool, **given: Any
    ) -> None:
        write_engine(run, engine)
        flags = [name for name in phase.flags if given[name]]
        numbers = {name: given[name] for name in phase.numbers if given[name] is not None}
        do_phase(phase, run, sandbox, events, flags, numbers)

    option = Parameter.KEYWORD_ONLY
    parameters = [
        Parameter("run", option, annotation=Run),
        *(
            Parameter(flag, option, default=False, annotation=_switch(flag, help))
            for flag, help in phase.flags.items()
        ),
        *(
            Parameter(name, option, default=None, annotation=_number(help))
            for name, help in phase.numbers.items()
        ),
        Parameter("engine", option, default=None, annotation=Engine),
        Parameter("sandbox", option, default="bwrap", annotation=Sandbox),
        Parameter("events", option, default=False, annotation=Events),
    ]
    # Typer reads a command's parameters from its signature.
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    example = f"Example: grpo {phase.name} tonight"
    commands.command(phase.name, help=f"{phase.help}\n\n{example}")(command)


def _switch(flag: str, help: str) -> Any:
    return Annotated[bool, typer.Option(f"--{flag.replace('_', '-')}", help=help)]


def _number(help: str) -> Any:
    return Annotated[int | None, typer.Option(min=0, metavar="N", help=help)]


def do_phase(
    phase: PhaseEntry,
    run: str,
    sandbox: SandboxKind,
    events: bool,
    flags: list[str],
    numbers: dict[str, int],
) -> None:
    """Run one phase; report to the parent (`--events`) or to the person."""
    from scripts.base.display import make_display
    from scripts.base.events import Event, EventKind, tell_parent
    from scripts.phases.run_phase import run_phase

    display = None if events else make_display(details=True)
    tell = tell_parent if display is None else display.tell
    try:
        with reporting_bugs(run, display):
            done = run_phase(phase.name, run, tell, sandbox, flags, numbers)
            tell(Event(EventKind.FINISHED, done.text))
    except FieldkitError as e:
        if events:
            tell(Event(EventKind.FAILED, str(e), figures={"exit_code": e.exit_code}))
        raise
    if phase.shows_table and not events:
        from scripts.cli.look import table

        table(run)


for entry in PHASES.values():
    if entry.name != "eval":  # which also works without a run: `scripts.cli.evaluate`
        add_phase(app, entry)


@app.command()
def preflight(run: Run, json_: Json = False, sandbox: Sandbox = "bwrap") -> None:
    """Play four tasks K times each with the newest adapter; show rewards, advantages and stops.

    Example: grpo preflight tonight
    """
    from scripts.base.display import make_display
    from scripts.phases.play_preflight import preflight_newest

    display = make_display(details=True, out=sys.stderr if json_ else sys.stdout)
    with reporting_bugs(run, display):
        report = preflight_newest(run, display.tell, sandbox)
    if json_:
        print_json(asdict(report))
