"""The memory gate names a budget that fits, before anything is loaded."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from fieldkit.errors import Shortage
from fieldkit.gate.memory import Available
from tests.trainer.conftest import make_group
from trainer import budget as trainer_budget
from trainer.batch import Segment, collect, micro_batches
from trainer.budget import (
    Budget,
    activation_bytes,
    require_memory,
    smaller_budget,
    weight_bytes,
)
from trainer.settings import TrainerSettings

SETTINGS = TrainerSettings()


@pytest.fixture
def batches() -> tuple[tuple[Segment, ...], ...]:
    groups = [make_group(random.Random(i), "a", f"t{i}") for i in range(4)]
    return micro_batches(collect(groups, SETTINGS).segments, SETTINGS)


def with_room(monkeypatch: pytest.MonkeyPatch, host: int, gpu: int | None = None) -> None:
    monkeypatch.setattr(trainer_budget, "available", lambda: Available(host, gpu))


def needed(model: Path) -> int:
    """What is needed before the first token, from the error itself."""
    return weight_bytes(model, 4) + trainer_budget._FIXED_BYTES + trainer_budget._LOGIT_BUFFERS


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


# --- after a kill ---------------------------------------------------------------------------------


def budget(
    tiny_model: Path,
    batches: tuple[tuple[Segment, ...], ...],
    monkeypatch: pytest.MonkeyPatch,
    fit: int,
) -> Budget:
    """The answer where so many tokens fit into the memory that is available."""
    per_token = activation_bytes(tiny_model, 4, checkpointing=False)
    with_room(monkeypatch, needed(tiny_model) + fit * per_token)
    return smaller_budget(tiny_model, batches, SETTINGS, 4)


def test_after_a_kill_the_budget_is_what_fits_and_makes_every_micro_batch_as_small(
    tiny_model: Path, batches: tuple[tuple[Segment, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = batches[0][0].n_inputs
    found = budget(tiny_model, batches, monkeypatch, fit=longest + 3)
    assert found.smaller == longest + 3
    smaller = TrainerSettings(tokens_per_microbatch=found.smaller)
    segments = [s for batch in batches for s in batch]
    for batch in micro_batches(segments, smaller):
        assert len(batch) * max(s.n_inputs for s in batch) <= longest + 3


def test_what_was_killed_although_it_should_have_fitted_gets_half_of_what_it_used(
    tiny_model: Path, batches: tuple[tuple[Segment, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = budget(tiny_model, batches, monkeypatch, fit=10**6)
    assert found.fits == 10**6
    assert found.smaller == found.largest // 2
    assert found.longest < found.largest // 2
    assert found.largest <= SETTINGS.microbatch_tokens


def test_there_is_no_smaller_budget_where_the_longest_segment_does_not_fit(
    tiny_model: Path, batches: tuple[tuple[Segment, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = batches[0][0].n_inputs
    assert budget(tiny_model, batches, monkeypatch, fit=longest - 1).smaller is None
    assert budget(tiny_model, batches, monkeypatch, fit=longest).smaller == longest


def test_there_is_no_smaller_budget_than_one_segment_at_a_time(
    tiny_model: Path, batches: tuple[tuple[Segment, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tuple((s,) for batch in batches for s in batch)
    assert budget(tiny_model, alone, monkeypatch, fit=10**6).smaller is None
