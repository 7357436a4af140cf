"""What a server holds, and whether engine and trainer fit, told before either is started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fieldkit.errors import BadInput, Shortage, Unavailable
from fieldkit.gate import memory, nvidia
from fieldkit.gate.memory import GIB, Available
from rollout.engine import vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.forecast import MemoryForecast, forecast, gpu_needed, memory_needed
from rollout.engine.lifecycle import GPU_MEMORY
from rollout.engine.replica import Replica
from rollout.engine.vllm_server import require_driver
from tests.conftest import TinyModel

GPU_BYTES = 80 * 2**30


def foreseen(tiny: TinyModel, **settings: object) -> int:
    return forecast(EngineSettings(**settings), tiny.folder, 0).engine  # type: ignore[arg-type]


def test_the_forecast_counts_every_server_and_every_rank(tiny: TinyModel) -> None:
    one = foreseen(tiny, one_process=False)
    assert foreseen(tiny, replicas=3) == 3 * one
    assert foreseen(tiny, replicas=0, urls=["http://gpu-box"]) == 0
    copies, parts = foreseen(tiny, data_parallel=2), foreseen(tiny, tensor_parallel=2)
    assert one + GIB < parts < copies < 2 * one, "a further cache and rank, and weights of its own"


@pytest.mark.parametrize(
    ("gpus", "settings", "servers"),
    [
        ("0", {}, 1),
        ("0", {"replicas": 2}, 2),
        ("0,1", {"replicas": 2}, 1),
        ("0,1", {"replicas": 3}, 2),
        ("0,1", {"replicas": 2, "tensor_parallel": 2}, 2),
    ],
)
def test_servers_that_share_a_gpu_take_its_memory_together(
    tiny: TinyModel,
    monkeypatch: pytest.MonkeyPatch,
    gpus: str,
    settings: dict[str, object],
    servers: int,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr(memory, "gpu_total", lambda: GPU_BYTES)
    monkeypatch.setattr(memory, "available", lambda: Available(GPU_BYTES, GPU_BYTES))
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    assert foreseen(tiny, gpu_memory_utilization=0.25, **settings) == servers * GPU_BYTES // 4


def with_gpu(monkeypatch: pytest.MonkeyPatch, total: int | None, weights: int) -> None:
    """A machine with a GPU of `total` bytes (None: it shares the host's), and a model."""
    monkeypatch.setattr(memory, "gpu_total", lambda: total)
    monkeypatch.setattr(memory, "total_host", lambda: 120 * GIB)
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    monkeypatch.setattr("rollout.engine.forecast.weight_bytes", lambda folder, item: weights)


@pytest.mark.parametrize(
    ("total", "weights", "settings", "says"),
    [
        (
            24,
            14,
            {},
            r"0\.4 of a GPU's 24\.0 GiB is 9\.6 GiB, and 14\.0 GiB of .*; set it to 0\.8$",
        ),
        (None, 60, {}, r"0\.4 of a GPU's 120\.0 GiB is 48\.0 GiB, .*; set it to 0\.65$"),
        (
            24,
            28,
            {"gpu_memory_utilization": 0.9},
            r"\(engine\.tensor_parallel\), or take a smaller",
        ),
        (24, 28, {"tensor_parallel": 2}, r"and 14\.0 GiB of .*; set it to 0\.8$"),
        (24, 14, {"data_parallel": 2}, r"and 14\.0 GiB of .*; set it to 0\.8$"),
    ],
)
def test_a_share_of_the_gpu_that_has_no_room_for_the_model_is_told_before_any_start(
    tiny: TinyModel,
    monkeypatch: pytest.MonkeyPatch,
    total: int | None,
    weights: int,
    settings: dict[str, Any],
    says: str,
) -> None:
    with_gpu(monkeypatch, total and total * GIB, weights * GIB)
    with pytest.raises(BadInput, match=says):
        memory_needed(tiny.folder, EngineSettings(**settings))


def test_servers_elsewhere_take_no_share_of_the_gpu_here(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch, 24 * GIB, 60 * GIB)
    assert foreseen(tiny, replicas=0, urls=["http://gpu-box"]) == 0


def test_weights_are_in_host_memory_only_where_the_server_sleeps(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(monkeypatch, 80 * GIB, 14 * GIB)
    programs = memory_needed(tiny.folder, EngineSettings())
    assert programs < 4 * GIB
    assert memory_needed(tiny.folder, EngineSettings(lifecycle="sleep")) == programs + 14 * GIB


@pytest.mark.parametrize(
    ("visible", "index", "bytes_"),
    [("0,1", 0, 40 * GIB), ("0,1", 1, None), ("0", 1, 40 * GIB), ("0,1", 2, 40 * GIB)],
)
def test_a_server_on_another_gpu_is_not_held_up_by_what_the_first_one_has_free(
    monkeypatch: pytest.MonkeyPatch, visible: str, index: int, bytes_: int | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(memory, "gpu_total", lambda: 80 * GIB)
    asked = gpu_needed(EngineSettings(gpu_memory_utilization=0.5), Replica(index, 3))
    assert asked == bytes_


def test_a_driver_that_does_not_answer_is_no_gpu_that_shares_the_hosts_memory(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia, "gpu_fault", lambda: "Driver/library version mismatch")
    require_driver()
    with_gpu(monkeypatch, None, GIB)
    with pytest.raises(Unavailable, match=r"answer \(Driver.* mismatch\); `nvidia-smi"):
        memory_needed(tiny.folder, EngineSettings())


def planned(engine: int, trainer: int, free: int) -> MemoryForecast:
    return MemoryForecast(engine * GIB, trainer * GIB, free * GIB, "memory")


def test_what_fits_at_once_runs_side_by_side_and_what_does_not_one_after_the_other() -> None:
    assert "side by side" in planned(3, 4, 7).told()
    assert "one after the other" in planned(3, 4, 6).told()


def test_a_run_that_restarts_where_both_fit_is_told_what_would_swap() -> None:
    told = replace(planned(3, 4, 7), lifecycle="restart").told()
    assert 'starts the server again for every adapter; "auto" swaps adapters in' in told
    assert "one after the other" in replace(planned(3, 4, 6), lifecycle="restart").told()


def test_a_server_that_keeps_its_memory_has_to_fit_beside_the_trainer() -> None:
    tight = replace(planned(3, 4, 6), lifecycle="hotswap")
    with pytest.raises(Shortage, match=r"not enough for both.*'hotswap'.*lifecycle = \"auto\""):
        tight.told()
    told = replace(tight, free=7 * GIB, longest=5 * GIB).told()
    assert "side by side, but for an episode that fills the context" in told
    assert "one after the other, so the server sleeps" in replace(tight, lifecycle="sleep").told()


def test_on_a_gpu_with_memory_of_its_own_the_way_to_keep_the_server_is_told() -> None:
    alone = planned(3, 4, 6)
    assert '"sleep" keeps it' not in alone.told()
    assert '"sleep" keeps it' in replace(alone, where=GPU_MEMORY).told()


def test_an_episode_that_does_not_fit_even_alone_is_told_in_the_evening() -> None:
    alone = planned(3, 4, 6)
    assert "An episode" not in replace(alone, longest=6 * GIB).told()
    told = replace(alone, longest=7 * GIB).told()
    assert "(7.0 for an episode that fills the context)" in told
    assert "does not fit even so: what it takes falls with engine.max_model_len" in told


def test_what_does_not_fit_alone_is_a_shortage_with_the_largest_holders() -> None:
    with pytest.raises(Shortage, match=r"trainer about 4\.0, 3\.0 GiB .*not enough.*holders: pid"):
        planned(2, 4, 3).told()
