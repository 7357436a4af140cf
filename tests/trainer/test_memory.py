"""The memory gate names a budget that fits, before anything is loaded."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from fieldkit.errors import Shortage
from fieldkit.memory import Available
from tests.trainer.conftest import make_group
from trainer import memory
from trainer.batch import Segment, collect, micro_batches
from trainer.memory import activation_bytes, require_memory, weight_bytes
from trainer.settings import TrainerSettings

SETTINGS = TrainerSettings()


@pytest.fixture
def batches() -> tuple[tuple[Segment, ...], ...]:
    groups = [make_group(random.Random(i), "a", f"t{i}") for i in range(4)]
    return micro_batches(collect(groups, SETTINGS).segments, SETTINGS)


def with_room(monkeypatch: pytest.MonkeyPatch, host: int, gpu: int | None = None) -> None:
    monkeypatch.setattr(memory, "available", lambda: Available(host, gpu))


def needed(model: Path) -> int:
    """What is needed before the first token, from the error itself."""
    return weight_bytes(model, 4) + memory._FIXED_BYTES + memory._LOGIT_BUFFERS


def test_the_weights_are_counted_from_the_files(tiny_model: Path) -> None:
    embedding, attention, mlp, norms = 97 * 32, 32 * (32 + 16 + 16 + 32), 3 * 32 * 64, 2 * 32
    assert weight_bytes(tiny_model, 2) == 2 * (embedding + 2 * (attention + mlp + norms) + 32)


def test_enough_memory_is_enough(
    tiny_model: Path, batches: tuple[tuple[Segment, ...], ...]
) -> None:
    require_memory(tiny_model, batches, SETTINGS, 4, on_gpu=False)


def test_a_shortage_names_a_budget_that_then_fits(
    tiny_model: Path, batches: tuple[tuple[Segment, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = batches[0][0].n_inputs
    per_token = activation_bytes(tiny_model, 4, checkpointing=False)
    with_room(monkeypatch, needed(tiny_model) + (longest + 3) * per_token)
    with pytest.raises(Shortage) as error:
        require_memory(tiny_model, batches, SETTINGS, 4, on_gpu=False)
    budget = re.search(r"set tokens_per_microbatch to (\d+)", str(error.value))
    assert budget is not None
    smaller = TrainerSettings(tokens_per_microbatch=int(budget[1]))
    segments = [s for batch in batches for s in batch]
    require_memory(tiny_model, micro_batches(segments, smaller), smaller, 4, on_gpu=False)


def test_a_segment_that_fits_no_budget_is_told_what_helps(
    tiny_model: Path, batches: tuple[tuple[Segment, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, needed(tiny_model))
    with pytest.raises(Shortage, match="gradient_checkpointing"):
        require_memory(tiny_model, batches, SETTINGS, 4, on_gpu=False)


def test_on_a_gpu_its_own_memory_counts_and_shared_memory_is_the_host_s(
    tiny_model: Path, batches: tuple[tuple[Segment, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty = 2**40
    with_room(monkeypatch, host=plenty, gpu=2**20)
    with pytest.raises(Shortage):
        require_memory(tiny_model, batches, SETTINGS, 4, on_gpu=True)
    with_room(monkeypatch, host=plenty, gpu=None)
    require_memory(tiny_model, batches, SETTINGS, 4, on_gpu=True)


def test_checkpointing_and_a_narrow_base_need_less(tiny_model: Path) -> None:
    full = activation_bytes(tiny_model, 4, checkpointing=False)
    assert activation_bytes(tiny_model, 2, checkpointing=False) * 2 == full
    assert activation_bytes(tiny_model, 4, checkpointing=True) < full
