"""The command `grpo`: every program of the house under one name.

Commands are thin: they read what was typed, call one function and print. Imports are inside them,
because `grpo next` is asked between any two phases. Exit codes are those of `fieldkit.errors`; what
nobody foresaw is a bug, exit 1, with its traceback in the run's log/.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from fieldkit.errors import BadInput, FieldkitError, Interrupted, foreseen

if TYPE_CHECKING:
    from scripts.display import Display

app = typer.Typer(
    name="grpo",
    help="One box, one night: GRPO on a command-line agent, and honest evidence in the morning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
tasks_app = typer.Typer(help="Task files.", no_args_is_help=True)
reward_app = typer.Typer(help="What an episode is paid for.", no_args_is_help=True)
app.add_typer(tasks_app, name="tasks")
app.add_typer(reward_app, name="reward")

Run = Annotated[str, typer.Argument(metavar="RUN", help="A name below runs/, or a path.")]
Events = Annotated[bool, typer.Option("--events", hidden=True)]
SkipPreflight = Annotated[
    bool, typer.Option("--skip-preflight", help="Start even where no preflight says that it pays.")
]


# --- a run ----------------------------------------------------------------------------------------


@app.command()
def new(run: Run, preset: Annotated[str, typer.Option(help="smol, or spark.")] = "smol") -> None:
    """Make a run folder with its run.toml."""
    from scripts.presets import new_run
    from scripts.run_folder import resolve_run

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
) -> None:
    """Run a night: start, evaluate, roll out, train, until done. Resumes where it stopped."""
    from scripts.run_folder import open_run
    from scripts.run_loop import LoopOptions, run_loop

    folder = open_run(run)
    options = LoopOptions(steps, minutes, eval_every, until, skip_preflight, keep_engine)
    if detach:
        from scripts.detach import detach as start_detached

        pid, log = start_detached(folder, options.words())
        print(f"run {folder.name} goes on in the background: pid {pid}, `tail -f {log}`")
        return
    from scripts.display import make_display

    _reporting_bugs(run, lambda: run_loop(folder, options, make_display(details=False)))


@app.command("next")
def next_(run: Run) -> None:
    """Print the next phase, or done; exit 3 where the pool has converged."""
    from scripts.config import read_config
    from scripts.loop import Phase
    from scripts.run_folder import open_run
    from scripts.state import look, raise_converged

    folder = open_run(run)
    config = read_config(folder.config)
    phase, _ = look(folder, config)
    if phase is Phase.CONVERGED:
        raise_converged(folder, config)
    print(phase.value)


@app.command()
def start(run: Run, skip_preflight: SkipPreflight = False, events: Events = False) -> None:
    """Check everything, write manifest and step-000, play the preflight."""
    _phase("start", run, events, skip_preflight=skip_preflight)


@app.command()
def rollout(run: Run, events: Events = False) -> None:
    """Sample the next step's bundle."""
    _phase("rollout", run, events)


@app.command()
def train(run: Run, events: Events = False) -> None:
    """Train on the bundle that is there and finish the step."""
    _phase("train", run, events)


@app.command("eval")
def eval_(run: Run, events: Events = False) -> None:
    """Evaluate what is missing of the start's arms, and the newest adapter; print the table."""
    _phase("eval", run, events)
    if not events:
        table(run)


@app.command()
def preflight(run: Run) -> None:
    """Play four tasks, K times each, with the newest adapter: rewards, advantages, stops."""
    from scripts.preflight import preflight_newest

    display = _display()
    _reporting_bugs(run, lambda: preflight_newest(run, display.tell), display.close)


@app.command()
def table(run: Run) -> None:
    """Print tables and verdict; write evidence.json, evidence.md, curve.png and report.html."""
    from rich.console import Console

    from scripts.config import read_config
    from scripts.evidence_tables import rich_page
    from scripts.page import read_evidence, read_steps, write_files
    from scripts.run_folder import open_run
    from scripts.text import WIDTH

    folder = open_run(run)
    config = read_config(folder.config)
    evidence = read_evidence(folder, config)
    page = rich_page(evidence, read_steps(folder))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(page)
    for path in write_files(folder, config, evidence=evidence):
        print(path)


@app.command()
def compare(
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="ARM",
            help="RUN (its newest evaluated adapter), RUN@warm, RUN@base or RUN@STEP, RUN being a"
            " name below runs/ or a path. Two or more; the others are compared with the first.",
        ),
    ],
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of tables.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page that needs no network.")
    ] = None,
) -> None:
    """Compare arms of any runs on the same held-out tasks, from their evaluations; plays nothing.

    For example: grpo compare tonight@warm tonight, or grpo compare monday tuesday wednesday@12.
    """
    import json

    from rich.console import Console

    from scripts import compare_page
    from scripts.compare import compare_arms
    from scripts.text import WIDTH

    if markdown and json_:
        raise BadInput("--markdown and --json: one form can be printed; choose one of them")
    comparison = compare_arms(arms)
    if markdown:
        print(compare_page.markdown(comparison), end="")
    elif json_:
        print(json.dumps(compare_page.plain(comparison), indent=2, ensure_ascii=False))
    else:
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        console.print(compare_page.rich_page(comparison))
    if html is not None:
        print(compare_page.write_html(comparison, html), file=sys.stderr)


@app.command()
def report(run: Run) -> None:
    """Write report.html, the morning page: one file that opens without a network."""
    from scripts.config import read_config
    from scripts.report.page import write_report
    from scripts.run_folder import open_run

    folder = open_run(run)
    print(write_report(folder, read_config(folder.config)))


@app.command()
def show(
    run: Run,
    task: Annotated[str | None, typer.Option(help="This task; without: a list.")] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Of this step's rollouts.")] = None,
    arm: Annotated[
        str | None, typer.Option("--eval", metavar="ARM", help="Of this arm's evaluation.")
    ] = None,
    k: Annotated[int | None, typer.Option("--k", min=0, help="Which of its attempts.")] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Every token and its logprob.")] = False,
    random: Annotated[bool, typer.Option("--random", help="A random policy beside it.")] = False,
    base: Annotated[bool, typer.Option("--base", help="The base model beside it.")] = False,
) -> None:
    """Show one attempt turn by turn as the model saw it, or list the attempts there are."""
    from rich.console import Console

    from scripts.show import Request
    from scripts.show import show as show_attempt

    show_attempt(Request(run, task, step, arm, k, tokens, random, base), Console(highlight=False))


@app.command()
def watch(
    run: Run, once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False
) -> None:
    """Watch a run live, in this or another terminal; Ctrl-C ends the watch only."""
    from scripts.run_folder import open_run
    from scripts.watch import watch as live

    live(open_run(run), once)


@app.command()
def track(run: Run) -> None:
    """Write TensorBoard's file again, and send Weights & Biases what it lacks where it is on."""
    from scripts.config import read_config
    from scripts.run_folder import open_run
    from scripts.tracking import write_tensorboard
    from scripts.tracking_wandb import send

    folder = open_run(run)
    config = read_config(folder.config)
    print(write_tensorboard(folder) or f"{folder.path}: no step is finished yet")
    if config.run.wandb:
        send(folder)
        print("Weights & Biases: nothing is missing there")


@app.command()
def stop(run: Run) -> None:
    """Stop the run's engine (only ours). A running loop is stopped with Ctrl-C."""
    from scripts.config import read_config
    from scripts.run_folder import open_run
    from scripts.stop import stop_idle_engine

    folder = open_run(run)
    print(stop_idle_engine(folder, read_config(folder.config), print))


@app.command()
def takeover(run: Run) -> None:
    """Make a run that came from another host this host's."""
    from scripts.run_folder import open_run
    from scripts.takeover import takeover as take

    print(take(open_run(run)))


@app.command()
def replay(
    run: Run,
    reward: Annotated[str, typer.Option(help="shaped, or binary.")] = "shaped",
    turn_penalty: Annotated[float | None, typer.Option(help="λ; default: the run's.")] = None,
    protocol: Annotated[str | None, typer.Option(help="sentinel, or literal.")] = None,
) -> None:
    """Score the stored trajectories again under another reward or stop protocol; plays nothing."""
    from rich.console import Console

    from scripts.config import read_config
    from scripts.replay import replay_run
    from scripts.run_folder import open_run

    folder = open_run(run)
    config = read_config(folder.config)
    for shown in replay_run(folder, config, reward, turn_penalty, protocol):
        Console().print(shown.rich())


# --- what a run is made from ----------------------------------------------------------------------


@app.command()
def model() -> None:
    """Build the default model's folder from its wheel, once; print where it is."""
    from scripts.model import build_model

    print(build_model())


@app.command()
def synth(
    seed: Annotated[int, typer.Option(help="Another seed writes other tasks.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the three files.")] = Path("data"),
) -> None:
    """Write pool.jsonl, heldout.jsonl and reserve.jsonl; every task is checked in the sandbox."""
    import tempfile

    from scripts.progress import bar
    from scripts.synth import write_splits

    with tempfile.TemporaryDirectory() as scratch, bar() as progress:
        sizes = write_splits(seed, out, Path(scratch), progress)
    print(", ".join(f"{out / name}.jsonl: {n} tasks" for name, n in sizes.items()))


@app.command()
def sft(
    out: Annotated[Path, typer.Argument(help="Folder of the new adapter.")],
    demos: Annotated[int | None, typer.Option(min=8, help="Demonstrations.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of demonstrations and training.")] = None,
) -> None:
    """Warm-start an adapter on oracle demonstrations; defaults: those of adapters/smol-warm."""
    from dataclasses import replace

    from scripts.config import DataSettings
    from scripts.model import build_model
    from scripts.progress import bar
    from scripts.run_folder import from_checkout
    from scripts.sft import SftSettings, warm_start

    settings = SftSettings()
    settings = replace(settings, demos=demos or settings.demos)
    settings = replace(settings, seed=settings.seed if seed is None else seed)
    avoid = [from_checkout(DataSettings().pool), from_checkout(DataSettings().heldout)]
    with bar() as progress:
        metrics = warm_start(settings, build_model(), avoid, out, progress)
    print(f"{out}: an adapter after {metrics['train_runtime']:.0f} s")


@app.command()
def prove(
    adapter: Annotated[Path, typer.Argument(help="An adapter folder from elsewhere.")],
    model: Annotated[str, typer.Option(help="smol, a model folder, or a hub id.")] = "smol",
    serving: Annotated[str, typer.Option(help="The server's dtype; auto: the model's.")] = "auto",
) -> None:
    """Write the adapter's canary.json, by which a server shows that it uses this adapter."""
    from scripts.config import DataSettings
    from scripts.context import find_model
    from scripts.prove import prove as write
    from scripts.run_folder import from_checkout

    values = write(adapter, find_model(model), from_checkout(DataSettings().heldout), serving)
    tokens = sum(len(row) for row in values["new"])
    print(f"{adapter}/canary.json: {tokens} tokens, rounding noise {values['noise']:.2g}")


@app.command()
def doctor(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Also whether this run would start.")
    ] = None,
    reclaim: Annotated[
        bool, typer.Option("--reclaim", help="End what runs have left behind.")
    ] = False,
) -> None:
    """Check this machine; exit 4 where something would stop a night."""
    from fieldkit.errors import Unavailable
    from scripts import doctor as check_up

    if reclaim:
        from scripts import processes

        print("\n".join(processes.reclaim()) or "nothing to reclaim")
    findings = check_up.examine()
    if run is not None:
        from scripts.doctor_run import examine_run
        from scripts.run_folder import open_run

        findings += examine_run(open_run(run))
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'BAD '} {finding.name:10} {finding.text}")
    bad = [f.name for f in findings if not f.ok]
    if bad:
        raise Unavailable(f"{len(bad)} of {len(findings)} checks failed: {', '.join(bad)}")


@tasks_app.command("check")
def tasks_check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Tasks, one JSON record a line.")],
) -> None:
    """Report every bad task as file:line with the reason; exit 2 where there is one."""
    from rollout.tasks import check_tasks

    problems = check_tasks(file)
    for problem in problems:
        print(problem)
    if problems:
        raise BadInput(f"{file}: {len(problems)} problem(s)")
    print(f"{file}: every task is sound")


@reward_app.command("explain")
def reward_explain(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Take this run's.")] = None,
) -> None:
    """Print what the reward pays for, corner cases included."""
    from rich.console import Console

    from scripts.config import RunConfig, read_config
    from scripts.replay import explain_table
    from scripts.run_folder import open_run

    config = read_config(open_run(run).config) if run else RunConfig()
    Console().print(explain_table(config).rich())


# --- how commands end -----------------------------------------------------------------------------


def _display() -> Display:
    from scripts.display import make_display

    return make_display(details=True)


def _phase(name: str, run: str, events: bool, *, skip_preflight: bool = False) -> None:
    """One phase, told to the parent (`--events`) or to the person."""
    from scripts.events import Event, EventKind, tell_parent
    from scripts.loop import Phase
    from scripts.runner import run_phase

    display = None if events else _display()
    tell = tell_parent if display is None else display.tell

    def work() -> None:
        done = run_phase(Phase(name), run, tell, skip_preflight=skip_preflight)
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
        from scripts.run_folder import resolve_run
        from scripts.runner import keep_traceback

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


if __name__ == "__main__":
    main()
