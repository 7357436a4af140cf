"""The system calls that a command in the box may not make, as a seccomp filter for bubblewrap.

A network namespace hides the host's devices, but some socket families use no device: AF_VSOCK
reaches the hypervisor from any namespace. So only families that cannot leave the box can be opened,
and io_uring, which opens sockets without the socket call, cannot be set up. Also refused are calls
that shell work does not need and that often have kernel bugs; memory that no process limit counts;
and resources that the kernel counts for a user of the host, which one episode could use up for all.
The filter is classic BPF (linux/seccomp.h, linux/filter.h), which is short enough to need no
library.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from dataclasses import dataclass

from fieldkit.errors import Unavailable

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
FAMILIES = (AF_UNIX, AF_INET, AF_INET6)
"""Within the box only: its network namespace has nothing but a loopback of its own."""


@dataclass(frozen=True)
class Machine:
    """An architecture's numbers: AUDIT_ARCH_* and those of its system calls (asm/unistd.h).

    setsid: succeeds and does nothing. The kernel divides CPU time among sessions first (sched(7),
    autogroup), so a command with 50 sessions would get 50 times the share of another episode. There
    is no terminal to leave, and daemons end with the box. foreign: calls from this number on belong
    to another ABI of the same machine; 0 if there is none.
    """

    audit: int
    socket: int
    setsid: int
    refused: dict[str, int]
    foreign: int = 0


MACHINES = {
    "x86_64": Machine(
        audit=0xC000_003E,
        socket=41,
        setsid=112,
        refused={
            "ptrace": 101,
            "add_key": 248,
            "request_key": 249,
            "keyctl": 250,
            "perf_event_open": 298,
            "bpf": 321,
            "userfaultfd": 323,
            "io_uring_setup": 425,
            # Each descriptor or segment is a file in memory that counts in no process's size.
            "memfd_create": 319,
            "memfd_secret": 447,
            "shmget": 29,
            "semget": 64,
            "msgget": 68,
            # The kernel counts these over all boxes and the person who runs them.
            "inotify_init": 253,
            "inotify_init1": 294,
            "fanotify_init": 300,
            "mq_open": 240,
            # The kernel's log has messages about other processes.
            "syslog": 103,
            # A box keeps the CPUs that it was given (rollout/sandbox/cpus.py).
            "sched_setaffinity": 203,
        },
        foreign=0x4000_0000,  # the x32 ABI: the same calls under other numbers
    ),
    "aarch64": Machine(
        audit=0xC000_00B7,
        socket=198,
        setsid=157,
        refused={
            "ptrace": 117,
            "add_key": 217,
            "request_key": 218,
            "keyctl": 219,
            "perf_event_open": 241,
            "bpf": 280,
            "userfaultfd": 282,
            "io_uring_setup": 425,
            "memfd_create": 279,
            "memfd_secret": 447,
            "shmget": 194,
            "semget": 190,
            "msgget": 186,
            "inotify_init1": 26,
            "fanotify_init": 262,
            "mq_open": 180,
            "syslog": 116,
            "sched_setaffinity": 122,
        },
    ),
}

# Offsets in struct seccomp_data. Both machines are little-endian, so the first word of an argument
# is its low one, which holds a socket's family, an int.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16

_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000

REFUSED = _ERRNO | errno.ENOSYS
NO_FAMILY = _ERRNO | errno.EAFNOSUPPORT
NOTHING_DONE = _ERRNO | 0
"""The call returns 0 and has had no effect."""


@functools.cache
def make_filter(machine: str | None = None) -> bytes:
    """The filter as the array of `struct sock_filter` that `bwrap --seccomp` reads.

    machine: as `platform.machine()` says. Raises `Unavailable` for one without a table here.
    """
    name = machine or platform.machine()
    if name not in MACHINES:
        raise Unavailable(
            f"the sandbox has no system call filter for {name} (it has: {', '.join(MACHINES)}); "
            "without any, `--sandbox none` behind `grpo run RUN` runs the policy's commands as "
            "you, unprotected"
        )
    m = MACHINES[name]
    program = [_load(_ARCHITECTURE), *_unless(_IF_EQUAL, m.audit, REFUSED), _load(_NUMBER)]
    if m.foreign:
        program += _when(_IF_AT_LEAST, m.foreign, REFUSED)
    for number in m.refused.values():
        program += _when(_IF_EQUAL, number, REFUSED)
    program += _when(_IF_EQUAL, m.setsid, NOTHING_DONE)
    program += [*_unless(_IF_EQUAL, m.socket, _ALLOW), _load(_FIRST_ARGUMENT)]
    for family in FAMILIES:
        program += _when(_IF_EQUAL, family, _ALLOW)
    return b"".join([*program, _instruction(_RETURN, NO_FAMILY)])


def _instruction(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, k)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _when(test: int, k: int, verdict: int) -> list[bytes]:
    """Return `verdict` where the test holds, else go on."""
    return [_instruction(test, k, if_false=1), _instruction(_RETURN, verdict)]


def _unless(test: int, k: int, verdict: int) -> list[bytes]:
    """Return `verdict` where the test does not hold, else go on."""
    return [_instruction(test, k, if_true=1), _instruction(_RETURN, verdict)]
