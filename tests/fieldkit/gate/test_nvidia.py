"""Which GPUs CUDA shows, and whether the driver answers about them."""

from __future__ import annotations

import sys

import pytest

from fieldkit.gate import nvidia
from fieldkit.gate.memory import GIB, gpu_total
from tests.fieldkit.gate.fake_nvml import FakeNvml


@pytest.mark.parametrize(
    ("said", "visible"),
    [
        (None, ["0", "1"]),
        ("1", ["1"]),
        ("0,1,2", ["0", "1"]),
        ("1, GPU-first", ["1", "GPU-first"]),
        ("0,-1,1", ["0"]),
        ("-1", []),
        ("", []),
    ],
)
def test_the_gpus_that_cuda_shows_are_those_named_up_to_the_first_that_is_none(
    monkeypatch: pytest.MonkeyPatch, said: str | None, visible: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if said is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert nvidia.visible_gpus() == visible


def test_where_nobody_counts_the_gpus_every_number_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert nvidia.visible_gpus() == ["4", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert nvidia.visible_gpus() == []


def test_a_driver_that_does_not_answer_is_told_from_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ill(FakeNvml):
        def __init__(self, at_once: Exception | None, later: Exception | None = None) -> None:
            self.at_once, self.later = at_once, later

        def nvmlInit(self) -> None:
            if self.at_once is not None:
                raise self.at_once

        def nvmlDeviceGetName(self, gpu: int) -> str:
            if self.later is not None:
                raise self.later
            return super().nvmlDeviceGetName(gpu)

    def fault(nvml: FakeNvml | None) -> str | None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvidia.gpu_fault()

    assert fault(None) is None
    assert fault(Ill(None)) is None
    assert fault(Ill(FakeNvml.NVMLError_LibraryNotFound("no library"))) is None
    assert fault(Ill(FakeNvml.NVMLError("version mismatch"))) == "version mismatch"
    assert fault(Ill(None, FakeNvml.NVMLError("GPU is lost"))) == "GPU is lost"


def test_a_lost_gpu_that_cuda_does_not_show_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class SecondLost(FakeNvml):
        def nvmlDeviceGetName(self, gpu: int) -> str:
            if gpu == 1:
                raise self.NVMLError("GPU is lost")
            return super().nvmlDeviceGetName(gpu)

    monkeypatch.setitem(sys.modules, "pynvml", SecondLost())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (nvidia.visible_gpus(), gpu_total()) == (["0", "1"], 4 * GIB)
    assert nvidia.gpu_fault() == "GPU is lost"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert nvidia.gpu_fault() is None
