"""`python -m tests.trainer.kept_price BUNDLE ADAPTER`: a step in a process of its own, and in one
that stays.

Takes the step of a real bundle on the default model, the two kinds by turns. Prints for each the
median of what a step takes besides its two passes over the bundle (start, imports, load, save,
canary, end) and of its processor seconds. Both leave the same adapter.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from fieldkit.files.atomic import read_json, write_json
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from rollout.engine.preload import preloaded, tcmalloc
from scripts.base.children import run_child
from scripts.phases.training.kept_trainer import TRAINER, KeptTrainer, stop_trainer
from scripts.prepare.model import build_model
from trainer.inputs import StepInputs
from trainer.persistent import Request
from trainer.settings import TrainerSettings

SETTINGS = TrainerSettings(
    optimizer="sgd", lr=4.0, clip_norm=0.03, tokens_per_microbatch=1024, serving_dtype="bfloat16"
)
PASSES = ("reference", "gradient")


def main(
    bundle: Annotated[Path, typer.Argument(help="A step's trajectory_bundle.jsonl.")],
    adapter: Annotated[Path, typer.Argument(help="The adapter that sampled it.")],
    rounds: Annotated[int, typer.Option(min=1, help="Steps of each kind.")] = 5,
    dtype: Annotated[str, typer.Option(help="bf16 or fp32.")] = "bf16",
) -> None:
    """Measure the kinds by turns, after one kept step that loads the model and is not counted."""
    settings = dataclasses.replace(SETTINGS, dtype=dtype)  # type: ignore[arg-type]
    env = preloaded(os.environ, tcmalloc())
    found: dict[str, list[tuple[float, float]]] = {"alone": [], "kept": []}
    shas = set()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch)
        (run / "alone").mkdir()
        kept = KeptTrainer(run, env)
        try:
            for number in range(rounds + 1):
                for kind in ("kept", "alone") if number % 2 else ("alone", "kept"):
                    inputs = StepInputs(
                        bundle, adapter, adapter, build_model(), None, run / f"{kind}-{number}"
                    )
                    wall, busy = _step(kind, inputs, settings, kept, run, env)
                    trained = read_json(inputs.out_dir / "train.json")
                    shas.add(trained["adapter_sha"])
                    passes = sum(trained["seconds"].get(part, 0.0) for part in PASSES)
                    if number:
                        found[kind].append((wall - passes, busy))
        finally:
            stop_trainer(run)
    assert len(shas) == 1, "the adapter depends on the kind of process"
    walls = {kind: statistics.median(wall for wall, _ in each) for kind, each in found.items()}
    totals = {kind: statistics.median(busy for _, busy in each) for kind, each in found.items()}
    for kind in found:
        print(
            f"{kind}: median of {rounds}, besides the passes {walls[kind]:.2f} s of the wall;"
            f" the whole step {totals[kind]:.2f} processor seconds"
        )
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"alone / kept: {walls['alone'] / walls['kept']:.2f} in the wall besides the passes,"
        f" {totals['alone'] / totals['kept']:.2f} in processor seconds of a step; equal adapters,"
        f" load {load}"
    )


def _step(
    kind: str,
    inputs: StepInputs,
    settings: TrainerSettings,
    kept: KeptTrainer,
    run: Path,
    env: dict[str, str],
) -> tuple[float, float]:
    """Seconds of the wall and of the processor that one step takes."""
    request = Request(inputs, settings, run / f"{kind}.log")
    before, began = _busy(run), time.perf_counter()
    if kind == "kept":
        answer = kept.ask(request.line(), lambda line: None, lambda: False)
        assert answer is not None
        assert answer.code == 0, answer.error
        return time.perf_counter() - began, _busy(run) - before
    words = {
        "--bundle": inputs.bundle,
        "--adapter-init": inputs.adapter,
        "--reference-adapter": inputs.reference,
        "--model": inputs.model_dir,
        "--out-dir": inputs.out_dir,
        "--settings-json": run / "settings.json",
    }
    write_json(run / "settings.json", dataclasses.asdict(settings))
    own = os.times()
    code = run_child(
        [sys.executable, "-P", "-m", "trainer", *_flat(words)],
        ledger=Ledger(run / "alone" / LEDGER_FILE),
        name=TRAINER,
        log=run / "alone.log",
        on_line=lambda line: None,
        env=env,
    )
    assert code == 0
    now = os.times()
    children = now.children_user + now.children_system - own.children_user - own.children_system
    return time.perf_counter() - began, children


def _flat(pairs: dict[str, Any]) -> list[str]:
    return [str(word) for pair in pairs.items() for word in pair]


def _busy(run: Path) -> float:
    """Processor seconds of the kept process so far; 0 without one."""
    owned = Ledger(run / LEDGER_FILE).get(TRAINER)
    if owned is None or owned.pid is None:
        return 0.0
    times = psutil.Process(owned.pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    typer.run(main)
