"""The names of everything inside runs/<name>/, and which run a person means by RUN.

One place knows the layout, so that a phase asks for `folder.bundle(7)` and never joins strings.
Nothing here reads or writes what the files hold.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.sharded import stored
from fieldkit.process.ledger import LEDGER_FILE
from scripts.base.checkout import ROOT

SWEEP_FILE = "sweep.toml"
"""What a folder of nights holds in place of a run.toml (`scripts.prepare.sweep_file`)."""

_WHAT_NAMES_A_RUN = (
    "RUN is a name under runs/, or a path that ends with one: up to 100 letters, digits, dots, "
    "dashes and underscores, the first a letter or a digit, as in `grpo new tonight`"
)
_SHOWN = 40  # characters of a wrong name that a message repeats
_STEP = re.compile(r"step-(\d{3,})")
_ROOM = 90  # characters of a run's name that leave room for a word behind it
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class _InRun:
    """Something in the run folder, by its name there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, owner: object) -> Path:
        return folder.path / self.name


class _InStep:
    """Something in every step's folder; called with the step's number."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, owner: object) -> Callable[[int], Path]:
        return lambda n: folder.step(n) / self.name


@dataclass(frozen=True)
class RunFolder:
    """One run's folder. `name` is what the engine's adapter names begin with."""

    path: Path

    config = _InRun("run.toml")
    manifest = _InRun("manifest.json")
    journal = _InRun("journal.jsonl")
    lock = _InRun("lock")
    evidence = _InRun("evidence.json")
    ledger = _InRun(LEDGER_FILE)
    tensorboard = _InRun("tensorboard")
    log = _InRun("log")
    evals = _InRun("evals")
    training_evals = _InRun("evals/training-temperature")
    """The few held-out tasks that adapters also play at the training temperature."""
    preflight = _InRun("preflight.json")
    sums = _InRun("sums.json")
    """What the loop needs of all earlier steps, added up; made again where it is missing."""
    checked = _InRun("checked.json")
    """Which evaluations a loop has held against the journal; made again where it is missing."""
    changed = _InRun("changed")
    """Where goes what is not as it was written."""

    summary = _InStep("step.json")
    adapter = _InStep("adapter")
    trainer_state = _InStep("trainer_state")
    bundle = _InStep("trajectory_bundle.jsonl")
    partial = _InStep("trajectories.partial.jsonl")
    timings = _InStep("timings.json")

    def step(self, n: int) -> Path:
        return self.path / f"step-{n:03d}"

    def grown(self, n: int) -> Path:
        """The tasks that joined the pool when it grew for the n-th time, from 1."""
        return self.path / f"grown-{n:03d}.jsonl"

    def has_bundle(self, n: int) -> bool:
        """Whether step `n`'s bundle is there, as one file or as shards."""
        return stored(self.bundle(n)) is not None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def typed(self) -> str:
        """What a person types for RUN."""
        return self.name if self.path.parent == ROOT / "runs" else shlex.quote(str(self.path))

    @property
    def again(self) -> RunFolder:
        """Where a run is played again whose weights are not here."""
        return RunFolder(self.path.with_name(f"{self.name[:_ROOM]}-again"))

    @property
    def how_to_play_again(self) -> str:
        """The commands that play a run whose weights are not here, under another name."""
        new, old = shlex.quote(str(self.again.path)), shlex.quote(str(self.config))
        return f"`mkdir {new} && cp {old} {new}/` and `grpo run {self.again.typed}` play it again"

    def beside(self, word: str) -> str:
        """What a person types for a new run that has to do with this one: its name and the word,
        with a number where there is one already. A sweep's night gets it outside of the sweep."""
        runs = self.path.parent
        runs = runs.parent if (runs / SWEEP_FILE).exists() else runs
        names = (f"{self.name[:_ROOM]}-{word}{n if n > 1 else ''}" for n in itertools.count(1))
        return next(r.typed for name in names if not (r := RunFolder(runs / name)).path.exists())

    def relative(self, path: Path) -> str:
        """How the journal names something in this folder."""
        return str(path.relative_to(self.path))

    def version(self, n: int) -> str:
        """The engine's name for step `n`'s adapter: new for every step, so no cache is stale."""
        return f"{self.name}-v{n}"

    def steps_there(self) -> list[int]:
        """The numbers of the steps that have a folder, finished or not, in order."""
        found = (_STEP.fullmatch(path.name) for path in self.path.glob("step-*"))
        return sorted(int(m.group(1)) for m in found if m)

    def finished_steps(self) -> int:
        """How many steps have their step.json, counted from step-000 without a gap.

        Raises `BadInput` where a later step is finished but an earlier one is not: a folder was
        removed by hand, and going on would train on top of a hole.
        """
        done = [n for n in self.steps_there() if self.summary(n).exists()]
        if done != list(range(len(done))):
            hole = next(i for i, n in enumerate(done) if i != n)
            raise BadInput(
                f"{self.path}: step-{done[-1]:03d} is finished but step-{hole:03d} is not; put "
                f"step-{hole:03d} back, or remove the steps after it to go on from there"
            )
        return len(done)


def is_step(name: str) -> bool:
    """Whether a folder of this name is a step's, in a run folder."""
    return _STEP.fullmatch(name) is not None


def refuse_run_file(path: Path, flag: str, page: Path) -> None:
    """Raise `BadInput` where a page cannot be written to `path`: a folder, or a file in any run's
    folder but `page` itself, which the message names as an example behind `flag`."""
    example = f"`{flag} {shlex.quote(str(page))}`"
    if path.is_dir():
        example = f"`{flag} {shlex.quote(str(path / page.name))}`"
        raise BadInput(f"{path}: this is a folder; name a file, as in {example}")
    where = path.resolve()
    if where != page.resolve() and any((up / "run.toml").is_file() for up in where.parents):
        raise BadInput(f"{path}: this file belongs to a run; name another, as in {example}")


def resolve_run(run: str) -> RunFolder:
    """The folder that RUN names: a path where it holds a slash, else runs/<RUN> in the checkout.

    Every RUN that a person types passes here. Raises `BadInput` for a name that cannot be part of
    the engine's adapter names, and for the checkout itself or a folder that holds it.
    """
    name = run
    if "/" in run:
        try:
            run.encode()
            path = Path(run).expanduser().resolve()
        except (ValueError, RuntimeError, OSError) as e:  # no text, no such home, links in a circle
            raise BadInput(f"{run!r}: not a path ({e}); {_WHAT_NAMES_A_RUN}") from None
        name = path.name
        if ROOT.is_relative_to(path):
            raise BadInput(f"{path}: holds this checkout, so it is no run; {_WHAT_NAMES_A_RUN}")
    if not _NAME.fullmatch(name):
        shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
        raise BadInput(f"{shown!r} cannot name a run; {_WHAT_NAMES_A_RUN}")
    return RunFolder(path if "/" in run else (ROOT / "runs" / run).resolve())


def open_run(run: str) -> RunFolder:
    """Like `resolve_run`, and the folder and its run.toml are there."""
    folder = resolve_run(run)
    if (folder.path / SWEEP_FILE).is_file():
        nights = [RunFolder(file.parent).typed for file in folder.path.glob("*/run.toml")]
        raise BadInput(
            f"{folder.path}: a sweep and no run; `grpo sweep show {folder.typed}` compares its"
            f" nights, and one of them is named by its path: {min(nights, default='none is there')}"
        )
    if not folder.config.is_file():
        known = sorted(p.parent.name for p in (ROOT / "runs").glob("*/run.toml"))
        have = f" (there are: {', '.join(known)})" if known else ""
        raise BadInput(f"{folder.config}: no such run{have}; `grpo new {folder.typed}` makes it")
    return folder
