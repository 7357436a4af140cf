"""The part of a step that needs a model: load, score, take the gradient, move, save.

Reference logprobs, gradient, clip, the optimizer's steps, then the files of the new adapter in a
folder that `trainer.step` publishes. Imported only when there is signal to learn from.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fieldkit.errors import Shortage
from fieldkit.training.adapter import CONFIG_FILE, WEIGHTS_FILE, adapter_sha
from fieldkit.training.canary_record import write_canary
from fieldkit.training.snapshot import LoraReferenceSnapshot
from fieldkit.training.tensors import save_tensors
from fieldkit.training.weight_delta import WeightDeltaTracker
from trainer.canary import canary_ids, make_canary
from trainer.checkpoint import ADAPTER_DIR, STATE_DIR
from trainer.footprint.budget import require_memory
from trainer.gradient import MicroBatchTooLarge, Own, References, check_ids, reference_logprobs
from trainer.inputs import Checked, StepInputs
from trainer.messages import report_loaded, report_ranks
from trainer.optimizer import OPTIMIZERS
from trainer.optimizer_state import load_state, save_state
from trainer.passes import take_passes
from trainer.progress import Progress, Stopwatch
from trainer.ranks.balance import parts
from trainer.ranks.rank import Rank
from trainer.scoring.kept_model import KeptModel, give_back
from trainer.scoring.micro_batch import Micro, micro_batches, tokens
from trainer.scoring.policy import Policy, serving_dtype, training_dtype
from trainer.scoring.shared_prefix import can_share
from trainer.settings import TrainerSettings


@contextmanager
def _naming_the_gpu() -> Iterator[None]:
    """Turn the GPU's out-of-memory error outside of a micro-batch into a `Shortage`: loading, the
    optimizer and the canary take memory that another program may have taken meanwhile."""
    try:
        yield
    except torch.OutOfMemoryError as e:
        what = str(e).partition(". GPU ")[0]  # what follows is advice for who writes programs
        raise Shortage(
            f"{what}. `nvidia-smi` shows what holds the GPU's memory; end what is not needed and"
            " run the same command again"
        ) from e


@_naming_the_gpu()
def update_adapter(
    inputs: StepInputs,
    checked: Checked,
    settings: TrainerSettings,
    build: Path,
    watch: Stopwatch,
    progress: Progress,
    model: KeptModel,
    rank: Rank,
) -> dict[str, Any]:
    """Take the step's optimizer steps and write adapter/ and trainer_state/ into `build`.

    Returns the step's figures, those of all ranks together. Equal inputs give equal bytes on a CPU
    (with as many threads and ranks), but for canary.json, which is exact where memory allows.
    """
    step = checked.groups[0].step
    settings = settings.at_step(step)
    shared = can_share(inputs.model_dir)
    segments = parts(checked.batch.segments, rank.size, shared=shared)[rank.number]
    batches = micro_batches(segments, settings, shared=shared)
    with watch.phase("load"):
        served = serving_dtype(settings.serving_dtype, inputs.model_dir)
        # Measured where it is "auto": all ranks take the first one's.
        sharded = settings.shard_base and rank.size > 1
        dtype = rank.gather(training_dtype(settings.dtype, served, sharded=sharded))[0]
        model.keep_only(
            inputs.model_dir,
            checked.adapter,
            dtype,
            checkpointing=settings.gradient_checkpointing,
            sharded=sharded,
        )
        require_memory(
            inputs.model_dir,
            batches,
            settings,
            dtype.itemsize,
            checked.adapter,
            shared=shared,
            on_gpu=torch.cuda.is_available(),
            loaded=model.is_loaded,
            beside=rank.beside,
            shards=rank.size if sharded else 1,
        )
        rank.gather(None)  # none loads before all have seen what is available
        policy = model.with_adapter(checked.adapter)
        check_ids(policy, checked.batch.segments)
        lora = policy.lora()
        tracker = WeightDeltaTracker(policy.model)
        reference = _reference(policy, checked, settings)
        kind = OPTIMIZERS[settings.optimizer]
        optimizer = kind.make(lora.values(), settings.lr)
        if inputs.state is not None:
            load_state(inputs.state, kind, optimizer, lora, checked.adapter.sha)
    steps = checked.optimizer_steps + settings.passes
    report_loaded(policy, reference, checked.reference_is_own, settings, watch, progress)
    loads = rank.gather(sum(tokens(b, shared) for b in batches))
    report_ranks(loads, progress)

    figures, n_micro_batches = _in_smaller_parts(
        partial(_move, policy, optimizer, reference, checked, settings, watch, progress, rank),
        batches,
        settings,
        progress,
        shared,
        rank,
    )
    with watch.phase("save"):
        delta = tracker.served(served)
        sha = _save_adapter(policy, inputs.adapter, build / ADAPTER_DIR)
        _require_equal(rank.gather(sha))
        save_state(build / STATE_DIR, kind, optimizer, lora, steps, sha)
    with watch.phase("canary"):
        optimizer.zero_grad()  # a process that stays would keep the gradients
        del optimizer
        canary = make_canary(
            policy,
            canary_ids(checked.groups),
            LoraReferenceSnapshot(policy.model, snapshot=tracker.before),
            served,
            adapter_sha=sha,
            parent_sha=checked.adapter.sha,
            beside=rank.beside,
        )
        write_canary(build / ADAPTER_DIR, canary)
    n_inputs = sum(s.n_inputs for s in checked.batch.segments)
    trainable, total = policy.count_parameters()
    return {
        **figures,
        **{f"delta_{key}": value for key, value in dataclasses.asdict(delta).items()},
        "n_input_tokens": n_inputs,
        "n_micro_batches": sum(rank.gather(n_micro_batches)),
        "processes": rank.size,
        "base_shards": rank.size if sharded else 1,
        "rank_imbalance": max(loads) * rank.size / sum(loads),
        "tokens_per_second": settings.passes * n_inputs / watch.seconds["gradient"],
        "trainable_parameters": trainable,
        "all_parameters": total,
        "snapshot_tensors": len(reference) if reference else 0,
        "optimizer_steps": steps,
        "lr": settings.lr,
        "training_bits": torch.finfo(dtype).bits,
        "serving_bits": torch.finfo(served).bits,
    }


def _move(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    reference: LoraReferenceSnapshot | None,
    checked: Checked,
    settings: TrainerSettings,
    watch: Stopwatch,
    progress: Progress,
    rank: Rank,
    batches: Sequence[Micro],
) -> dict[str, float]:
    """Both passes over these micro-batches, and the optimizer's steps; the figures."""
    references: References = None
    if reference is not None and checked.reference_is_own:
        references = Own()
    elif reference is not None:
        with watch.phase("reference"):
            references = reference_logprobs(
                policy,
                reference,
                batches,
                settings,
                progress,
                checked.batch.segments,
                rank,
            )
    with watch.phase("gradient"):
        return take_passes(
            policy,
            optimizer,
            checked.batch,
            batches,
            references,
            settings,
            progress,
            where=f"step {checked.groups[0].step}",
            rank=rank,
        )


def _in_smaller_parts(
    move: Callable[[Sequence[Micro]], dict[str, float]],
    batches: Sequence[Micro],
    settings: TrainerSettings,
    progress: Progress,
    shared: bool,
    rank: Rank,
) -> tuple[dict[str, float], int]:
    """What `move` returns, and of how many micro-batches: smaller ones than these where the GPU is
    full. Sums are over the bundle, so the cut changes nothing but their last bits. Several ranks
    are not asked again, since the others are in a pass that this one has left."""
    while True:
        try:
            return move(batches), len(batches)
        except MicroBatchTooLarge as e:
            if e.smaller is None or rank.size > 1:
                raise
            smaller = e.smaller
            progress.say(f"{e.what}: once more with at most {smaller:,} tokens")
        # Outside of the handler, whose error keeps the tensors of its pass.
        give_back()
        settings = dataclasses.replace(settings, tokens_per_microbatch=smaller)
        segments = [segment for batch in batches for segment in batch]
        batches = micro_batches(segments, settings, shared=shared)


def _require_equal(shas: Sequence[str]) -> None:
    """Raise where the ranks' adapters differ: their optimizers did not get the same gradient."""
    if len(set(shas)) > 1:
        told = ", ".join(f"rank {number} {sha[:12]}" for number, sha in enumerate(shas))
        raise RuntimeError(f"the ranks hold different adapters after the step: {told}")


def _reference(
    policy: Policy, checked: Checked, settings: TrainerSettings
) -> LoraReferenceSnapshot | None:
    if checked.reference is None or settings.kl_coef == 0:
        return None
    return LoraReferenceSnapshot.from_disk(policy.model, checked.reference.path)


def _save_adapter(policy: Policy, parent: Path, folder: Path) -> str:
    """Write the live tensors and a copy of the parent's config; returns the new sha.

    peft would write the config anew, in an order that changes from process to process.
    """
    folder.mkdir()
    tensors = {name: p.detach().cpu().contiguous() for name, p in policy.lora().items()}
    save_tensors(tensors, folder / WEIGHTS_FILE, {"format": "pt"})
    shutil.copyfile(parent / CONFIG_FILE, folder / CONFIG_FILE)
    return adapter_sha(folder)
