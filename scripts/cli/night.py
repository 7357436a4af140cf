"""The commands for a whole night: create the run, start it, print what is next, stop, take over."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from scripts.cli.arguments import Engine, OnConverged, Run, Sandbox, Set, refuse, write_engine
from scripts.cli.bugs import reporting_bugs
from scripts.cli.new import new
from scripts.phases.registry import PHASES, SKIP_PREFLIGHT

app = typer.Typer()
app.command()(new)


@app.command("run")
def run_(
    run: Run,
    steps: Annotated[int | None, typer.Option(min=0, help="Total number of GRPO steps.")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Plan as many steps as fit into this many minutes.")
    ] = None,
    eval_every: Annotated[
        int | None, typer.Option(min=0, help="Steps between evaluations.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="HH:MM", help="Finish by this time, tables and page included."),
    ] = None,
    on_converged: OnConverged = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run in the background; survive a closed terminal.")
    ] = False,
    skip_preflight: Annotated[
        bool,
        typer.Option("--skip-preflight", help=PHASES["start"].flags[SKIP_PREFLIGHT]),
    ] = False,
    keep_engine: Annotated[
        bool, typer.Option("--keep-engine", help="Leave the engine running at the end.")
    ] = False,
    set_: Set = None,
    engine: Engine = None,
    sandbox: Sandbox = "bwrap",
) -> None:
    """Run a night: start, evaluate, roll out, train, until done. Resume where it stopped.

    Examples: grpo run tonight --until 07:00, or grpo run tonight --minutes 90 --detach
    """
    from scripts.night.loop import run_loop
    from scripts.night.loop_options import LoopOptions
    from scripts.run.assignments import assign
    from scripts.run.folder import open_run

    folder = open_run(run)
    if steps is not None:
        refuse(
            {"--minutes": minutes},
            f"limits nothing beside --steps; `grpo run {folder.typed} --steps {steps}` plays so"
            " many steps, without --steps as many as fit into the minutes",
        )
    options = LoopOptions(
        steps, minutes, eval_every, until, on_converged, skip_preflight, keep_engine, sandbox
    )
    options.check()
    assign(folder, set_ or ())
    write_engine(run, engine)
    if detach:
        from scripts.night.detach import detach as start_detached

        pid, log = start_detached(folder, options.words())
        shown = shlex.quote(str(log))
        print(f"run {folder.name} continues in the background: pid {pid}, `tail -f {shown}`")
        return
    from scripts.base.display import make_display

    with reporting_bugs(run, None):  # `run_loop` closes the display itself
        run_loop(folder, options, make_display(details=False))


@app.command("next")
def next_(run: Run) -> None:
    """Print the next phase, or done; exit 3 if the pool has converged.

    Example: grpo next tonight
    """
    from fieldkit.files.journal import Journal
    from scripts.run.config import read_config
    from scripts.run.folder import open_run
    from scripts.run.manifest import OtherProgram, read_manifest, sandbox_kind
    from scripts.run.next_phase import Phase
    from scripts.run.state import look as look_at
    from scripts.run.state import loop_said, raise_converged

    folder = open_run(run)
    config = read_config(folder.config, sandbox_kind(read_manifest(folder) or {}))
    try:
        phase, _ = look_at(folder, config)
    except OtherProgram:
        if loop_said(Journal(folder.journal).read()) != Phase.DONE.value:
            raise
        phase = Phase.DONE
    if phase is Phase.CONVERGED:
        raise_converged(folder, config)
    print(phase.value)


@app.command()
def stop(run: Run) -> None:
    """Stop the run's own engine. While a loop runs, name the command that stops the loop.

    Ctrl-C in its terminal stops a loop; a detached one ends by `kill PID`, and can be resumed.

    Example: grpo stop tonight
    """
    from scripts.base.invocation import say
    from scripts.phases.stop import stop_idle_engine
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    folder = open_run(run)
    say(stop_idle_engine(folder, read_config(folder.config), say))


@app.command()
def clean(
    run: Run,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed; remove nothing.")
    ] = False,
) -> None:
    """Remove checkpoints, except step-000, the best evaluated step and the last two.

    With run.overlap the last three stay. Example: grpo clean tonight --dry-run
    """
    from scripts.run.clean import clean as clean_run
    from scripts.run.folder import open_run
    from scripts.words.quantities import counted

    folder = open_run(run)
    done = clean_run(folder, dry_run)
    for path in done.removed:
        print(path)
    steps = counted(len({path.parent for path in done.removed}), "checkpoint")
    would = "would free" if dry_run else "freed"
    kept = ", ".join(f"step-{n:03d}" for n in done.kept) or "none"
    print(f"run {folder.name}: {would} {done.freed / 2**20:.1f} MiB ({steps}); kept: {kept}")


@app.command()
def takeover(run: Run) -> None:
    """Make this host the owner of a run from another host.

    Example: grpo takeover tonight
    """
    from scripts.base.invocation import say
    from scripts.phases.takeover import takeover as take
    from scripts.run.folder import open_run

    say(take(open_run(run)))
