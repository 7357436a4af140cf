"""A long run's page: 200 steps, a pool of 1,000, 1,000 held-out tasks in 12 arms.

Everything is read, computed, drawn and written in a process of its own, as `grpo report` does.
Processor seconds of one thread are counted, and compared with what no page could do without on the
same machine: importing the libraries and parsing the files. It is 8 to 12 s against 3 to 4.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fieldkit.codec import encode_group
from fieldkit.records import Task, Trajectory, Turn
from tests.scripts.evals import arm, trajectory, write_eval
from tests.scripts.made_night import Night, after, group, make_night, tasks, turn, write_tasks

STEPS = 200
TASKS = 1000
EVAL_EVERY = 25
ARMS = 12
"""Do-nothing, oracle, base and warm start, and the adapter after every 25 steps."""

MOST_TIMES = 6.0
MOST_BYTES = 5_000_000
TOKENS = 60
"""Of one turn; those of the reference night have 40."""
LONG_TEXT = "the quick brown fox < jumps & over the lazy dog\n" * 40

PROGRAM = """
import sys
from pathlib import Path
from scripts.run.config import DataSettings, RunConfig
from scripts.evidence.findings import read_findings
from scripts.report.files import write_report
from scripts.run.folder import RunFolder

run = Path(sys.argv[1])
data = DataSettings(str(run.parent / "pool.jsonl"), str(run.parent / "heldout.jsonl"))
write_report(read_findings(RunFolder(run), RunConfig(data=data)))
"""

LEAST = """
import json
import sys
from pathlib import Path

import matplotlib.figure
import scipy.stats

for file in Path(sys.argv[1]).rglob("*.jsonl"):
    with file.open("rb") as lines:
        for line in lines:
            json.loads(line)
"""


@dataclass(frozen=True)
class Written:
    """The page of the long run, and what it took."""

    page: str
    seconds: float
    least: float
    """Seconds of importing the libraries and parsing the files, and nothing else."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    night = long_night(tmp_path_factory.mktemp("long"))
    page = min(_seconds(PROGRAM, night), _seconds(PROGRAM, night))
    least = min(_seconds(LEAST, night), _seconds(LEAST, night))
    return Written((night.folder.path / "report.html").read_text(), page, least)


def _seconds(program: str, night: Night) -> float:
    """Processor seconds of a program on one thread."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", program, str(night.folder.path)]
    subprocess.run(command, check=True, env=os.environ | one_thread)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime


def long_night(root: Path) -> Night:
    night = make_night(root, n_steps=STEPS, pool_size=TASKS, evaluated=False)
    on = tasks(TASKS)
    write_tasks(Path(night.config.data.heldout), on)
    for old in night.evals:
        old.rename(root / old.name)
    for name, played in arms(on):
        write_eval(night.folder.evals, played, on, arm=name)
    assert len(night.evals) == ARMS
    for n in range(1, STEPS + 1):
        one = encode_group(group(n, "p000"))
        lines = [one.replace('"p000"', f'"p{(8 * n + i) % TASKS:03d}"') for i in range(8)]
        night.folder.bundle(n).write_text("".join(line + "\n" for line in lines))
    return night


def arms(on: tuple[Task, ...]) -> Iterator[tuple[str, list[Trajectory]]]:
    """Arms by name. Where a task flipped between the two that transcripts are shown of, every turn
    says something else, so that nothing can be folded."""
    rng = random.Random(0)
    turns = tuple(turn(f"{i} {LONG_TEXT}", observation=LONG_TEXT) for i in range(12))
    warm = arm("sha-0", on, passes=500, turns=12, stops=0)
    yield "do-nothing", [trajectory(t.task_id, "do-nothing", 1, 0, True) for t in on]
    yield "oracle", arm("oracle", on, passes=TASKS, turns=3, stops=TASKS)
    yield "base", arm("base", on, passes=0, turns=12, stops=1)
    yield "warm start", _wordy(warm, turns)
    for step in range(EVAL_EVERY, STEPS, EVAL_EVERY):
        yield f"step {step}", [attempt(task, step, rng) for task in on]
    yield (
        f"step {STEPS}",
        _wordy(after(on, f"sha-{STEPS}", 250), turns[:6]),
    )


def _wordy(played: Sequence[Trajectory], turns: tuple[Turn, ...]) -> list[Trajectory]:
    flipped = range(250, 514)  # the warm start passes 0 to 499, the last step 250 to 513
    return [replace(t, turns=turns) if i in flipped else t for i, t in enumerate(played)]


def attempt(task: Task, step: int, rng: random.Random) -> Trajectory:
    """One attempt of the adapter after `step`."""
    held, turns = rng.choice((4, 4, 2)), rng.randint(3, 12)
    played = trajectory(task.task_id, f"sha-{step}", held, turns, rng.random() < step / STEPS)
    long = replace(played.turns[0], completion_ids=tuple(range(TOKENS)), logprobs=(-0.1,) * TOKENS)
    return replace(played, turns=(long,) * turns)


def test_the_page_of_a_long_run_takes_a_few_times_what_reading_its_files_takes(
    written: Written,
) -> None:
    print(f"{written.seconds:.1f} s, {written.least:.1f} s to read")
    assert written.seconds < MOST_TIMES * written.least


def test_the_page_of_a_long_run_stays_below_five_megabytes(written: Written) -> None:
    assert len(written.page.encode()) < MOST_BYTES


def test_every_evaluated_step_of_a_long_run_is_on_its_page(written: Written) -> None:
    for step in range(EVAL_EVERY, STEPS + 1, EVAL_EVERY):
        assert f"step {step}" in written.page
