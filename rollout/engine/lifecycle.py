"""How a new adapter reaches the server: one object for each way, and the choice between them.

A restart always works and costs a start each step. A swap costs a fraction of a second, but needs
a server that offers the calls for it, and memory for engine and trainer at the same time. A server
on a GPU can also sleep meanwhile, if it was started for that. What a server offers is probed while
it runs, and the reason is kept in words for the log and the journal. A new lifecycle is a class
with these methods and one line `LIFECYCLES.register(…)`.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

from fieldkit.errors import Unavailable
from fieldkit.registry import Registry

if TYPE_CHECKING:  # run.toml is read with every command, and few talk to a server
    from fieldkit.gate.memory import Available
    from rollout.engine.admin import Admin

AUTO = "auto"
"""The value of engine.lifecycle that leaves the choice to `decide`."""

GPU_MEMORY = "GPU memory"
"""A GPU's own, in a sentence."""


NEEDS = "the trainer needs about"
"""Words of a reason that speaks of memory."""


class RunningServer(Protocol):
    """What a lifecycle may ask of the run's server. The server answers requests."""

    def admin(self) -> Admin:
        """Its administrative calls; a context manager."""

    def serves_target(self) -> bool:
        """Whether every adapter of the target is loaded."""

    def can_hold_target(self) -> bool:
        """Whether it was started for adapters of the target's rank and layers."""

    def load_target(self) -> None:
        """Load what is missing of the target, then unload the rest."""

    def stop(self) -> int:
        """End it and see its memory come back."""


class Lifecycle(Protocol):
    """One way for adapters to change.

    name: the value of engine.lifecycle. keeps_memory: the server holds its memory while the trainer
    works, so both must fit. offers: the reason for it, in words.
    """

    name: str
    keeps_memory: bool
    offers: str

    def lacking(self, admin: Admin) -> str:
        """What the running server lacks for it, in words; empty where it has everything."""

    def bring(self, server: RunningServer) -> bool:
        """Have the running server serve the target; False where that takes a new server."""

    def release(self, server: RunningServer) -> None:
        """Give back, before training, the memory that the engine does not need meanwhile."""


class Restart:
    """A new server for every adapter."""

    name = "restart"
    keeps_memory = False
    offers = "it works with every server"

    def lacking(self, admin: Admin) -> str:
        return ""

    def bring(self, server: RunningServer) -> bool:
        return server.serves_target()

    def release(self, server: RunningServer) -> None:
        server.stop()


class Hotswap:
    """One server; adapters change under it."""

    name = "hotswap"
    keeps_memory = True
    offers = "the server has /v1/load_lora_adapter"

    def lacking(self, admin: Admin) -> str:
        return "" if admin.can_swap() else "this server answers 404 to /v1/load_lora_adapter"

    def bring(self, server: RunningServer) -> bool:
        if server.serves_target():
            return True
        if not server.can_hold_target():
            return False
        server.load_target()
        return True

    def release(self, server: RunningServer) -> None:
        """Nothing: the server goes on, and keeps its cache."""


class Sleep(Hotswap):
    """One server; while the trainer works, its weights lie in host memory. On a GPU only."""

    name = "sleep"
    keeps_memory = False
    offers = "the server has /sleep"

    def lacking(self, admin: Admin) -> str:
        return super().lacking(admin) or (
            "" if admin.can_sleep() else "this server answers 404 to /is_sleeping"
        )

    def bring(self, server: RunningServer) -> bool:
        """False too where it does not wake: somebody may have taken the memory that it had."""
        with server.admin() as admin:
            try:
                admin.wake()
            except Unavailable:
                return False
        return super().bring(server)

    def release(self, server: RunningServer) -> None:
        """Ends a server that does not fall asleep: it may be dead, and may hold memory."""
        try:
            with server.admin() as admin:
                admin.sleep()
        except Unavailable:
            server.stop()


RESTART, HOTSWAP, SLEEP = Restart(), Hotswap(), Sleep()

LIFECYCLES: Registry[Lifecycle] = Registry("lifecycle")
"""The best first: `auto` takes the first that server and memory allow."""
LIFECYCLES.register(HOTSWAP.name, HOTSWAP)
LIFECYCLES.register(SLEEP.name, SLEEP)
LIFECYCLES.register(RESTART.name, RESTART)

CHOICES: ChainMap[str, Any] = ChainMap(
    cast(
        "dict[str, Any]", LIFECYCLES
    ),  # a live view, so that a lifecycle registered later is a choice too
    {AUTO: SimpleNamespace(meaning="the first that server and memory allow")},
)
"""The values of engine.lifecycle."""


@dataclass(frozen=True)
class Decision:
    """A lifecycle, and why this one."""

    lifecycle: Lifecycle
    reason: str


def decide(asked: str, admin: Admin, *, available: Available, trainer: int) -> Decision:
    """The lifecycle for a running server.

    asked: engine.lifecycle. available: memory that is free while the server runs. trainer: bytes
    that the trainer needs. Raises `Unavailable` where the server lacks what `asked` needs.
    """
    if asked != AUTO:
        demanded = LIFECYCLES.named(asked, "engine.lifecycle")
        if lacking := demanded.lacking(admin):
            raise Unavailable(
                f"engine.lifecycle is {asked}, but {lacking}; set lifecycle to auto or restart, or "
                "install the pinned vLLM (`make setup`)"
            )
        return Decision(demanded, f"{asked}: asked for")
    from fieldkit.gate.memory import GIB

    free, where = scarcest(available)
    figures = f"{free / GIB:.1f} GiB of {where} beside the engine, {NEEDS} {trainer / GIB:.1f}"
    against = ""
    for each in LIFECYCLES.values():
        no_room = figures if each.keeps_memory and not has_room(available, trainer) else ""
        objection = each.lacking(admin) or no_room
        if not objection:
            return Decision(each, f"{each.name}: {against or f'{each.offers}, and {figures}'}")
        against = against or objection
    raise Unavailable(f"no lifecycle is possible: {against}")


def has_room(available: Available, trainer: int) -> bool:
    """Whether the trainer fits beside what runs now."""
    return scarcest(available)[0] >= trainer


def scarcest(available: Available) -> tuple[int, str]:
    """Bytes and name of the memory that holds the trainer's tensors."""
    if available.gpu is not None:
        return available.gpu, GPU_MEMORY
    return available.host, "memory"
