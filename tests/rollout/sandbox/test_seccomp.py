"""What a command in the box may not ask the kernel for: on this kernel, and by the rules."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fieldkit.errors import Unavailable
from rollout.sandbox.base import Sandbox, SandboxSettings, make_sandbox
from rollout.sandbox.seccomp import (
    FAMILIES,
    MACHINES,
    NO_FAMILY,
    NOTHING_DONE,
    REFUSED,
    make_filter,
)

ALLOW = 0x7FFF_0000
AF_NETLINK, AF_PACKET, AF_VSOCK = 16, 17, 40
ENOSYS = 38

OPENS = """
for my $family (0..50) { for my $type (1, 2, 3, 5) {
    if (socket(my $s, $family, $type, 0)) { print "$family\\n"; last }
} }
"""


@pytest_asyncio.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    sandbox = make_sandbox(SandboxSettings(command_seconds=60), tmp_path)
    await sandbox.open({})
    try:
        yield sandbox
    finally:
        await sandbox.close()


# --- on this kernel -------------------------------------------------------------------------------


async def test_only_sockets_that_cannot_leave_the_box_can_be_opened(sandbox: Sandbox) -> None:
    result = await sandbox.run(f"perl -e '{OPENS}'")
    assert {int(line) for line in result.output.split()} == set(FAMILIES)


async def test_the_hypervisor_cannot_be_reached(sandbox: Sandbox) -> None:
    result = await sandbox.run(f'perl -e "socket(my \\$s, {AF_VSOCK}, 1, 0) or die \\"\\$!\\n\\""')
    assert result.exit_code != 0
    assert result.output == "Address family not supported by protocol\n"


async def test_what_leads_around_the_sockets_and_into_the_kernel_is_refused(
    sandbox: Sandbox,
) -> None:
    import platform

    for name, number in MACHINES[platform.machine()].refused.items():
        result = await sandbox.run(f'perl -e "syscall({number}, 0, 0, 0, 0); print \\$!+0"')
        assert result.output == str(ENOSYS), name


async def test_shell_work_goes_on_as_before(sandbox: Sandbox) -> None:
    pair = "use Socket; socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, 0) or die; print qq(pair\\n)"
    for command, said in (
        ("echo b a | tr ' ' '\\n' | sort | tee f | wc -l", "2\n"),
        ("sed -i s/a/c/ f && cat f", "c\nb\n"),
        ("mkfifo p; (echo through > p) & cat p", "through\n"),
        (f"perl -e '{pair}'", "pair\n"),
        ("seq 100 | xargs -P 4 -n 10 echo | wc -l", "10\n"),
    ):
        assert (await sandbox.run(command)).output == said, command


# --- by the filter's rules, for machines that are not this one ------------------------------------


def decide(machine: str, number: int, first: int = 0, audit: int | None = None) -> int:
    """What the filter returns for a call, by a reader of classic BPF."""
    program = list(struct.iter_unpack("=HBBI", make_filter(machine)))
    arch = MACHINES[machine].audit if audit is None else audit
    memory = struct.pack("=IIQQ", number, arch, 0, first)
    at, value = 0, 0
    while True:
        code, if_true, if_false, k = program[at]
        at += 1
        if code == 0x06:
            return int(k)
        if code == 0x20:
            (value,) = struct.unpack_from("=I", memory, k)
        else:
            holds = value == k if code == 0x15 else value >= k
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", list(MACHINES))
def test_every_refused_call_is_refused_and_others_are_not(machine: str) -> None:
    m = MACHINES[machine]
    assert {decide(machine, n) for n in m.refused.values()} == {REFUSED}
    others = set(range(500)) - set(m.refused.values()) - {m.socket, m.setsid}
    assert {decide(machine, n) for n in others} == {ALLOW}
    assert decide(machine, m.setsid) == NOTHING_DONE


@pytest.mark.parametrize("machine", list(MACHINES))
def test_sockets_are_decided_by_their_family(machine: str) -> None:
    socket = MACHINES[machine].socket
    assert {decide(machine, socket, family) for family in FAMILIES} == {ALLOW}
    for family in (AF_NETLINK, AF_PACKET, AF_VSOCK, 0, 45):
        assert decide(machine, socket, family) == NO_FAMILY


@pytest.mark.parametrize("machine", list(MACHINES))
def test_calls_of_another_architecture_are_refused(machine: str) -> None:
    assert decide(machine, 1, audit=0x4000_0003) == REFUSED  # 32-bit x86
    if MACHINES[machine].foreign:
        assert decide(machine, 0x4000_0000 + 1) == REFUSED  # x32


def test_a_machine_without_a_table_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="no system call filter for m68k"):
        make_filter("m68k")
