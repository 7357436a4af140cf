"""What NVML tells on a machine with NVIDIA GPUs, which this one has not."""

from __future__ import annotations

import os
from types import SimpleNamespace

from fieldkit.gate.memory import GIB


class FakeNvml:
    """NVML of a box with two GPUs, the second of which has no memory of its own."""

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetName(self, gpu: int) -> str:
        return ("first", "second")[gpu]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[SimpleNamespace]:
        """This process on both; NVML does not know what it holds on the second."""
        return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=(GIB, None)[gpu])]

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index > 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid != "GPU-first":
            raise self.NVMLError
        return 0

    def nvmlDeviceGetMemoryInfo(self, gpu: int) -> SimpleNamespace:
        if gpu == 1:
            raise self.NVMLError
        return SimpleNamespace(free=3 * GIB, total=4 * GIB)
