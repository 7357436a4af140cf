"""What engine and trainer are given on a CPU: tcmalloc, and how their threads wait.

Both allocate and free blocks of megabytes in every layer. glibc's malloc gives many of them back to
the kernel, which has to clear their pages again; tcmalloc keeps them. It changes no result. It is
never required: where the system lacks it both run without.

OpenMP's threads wait for one another at the end of each product, some thousand times a second. A
thread that sleeps is woken late, which costs a third of all time where nothing else runs; one that
spins keeps its core from another program, perhaps from the one that it waits for. So threads spin
a little where the cores are free at the start, and sleep where they are not
(`tests/rollout/engine/wait_price.py` measures both). It changes no result either.
"""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Callable, Mapping

import psutil

VARIABLE = "LD_PRELOAD"

WAIT_POLICY = "OMP_WAIT_POLICY"
"""OpenMP's own variable: "passive" threads sleep while they wait."""

SPINS = "GOMP_SPINCOUNT"
"""GNU's: how many rounds a thread spins before it sleeps, whatever the policy."""

_A_LITTLE = "5000"
"""Rounds that outlast most waits. 20,000 gain hardly more and cost twice as much beside another
program."""

_LOOK_SECONDS, _FREE = 0.3, 50.0
"""For how long cores are looked at, and the per cent in use below which one is free."""

FREE_LOOKS = 3
"""How often in turn the cores have to be found free before a process whose threads sleep is
replaced: a start costs what some steps gain."""

ABSENT = (
    "tcmalloc is not installed: engine and trainer run without it, somewhat slower; `make system` "
    "installs it"
)

# Debian's libtcmalloc-minimal4, then what gperftools installs on other systems.
_NAMES = ("tcmalloc_minimal", "tcmalloc")


def tcmalloc() -> str | None:
    """The library's name as the dynamic linker finds it; None where the system lacks it."""
    return next((found for name in _NAMES if (found := ctypes.util.find_library(name))), None)


def cores_are_free() -> bool:
    """Whether no core that this process may use is in use for half of the next 0.3 s or more."""
    used = psutil.cpu_percent(_LOOK_SECONDS, percpu=True)
    ours = [used[core] for core in os.sched_getaffinity(0) if core < len(used)]
    return max(ours or used) < _FREE


def waiting(
    environment: Mapping[str, str], free: Callable[[], bool] = cores_are_free
) -> dict[str, str]:
    """`environment` in which OpenMP's threads wait as suits the cores now, unless it says how they
    wait. free: as `cores_are_free`."""
    if WAIT_POLICY in environment or SPINS in environment:
        return dict(environment)
    spins = {SPINS: _A_LITTLE} if free() else {}
    return {**environment, WAIT_POLICY: "passive", **spins}


def sleeps_for_now(before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether `waiting`, which made `after` of `before`, has threads sleep because the cores were
    in use, so that a process that starts later may be faster."""
    nobody_said = WAIT_POLICY not in before and SPINS not in before
    return nobody_said and WAIT_POLICY in after and SPINS not in after


def preloaded(environment: Mapping[str, str], library: str | None) -> dict[str, str]:
    """`environment` with `library` before whatever it preloads already; None adds nothing."""
    if library is None:
        return dict(environment)
    already = environment.get(VARIABLE, "").replace(":", " ").split()
    words = [library, *(word for word in already if word != library)]
    return {**environment, VARIABLE: " ".join(words)}
