"""Steps that were measured: their work, and their seconds by part.

`python -m scripts.prepare.capacity.measured RUN[@BOX] …` writes runs into measured.json, played on
`epyc-2` unless a box is named. A run that still has its bundles tells the longest episode of each
step, a committed copy does not. Where `make bench` has written docs/performance.json, its rollouts
and passes are measurements too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from pydantic import ConfigDict

from fieldkit.codec import from_plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, write_json
from fieldkit.training.adapter import base_name
from scripts.base.checkout import ROOT
from scripts.prepare.capacity.box import named_box
from scripts.prepare.capacity.model_shape import ModelShape, named_shape
from scripts.prepare.capacity.step_work import StepWork, manifest_of, trained_steps, work_of
from scripts.run.folder import open_run
from scripts.run.reader import RunReader

TABLE = Path(__file__).with_name("measured.json")
BENCH = ROOT / "docs" / "performance.json"

SEATS = 64
"""Of an engine by default: `engine.max_num_seqs`."""

PARTS = ("rollout", "reference", "gradient")
"""The parts whose errors are told, and that the fit is about."""


@dataclass(frozen=True)
class MeasuredStep:
    """A step that was played: its work, and its seconds by part; None where not measured."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    step: int
    work: StepWork
    rollout: float | None = None
    reference: float | None = None
    gradient: float | None = None
    canary: float | None = None
    fixed: float | None = None
    trainer_load: float | None = None

    def seconds(self, part: str) -> float | None:
        """By part; "step" is those of `PARTS`, the canary and what is fixed."""
        if part != "step":
            found: float | None = getattr(self, part)
            return found
        values = [getattr(self, name) for name in (*PARTS, "canary", "fixed")]
        return None if None in values else sum(values)


@dataclass(frozen=True)
class MeasuredRun:
    """Steps of one run on one machine. model, box: names. told: machine and version. tflops: of the
    machine's matrix products, where they were measured with the steps; None: the box's."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    told: str
    model: str
    box: str
    seats: int
    steps: tuple[MeasuredStep, ...]
    tflops: float | None = None

    @property
    def shape(self) -> ModelShape:
        return named_shape(self.model)

    @property
    def is_exact(self) -> bool:
        """Whether the work of every step is known, not estimated."""
        return all(step.work.is_exact for step in self.steps)

    @property
    def is_fitted(self) -> bool:
        """Whether what the software makes of a device is fitted to it; other runs try the fit."""
        return self.is_exact and self.box == FITTED_BOX


def measured_run(reader: RunReader, box: str) -> MeasuredRun:
    """The measured steps of a run that was played on this box. Raises `BadInput`."""
    manifest = manifest_of(reader)
    steps = tuple(_measured_step(reader, n) for n in trained_steps(reader))
    config, machine = manifest["config"], manifest["hardware"]
    told = (
        f"{machine['cores']} cores of {machine['cpu']}, commit {manifest['versions']['commit'][:9]}"
    )
    seats = seats_of(config)
    model = base_name(manifest["model"]["dir"])
    return MeasuredRun(reader.folder.name, told, model, box, seats, steps)


def seats_of(config: Mapping[str, Any]) -> int:
    """The most episodes that an engine of a run with these resolved settings decodes at once."""
    seats = config["engine"]["max_num_seqs"]
    return int(min(config["rollout"]["concurrency"] or seats, seats))


def _measured_step(reader: RunReader, n: int) -> MeasuredStep:
    seconds = reader.step(n).seconds
    loaded = seconds.get("trainer_start", 0.0) + seconds.get("trainer_load", 0.0)
    return MeasuredStep(
        step=n,
        work=work_of(reader, n),
        rollout=seconds["rollout"],
        reference=seconds.get("reference"),  # none in a step that has no such pass
        gradient=seconds["gradient"],
        canary=seconds["canary"],
        fixed=round(sum(seconds.get(name, 0.0) for name in FIXED), 3),
        trainer_load=loaded if loaded > STAYED else None,
    )


FIXED = ("between", "startup", "verify", "engine", "reclaim", "save", "trainer_other", "summary")
"""The segments of a step that depend on neither model nor work."""

STAYED = 1.0
"""Seconds of load below which the trainer had stayed from the step before."""


def measured_runs(table: Path = TABLE, bench: Path = BENCH) -> list[MeasuredRun]:
    """Those of `measured.json`, behind those of a bench where it has been run."""
    kept = [from_plain(MeasuredRun, run, str(table)) for run in read_json(table)["runs"]]
    return [*(bench_runs(read_json(bench), str(bench)) if bench.is_file() else []), *kept]


def bench_runs(found: Mapping[str, Any], where: str) -> list[MeasuredRun]:
    """The rollouts and passes of docs/performance.json, where it was measured on the box that the
    nights were, or on one whose matrix products are about as fast; none of its short form, and no
    rollout that does not tell its longest episode.

    Raises `BadInput` where it is not such a file."""
    try:
        if found["smaller"] or _PROCESSOR not in found["machine"]:
            return []
        told = f"make bench on {found['machine']}"
        limits: list[float] = []
        steps: dict[int, list[MeasuredStep]] = {}
        for row in found["measurements"]:
            match row["part"], row["contestant"]:
                case "rollout", contestant if contestant in _SEATS and "longest" in row:
                    steps.setdefault(_SEATS[contestant], []).append(_bench_rollout(row))
                case "trainer", "ours":
                    steps.setdefault(SEATS, []).append(_bench_passes(row))
                case "trainer", "matrix products":
                    limits.append(row["flops"] / 1e12)
        tflops = median(limits) if limits else 0.0
    except (KeyError, TypeError) as e:
        raise BadInput(
            f"{where}: not as `make bench` writes it ({type(e).__name__}: {e}); `make bench` writes"
            " it again"
        ) from None
    if not 1 / _ALIKE < tflops / named_box(FITTED_BOX).tflops < _ALIKE:
        return []  # a processor of that name, and of another generation
    model = "SmolLM2-135M-Instruct"
    return [
        MeasuredRun(f"bench, {n} in flight", told, model, FITTED_BOX, n, tuple(steps[n]), tflops)
        for n in sorted(steps)
    ]


FITTED_BOX, _PROCESSOR = "epyc-2", "EPYC"
"""That box, and what its processor is called. Other processors reach other shares of their
products."""

_ALIKE = 1.25
"""A machine whose matrix products are faster or slower than the box's by more is another one: one
EPYC reaches 0.30 TFLOP/s, another one 0.92, and with the bench of one that reached 0.41 the rollout
of a step that is left out was predicted with an error of 9 % instead of 5."""

_SEATS = {"1 in flight": 1, "4 in flight": 4, "16 in flight": 16, "all in flight": SEATS}
"""The bench's contestants whose rollouts are played as in a night."""


def _bench_rollout(row: Mapping[str, Any]) -> MeasuredStep:
    sampled, read, episodes = (float(row[k]) for k in ("sampled", "read", "episodes"))
    work = StepWork(
        episodes=episodes,
        group_size=int(row["group_size"]),
        turns=float(row["turns"]),
        sampled=sampled,
        read=read,
        longest=float(row["longest"]),
        context=(sampled + read) / episodes,
        inputs=0.0,
        scored=0.0,
        is_exact=True,
    )
    return MeasuredStep(int(row["round"]), work, rollout=float(row["seconds"]))


def _bench_passes(row: Mapping[str, Any]) -> MeasuredStep:
    inputs, scored = float(row["inputs"]), float(row["scored"])
    work = StepWork(1.0, 1, 0.0, 0.0, 0.0, 0.0, 0.0, inputs, scored, is_exact=True)
    passes = {name: float(row[f"{name}_seconds"]) for name in ("reference", "gradient")}
    return MeasuredStep(int(row["round"]), work, **passes)


def default_night(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    """The first run whose work is known and of which a step was measured whole. A first step that
    begins at the reference has no reference pass."""
    return next(run for run in runs if run.is_fitted and any(s.seconds("step") for s in run.steps))


def main(runs: Sequence[str], table: Path = TABLE) -> None:
    """Write these runs into measured.json, in the place of those of the same name."""
    kept = {run["name"]: run for run in (read_json(table)["runs"] if table.is_file() else ())}
    for run, _, box in (run.partition("@") for run in runs):
        named_box(box or FITTED_BOX)
        found = measured_run(RunReader(open_run(run)), box or FITTED_BOX)
        kept[found.name] = asdict(found)
    write_json(table, {"schema": 1, "runs": list(kept.values())})
    print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
