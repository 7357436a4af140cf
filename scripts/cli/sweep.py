"""`grpo sweep`: settings × seeds as nights of one folder, played in turn, compared on one page."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldkit.errors import BadInput, FieldkitError, Interrupted, NotOwner
from scripts.cli.arguments import Json, Sandbox, Set

if TYPE_CHECKING:
    from scripts.prepare.sweep_file import Sweep

app = typer.Typer()
sweep_app = typer.Typer(
    help="Play settings × seeds one night after another; compare them.", no_args_is_help=True
)
app.add_typer(sweep_app, name="sweep")

PAGE = "sweep.html"


def _sweeps(typed: str) -> list[str]:
    """The sweeps of this checkout whose names begin as typed: shell completion."""
    from scripts.base.checkout import ROOT
    from scripts.run.folder import SWEEP_FILE

    return sorted(p.parent.name for p in (ROOT / "runs").glob(f"{typed}*/{SWEEP_FILE}"))


Name = Annotated[
    str,
    typer.Argument(metavar="SWEEP", help="A name under runs/, or a path.", autocompletion=_sweeps),
]


@sweep_app.command("new")
def new(
    name: Name,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=A,B",
            help="A setting with its values; give it again for every combination. Without it only"
            " the seed varies.",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="The seeds of every arm.")] = "0,1,2",
    preset: Annotated[str, typer.Option(help="The preset that all nights begin with.")] = "smol",
    halve_after: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            help="After so many steps the better half of the arms goes on, twice as far each time.",
        ),
    ] = None,
    set_: Set = None,
) -> None:
    """Write sweep.toml and a run folder for every night.

    With --halve-after arms are dropped by their held-out tasks passed, so choose on other tasks
    than those that the result is reported on: --set data.heldout=data/development.jsonl.

    Example: grpo sweep new penalty --vary reward.turn_penalty=0,0.2,0.5 --set run.steps=20
    """
    from scripts.base.invocation import say
    from scripts.prepare.sweep_file import new_sweep
    from scripts.run.folder import resolve_run

    folder = resolve_run(name)
    _refuse_conditions({word.partition("=")[0].strip() for word in vary or ()})
    sweep = new_sweep(folder, preset, vary or (), seeds, set_ or (), halve_after)
    say(
        f"{folder.path / 'sweep.toml'}: {len(sweep.nights)} nights;"
        f" `grpo sweep run {folder.typed}` plays them"
    )


@sweep_app.command("run")
def run_(
    name: Name,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Begin no night that would not end within so many hours, by those that are over;"
            " the first counts with run.minutes, and is begun if it has a number of steps instead.",
        ),
    ] = None,
    skip_preflight: Annotated[
        bool, typer.Option("--skip-preflight", help="As for `grpo run`.")
    ] = False,
    sandbox: Sandbox = "bwrap",
) -> None:
    """Play what is missing, seed by seed; then print the comparison and write its page.

    Ctrl-C works as in `grpo run`, and the same command goes on. A line [arms.NAME] or a seed that
    is added to sweep.toml later is played too. Where a night fails the others go on and are
    compared, and it is told at the end.

    Example: grpo sweep run penalty --hours 10
    """
    from fieldkit.process.owned import since_boot
    from scripts.base.invocation import say
    from scripts.base.signals import Wish
    from scripts.night.halving import play_halving, up_to
    from scripts.night.loop_options import LoopOptions
    from scripts.night.several import play_nights
    from scripts.prepare.sweep_file import make_nights, read_sweep
    from scripts.run.folder import resolve_run

    folder = resolve_run(name)
    sweep = read_sweep(folder.path)
    _refuse_conditions({key for values in sweep.arms.values() for key in values})
    nights = make_nights(sweep)
    options = LoopOptions(skip_preflight=skip_preflight, sandbox=sandbox)
    go_on = " ".join(["grpo sweep run", folder.typed, *options.words()])
    until = None if hours is None else since_boot() + 3600 * hours
    wish = Wish()

    def play(arms: Collection[str], steps: int | None) -> bool:
        chosen = [night.folder for night in nights if night.arm in arms]
        if steps is not None:
            chosen = up_to(chosen, steps)
        return play_nights(chosen, replace(options, steps=steps), until, say, go_on, wish)

    try:
        if sweep.halve_after is None:
            whole = play(sweep.arms, None)
        else:
            whole = play_halving(sweep.by_arm, sweep.halve_after, sweep.steps, play, say)
    except Interrupted:
        raise
    except FieldkitError:
        _show_what_there_is(name)
        raise
    if whole:
        show(name)
    else:
        _show_what_there_is(name)


def _show_what_there_is(name: str) -> None:
    """The comparison of the nights that are over, of a sweep that is not."""
    from scripts.base.invocation import say

    try:
        show(name)
    except Interrupted:
        raise
    except FieldkitError as e:
        say(f"not compared: {e}")


@sweep_app.command("show")
def show(
    name: Name,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown instead of tables.")
    ] = False,
    json_: Json = False,
) -> None:
    """Compare the arms over their finished nights, and write sweep.html beside sweep.toml.

    Example: grpo sweep show penalty --markdown
    """
    from fieldkit.files.atomic import write_text
    from scripts.cli.look import print_form, refuse_two_forms
    from scripts.compare import seed_forms
    from scripts.compare.over_seeds import compare_over_seeds
    from scripts.prepare.sweep_file import read_sweep
    from scripts.run.folder import resolve_run

    refuse_two_forms(markdown, json_)
    folder = resolve_run(name)
    sweep = read_sweep(folder.path)
    found = compare_over_seeds(
        {arm: [night.path for night in nights] for arm, nights in sweep.by_arm.items()},
        partial(_counts, sweep),
    )
    shown = seed_forms.shown(found, folder.name)
    print_form(shown, markdown, json_)
    write_text(folder.path / PAGE, shown.html())
    print(folder.path / PAGE, file=sys.stderr)


def _counts(sweep: Sweep, path: Path) -> bool:
    """Whether a night has come as far as its arm is to come: one that failed has not. One that
    cannot be played here, as on another machine, has come as far as it can."""
    from scripts.night.halving import is_at_rung
    from scripts.night.several import is_over
    from scripts.run.folder import RunFolder

    night = RunFolder(path)
    try:
        if sweep.halve_after and is_at_rung(night, sweep.halve_after, sweep.steps):
            return True
        return is_over(night)
    except (BadInput, NotOwner):
        return True


def _refuse_conditions(varied: set[str]) -> None:
    """Raise `BadInput` for a setting that evaluations depend on: arms would not be comparable."""
    from scripts.evidence.conditions import ENV_KEYS, condition_keys
    from scripts.run.keys import all_keys

    fixed = {f"{table}.{key}" for table, key in condition_keys()}
    fixed |= {"eval.tasks", "eval.samples", "data.heldout"}
    fixed |= {key.follows for key in all_keys() if key.follows and key.dotted in fixed}
    own = [key.split(".") for key in varied if key.startswith("envs.")]
    fixed |= {".".join(words) for words in own if len(words) > 2 and words[2] in ENV_KEYS}
    if bad := sorted(varied & fixed):
        raise BadInput(
            f"{bad[0]}: every arm's evaluation has to have the same one, or arms could not be"
            " compared; give it with --set, or under [set] in sweep.toml"
        )
