"""The memory that a server, and engine and trainer together, will need, estimated before a start.

`grpo doctor RUN` compares the estimates with what is free now and says in the evening whether both
fit. It measures no running server.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput, Shortage
from fieldkit.gate import memory, nvidia
from fieldkit.gate.memory import GIB
from fieldkit.training.adapter import weight_bytes
from rollout.engine import vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.lifecycle import AUTO, GPU_MEMORY, LIFECYCLES, RESTART, SLEEP, scarcest
from rollout.engine.replica import ONLY, Replica

# What vLLM's three processes hold besides weights and KV cache on a CPU, measured with the default
# model: 0.57 GiB in the API server, 0.51 in the EngineCore, 0.7 in the Worker, which grows with the
# sizes of its batches: 1.1 after a step, 2.2 after a night of 20 (docs/LOG.md).
_PROCESS_BYTES = 3 * GIB
_ONE_LESS_BYTES = GIB // 2  # where the EngineCore is the Worker
_RANK_BYTES = int(1.4 * GIB)  # of a further EngineCore and Worker

# Of a GPU, besides weights and KV cache, at the very least: CUDA's own and the largest batch's.
_GPU_BYTES = GIB
_MOST_OF_A_GPU = 0.9  # what vLLM leaves to other programs by default

_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def memory_needed(model_dir: Path, settings: EngineSettings) -> int:
    """Host bytes that a server of this model holds.

    On a CPU: weights (parameters x bytes of the serving dtype) + engine.kv_cache_gib (filled with
    zeros at the start, so all of it is held) + `_PROCESS_BYTES` (less in one process). Each further
    rank of engine.data_parallel and engine.tensor_parallel has a cache and processes of its own.
    Adapters are left out: eight of the default one are 15 MB. A GPU without memory of its own
    (GB10) takes its share of the host's; for one that has it, the weights are on the host only
    while the server sleeps. Raises `BadInput` where the share is too small for the model.
    """
    processes = _PROCESS_BYTES + (settings.ranks - 1) * _RANK_BYTES
    if vllm_server.in_one_process(settings):
        processes -= _ONE_LESS_BYTES
    if vllm_server.is_cpu_build():
        cache = settings.ranks * settings.kv_cache_bytes
        return _weights(model_dir, settings) + cache + processes
    vllm_server.require_driver()
    _require_share(model_dir, settings)
    if memory.gpu_total() is None:
        return int(memory.total_host() * settings.gpu_memory_utilization) + processes
    sleeps = settings.lifecycle == SLEEP.name
    return processes + (_weights(model_dir, settings) if sleeps else 0)


def _require_share(model_dir: Path, settings: EngineSettings) -> None:
    """Raise `BadInput` where a GPU's share has no room for a KV cache: vLLM says so after minutes,
    when it has loaded the model."""
    there = memory.gpu_total() or memory.total_host()
    weights = _weights(model_dir, settings) // settings.ranks
    needed, share = weights + _GPU_BYTES, settings.gpu_memory_utilization
    if needed < share * there or not settings.replicas:
        return
    wanted = math.ceil(25 * needed / there) / 20  # a quarter more, for the cache; in steps of 0.05
    remedy = f"set it to {wanted:g}"
    if wanted > _MOST_OF_A_GPU:
        remedy = "divide it among several (engine.tensor_parallel), or take a smaller model"
    raise BadInput(
        f"engine.gpu_memory_utilization: {share:g} of a GPU's {there / GIB:.1f} GiB is"
        f" {share * there / GIB:.1f} GiB, and {weights / GIB:.1f} GiB of this model's weights are"
        f" to be there with a KV cache; {remedy}"
    )


def _weights(model_dir: Path, settings: EngineSettings) -> int:
    """Of all copies of the model; tensor parallel ranks divide one."""
    one = weight_bytes(model_dir, _ITEM_BYTES[vllm_server.serving_dtype(settings, model_dir)])
    return one * settings.data_parallel


def gpu_needed(settings: EngineSettings, replica: Replica = ONLY) -> int | None:
    """Bytes that a server takes of the GPU that `memory` measures. None where there is none, and
    where the server gets another one: vLLM measures that at its start."""
    total, gpus = memory.gpu_total(), nvidia.visible_gpus()
    ours, first = (r.gpus(gpus, settings.ranks) for r in (replica, Replica(0, replica.of)))
    if total is None or ours != first:
        return None
    return int(total * settings.gpu_memory_utilization)


def servers_on_a_gpu(settings: EngineSettings) -> int:
    """How many of a run's servers share the GPU that has most of them; 0 without a GPU."""
    gpus = nvidia.visible_gpus()
    places = max(1, len(gpus) // settings.ranks)
    return math.ceil(settings.replicas / places) if gpus else 0


def trainer_bytes(settings: EngineSettings) -> int:
    """Memory to leave for the trainer."""
    return int((settings.trainer_gib or 0.0) * GIB)


@dataclass(frozen=True)
class MemoryForecast:
    """What a night will need. Bytes, of the memory named by `where`.

    engine, trainer: what they are expected to hold at most. longest: what the trainer holds if an
    episode fills the context. free: available now. lifecycle: engine.lifecycle.
    """

    engine: int
    trainer: int
    free: int
    where: str
    longest: int = 0
    lifecycle: str = AUTO

    @property
    def side_by_side(self) -> bool:
        """Whether both fit at once, whatever the episodes' length."""
        return self.engine + max(self.trainer, self.longest) <= self.free

    @property
    def used(self) -> int:
        """Bytes that engine and trainer are expected to hold together at most."""
        both = (self.engine, self.trainer)
        return sum(both) if self.side_by_side else max(both)

    def told(self) -> str:
        """In a sentence. Raises `Shortage` where one of them does not fit even alone, or where both
        do not fit although engine.lifecycle keeps both."""
        figures = (
            f"engine about {self.engine / GIB:.1f} GiB, trainer about {self.trainer / GIB:.1f}"
            f"{self._longest}, {self.free / GIB:.1f} GiB of {self.where} available"
        )
        if max(self.engine, self.trainer) > self.free:
            raise Shortage(
                f"{figures}: not enough even one after the other; holders: "
                f"{memory.describe_holders(3)}; end what is not needed, or lower "
                "engine.kv_cache_gib, engine.gpu_memory_utilization (CUDA) or "
                "trainer.tokens_per_microbatch in run.toml"
            )
        if self._stays and self.engine + self.trainer > self.free:
            raise Shortage(
                f"{figures}: not enough for both, and engine.lifecycle is {self.lifecycle!r}, which"
                f' keeps the engine\'s memory while the trainer works; engine.lifecycle = "{AUTO}"'
                " makes room for it, with run.overlap = 0"
            )
        if self.side_by_side and self.lifecycle == RESTART.name:
            return (
                f"{figures}: both fit side by side, but engine.lifecycle is {RESTART.name!r}, which"
                f' starts the server again for every adapter; "{AUTO}" swaps adapters in'
            )
        if self.side_by_side:
            return f"{figures}: both fit side by side, so adapters can be swapped in"
        if self._stays:
            return f"{figures}: side by side, but for an episode that fills the context"
        return f"{figures}: one after the other, so {self._meanwhile}{self._too_long}"

    @property
    def _meanwhile(self) -> str:
        """What the server does while the trainer has its memory."""
        if self.lifecycle == SLEEP.name:
            return "the server sleeps meanwhile"
        restarted = "the server is restarted for every adapter"
        if self.lifecycle == AUTO and self.where == GPU_MEMORY:
            return (
                f'{restarted}; engine.lifecycle = "{SLEEP.name}" keeps it, and its weights in the'
                " host's memory meanwhile"
            )
        return restarted

    @property
    def _too_long(self) -> str:
        if self.longest <= self.free:
            return ""
        return (
            ". An episode that fills the context does not fit even so: what it takes falls with "
            "engine.max_model_len, in a new run"
        )

    @property
    def _stays(self) -> bool:
        return self.lifecycle != AUTO and LIFECYCLES.named(self.lifecycle).keeps_memory

    @property
    def _longest(self) -> str:
        if self.longest <= self.trainer:
            return ""
        return f" ({self.longest / GIB:.1f} for an episode that fills the context)"


def forecast(settings: EngineSettings, model_dir: Path, trainer: int) -> MemoryForecast:
    """The forecast for this model and these settings on this machine.

    trainer: bytes that the trainer is expected to hold; `settings.trainer_gib` is the most.
    """
    available, gpu_total = memory.available(), memory.gpu_total()
    free, where = scarcest(available)
    engine = settings.replicas * memory_needed(model_dir, settings)
    if available.gpu is not None and gpu_total is not None:
        of_one = int(gpu_total * settings.gpu_memory_utilization)
        engine = of_one * servers_on_a_gpu(settings)
    longest = trainer_bytes(settings)
    return MemoryForecast(engine, trainer, free, where, longest, settings.lifecycle)
