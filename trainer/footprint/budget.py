"""Whether a step fits into memory, and the largest token budget that does.

Linux grants memory that it does not have and kills a process later, perhaps another program's. So
what a step holds (`step_bytes`) is compared with what is available before a model is loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import Shortage
from fieldkit.gate.memory import GIB, available
from fieldkit.training.adapter import AdapterInfo, weight_bytes
from trainer.footprint.step_bytes import PROCESS_BYTES, bytes_of_step, copy_bytes, in_parallel
from trainer.scoring.micro_batch import copies, tokens
from trainer.settings import TrainerSettings, cuda_devices

if TYPE_CHECKING:
    from trainer.scoring.micro_batch import Micro


def require_memory(
    model_dir: Path,
    batches: Sequence[Micro],
    settings: TrainerSettings,
    item_bytes: int,
    adapter: AdapterInfo | None = None,
    *,
    shared: bool,
    on_gpu: bool,
    loaded: bool = False,
    beside: int = 1,
    shards: int = 1,
) -> None:
    """Raise `Shortage` unless weights fit with the largest micro-batch, naming a budget that does,
    and with the canary's copy of the base.

    item_bytes: of one weight of the base as it will be loaded (2 or 4). shared: as `micro_batches`
    got it. loaded: this process holds the base already. beside: processes that load as much on this
    machine at the same time, this one included; on GPUs with memory of their own each has one.
    shards: parts that the base's layers are cut into on GPUs; each process loads all of them into
    the host's memory first.
    """
    now = available()
    gpu = now.gpu if on_gpu else None
    room = now.host // beside if gpu is None else gpu
    if gpu is not None and shards > 1:
        require_whole_bases(model_dir, item_bytes, beside)
    fixed, per_token, per_copy = bytes_of_step(
        model_dir,
        settings,
        item_bytes,
        adapter,
        on_gpu=on_gpu,
        tcmalloc=_has_tcmalloc(),
        shards=1 if gpu is None else shards,
    )
    if loaded:
        fixed -= weight_bytes(model_dir, item_bytes) + PROCESS_BYTES
    at_a_time = in_parallel(model_dir, beside, on_gpu=on_gpu)
    needs = _needs_of(batches, per_token, per_copy, shared)
    together = _together(needs, settings, at_a_time)
    largest, whole_batch = together[0]
    copy = copy_bytes(model_dir, settings, item_bytes)
    needed = fixed + max(_bytes(together), copy)
    if needed <= room:
        return
    longest = max((s.n_inputs for b in batches for s in b), default=0)
    fits = _fitting(room - fixed, largest, whole_batch, per_token, longest)
    checkpointing = (
        "" if settings.gradient_checkpointing else "set trainer.gradient_checkpointing = true, or "
    )
    remedy = (
        f"set trainer.tokens_per_microbatch = {fits // at_a_time}"
        if fits >= longest
        else f"the longest segment alone has {longest} tokens and {fits} fit: {checkpointing}"
        "take fewer rollout.max_turns in a new run"
    )
    what = f"a micro-batch of {largest} tokens"
    if len(together) > 1:
        what += f", {len(together)} at a time,"
    if fixed > room:
        what, needed = "a step before its first micro-batch", fixed
        remedy = "free memory"
    elif fixed + copy > room:  # whatever the micro-batch
        what = "the canary's copy of the base in the server's dtype"
        remedy = (
            "free memory; training in that dtype needs no copy: in a new run, trainer.dtype ="
            ' "bf16" for a server in bfloat16'
        )
    each = ""
    if gpu is None and beside > 1:
        each = f" for each of {beside} processes"
        remedy += f"; or set trainer.processes to less than {beside}"
    raise Shortage(
        f"{what} needs about {needed / GIB:.1f} GiB, "
        f"{room / GIB:.1f} GiB are available{each}; {remedy}"
    )


def require_whole_bases(model_dir: Path, item_bytes: int, processes: int) -> None:
    """Raise `Shortage` where the host's memory does not hold the base once for each of so many
    processes, which load it whole before it is sharded over GPUs with memory of their own."""
    whole, each = weight_bytes(model_dir, item_bytes), available().host // processes
    if each < whole:
        raise Shortage(
            f"each of {processes} processes loads the whole base, {whole / GIB:.1f} GiB, into the"
            f" host's memory before it is sharded, and {each / GIB:.1f} GiB are available for each;"
            " free memory, or set trainer.processes to fewer, if fewer parts of the base fit the"
            " GPUs"
        )


@dataclass(frozen=True)
class Budget:
    """Token budgets for a trainer that was killed for memory, as `tokens_per_microbatch` counts."""

    largest: int
    """The largest micro-batch of the bundle under the present settings."""
    longest: int
    """The longest segment: no micro-batch that holds it can be smaller."""
    fits: int
    """What fits into the memory that is available now, by the estimate, so many at a time."""
    at_a_time: int = 1
    """Micro-batches that are computed in parallel. A longer segment than the budget is alone."""

    @property
    def least(self) -> int:
        """No smaller budget needs less: the longest segment alone takes as much."""
        return -(-self.longest // self.at_a_time)

    @property
    def smaller(self) -> int | None:
        """A tokens_per_microbatch that makes the largest micro-batch smaller; None where none does.

        A micro-batch that was killed did not fit, whatever the estimate says, so at most half of
        it.
        """
        tokens = min(self.fits, max(self.least, self.largest // 2))
        return tokens if self.least <= tokens < self.largest else None


def smaller_budget(
    model_dir: Path,
    batches: Sequence[Micro],
    settings: TrainerSettings,
    item_bytes: int,
    adapter: AdapterInfo | None = None,
    *,
    shared: bool,
    tcmalloc: bool = False,
) -> Budget:
    """The budgets after a kill, from the host's memory (the kernel kills for no other): for a CPU,
    and for a GPU without memory of its own.

    batches: of the whole bundle, as one process cuts it. tcmalloc: the trainer had it.
    """
    on_gpu = bool(cuda_devices())
    fixed, per_token, per_copy = bytes_of_step(
        model_dir, settings, item_bytes, adapter, on_gpu=on_gpu, tcmalloc=tcmalloc
    )
    spare = available().host // settings.world_size - fixed
    too_little = spare < copy_bytes(model_dir, settings, item_bytes)
    at_a_time = in_parallel(model_dir, settings.world_size, on_gpu=on_gpu)
    needs = _needs_of(batches, per_token, per_copy, shared)
    largest, whole_batch = _together(needs, settings, at_a_time)[0]
    if largest > settings.microbatch_tokens:
        at_a_time = 1
    longest = max(s.n_inputs for b in batches for s in b)
    fits = 0 if too_little else _fitting(spare, largest, whole_batch, per_token, longest)
    return Budget(
        largest=largest,
        longest=longest,
        fits=fits // at_a_time,
        at_a_time=at_a_time,
    )


def _needs_of(
    batches: Sequence[Micro], per_token: int, per_copy: int, shared: bool
) -> list[tuple[int, int]]:
    """Tokens and bytes of each micro-batch, of the one that needs most bytes first; of an empty one
    where there is none."""
    sizes = [(tokens(batch, shared), copies(batch, shared)) for batch in batches]
    needs = [(n, n * per_token + copied * per_copy) for n, copied in sizes]
    return sorted(needs, key=lambda need: -need[1]) or [(0, 0)]


def _together(
    needs: list[tuple[int, int]], settings: TrainerSettings, at_a_time: int
) -> list[tuple[int, int]]:
    """Of these needs those that are held at a time, where it is most: of as many micro-batches as
    are computed in parallel, or of one that is larger than the budget and is computed alone."""
    most = settings.microbatch_tokens
    usual = [need for need in needs if need[0] <= most][:at_a_time]
    return max(usual, needs[:1], key=_bytes)


def _bytes(needs: list[tuple[int, int]]) -> int:
    return sum(size for _, size in needs)


def _fitting(spare: int, tokens: int, whole: int, per_token: int, longest: int) -> int:
    """Tokens that fit, where each takes what it does in the micro-batch of so many tokens and bytes
    in whole; those of the longest segment where it fits by itself, which copies nothing."""
    fits = max(0, int(spare / (whole / tokens if tokens else per_token)))
    return max(fits, longest) if longest * per_token <= spare else fits


def _has_tcmalloc() -> bool:
    """Whether it is preloaded in this process."""
    return hasattr(ctypes.CDLL(None), "MallocExtension_ReleaseFreeMemory")
