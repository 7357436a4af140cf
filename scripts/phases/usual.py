"""How many steps a night will take on this machine, foreseen before its first step.

`python -m scripts.phases.usual runs/NAME …` prints what committed nights took; the table is kept in
usual_nights.json. The seconds of a run's own preflight, beside a committed night's, say how fast
this machine is. Only for runs of the same model, pool and size: what others need is not known.
After the first step `scripts.run.plan` measures instead.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fieldkit.codec import from_plain
from fieldkit.files.atomic import read_json
from scripts.run.config import FEWEST_TASKS
from scripts.run.plan import PAGE_SECONDS

TABLE = Path(__file__).with_name("usual_nights.json")

SAME = (
    *(("model", "path"), ("data", "pool"), ("reward", "kind"), ("rollout", "max_turns")),
    *(("rollout", "tasks_per_step"), ("rollout", "group_size")),
)
"""The settings that a night must share with a committed one to be compared with it."""

LEARNED = 0.9
"""Share of a step's episodes that stop by themselves, at which a night has learned to stop."""

_ROUND_MINUTES = 5
_FEWER_AT_ONCE = 8
"""Few numbers of tasks, so that an arm that two runs need is often played by both on the same."""


@dataclass(frozen=True)
class UsualNight:
    """What a committed night took. Seconds: of its preflight, of its steps, and of evaluating one
    held-out task at the start and at the end. learned_at: the first step at `LEARNED`."""

    name: str
    settings: dict[str, Any]
    preflight_seconds: float
    step_seconds: tuple[float, ...]
    first_eval_seconds: float
    last_eval_seconds: float
    learned_at: int


@dataclass(frozen=True)
class Foresight:
    """Steps that fit into the time, steps that are usually enough, and the minutes those take with
    as many held-out tasks, and with a number of tasks."""

    steps: int
    enough: int
    minutes: float
    of: int
    """Committed nights that this is from."""

    @property
    def suffices(self) -> bool:
        return self.steps >= self.enough


@cache
def usual_nights() -> tuple[UsualNight, ...]:
    """The committed table."""
    return tuple(from_plain(UsualNight, night, str(TABLE)) for night in read_json(TABLE))


def alike(nights: Sequence[UsualNight], settings: Mapping[str, Any]) -> tuple[UsualNight, ...]:
    """The nights that a run can be compared with. settings: `shape` of the run."""
    return tuple(n for n in nights if n.settings == dict(settings))


def foresee(
    nights: Sequence[UsualNight],
    *,
    preflight_seconds: float,
    gone: float,
    seconds: float,
    tasks: int,
    start_arms: int,
) -> Foresight:
    """What to expect of `seconds` for the whole night, `gone` of which are over.

    nights: `alike` ones, at least one. preflight_seconds: above 0. tasks: held-out tasks an arm
    plays; start_arms: arms of a model at the start.
    """
    fits, minutes = [], []
    for night in nights:
        slower = preflight_seconds / night.preflight_seconds
        around = gone + PAGE_SECONDS
        around += tasks * slower * (start_arms * night.first_eval_seconds + night.last_eval_seconds)
        steps, left = 0, seconds - around
        while (cost := slower * _step(night, steps)) <= left:
            steps, left = steps + 1, left - cost
        fits.append(steps)
        training = sum(slower * _step(night, n) for n in range(night.learned_at))
        minutes.append((around + training) / 60)
    return Foresight(
        steps=int(statistics.median(fits)),
        enough=max(n.learned_at for n in nights),
        minutes=statistics.median(minutes),
        of=len(nights),
    )


def _step(night: UsualNight, n: int) -> float:
    """Seconds of the step after `n` others; the last one's where the night was shorter."""
    return night.step_seconds[min(n, len(night.step_seconds) - 1)]


def shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in `SAME`, of a resolved config."""
    return {f"{table}.{key}": config[table][key] for table, key in SAME}


def held_out_tasks(foreseen: Callable[[int], Foresight], most: int) -> int:
    """How many held-out tasks a night plays that leaves the number to the run: as many as leave
    time for the steps that are usually enough, at most `most` and at least `FEWEST_TASKS`.

    foreseen: the foresight with a number of tasks.
    """
    numbers = range(most, FEWEST_TASKS, -_FEWER_AT_ONCE)
    return next((n for n in numbers if foreseen(n).suffices), min(most, FEWEST_TASKS))


@dataclass(frozen=True)
class Settled:
    """A foresight, and the held-out tasks that an arm plays: chosen by the run, where `usual` is
    the number in a night with time for it, or by run.toml, where `usual` is None."""

    found: Foresight
    tasks: int
    usual: int | None


def told(settled: Settled, minutes: float, run: str) -> str:
    """The foresight in a sentence or two. run: RUN as it is typed in a command that plays."""
    found, tasks, usual = settled.found, settled.tasks, settled.usual
    nights = "the committed night" if found.of == 1 else f"{found.of} committed nights"
    text = (
        f"forecast: about {found.steps} steps in {minutes:.0f} minutes on this machine; {nights} "
        f"took {found.enough} until {LEARNED:.0%} of the episodes stopped by themselves"
    )
    text += ", so that is usually " + ("enough" if found.suffices else "too few")
    remedies = []
    if not found.suffices:
        more = _ROUND_MINUTES * math.ceil(found.minutes / _ROUND_MINUTES)
        remedies.append(f"`grpo run {run} --minutes {more}` leaves time for {found.enough} steps")
    if usual is None and not found.suffices:
        remedies.append(
            f"`grpo run {run} --set eval.tasks={max(1, tasks // 2)}` before the first step gives "
            "minutes of evaluation to steps"
        )
    if usual is not None and tasks < usual:
        text += (
            f". To leave time for steps, evaluations play the first {tasks} held-out tasks, not "
            f"{usual}"
        )
        remedies.append(
            f"`grpo run {run} --set eval.tasks={usual}` before the first step plays {usual}"
        )
    return f"{text}: {', and '.join(remedies)}" if remedies else text


def of_run(folder: Path) -> UsualNight:
    """What a finished night took, from its folder."""
    manifest = read_json(folder / "manifest.json")
    steps = [read_json(path) for path in sorted(folder.glob("step-*/step.json"))]
    timings = [read_json(path) for path in sorted(folder.glob("step-*/timings.json"))]
    arms = [read_json(path) for path in folder.glob("evals/*/eval.json")]
    evals = {
        arm["adapter_sha"]: arm["seconds"] / max(1, arm["n_trajectories"] - arm["n_kept"])
        for arm in arms
    }
    rates = [step["stop_rate"] or 0.0 for step in steps]
    return UsualNight(
        name=folder.name,
        settings=shape(manifest["config"]),
        preflight_seconds=timings[0]["seconds"]["preflight"],
        step_seconds=tuple(
            round(
                sum(s["ended"] - s["began"] for s in t["segments"] if "eval" not in s["phase"]), 1
            )
            for t in timings[1:]
        ),
        first_eval_seconds=round(evals[steps[0]["adapter_sha"]], 3),
        last_eval_seconds=round(evals[steps[-1]["adapter_sha"]], 3),
        learned_at=next(n for n, rate in enumerate(rates) if rate >= LEARNED),
    )


if __name__ == "__main__":
    found = [asdict(of_run(Path(word))) for word in sys.argv[1:]]
    print(json.dumps(found, indent=1))
