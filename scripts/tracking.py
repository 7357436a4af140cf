"""A run's figures for trackers: TensorBoard's event file always, Weights & Biases where asked.

Everything is read from step.json and eval.json, so it can be made again at any time, and a run that
was stopped and resumed says nothing twice. Nothing here is read back by the loop, and no tracker
can end a night: what fails is told as a line.
"""

from __future__ import annotations

import fcntl
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.files import fsync_dir
from fieldkit.records import Signal, StepSummary
from rollout.evaluate import SUMMARY, EvalSummary, read_eval
from scripts.config import RunConfig
from scripts.events import Tell, note
from scripts.manifest import read_manifest
from scripts.page import read_steps
from scripts.report.curves import sampled_rate
from scripts.report.figures import Read, tokens_a_turn, train
from scripts.run_folder import RunFolder
from scripts.state import evaluations

EVENTS = "events.out.tfevents.grpo"
"""TensorBoard reads files with "tfevents" in their name."""

_FILE_VERSION = "brain.Event:2"  # what the first record of an event file has to say

STEP: Mapping[str, Read] = {
    "rollout/reward": lambda s: s.mean_reward,
    "rollout/stop_rate": lambda s: s.stop_rate,
    "rollout/pass_rate": lambda s: s.pass_rate,
    "rollout/assertion_rate": lambda s: s.assertion_rate,
    "rollout/turns": lambda s: s.mean_turns,
    "rollout/tokens_a_turn": tokens_a_turn,
    "rollout/tokens_per_second": sampled_rate,
    "train/loss": train("loss"),
    "train/kl": train("kl"),
    "train/weight_delta": train("delta_l2"),
    "train/weight_delta_served": train("delta_served_l2"),
    "train/grad_norm": train("grad_norm"),
    "train/sampler_trainer_difference": train("sampler_mean_abs"),
    "train/clipped_share": train("clipped_share"),
    "train/entropy": train("entropy"),
    "train/tokens_per_second": train("tokens_per_second"),
}
"""Scalars of a step by tag; groups by signal and seconds by part come on top."""

HELD_OUT: Mapping[str, Callable[[EvalSummary], float]] = {
    "heldout/pass_rate": lambda e: e.pass_rate,
    "heldout/assertion_rate": lambda e: e.assertion_rate,
    "heldout/stop_rate": lambda e: e.stop_rate,
    "heldout/turns": lambda e: e.mean_turns,
    "heldout/tokens": lambda e: e.mean_tokens,
}
"""Scalars of an adapter on the held-out tasks by tag. Rates in [0, 1]; turns and tokens a task."""


@dataclass(frozen=True)
class Point:
    """The scalars of one step, or of its adapter's evaluation, by tag.

    time: when that was finished, in Unix seconds.
    """

    step: int
    time: float
    scalars: Mapping[str, float]


def read_points(folder: RunFolder) -> tuple[Point, ...]:
    """Every point of the run by step, a step before its evaluation.

    Only adapters of this run are among the evaluations: base and yardsticks have no step. Raises
    `BadInput` for a file that cannot be read.
    """
    steps = read_steps(folder)
    evals = _evals_by_step(folder, steps)
    return tuple(p for s in steps for p in _points_of(folder, s, evals.get(s.step)))


def _points_of(folder: RunFolder, s: StepSummary, e: EvalSummary | None) -> Iterator[Point]:
    if s.n_trajectories:  # step-000 is only where the run starts
        yield Point(s.step, _finished(folder.summary(s.step)), _step_scalars(s))
    if e is not None:
        scalars = {tag: read(e) for tag, read in HELD_OUT.items()}
        yield Point(s.step, _finished(folder.evals / e.key / SUMMARY), scalars)


def _evals_by_step(folder: RunFolder, steps: Sequence[StepSummary]) -> dict[int, EvalSummary]:
    """Evaluations by the first step with that adapter: a step without signal carries it on."""
    manifest = read_manifest(folder)
    if manifest is None:
        return {}
    played = evaluations(folder, manifest)
    first_of = {s.adapter_sha: s.step for s in reversed(steps)}
    return {
        first_of[sha]: read_eval(folder.evals / value["key"])
        for sha, value in played.items()
        if sha in first_of
    }


def _step_scalars(s: StepSummary) -> dict[str, float]:
    figures = {tag: value for tag, read in STEP.items() if (value := read(s)) is not None}
    groups = {f"groups/{signal.lower()}": float(s.groups.get(signal, 0)) for signal in Signal}
    seconds = {f"seconds/{part}": value for part, value in s.seconds.items()}
    return figures | groups | seconds


def _finished(summary: Path) -> float:
    """When a summary, which is written last, appeared."""
    return summary.stat().st_mtime


def write_tensorboard(folder: RunFolder) -> Path | None:
    """Bring tensorboard/ up to date; return the event file, or None where there is no point yet.

    The file is always the beginning of what it should be, so only what is missing is appended: a
    TensorBoard that is open follows it, and a tail that a crash tore off is completed. Where that
    does not hold (a step was taken back by hand and played again) it is written anew.
    """
    points = read_points(folder)
    if not points:
        return None
    wanted = event_bytes(points)
    path = folder.tensorboard / EVENTS
    path.parent.mkdir(exist_ok=True)
    with open(path, "ab+") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.seek(0)
        there = f.read()
        if not wanted.startswith(there):
            f.truncate(0)
            there = b""
        if there != wanted:
            f.write(wanted[len(there) :])
            f.flush()
            os.fsync(f.fileno())
    fsync_dir(path.parent)
    return path


def event_bytes(points: Sequence[Point]) -> bytes:
    """The points as one event file. The same points give the same bytes."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    records = RecordWriter(out)
    records.write(Event(wall_time=points[0].time, file_version=_FILE_VERSION).SerializeToString())
    for p in points:
        values = [Summary.Value(tag=tag, simple_value=v) for tag, v in p.scalars.items()]
        event = Event(wall_time=p.time, step=p.step, summary=Summary(value=values))
        records.write(event.SerializeToString())
    return out.getvalue()


def track(
    folder: RunFolder,
    config: RunConfig,
    tell: Tell,
    stop_asked: Callable[[], bool] = lambda: False,
) -> None:
    """Bring every tracker up to date as a phase ends. Raises nothing: a failure is told."""
    from scripts.tracking_wandb import send_when_due

    def tensorboard() -> None:
        write_tensorboard(folder)

    def wandb() -> None:
        if config.run.wandb:
            send_when_due(folder, stop_asked)

    for name, bring in (("TensorBoard", tensorboard), ("Weights & Biases", wandb)):
        try:
            bring()
        except Exception as e:  # whatever a tracker does, the night goes on
            note(tell, f"{name}: {e or repr(e)}; `grpo track {folder.typed}` makes up for it")
