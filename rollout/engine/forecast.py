"""The memory that engine and trainer will need, estimated before either is started.

`grpo doctor RUN` compares the estimates with what is free now and says in the evening whether both
fit. It measures no running server.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import Shortage
from fieldkit.gate import memory
from fieldkit.gate.memory import GIB
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.lifecycle import AUTO, GPU_MEMORY, LIFECYCLES, RESTART, SLEEP, scarcest
from rollout.engine.vllm_server import memory_needed, servers_on_a_gpu


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
