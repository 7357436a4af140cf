"""What this machine's processor can do. Linux only."""

from __future__ import annotations

from pathlib import Path


def cpu_features() -> frozenset[str]:
    """The instruction sets of this machine's processor, by the kernel's names for them."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    # x86 calls the line `flags`, Arm calls it `Features`.
    named = (line for line in lines if line.startswith(("flags", "Features")))
    return frozenset(word for line in named for word in line.partition(":")[2].split())
