"""`python -m tests.bench.first_step FOLDER COMMIT…`: a night's first step of 8 tasks, 4 attempts at
each, then and now.

Each commit is cloned into FOLDER and set up there with the packages that it pinned; this checkout's
commit comes last. By turns, each starts a run of its own preset `smol`, but for the tasks and the
number of attempts, and plays one step. Measured is what that step's timings.json says, evaluations
left out.
"""

from __future__ import annotations

import re
import subprocess
from functools import partial as bind
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from fieldkit.files.json_text import parse_json
from scripts.base.checkout import ROOT
from scripts.base.machine import hardware
from scripts.words.table import Table
from tests.bench.measurements import Measurements, Values, in_turn, ratio_by_round

PART = "first step"
COLUMNS = ("step", "rollout", "reference", "gradient", "trainer_load")

# One step, two held-out tasks, and no arm of the base: the shortest night that has a first step.
_SHORT = {"steps": "1", "base": '"never"', "tasks": "2"}
# The same work for every commit: today's default step has twice the attempts, on other tasks.
_WORK = {"pool": '"data/pool.jsonl"', "tasks_per_step": "8", "group_size": "4"}


def main(
    folder: Annotated[Path, typer.Argument(help="Where the clones and the measurements lie.")],
    commits: Annotated[list[str], typer.Argument(help="Commits to hold this one against.")],
    rounds: Annotated[int, typer.Option(min=1, help="Steps of each commit.")] = 2,
) -> None:
    """Play what is missing of the rounds; print medians and the ratios to this commit."""
    from rich.console import Console

    shas = [_git("rev-parse", "--short", f"{commit}^{{commit}}") for commit in [*commits, "HEAD"]]
    taken = Measurements(folder / "first-step.jsonl", {**hardware(), "commits": shas})
    for sha in shas:
        _set_up(folder / sha, sha)
    for sha, round_ in in_turn(shas, rounds):
        # A run of another comparison was played at another time.
        name = f"first-{'-'.join(shas)}-{round_}"
        taken.take(PART, sha, round_, bind(first_step, folder / sha, name))
    Console().print(table(taken, shas).rich())


def table(taken: Measurements, shas: list[str]) -> Table:
    """A row for each commit: medians in seconds, and its step against the last commit's."""
    now = taken.of(PART, shas[-1], "step")
    rows = [
        (
            sha,
            *(f"{median(taken.of(PART, sha, column)):.1f}" for column in COLUMNS),
            f"{ratio_by_round(taken.of(PART, sha, 'step'), now):.2f}",
        )
        for sha in shas
    ]
    return Table("Seconds of a first step", ("commit", *COLUMNS, "step / last"), tuple(rows))


def first_step(clone: Path, name: str) -> Values:
    """Seconds of the step and of its parts, in a new run of that name."""
    run = clone / "runs" / name
    if not run.is_dir():
        subprocess.run([".venv/bin/grpo", "new", name, "--preset", "smol"], cwd=clone, check=True)
        text = (run / "run.toml").read_text()
        for key, value in {**_SHORT, **_WORK}.items():
            text = re.sub(rf"(?m)^{key} = \S+", f"{key} = {value}", text)
        (run / "run.toml").write_text(text)
    with (clone / f"{name}.log").open("a") as log:
        subprocess.run([".venv/bin/grpo", "run", name], cwd=clone, check=True, stdout=log)
    timings: dict[str, Any] = parse_json((run / "step-001/timings.json").read_text(), str(run))
    seconds: dict[str, float] = timings["seconds"]
    step = timings["wall"] - seconds.get("eval", 0.0)
    return {"step": step, **{column: seconds.get(column, 0.0) for column in COLUMNS[1:]}}


def _set_up(clone: Path, sha: str) -> None:
    if not clone.is_dir():
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    subprocess.run(["git", "checkout", "-q", sha], cwd=clone, check=True)
    subprocess.run(["make", "-s", "setup"], cwd=clone, check=True)
    subprocess.run([".venv/bin/grpo", "model"], cwd=clone, check=True)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    typer.run(main)
