"""`make bench-gpu`: the trainer on a model of seven billion parameters, on this machine's GPU.

`python -m tests.bench.gpu` measures the trainer's passes beside the plain rebuild's and the GPU's
matrix products, then ours with other micro-batches, then a whole step of both from the bundle to
the saved adapter. It writes docs/performance-gpu.json and docs/PERFORMANCE-gpu.md.
"""

from __future__ import annotations

import signal
import tempfile
import time
from functools import partial as bind
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_json, write_text
from fieldkit.gate.memory import GIB, available
from fieldkit.training.adapter import AdapterInfo, check_adapter
from scripts.base.checkout import ROOT
from scripts.prepare.presets import preset_config
from scripts.run.config import RunConfig
from scripts.words.table import Table
from tests.bench import child, page, trainers
from tests.bench.gpu_work import ADAPTER, MODEL, QWEN_7B, SMALL, Size, write_bundle
from tests.bench.measurements import Measurements, Values, in_turn, tell
from tests.bench.work import Work, about
from trainer.footprint.step_bytes import forecast, item_bytes_of
from trainer.settings import cuda_devices

PRESET = "spark"
KEPT = ROOT / "runs" / "bench-gpu"
FILE, POLICY = "measurements.jsonl", "policy"

STEP = "a whole step of the trainer"
PROFILE = "where a micro-batch's time goes"
MICRO_BATCHES = (4096, 8192, 16384, 32768)
"""With fewer every attempt of the documents' size, 3,300 ids, is one of its own."""


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Times each is measured.")] = 3,
    short: Annotated[bool, typer.Option(help="Hardly any work, on a CPU too.")] = False,
    micro_batch: Annotated[
        list[int], typer.Option(min=1, help="Tokens of a micro-batch to try; may be repeated.")
    ] = list(MICRO_BATCHES),  # noqa: B006
    kept: Annotated[Path, typer.Option(help="Where model and measurements are kept.")] = KEPT,
    out: Annotated[Path, typer.Option(help="Where the page and the table go.")] = ROOT / "docs",
) -> None:
    """Measure what is still to be measured, and write what was found."""
    out.mkdir(parents=True, exist_ok=True)  # before it is measured for an hour
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not cuda_devices() and not short:
        raise BadInput(
            "no CUDA device is here; `make bench` measures a CPU, and on a machine with a device"
            " `GRPO_BUILD=cuda make bench-gpu` measures that"
        )
    size = SMALL if short else QWEN_7B
    work = work_of(kept, size)
    bundle = bundle_of(kept, work.adapter, work.config)
    taken = Measurements(kept / FILE, about(work))
    for name, round_ in in_turn(tuple(trainers.KINDS), rounds):
        do = bind(trainers.passes, work, bundle, trainers.KINDS[name])
        taken.take(trainers.PART, name, round_, do)
    for tokens in micro_batch:
        for checkpointing in (False, True):
            _take_size(work, taken, bundle, tokens, checkpointing)
    taken.take(PROFILE, trainers.OURS, 0, bind(trainers.passes, work, bundle, "profile"))
    for name, round_ in in_turn((trainers.OURS, trainers.PLAIN), rounds):
        taken.take(STEP, name, round_, bind(_step, work, bundle, name))
    write_json(out / "performance-gpu.json", page.record(work, taken))
    write_text(out / "PERFORMANCE-gpu.md", gpu_page(work, taken, size))
    tell(str(out / "PERFORMANCE-gpu.md"))


def work_of(kept: Path, size: Size) -> Work:
    """The preset's settings on the model, adapter and bundle in `kept`, made where they lack."""
    policy, smaller = kept / POLICY, () if size is QWEN_7B else ("small",)
    if not policy.is_dir():
        tell("making a model with random weights")
        # This process would keep the device's memory, and what is measured would find less of it.
        child.run("tests.bench.gpu_work", str(policy), *(f"--{word}" for word in smaller))
    adapter = check_adapter(policy / ADAPTER, policy / MODEL)
    # Nothing is computed twice where the step fits without.
    config = preset_config(PRESET, ("trainer.gradient_checkpointing=false",))
    if not (bundle := bundle_of(kept, adapter, config)).is_file():
        write_bundle(bundle, size, adapter.sha, config.rollout.temperature)
    work = Work(policy / MODEL, adapter, (), config, smaller)
    if _forecast(work) > _room():
        config = preset_config(PRESET, ("trainer.gradient_checkpointing=true",))
        work = Work(policy / MODEL, adapter, (), config, smaller)
    return work


def bundle_of(kept: Path, adapter: AdapterInfo, config: RunConfig) -> Path:
    """Where the bundle of this adapter and this temperature is."""
    return kept / f"bundle-{adapter.sha[:12]}-{config.rollout.temperature:g}.jsonl"


def _room() -> int:
    """Bytes that are free on the device, or on the host without one."""
    now = available()
    return now.host if now.gpu is None else now.gpu


def _forecast(work: Work, **changes: object) -> int:
    """What a step should hold at most, by the trainer's own formula."""
    settings = work.trainer_with(**changes)
    return forecast(work.model, settings, item_bytes_of(settings), work.adapter)


def _take_size(
    work: Work, taken: Measurements, bundle: Path, tokens: int, checkpointing: bool
) -> None:
    """Measure ours with another micro-batch, unless it would not fit."""
    changes = {"tokens_per_microbatch": tokens, "gradient_checkpointing": checkpointing}
    name = f"{tokens:,} tokens{', computed again' if checkpointing else ''}"
    expected = _forecast(work, **changes)
    if expected > _room():
        tell(f"{name}: left out, needs about {expected / GIB:.0f} GiB")
        return

    def do() -> Values:
        return {
            **trainers.passes(work, bundle, "ours", **changes),
            "forecast_bytes": expected,
        }

    taken.take(trainers.SIZES, name, 0, do)


def _step(work: Work, bundle: Path, name: str) -> Values:
    """Seconds from the start of a trainer's program to its end, with its adapter written."""
    with tempfile.TemporaryDirectory() as temporary:
        settings, out = Path(temporary) / "settings.json", Path(temporary) / "out"
        trainers.write_settings(settings, work)
        began = time.perf_counter()
        if name == trainers.PLAIN:
            words = [*trainers.words(work, bundle, settings), "--out", str(out)]
            child.run("tests.bench.plain_trainer", *words, env=trainers.trainer_environment(work))
        else:
            words = [
                *("--model", str(work.model), "--adapter-init", str(work.adapter.path)),
                *("--reference-adapter", str(work.adapter.path), "--bundle", str(bundle)),
                *("--settings-json", str(settings), "--out-dir", str(out)),
            ]
            child.run("trainer", *words, env=trainers.trainer_environment(work))
        return {"seconds": time.perf_counter() - began}


def gpu_page(work: Work, taken: Measurements, size: Size) -> str:
    """The page."""
    settings = work.trainer
    goals = (
        ("passes against the plain rebuild's", "trainer_vs_naive"),
        ("forward and backward against matrix products (MFU)", "trainer_vs_matmul"),
        ("peak memory against the plain rebuild's", "trainer_peak_vs_naive"),
    )
    found = page.ratios(work, taken)
    rows = tuple((what, f"{found[name]:.2f}") for what, name in goals if name in found)
    parts = (
        Table("Ratios", ("what", "measured"), rows),
        page.trainers_table(taken),
        _sizes(work, taken),
        _profile(taken),
        _steps(taken),
    )
    tables = "\n".join(table.markdown() for table in parts if table.rows)
    again = "without gradient checkpointing"
    if settings.gradient_checkpointing:
        again = "with gradient checkpointing, which the plain rebuild does without"
    return f"""# Performance on a GPU

Written by `make bench-gpu` on {taken.about["machine"]}, in {taken.about["dtype"]}.
The contestants take turns, in the opposite order every second round. A cell is the median of the
rounds and, in brackets, the smallest and the largest; a ratio is the median of the rounds' ratios.
Every measurement is in `performance-gpu.json`.

The model has the shape of Qwen 2.5 7B ({size.config["num_hidden_layers"]} layers of
{size.config["hidden_size"]:,}, a vocabulary of {size.config["vocab_size"]:,}) and random weights,
with a LoRA of rank {size.rank} on all linear layers. The bundle is one step of the preset
`{PRESET}`: {size.tasks} tasks, {size.attempts} attempts at each, {size.turns} turns an attempt, of
random ids. Micro-batches have {settings.microbatch_tokens:,} tokens, {again}.

{tables}"""


def _sizes(work: Work, taken: Measurements) -> Table:
    """Ours by micro-batch, with the forecast beside the peak."""
    part = trainers.SIZES
    table = page.sizes_table(taken)
    forecasts = [taken.of(part, name, "forecast_bytes")[0] for name in taken.contestants(part)]
    rows = tuple(
        (*row, f"{expected / GIB:.3g}") for row, expected in zip(table.rows, forecasts, strict=True)
    )
    columns = (
        *("micro-batch", "forward (reference)", "forward and backward"),
        *("peak GiB", "forecast GiB"),
    )
    note = "Input ids a second. Computed again: with gradient checkpointing."
    return Table(table.title, columns, rows, (note,))


def _profile(taken: Measurements) -> Table:
    if not taken.contestants(PROFILE):
        return Table(PROFILE, (), (), ())
    (seconds,), (busy,), (operations,) = (
        taken.of(PROFILE, trainers.OURS, name) for name in ("seconds", "busy", "operations")
    )
    rows = tuple((f"`{key}`", f"{took:.3f}", f"{n:,}") for key, took, n in operations)  # type: ignore[attr-defined]
    note = (
        f"Forward and backward of the first micro-batch took {seconds:.2f} s under torch's"
        " profiler. The operations, each without those that it calls, took the device"
        f" {busy:.2f} s."
    )
    return Table(PROFILE.capitalize(), ("operation", "seconds", "calls"), rows, (note,))


def _steps(taken: Measurements) -> Table:
    rows = tuple(
        (name, page.spread(taken.of(STEP, name, "seconds"))) for name in taken.contestants(STEP)
    )
    note = (
        "One program from its start to its end: load the model, both passes, one step of the"
        " optimizer, save the adapter. The reference is the adapter itself, so ours makes no pass"
        " under it, as in a run's first step. Ours also checks the new adapter against the old one"
        " on a few prompts (the canary)."
    )
    return Table(STEP.capitalize(), ("what", "seconds"), rows, (note,))


if __name__ == "__main__":
    typer.run(main)
