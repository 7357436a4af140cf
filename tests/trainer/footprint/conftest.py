"""What tests of a step's memory share: one core, and machines with GPUs that nobody has."""

from __future__ import annotations

import pytest

from trainer.settings import TrainerSettings

SETTINGS = TrainerSettings(serving_dtype="float32")
"""Served as the base is trained here, so that it is not copied."""


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Micro-batches are computed one at a time, whatever this machine has."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def with_gpus(monkeypatch: pytest.MonkeyPatch, n: int, visible: str | None = None) -> None:
    """A machine with n GPUs, of which CUDA finds the visible ones; None: all."""
    monkeypatch.setattr("fieldkit.gate.nvidia.gpu_count", lambda: n)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
