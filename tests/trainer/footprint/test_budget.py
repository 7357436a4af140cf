"""The memory gate names a budget that fits, before anything is loaded."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import Shortage
from fieldkit.gate.memory import Available
from fieldkit.training.adapter import read_adapter, weight_bytes
from tests.trainer.conftest import make_group
from tests.trainer.footprint.conftest import SETTINGS, with_gpus
from trainer.batch import collect
from trainer.footprint import budget as trainer_budget
from trainer.footprint import step_bytes
from trainer.footprint.budget import Budget, require_memory, require_whole_bases, smaller_budget
from trainer.footprint.step_bytes import activation_bytes, forecast
from trainer.scoring.micro_batch import Micro, copies, micro_batches, tokens
from trainer.settings import TrainerSettings

COPIED = TrainerSettings(serving_dtype="bfloat16", tokens_per_microbatch=1)
"""A base in float32 is copied for the canary."""


@pytest.fixture
def batches() -> tuple[Micro, ...]:
    groups = [make_group(random.Random(i), "a", f"t{i}") for i in range(4)]
    return micro_batches(collect(groups, SETTINGS).segments, SETTINGS, shared=True)


def with_room(monkeypatch: pytest.MonkeyPatch, host: int, gpu: int | None = None) -> None:
    monkeypatch.setattr(trainer_budget, "available", lambda: Available(host, gpu))


def a_token(model: Path, allocator: float = step_bytes._ALLOCATOR) -> int:
    """What a token of a micro-batch needs."""
    return int(allocator * activation_bytes(model, 4, checkpointing=False))


def a_copy(model: Path) -> int:
    """What a position needs whose keys and values are kept once more: 2 layers, 32 wide."""
    return int(step_bytes._ALLOCATOR * 2 * 2 * 32 * 4)


def needed(model: Path) -> int:
    """What is needed before the first token."""
    return weight_bytes(model, 4) + step_bytes.PROCESS_BYTES + step_bytes._LOGIT_BUFFERS


def test_the_weights_are_counted_from_the_files(tiny_model: Path) -> None:
    embedding, attention, mlp, norms = 97 * 32, 32 * (32 + 16 + 16 + 32), 3 * 32 * 64, 2 * 32
    assert weight_bytes(tiny_model, 2) == 2 * (embedding + 2 * (attention + mlp + norms) + 32)


def test_enough_memory_is_enough(tiny_model: Path, batches: tuple[Micro, ...]) -> None:
    require_memory(tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=False)


def test_a_shortage_names_a_budget_that_then_fits(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(s.n_inputs for batch in batches for s in batch)
    per_token = a_token(tiny_model)
    with_room(monkeypatch, needed(tiny_model) + (longest + 3) * per_token)
    with pytest.raises(Shortage) as error:
        require_memory(tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=False)
    budget = re.search(r"set trainer.tokens_per_microbatch = (\d+)", str(error.value))
    assert budget is not None
    smaller = TrainerSettings(tokens_per_microbatch=int(budget[1]))
    segments = [s for batch in batches for s in batch]
    again = micro_batches(segments, smaller, shared=True)
    require_memory(tiny_model, again, smaller, 4, shared=True, on_gpu=False)


def test_micro_batches_that_are_computed_in_parallel_have_to_fit_together(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [s for batch in batches for s in batch]
    small = replace(SETTINGS, tokens_per_microbatch=40)
    several = micro_batches(segments, small, shared=True)

    def check(room: int) -> None:
        with_room(monkeypatch, room)
        require_memory(tiny_model, several, small, 4, shared=True, on_gpu=False)

    sizes = sorted(
        tokens(b, True) * a_token(tiny_model) + copies(b, True) * a_copy(tiny_model)
        for b in several
    )
    alone = needed(tiny_model) + sizes[-1]
    check(alone)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    two = alone + sizes[-2]
    check(two)
    with pytest.raises(Shortage, match=r"of \d+ tokens, 2 at a time, needs about"):
        check(two - 1)


def test_of_segments_longer_than_the_budget_one_has_to_fit_whatever_is_computed_in_parallel(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A night that fits into its forecast must not need more where episodes fill the context."""
    segments = [s for batch in batches for s in batch]
    longest = max(s.n_inputs for s in segments)
    small = replace(SETTINGS, tokens_per_microbatch=longest // 3)
    several = micro_batches(segments, small, shared=True)
    assert sum(tokens(b, shared=True) > small.microbatch_tokens for b in several) > 2
    with_gpus(monkeypatch, 0)
    monkeypatch.setattr(trainer_budget, "_has_tcmalloc", lambda: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    foreseen = forecast(tiny_model, small, 4, longest_segment=longest, tcmalloc=True)
    usual = forecast(tiny_model, small, 4, tcmalloc=True)
    assert usual < foreseen < usual + longest * a_token(tiny_model)

    def check(room: int) -> None:
        with_room(monkeypatch, room)
        require_memory(tiny_model, several, small, 4, shared=True, on_gpu=False)

    check(foreseen)
    with pytest.raises(Shortage, match=rf"of {longest} tokens needs .* the longest segment alone"):
        check(needed(tiny_model) + (longest - 1) * a_token(tiny_model, 1.0))


def test_the_forecast_counts_what_is_computed_in_parallel(
    tiny_model: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = read_adapter(adapter)
    alone = forecast(tiny_model, SETTINGS, 4, info, tcmalloc=True)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    three = forecast(tiny_model, SETTINGS, 4, info, tcmalloc=True)
    gradients = 5 * weight_bytes(adapter, 4)
    tokens_of = SETTINGS.microbatch_tokens * (a_token(tiny_model, 1.0) + 2 * 2 * 2 * 32 * 4)
    assert three - alone == gradients + 2 * tokens_of


def test_a_segment_that_fits_no_budget_is_told_what_helps(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, needed(tiny_model))
    with pytest.raises(Shortage, match="gradient_checkpointing"):
        require_memory(tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=False)


def test_what_the_forecast_needs_with_tcmalloc_is_enough_for_the_step(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop waits until the forecast is available, so the trainer must not ask for more."""
    largest = max(tokens(batch, shared=True) for batch in batches)
    settings = replace(SETTINGS, tokens_per_microbatch=largest)
    with_gpus(monkeypatch, 0)
    with_room(monkeypatch, forecast(tiny_model, settings, 4, tcmalloc=True))
    with pytest.raises(Shortage):
        require_memory(tiny_model, batches, settings, 4, shared=True, on_gpu=False)
    monkeypatch.setattr(trainer_budget, "_has_tcmalloc", lambda: True)
    require_memory(tiny_model, batches, settings, 4, shared=True, on_gpu=False)


@pytest.mark.parametrize("own_memory", [True, False])
def test_what_the_forecast_needs_on_a_gpu_is_enough_for_the_step(
    own_memory: bool,
    tiny_model: Path,
    batches: tuple[Micro, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A DGX Spark's GPU has no memory of its own, and PyTorch's allocator all the same."""
    largest = max(tokens(batch, shared=True) for batch in batches)
    settings = replace(SETTINGS, tokens_per_microbatch=largest)
    with_gpus(monkeypatch, 1)
    room = forecast(tiny_model, settings, 4)
    with_room(monkeypatch, 0, room) if own_memory else with_room(monkeypatch, room)
    require_memory(tiny_model, batches, settings, 4, shared=True, on_gpu=True)
    room //= 2
    with_room(monkeypatch, 0, room) if own_memory else with_room(monkeypatch, room)
    with pytest.raises(Shortage):
        require_memory(tiny_model, batches, settings, 4, shared=True, on_gpu=True)


def test_what_is_set_already_is_not_given_as_advice(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, gradient_checkpointing=True)
    with_room(monkeypatch, needed(tiny_model))
    with pytest.raises(
        Shortage, match=r"tokens and 0 fit: take fewer rollout.max_turns in a new run$"
    ):
        require_memory(tiny_model, batches, settings, 4, shared=True, on_gpu=False)


def test_a_base_that_does_not_fit_is_named_and_no_copy_of_it(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, needed(tiny_model) - 1)
    for settings in (SETTINGS, COPIED):
        with pytest.raises(Shortage, match=r"^a step before its first .* available; free memory$"):
            require_memory(tiny_model, batches, settings, 4, shared=True, on_gpu=False)


def test_on_a_gpu_its_own_memory_counts_and_shared_memory_is_the_host_s(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty = 2**40
    with_room(monkeypatch, host=plenty, gpu=2**20)
    with pytest.raises(Shortage):
        require_memory(tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=True)
    with_room(monkeypatch, host=plenty, gpu=None)
    require_memory(tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=True)


def test_a_prefix_counts_again_for_each_sequence_that_follows_it(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four attempts of one task that have their first prompt in common."""
    group = make_group(random.Random(0), "a", "t", prompt=range(5, 45))
    segments = collect([group], SETTINGS).segments
    assert len({s.ids[:40] for s in segments}) == 1
    shared, padded = ((tuple(segments),),) * 2
    n, copied = tokens(shared[0], shared=True), copies(shared[0], shared=True)
    assert copied >= (len(segments) - 1) * 40
    assert n + copied == sum(s.n_inputs for s in segments)
    assert copies(padded[0], shared=False) == 0
    need = needed(tiny_model) + n * a_token(tiny_model) + copied * a_copy(tiny_model)
    with_room(monkeypatch, need)
    require_memory(tiny_model, shared, SETTINGS, 4, shared=True, on_gpu=False)
    with_room(monkeypatch, need - 1)
    with pytest.raises(Shortage, match="a micro-batch of"):
        require_memory(tiny_model, shared, SETTINGS, 4, shared=True, on_gpu=False)


def test_a_gpu_s_allocator_gives_back_what_it_keeps_before_a_step_is_refused(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = max(tokens(batch, shared=True) for batch in batches)
    least = needed(tiny_model) + largest * a_token(tiny_model, step_bytes._GPU_ALLOCATOR)
    with_room(monkeypatch, host=0, gpu=least)
    require_memory(tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=True)
    with_room(monkeypatch, host=0, gpu=least - 1)
    with pytest.raises(Shortage, match="a micro-batch of"):
        require_memory(tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=True)


def test_processes_of_one_step_share_the_host_s_memory_and_have_each_a_gpu(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = max(tokens(batch, shared=True) for batch in batches)
    one = needed(tiny_model) + largest * a_token(tiny_model)

    def require(host: int, gpu: int | None, on_gpu: bool) -> None:
        with_room(monkeypatch, host, gpu)
        require_memory(tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=on_gpu, beside=2)

    require(2 * one, None, on_gpu=False)
    require(0, one, on_gpu=True)
    with pytest.raises(
        Shortage, match=r"for each of 2 processes; .*; or set trainer.processes to less"
    ):
        require(2 * one - 2, None, on_gpu=False)


def test_of_a_sharded_base_a_gpu_holds_a_part_and_two_layers_and_the_host_all_of_it_at_first(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = weight_bytes(tiny_model, 4)
    embedding = 4 * 97 * 32  # tied, and outside the layers
    layers = whole - embedding
    part = embedding + layers // 8 + layers  # of the two layers that it has
    largest = max(tokens(batch, shared=True) for batch in batches)
    rest = needed(tiny_model) - whole + largest * a_token(tiny_model, step_bytes._GPU_ALLOCATOR)

    def require(host: int, gpu: int) -> None:
        with_room(monkeypatch, host, gpu)
        require_memory(
            tiny_model, batches, SETTINGS, 4, shared=True, on_gpu=True, beside=8, shards=8
        )

    require(8 * whole, part + rest)
    with pytest.raises(Shortage, match="a micro-batch of"):
        require(8 * whole, part + rest - 1)
    with pytest.raises(Shortage, match="each of 8 processes loads the whole base"):
        require(8 * whole - 8, part + rest)
    with pytest.raises(Shortage, match="each of 8 processes loads the whole base"):
        require_whole_bases(tiny_model, 4, 8)  # as a run's start asks
    with_room(monkeypatch, 8 * whole, part + rest)
    require_whole_bases(tiny_model, 4, 8)


def test_a_rank_without_a_segment_needs_what_a_program_needs(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, needed(tiny_model))
    require_memory(tiny_model, (), SETTINGS, 4, shared=True, on_gpu=False)


def test_a_base_that_is_served_in_another_dtype_is_copied_after_the_last_micro_batch(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step holds the micro-batch or the copy, the larger one; here that of one token is small."""
    copy, token = weight_bytes(tiny_model, 2), a_token(tiny_model)
    assert token < copy < 1000 * token
    with_gpus(monkeypatch, 0)
    assert forecast(tiny_model, COPIED, 4) == needed(tiny_model) + copy
    larger = needed(tiny_model) + 1000 * (token + 2 * a_copy(tiny_model))
    assert forecast(tiny_model, COPIED, 4, longest_segment=1000) == larger
    alike = replace(COPIED, serving_dtype="float32")
    assert forecast(tiny_model, alike, 4) == needed(tiny_model) + token + 2 * a_copy(tiny_model)


def test_a_copy_that_does_not_fit_is_a_shortage_that_no_micro_batch_mends(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    need = needed(tiny_model) + weight_bytes(tiny_model, 2)
    with_room(monkeypatch, need)
    require_memory(tiny_model, (), COPIED, 4, shared=True, on_gpu=False)
    assert smaller_budget(tiny_model, batches, COPIED, 4, shared=True).fits > 0
    with_room(monkeypatch, need - 1)
    with pytest.raises(
        Shortage, match=r"the canary's copy of the base .* free memory; training in"
    ):
        require_memory(tiny_model, (), COPIED, 4, shared=True, on_gpu=False)
    assert smaller_budget(tiny_model, batches, COPIED, 4, shared=True).fits == 0
    require_memory(tiny_model, (), SETTINGS, 4, shared=True, on_gpu=False)


# --- after a kill ---------------------------------------------------------------------------------


def budget(
    tiny_model: Path,
    batches: tuple[Micro, ...],
    monkeypatch: pytest.MonkeyPatch,
    fit: int,
) -> Budget:
    """The answer where so many tokens fit into the memory that is available."""
    per_token = a_token(tiny_model)
    with_room(monkeypatch, needed(tiny_model) + fit * per_token)
    return smaller_budget(tiny_model, batches, SETTINGS, 4, shared=True)


def test_after_a_kill_the_budget_is_what_fits_and_makes_every_micro_batch_as_small(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(s.n_inputs for batch in batches for s in batch)
    found = budget(tiny_model, batches, monkeypatch, fit=longest + 3)
    assert found.smaller == longest + 3
    smaller = TrainerSettings(tokens_per_microbatch=found.smaller)
    segments = [s for batch in batches for s in batch]
    for batch in micro_batches(segments, smaller, shared=True):
        assert tokens(batch, shared=True) <= longest + 3


def test_what_was_killed_although_it_should_have_fitted_gets_half_of_what_it_used(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = budget(tiny_model, batches, monkeypatch, fit=10**6)
    assert found.fits == 10**6
    assert found.smaller == found.largest // 2
    assert found.longest < found.largest // 2
    assert found.largest <= SETTINGS.microbatch_tokens


def test_after_a_kill_a_budget_below_the_longest_segment_helps_where_two_were_computed_at_a_time(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    alone = tuple((s,) for batch in batches for s in batch)
    longest = max(s.n_inputs for batch in batches for s in batch)
    found = budget(tiny_model, alone, monkeypatch, fit=10**6)
    assert found.largest == longest
    assert found.smaller == found.least == -(-longest // 2)
    assert budget(tiny_model, alone, monkeypatch, fit=longest - 2).smaller is None
    with_room(monkeypatch, 2**40)
    overlong = replace(SETTINGS, tokens_per_microbatch=1)
    assert smaller_budget(tiny_model, alone, overlong, 4, shared=True).smaller is None


def test_after_a_kill_beside_a_gpu_in_the_hosts_memory_one_micro_batch_is_computed_at_a_time(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    alone = tuple((s,) for batch in batches for s in batch)
    assert budget(tiny_model, alone, monkeypatch, fit=10**6).at_a_time > 1
    with_gpus(monkeypatch, 1)
    assert budget(tiny_model, alone, monkeypatch, fit=10**6).smaller is None


def test_after_a_kill_more_fits_with_tcmalloc(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    without = budget(tiny_model, batches, monkeypatch, fit=100).fits
    found = smaller_budget(tiny_model, batches, SETTINGS, 4, shared=True, tcmalloc=True)
    assert found.fits == pytest.approx(1.5 * without, rel=0.02)


def test_after_a_kill_each_of_two_processes_has_half_of_the_memory(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch, 2 * (needed(tiny_model) + 50 * a_token(tiny_model)))
    two = replace(SETTINGS, processes=2)
    assert smaller_budget(tiny_model, batches, two, 4, shared=True).fits == 50


def test_there_is_no_smaller_budget_where_the_longest_segment_does_not_fit(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = max(s.n_inputs for batch in batches for s in batch)
    assert budget(tiny_model, batches, monkeypatch, fit=longest - 1).smaller is None
    assert budget(tiny_model, batches, monkeypatch, fit=longest).smaller == longest


def test_there_is_no_smaller_budget_than_one_segment_at_a_time(
    tiny_model: Path, batches: tuple[Micro, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = tuple((s,) for batch in batches for s in batch)
    assert budget(tiny_model, alone, monkeypatch, fit=10**6).smaller is None
