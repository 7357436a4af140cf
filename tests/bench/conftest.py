"""The tiny model and its adapter are those of the trainer's tests."""

from __future__ import annotations

from tests.trainer.conftest import adapter, tiny_model

__all__ = ["adapter", "tiny_model"]
