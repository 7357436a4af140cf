"""`python -m tests.bench.trainer_run KIND …`: one trainer's pass over a bundle, in its own process.

Prints one JSON object: seconds of the reference pass and of forward + backward, the process's peak
memory, and the gradient's norm. The model is loaded and a micro-batch is run before the clock
starts. KIND is "ours" (the trainer's own functions), "plain" (`tests.bench.plain_trainer`),
"profile" (which operations one micro-batch of ours spends its time in), or "matmul", which
multiplies matrices of the model's shapes instead: what this machine does at best.
"""

from __future__ import annotations

import json
import resource
import statistics
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fieldkit.codec import read_bundle
from fieldkit.training.adapter import check_adapter
from fieldkit.training.snapshot import LoraReferenceSnapshot
from tests.bench import plain_trainer
from tests.bench.shapes import layer_shapes, output_shape
from trainer.batch import TrainingBatch, collect
from trainer.gradient import accumulate_gradient, reference_logprobs
from trainer.progress import Lines
from trainer.scoring.micro_batch import Micro, micro_batches
from trainer.scoring.policy import (
    Policy,
    dtype_name,
    load_policy,
    pick_device,
    serving_dtype,
    training_dtype,
)
from trainer.settings import TrainerSettings, read_settings

MATMUL_ROWS = (256, 1024, 4096)
MATMUL_REPEATS = 10
PROFILED = 15
"""Operations that a profile names."""


def main(
    kind: Annotated[str, typer.Argument(help="ours, plain, profile or matmul.")],
    model: Annotated[Path, typer.Option(help="Model folder.")],
    adapter: Annotated[Path, typer.Option(help="The adapter; it is the reference too.")],
    bundle: Annotated[Path, typer.Option(help="trajectory_bundle.jsonl of a step.")],
    settings_json: Annotated[Path, typer.Option(help="[trainer] as a JSON object.")],
) -> None:
    """Measure one trainer and print what was found."""
    settings = read_settings(settings_json)
    batch = collect(read_bundle(bundle), settings)
    dtype = training_dtype(settings.dtype, serving_dtype(settings.serving_dtype, model))
    if kind == "matmul":
        found = matmul_limit(model, dtype)
    elif kind == "ours":
        found = ours(model, adapter, batch, settings, dtype)
    elif kind == "profile":
        found = profile(model, adapter, batch, settings, dtype)
    else:
        found = plain_trainer.timed(model, adapter, batch, settings, dtype)
    found["dtype"] = dtype_name(dtype)
    found["peak_bytes"] = peak_bytes()
    found["inputs"] = sum(s.n_inputs for s in batch.segments)
    found["scored"] = batch.n_scored
    print(json.dumps(found))


def ours(
    model: Path,
    adapter: Path,
    batch: TrainingBatch,
    settings: TrainerSettings,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """The trainer's two passes, as `trainer.update` runs them."""
    policy, reference, batches = _loaded(model, adapter, batch, settings, dtype)
    quiet = Lines(StringIO())
    first = reference_logprobs(policy, reference, batches[-1:], settings, quiet)
    accumulate_gradient(policy, batch, batches[-1:], first, settings, quiet)
    for parameter in policy.lora().values():
        parameter.grad = None
    began = plain_trainer.now()
    references = reference_logprobs(policy, reference, batches, settings, quiet)
    middle = plain_trainer.now()
    accumulate_gradient(policy, batch, batches, references, settings, quiet)
    ended = plain_trainer.now()
    return {
        "reference_seconds": middle - began,
        "gradient_seconds": ended - middle,
        "gradient_norm": plain_trainer.gradient_norm(policy.lora().values()),
    }


def profile(
    model: Path,
    adapter: Path,
    batch: TrainingBatch,
    settings: TrainerSettings,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Forward and backward of the first micro-batch: its wall seconds under torch's profiler, and
    the operations with the seconds that they alone took on the device, the longest first."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recording

    policy, reference, batches = _loaded(model, adapter, batch, settings, dtype)
    policy.at_once = 1  # the profiler sees this thread only
    quiet, first = Lines(StringIO()), batches[:1]
    references = reference_logprobs(policy, reference, first, settings, quiet)
    accumulate_gradient(policy, batch, first, references, settings, quiet)
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    began = plain_trainer.now()
    with recording(activities=activities) as recorded:
        accumulate_gradient(policy, batch, first, references, settings, quiet)
        seconds = plain_trainer.now() - began
    took = {
        e.key: (e.self_device_time_total if on_gpu else e.self_cpu_time_total, e.count)
        for e in recorded.key_averages()
        if e.device_type == DeviceType.CPU  # kernels are listed too, and belong to an operation
    }
    longest = sorted(took, key=lambda key: -took[key][0])[:PROFILED]
    return {
        "seconds": seconds,
        "busy": sum(time for time, _ in took.values()) / 1e6,
        "operations": [[key, took[key][0] / 1e6, took[key][1]] for key in longest],
    }


def _loaded(
    model: Path,
    adapter: Path,
    batch: TrainingBatch,
    settings: TrainerSettings,
    dtype: torch.dtype,
) -> tuple[Policy, LoraReferenceSnapshot, Sequence[Micro]]:
    info = check_adapter(adapter, model)
    checkpointing = settings.gradient_checkpointing
    policy = load_policy(model, info, dtype, gradient_checkpointing=checkpointing)
    reference = LoraReferenceSnapshot.from_disk(policy.model, adapter)
    batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
    return policy, reference, batches


def peak_bytes() -> int:
    """The most that this process has held: of the device's memory, or of the host's without one."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def matmul_limit(model: Path, dtype: torch.dtype) -> dict[str, Any]:
    """FLOP/s of matrix products with each shape of the model's weights and a few numbers of rows,
    each the median of repeats; and the largest of them."""
    device, found = pick_device(), dict[str, float]()
    for out, into in sorted({*layer_shapes(model), output_shape(model)}):
        weight = torch.randn(out, into, device=device).to(dtype)
        for rows in MATMUL_ROWS:
            left = torch.randn(rows, into, device=device).to(dtype)
            torch.nn.functional.linear(left, weight)  # the first call chooses a kernel
            seconds = []
            for _ in range(MATMUL_REPEATS):
                began = plain_trainer.now()
                torch.nn.functional.linear(left, weight)
                seconds.append(plain_trainer.now() - began)
            flops = 2 * rows * out * into / statistics.median(seconds)
            found[f"{rows}x{into}x{out}"] = flops
    return {"flops": max(found.values()), "by_shape": found}


if __name__ == "__main__":
    typer.run(main)
