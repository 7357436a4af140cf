"""Which NVIDIA GPUs there are, by what the driver says (NVML), without loading CUDA.

NVML counts all GPUs of the machine; CUDA shows a process those that CUDA_VISIBLE_DEVICES names.
Without the package nvidia-ml-py nothing can be asked. Nothing here measures memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import takewhile
from typing import Any


def binding() -> Any | None:
    """The module of nvidia-ml-py; None where it is missing."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def nvml() -> Any | None:
    """The same, initialised; None without a driver that answers, too."""
    found = binding()
    if found is None:
        return None
    try:
        found.nvmlInit()
    except found.NVMLError:
        return None
    return found


def handles(nvml: Any) -> Iterable[Any]:
    """Of all GPUs, in NVML's order. Raises `NVMLError`."""
    return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]


def handle(name: str, nvml: Any) -> Any:
    """Of a GPU, by its name in CUDA_VISIBLE_DEVICES. Raises `NVMLError` where there is none."""
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


def gpu_count() -> int:
    """NVIDIA GPUs of this machine, also lost ones; 0 without driver or binding."""
    found = nvml()
    if found is None:
        return 0
    try:
        return int(found.nvmlDeviceGetCount())
    except found.NVMLError:
        return 0


def gpu_names() -> list[str]:
    """Names of the NVIDIA GPUs, in order; none without driver or binding."""
    found = nvml()
    if found is None:
        return []
    try:
        return [str(found.nvmlDeviceGetName(gpu)) for gpu in handles(found)]
    except found.NVMLError:
        return []


def visible_gpus() -> list[str]:
    """The GPUs that CUDA shows this process, by the names that CUDA_VISIBLE_DEVICES takes, without
    loading CUDA: all, or those that the variable names, up to the first that is no device. Where
    the driver cannot count them, every number is taken for one.

    In a box with GPUs of several models CUDA counts the fastest first unless CUDA_DEVICE_ORDER is
    PCI_BUS_ID, which is NVML's order.
    """
    there = gpu_count()
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return [str(i) for i in range(there)]

    def is_device(name: str) -> bool:
        return int(name) < there or not there if name.isdecimal() else name not in ("", "-1")

    return list(takewhile(is_device, map(str.strip, said.split(","))))


def gpu_fault() -> str | None:
    """What the NVIDIA driver says in place of an answer about the GPUs that CUDA shows this
    process, as after its update until the machine is started anew, or for one that is lost. None
    where it answers, and where there is none."""
    found = binding()
    if found is None:
        return None
    try:
        found.nvmlInit()
        for name in visible_gpus():
            found.nvmlDeviceGetName(handle(name, found))
    except found.NVMLError_LibraryNotFound:
        return None
    except found.NVMLError as e:
        return str(e)
    return None
