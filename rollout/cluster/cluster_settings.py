"""Whether a run uses the nodes of a Ray cluster, and what each part of it needs there: the table
[cluster] of run.toml.

Apart from what obeys it, because every command reads run.toml and few use a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from pydantic import NonNegativeInt, PositiveFloat

from fieldkit.errors import BadInput
from fieldkit.settings import Change, Unit, settings

AUTO = "auto"
"""The address that leaves it to Ray: RAY_ADDRESS, or the cluster that this machine belongs to."""

Needs = Mapping[str, float]
"""Amounts of Ray's resources by name: CPU, GPU, memory (bytes), or one of a person's own."""


def told_needs(needs: Needs) -> str:
    """Amounts in words, as "1 CPU, 2 GPU"."""
    return ", ".join(f"{amount:g} {name}" for name, amount in needs.items()) or "nothing"


def _one_cpu() -> dict[str, float]:
    return {"CPU": 1.0}


@settings("cluster")
class ClusterSettings:
    """Engines, rollout workers and the trainer on the nodes of a Ray cluster (docs/SCALE.md)."""

    kind: Annotated[Literal["none", "ray"], Change.MACHINE] = "none"
    """"ray": they are on the nodes of a Ray cluster, as `--engine ray` says too."""
    address: Annotated[str, Change.MACHINE] = AUTO
    """host:port of the cluster's head. "auto": the environment variable RAY_ADDRESS, or the cluster
    of which this machine is a node."""
    workers: Annotated[NonNegativeInt, Change.MACHINE] = 0
    """How many processes play attempts, each with its own sandboxes; 0: one for each node that can
    hold one."""
    engine_needs: Annotated[dict[str, float], Change.MACHINE] = field(default_factory=_one_cpu)
    """What one server of `engine.replicas` takes of a node's resources, such as `{ GPU = 1 }`."""
    worker_needs: Annotated[dict[str, float], Change.MACHINE] = field(default_factory=_one_cpu)
    """The same of one process that plays attempts."""
    trainer_needs: Annotated[dict[str, float], Change.MACHINE] = field(default_factory=_one_cpu)
    """The same of the trainer."""
    room_seconds: Annotated[PositiveFloat, Unit("seconds"), Change.MACHINE] = 120.0
    """How long each of them may wait for room on a node."""

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if self.address != AUTO and not (host and "/" not in host and port.isdecimal()):
            raise BadInput(
                f'cluster.address: {self.address!r} is neither "auto" nor host:port, as in'
                ' "10.0.0.1:6379" (`ray start --head` prints it)'
            )
        for key in ("engine_needs", "worker_needs", "trainer_needs"):
            for name, amount in getattr(self, key).items():
                if not amount > 0:
                    raise BadInput(f"cluster.{key}: {name} is {amount:g}; it must be above 0")

    @property
    def used(self) -> bool:
        """Whether the run uses a cluster."""
        return self.kind != "none"
