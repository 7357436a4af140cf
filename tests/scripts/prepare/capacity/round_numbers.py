"""A box, a model and a step of round numbers, for results that are worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fieldkit.files.atomic import write_json
from scripts.prepare.capacity.box import Box
from scripts.prepare.capacity.device_memory import TRAINER_BYTES
from scripts.prepare.capacity.model_shape import DEFAULT_TARGETS, ModelShape
from scripts.prepare.capacity.step_time import Efficiency
from scripts.prepare.capacity.step_work import StepWork
from trainer.footprint.step_bytes import activation_bytes

CONFIG: dict[str, Any] = {
    "hidden_size": 1000,
    "intermediate_size": 2000,
    "num_hidden_layers": 100,
    "num_attention_heads": 10,
    "num_key_value_heads": 5,
    "vocab_size": 100_000,
    "tie_word_embeddings": True,
}
"""Layers: 100 x (2 x 1000 x 1000 + 2 x 1000 x 500 + 3 x 1000 x 2000) = 900 million weights. Output
layer: 100 million. So 2 GB, and 2 GFLOP for a sampled token."""

EVEN = Efficiency(
    engine=0.5,
    reference=0.5,
    gradient=0.25,
    canary_tokens=0.0,
    fixed=3.0,
    trainer_seconds=6.0,
)


def shape(folder: Path = Path("round")) -> ModelShape:
    return ModelShape("round", folder, 1000, 2000, 100, 1000, 500, 100_000, tied=True)


def model_folder(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", {**CONFIG, **changes})
    return folder


def box(**changes: Any) -> Box:
    """1 TFLOP/s and 100 GB/s: a decode iteration reads 2 GB in 20 ms, and computes a token in 4 ms
    at half of the FLOP/s."""
    values: dict[str, Any] = {
        "title": "round",
        "tflops": 1.0,
        "matmul_share": 1.0,
        "memory_gb_s": 100.0,
        "bandwidth_share": 1.0,
        "memory_gb": 100.0,
        "iteration_ms": 0.0,
        "disk_gb_s": 1.0,
        "start_seconds": 10.0,
        "link_gb_s": 1.0,
    }
    return Box(**{**values, **changes})


def work(**changes: Any) -> StepWork:
    """Four groups of four attempts; no context, so no KV cache."""
    values: dict[str, Any] = {
        "episodes": 16.0,
        "group_size": 4,
        "turns": 0.0,
        "sampled": 1600.0,
        "read": 0.0,
        "longest": 200.0,
        "context": 0.0,
        "inputs": 1000.0,
        "scored": 1000.0,
        "is_exact": True,
    }
    return StepWork(**{**values, **changes})


def smallest_trainer(model: ModelShape, context: int = 0, *, checkpointing: bool = False) -> float:
    """Bytes of a trainer without LoRA and with its smallest micro-batch."""
    each = activation_bytes(model.folder, 2, checkpointing, targets=DEFAULT_TARGETS)
    return 2e9 + TRAINER_BYTES + max(1024, context) * each
