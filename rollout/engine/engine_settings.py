"""How the engine serves: the table [engine] of run.toml.

Apart from what obeys it, because every command reads run.toml and few start a server.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le
from pydantic import FiniteFloat, NonNegativeFloat, PositiveFloat, PositiveInt

from fieldkit.settings import Change, Choice, NoCondition, Unit, settings
from rollout.engine.lifecycle import AUTO, CHOICES


@settings("engine")
class EngineSettings:
    """How the engine serves."""

    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    """Dtype of weights and activations. auto: bfloat16 if the chip computes it, else float32."""
    max_model_len: Annotated[PositiveInt, Unit("tokens"), NoCondition] = 2048
    """Most tokens of prompt and completion together."""
    kv_cache_gib: Annotated[PositiveFloat, Unit("GiB"), Change.MACHINE] = 1.0
    """Size of the KV cache, on a CPU."""
    gpu_memory_utilization: Annotated[PositiveFloat, Change.MACHINE] = 0.4
    """Share of the GPU's memory that the engine takes, weights included, on CUDA."""
    block_size: Annotated[PositiveInt, Unit("tokens"), Change.MACHINE] = 32
    """Tokens a KV block, on a CPU. Turns are short: small blocks are found again more often."""
    max_num_seqs: Annotated[PositiveInt, Change.MACHINE] = 64
    """Sequences decoded at the same time."""
    max_adapters: Annotated[PositiveInt, Change.MACHINE] = 8
    """Most adapters that one server holds."""
    lora_matmul: Annotated[bool, Change.MACHINE] = True
    """On a CPU: compute LoRA as one matrix product for each adapter (`rollout.engine.vllm_plugin`)
    in place of vLLM's copy of the weights for each token."""
    tcmalloc: Annotated[bool, Change.MACHINE, NoCondition] = True
    """On a CPU: preload tcmalloc into engine and trainer if it is installed
    (`rollout.engine.preload`). It changes only their speed."""
    threads_bind: Annotated[str, Change.MACHINE] = "auto"
    """VLLM_CPU_OMP_THREADS_BIND, on a CPU. auto: every core that this process may use."""
    lifecycle: Annotated[str, Choice(CHOICES), Change.MACHINE] = AUTO
    """How a new adapter reaches the server."""
    keep_trainer: Annotated[bool, Change.MACHINE, NoCondition] = True
    """Keep the trainer's process with its loaded model from step to step, where the lifecycle lets
    it stand beside the engine. It changes no result."""
    start_seconds: Annotated[PositiveFloat, Unit("seconds"), Change.MACHINE] = 300.0
    """How long a server may take until it answers."""
    stop_seconds: Annotated[NonNegativeFloat, Unit("seconds"), Change.MACHINE] = 20.0
    """How long a server may take to end after SIGTERM before it is killed."""
    memory_seconds: Annotated[NonNegativeFloat, Unit("seconds"), Change.MACHINE] = 30.0
    """How long its memory may take to come back afterwards."""
    memory_margin_gib: Annotated[FiniteFloat, Unit("GiB"), Change.MACHINE] = 1.0
    """How much of it may be missing, because other programs use memory too."""
    trainer_gib: Annotated[NonNegativeFloat | None, Unit("GiB"), Change.MACHINE] = None
    """Memory to leave for the trainer when both run side by side. Left out: the trainer's own
    forecast (`trainer.budget`), or nothing without a trainer."""
    port: Annotated[int, Ge(0), Le(65_535), Change.MACHINE] = 0
    """TCP port on loopback; 0 takes a free one."""
