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
from rollout.engine.lifecycle import AUTO, RESTART, scarcest
from rollout.engine.vllm_server import memory_needed, servers_on_a_gpu


def trainer_bytes(settings: EngineSettings) -> int:
    """Memory to leave for the trainer."""
    return int((settings.trainer_gib or 0.0) * GIB)


@dataclass(frozen=True)
class MemoryForecast:
    """What a night will need. Bytes, of the memory named by `where`.

    engine, trainer: what they are expected to hold at most. longest: what the trainer holds if an
    episode fills the context. free: available now. restarts: the settings have the server started
    again for every adapter, whatever fits.
    """

    engine: int
    trainer: int
    free: int
    where: str
    longest: int = 0
    restarts: bool = False

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
        """In a sentence. Raises `Shortage` where one of them does not fit even alone."""
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
        if self.side_by_side and self.restarts:
            return (
                f"{figures}: both fit side by side, but engine.lifecycle is {RESTART.name!r}, which"
                f' starts the server again for every adapter; "{AUTO}" swaps adapters in'
            )
        if self.side_by_side:
            return f"{figures}: both fit side by side, so adapters can be swapped in"
        return f"{figures}: one after the other, so the server is restarted for every adapter"

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
    restarts = settings.lifecycle == RESTART.name
    return MemoryForecast(engine, trainer, free, where, trainer_bytes(settings), restarts)
