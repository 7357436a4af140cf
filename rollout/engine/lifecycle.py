"""Which way a new adapter reaches the server: by a restart, or swapped in while it runs.

A restart always works and costs a start each step. A swap costs a fraction of a second, but needs
a server that offers the calls for it and memory for engine and trainer side by side. Both are
probed on the server that runs, and the reason is kept in words for the log and the journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from fieldkit.errors import Shortage, Unavailable
from fieldkit.gate import memory
from fieldkit.gate.memory import GIB, Available
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.vllm_server import memory_needed


class Lifecycle(StrEnum):
    """How adapters change."""

    RESTART = "restart"
    HOTSWAP = "hotswap"


@dataclass(frozen=True)
class Decision:
    """A lifecycle, and why this one."""

    lifecycle: Lifecycle
    reason: str


def trainer_bytes(settings: EngineSettings) -> int:
    """Memory to leave for the trainer beside the engine."""
    return int((settings.trainer_gib or 0.0) * GIB)


def has_room(available: Available, trainer: int) -> bool:
    """Whether the trainer fits beside what runs now."""
    return _scarcest(available)[0] >= trainer


def decide(
    settings: EngineSettings, *, can_swap: bool, available: Available, trainer: int
) -> Decision:
    """The lifecycle for a running server.

    can_swap: it offers /v1/load_lora_adapter. available: memory beside it. trainer: bytes that the
    trainer needs. Raises `Unavailable` where a swap was demanded and the server has none.
    """
    if settings.lifecycle == "restart":
        return Decision(Lifecycle.RESTART, "restart: asked for")
    if settings.lifecycle == "hotswap" and not can_swap:
        raise Unavailable(
            "engine.lifecycle is hotswap, but this server answers 404 to /v1/load_lora_adapter; "
            "set lifecycle to auto or restart, or install the pinned vLLM (`make setup`)"
        )
    if settings.lifecycle == "hotswap":
        return Decision(Lifecycle.HOTSWAP, "hotswap: asked for")
    if not can_swap:
        return Decision(
            Lifecycle.RESTART, "restart: this server answers 404 to /v1/load_lora_adapter"
        )
    free, where = _scarcest(available)
    figures = f"{free / GIB:.1f} GiB of {where} beside the engine, the trainer needs about "
    figures += f"{trainer / GIB:.1f}"
    if not has_room(available, trainer):
        return Decision(Lifecycle.RESTART, f"restart: {figures}")
    return Decision(
        Lifecycle.HOTSWAP, f"hotswap: the server has /v1/load_lora_adapter, and {figures}"
    )


def _scarcest(available: Available) -> tuple[int, str]:
    """The memory that the trainer's tensors would live in."""
    if available.gpu is not None:
        return available.gpu, "GPU memory"
    return available.host, "memory"


@dataclass(frozen=True)
class MemoryForecast:
    """What a night will need, before anything is started. Bytes, of the memory named by `where`.

    engine, trainer: at their largest. free: what can be had now.
    """

    engine: int
    trainer: int
    free: int
    where: str

    @property
    def side_by_side(self) -> bool:
        """Whether both fit at once; where not, one has to go for the other."""
        return self.engine + self.trainer <= self.free

    def told(self) -> str:
        """In a sentence. Raises `Shortage` where one of them does not even fit alone."""
        figures = (
            f"engine about {self.engine / GIB:.1f} GiB, trainer about {self.trainer / GIB:.1f}, "
            f"{self.free / GIB:.1f} GiB of {self.where} available"
        )
        if max(self.engine, self.trainer) > self.free:
            raise Shortage(
                f"{figures}: not enough even one after the other; holders: "
                f"{memory.describe_holders(3)}; end what is not needed, or lower "
                "engine.kv_cache_gib, engine.gpu_memory_utilization (CUDA) or "
                "trainer.tokens_per_microbatch in run.toml"
            )
        if self.side_by_side:
            return f"{figures}: both fit side by side, so adapters can be swapped in"
        return f"{figures}: one after the other, so the server is restarted for every adapter"


def forecast(settings: EngineSettings, model_dir: Path) -> MemoryForecast:
    """What `settings` come to for this model on this machine, held against what is free now."""
    available, gpu_total = memory.available(), memory.gpu_total()
    free, where = _scarcest(available)
    engine = memory_needed(model_dir, settings)
    if available.gpu is not None and gpu_total is not None:
        engine = int(gpu_total * settings.gpu_memory_utilization)
    return MemoryForecast(engine, trainer_bytes(settings), free, where)
