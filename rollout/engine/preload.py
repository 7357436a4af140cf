"""What engine and trainer are given on a CPU: tcmalloc, and threads that wait asleep.

Both allocate and free blocks of megabytes in every layer. glibc's malloc gives many of them back to
the kernel, which has to clear their pages again; tcmalloc keeps them. It changes no result. It is
never required: where the system lacks it both run without.

OpenMP's threads wait for one another at the end of each product, and by default they spin. Where
another program has one of the cores, the spinning thread keeps the other one busy for nothing. It
changes no result either.
"""

from __future__ import annotations

import ctypes.util
from collections.abc import Mapping

VARIABLE = "LD_PRELOAD"

WAIT_POLICY = "OMP_WAIT_POLICY"
"""OpenMP's own variable: "passive" threads sleep while they wait."""

ABSENT = (
    "tcmalloc is not installed: engine and trainer run without it, somewhat slower; `make system` "
    "installs it"
)

# Debian's libtcmalloc-minimal4, then what gperftools installs on other systems.
_NAMES = ("tcmalloc_minimal", "tcmalloc")


def tcmalloc() -> str | None:
    """The library's name as the dynamic linker finds it; None where the system lacks it."""
    return next((found for name in _NAMES if (found := ctypes.util.find_library(name))), None)


def waiting_asleep(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` in which OpenMP's threads wait asleep, unless it says how they wait."""
    return {WAIT_POLICY: "passive", **environment}


def preloaded(environment: Mapping[str, str], library: str | None) -> dict[str, str]:
    """`environment` with `library` before whatever it preloads already; None adds nothing."""
    if library is None:
        return dict(environment)
    already = environment.get(VARIABLE, "").replace(":", " ").split()
    words = [library, *(word for word in already if word != library)]
    return {**environment, VARIABLE: " ".join(words)}
