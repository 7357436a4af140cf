"""The commands that read a run: tables, page, comparison, transcripts, live watch, trackers.

None of them trains or changes what a phase reads. Only `transcripts`, `show --random` and `show
--base` play. All of them but `show --base`, which needs the engine, can run while the loop does.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldkit.errors import BadInput
from scripts.base.invocation import say, tell
from scripts.cli.arguments import Json, Run, Sandbox, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scripts.compare.shown import Shown

app = typer.Typer()

_DEVICES = (Path("/dev"), Path("/dev/fd"))
"""Folders of names that stand for something open, whatever is there."""


def require_ordinary(path: Path | None, flag: str) -> None:
    """Raise `BadInput` for a device or a pipe, such as /dev/stdout: a page is moved to its place,
    so that it would be gone."""
    if path is None or path.is_dir():
        return
    if path.parent in _DEVICES or (path.exists() and not path.is_file()):
        raise BadInput(f"{path}: no ordinary file; name one, as in `{flag} page.html`")


@app.command("ls")
def ls(
    runs: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="The folder of the runs; default: runs/."),
    ] = None,
    json_: Json = False,
) -> None:
    """List the runs: state, steps, size, verdict.

    Example: grpo ls
    """
    from scripts.base.checkout import ROOT
    from scripts.watch.listing import list_runs, listing_text, plain_listing
    from scripts.words.text import WIDTH

    where = runs or ROOT / "runs"
    if not where.is_dir():
        raise BadInput(f"{where}: no such folder; `grpo new RUN` makes a run below runs/")
    found = list_runs(where)
    if json_:
        print_json(plain_listing(found))
    elif found:
        wide = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        print(listing_text(found, wide))
    else:
        say(f"{where}: no runs; `grpo new NAME` makes one")


def print_rich(page: RenderableType) -> None:
    """Print as wide as the terminal, or in a pipe as wide as necessary."""
    from rich.console import Console

    from scripts.words.text import WIDTH

    Console(width=None if sys.stdout.isatty() else WIDTH).print(page)


@app.command()
def table(run: Run, json_: Json = False) -> None:
    """Print the tables and the verdict; write evidence.json and .md, curve.png and report.html.

    A file that was made from more data than this copy of the run has is kept.

    Example: grpo table tonight
    """
    from scripts.evidence.findings import read_findings
    from scripts.evidence.text_page import plain_page, rich_page
    from scripts.report.files import write_files
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    folder = open_run(run)
    findings = read_findings(folder, read_config(folder.config))
    findings.require_evidence()
    if json_:
        print_json(plain_page(findings))
    else:
        print_rich(rich_page(findings))
    for path in write_files(findings, tell):
        print(path, file=sys.stderr if json_ else sys.stdout)


@app.command()
def compare(
    arms: Annotated[
        list[str],
        typer.Argument(
            metavar="ARM",
            help="RUN (its newest evaluated adapter), RUN@warm, RUN@base or RUN@STEP. RUN is a name"
            " under runs/ or a path. Give two or more; each is compared with the first.",
        ),
    ],
    mean: Annotated[
        bool,
        typer.Option(
            "--mean",
            help="Also compare the mean of all arms but the first with the first.",
        ),
    ] = False,
    seeds: Annotated[
        bool,
        typer.Option(
            "--seeds",
            help="The runs are nights of one setting with several seeds: compare each with its own"
            " start, and the mean of all.",
        ),
    ] = False,
    unlike: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Leave out held-out tasks whose prompts are much like a task's of FILE, such as"
            " the tasks of training: what is gained on near copies may be known by heart.",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of tables.")
    ] = False,
    json_: Json = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write a page that needs no network.")
    ] = None,
) -> None:
    """Compare arms of any runs on the same held-out tasks, from stored evaluations.

    Examples: grpo compare tonight@warm tonight, or grpo compare monday tuesday wednesday@12, or
    grpo compare seed0 seed1 seed2 --seeds.
    """
    from scripts.compare import forms, seed_forms
    from scripts.compare.compare import compare_arms
    from scripts.compare.over_seeds import compare_nights
    from scripts.compare.shown import write_html

    if mean and seeds:
        raise BadInput(
            "--mean and --seeds: the first arm is the start of all with --mean, and with"
            " --seeds each night has its own; choose one of them"
        )
    refuse_two_forms(markdown, json_)
    require_ordinary(html, "--html")
    if seeds:
        shown = seed_forms.shown(compare_nights(arms, unlike=unlike), "Nights of several seeds")
    else:
        shown = forms.shown(compare_arms(arms, mean=mean, unlike=unlike))
    print_form(shown, markdown, json_)
    if html is not None:
        print(write_html(shown, html), file=sys.stderr)


def print_form(shown: Shown, markdown: bool, json_: bool) -> None:
    """Print a comparison as tables, as Markdown or as JSON."""
    if json_:
        print_json(shown.plain())
    elif markdown:
        print(shown.markdown(), end="")
    else:
        print_rich(shown.rich())


def refuse_two_forms(markdown: bool, json_: bool) -> None:
    """Raise `BadInput` where two forms of one output are asked for."""
    if markdown and json_:
        raise BadInput("--markdown and --json: one form can be printed; choose one of them")


@app.command()
def report(
    run: Run,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page to this file instead.")
    ] = None,
) -> None:
    """Write report.html, the morning page: one file that opens without a network.

    Example: grpo report tonight
    """
    from scripts.evidence.findings import read_findings
    from scripts.report.files import write_report
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    require_ordinary(out, "--out")
    folder = open_run(run)
    print(write_report(read_findings(folder, read_config(folder.config)), out, tell))


@app.command()
def pack(run: Run) -> None:
    """Compress the held-out episodes and print what to commit, so that a clone can read the run.

    Its pages are written anew first.

    Example: grpo pack tonight
    """
    import shlex

    from scripts.base.display import progress_bar
    from scripts.evidence.findings import read_findings
    from scripts.evidence.pack import pack as write
    from scripts.report.files import write_files
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    folder = open_run(run)
    findings = read_findings(folder, read_config(folder.config))
    if findings.evidence is not None and not findings.is_copy:
        write_files(findings)
    with progress_bar() as progress:
        done = write(folder, progress)
    print(f"{done.n_arms} arms packed, {done.n_bytes / 1000:.0f} kB; to commit the run:")
    print("git -C", *map(shlex.quote, [str(folder.path), "add", "-f", "--", *done.patterns]))


@app.command()
def show(
    run: Run,
    task: Annotated[
        str | None, typer.Option(help="The task to show; default: list the attempts.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=1, help="Show an attempt of this step's rollout.")
    ] = None,
    arm: Annotated[
        str | None,
        typer.Option("--eval", metavar="ARM", help="Show an attempt of this arm's evaluation."),
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", min=0, help="Number of the attempt, from 0.")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Show every token and its logprob.")
    ] = False,
    random: Annotated[bool, typer.Option("--random", help="Also play a random policy.")] = False,
    base: Annotated[bool, typer.Option("--base", help="Also play the base model.")] = False,
    noise: Annotated[
        bool,
        typer.Option(
            "--noise", help="Show which tasks and assertions hold by chance of the sampling."
        ),
    ] = False,
    sandbox: Sandbox = "bwrap",
    json_: Annotated[bool, typer.Option("--json", help="Print list or noise as JSON.")] = False,
) -> None:
    """Show one attempt turn by turn as the model saw it, or list all attempts.

    Examples: grpo show tonight, then grpo show tonight --task TASK --tokens. With several attempts
    at each task: grpo show tonight --step 5 --noise
    """
    from rich.console import Console

    from scripts.show.show import Request, plain_listing
    from scripts.show.show import show as show_attempt

    request = Request(run, task, step, arm, k, tokens, random, base, noise, sandbox)
    if json_:
        print_json(plain_listing(request))
    else:
        show_attempt(request, Console(highlight=False))


@app.command()
def transcripts(
    run: Run,
    tasks: Annotated[int, typer.Option(min=1, help="Most held-out tasks to show.")] = 6,
    sandbox: Sandbox = "bwrap",
) -> None:
    """Print how a random policy, the warm start and the newest adapter played some tasks, as
    Markdown.

    Example: grpo transcripts tonight > side-by-side.md
    """
    from scripts.show.side_by_side import transcripts_page

    print(transcripts_page(run, tasks, sandbox), end="")


@app.command()
def watch(
    run: Run, once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False
) -> None:
    """Watch a run live, from any terminal; Ctrl-C ends only the watch.

    Example: grpo watch tonight
    """
    from scripts.run.folder import open_run
    from scripts.watch.watch import watch as live

    live(open_run(run), once)


@app.command()
def track(run: Run) -> None:
    """Update every tracker: TensorBoard, and Weights & Biases if run.toml turns it on.

    Example: grpo track tonight
    """
    from scripts.run.config import read_config
    from scripts.run.folder import open_run
    from scripts.track.points import read_points
    from scripts.track.trackers import wanted_trackers

    folder = open_run(run)
    trackers = wanted_trackers(read_config(folder.config))
    points = read_points(folder)
    for tracker in trackers:
        print(tracker.bring(folder, points, lambda: False))


@app.command()
def replay(
    run: Run,
    reward: Annotated[
        str | None, typer.Option(help="shaped or binary; default: the run's.")
    ] = None,
    turn_penalty: Annotated[float | None, typer.Option(help="λ; default: the run's.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="sentinel or literal; default: the run's.")
    ] = None,
    json_: Json = False,
) -> None:
    """Score the stored trajectories again under another reward or stop protocol.

    Example: grpo replay tonight --reward binary
    """
    from scripts.base.display import progress_bar
    from scripts.evidence.replay import replay_run
    from scripts.run.config import read_config
    from scripts.run.folder import open_run

    folder = open_run(run)
    config = read_config(folder.config)
    with progress_bar() as progress:
        tables, remarks = replay_run(folder, config, reward, turn_penalty, protocol, progress)
    if json_:
        print_json({"tables": [shown.plain() for shown in tables], "remarks": list(remarks)})
        return
    for shown in tables:
        print_rich(shown.rich())
    for remark in remarks:
        say(remark)
