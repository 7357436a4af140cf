"""A Ray cluster on this machine, of Ray's own testing utilities: its nodes come and go.

The head runs nothing but what asks for `head`; drivers are connected to it, so every other node can
be removed. Needs Ray (`make test-ray`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from rollout.cluster.cluster_settings import ClusterSettings
from scripts.base.checkout import ROOT
from tests.chaos.night import SITE

_STORE_BYTES = 80 * 2**20
_QUIET_SECONDS = 60.0


class Nodes:
    """A cluster. The names of its nodes are the test's own."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def settings(self, **changes: Any) -> ClusterSettings:
        """Servers on the head, workers where `play` is, the trainer where `train` is."""
        needs = {
            "engine_needs": {"head": 1.0},
            "worker_needs": {"play": 1.0},
            "trainer_needs": {"train": 1.0},
        }
        return ClusterSettings(kind="ray", address=self.address, **{**needs, **changes})

    def add(self, name: str, **resources: float) -> None:
        """Start a node with these resources, and no CPU."""
        self._nodes[name] = self._cluster.add_node(
            num_cpus=0, resources=dict(resources), object_store_memory=_STORE_BYTES
        )

    def remove(self, name: str) -> None:
        """End every process of a node at once."""
        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)

    def remove_all(self) -> None:
        """End all but the head in good order, so that the cluster knows it at once."""
        while self._nodes:
            self._cluster.remove_node(self._nodes.popitem()[1], allow_graceful=True)


@contextmanager
def local_nodes() -> Iterator[Nodes]:
    """A cluster of a head alone. Its processes find the scripted engine where vLLM would be."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", f"{SITE}{os.pathsep}{ROOT}")
        head = {"num_cpus": 0, "resources": {"head": 4.0}, "object_store_memory": _STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False})
        nodes = Nodes(cluster)
        try:
            yield nodes
        finally:
            nodes.remove_all()
            cluster.remove_node(cluster.head_node, allow_graceful=False)


def workers() -> list[str]:
    """The rollout workers on this machine."""
    return [line for line in _command_lines() if line.startswith("ray::RolloutWorker")]


def at_work() -> list[str]:
    """All that a run has on nodes of this machine: workers, and what keeps a command."""
    begins = ("ray::RolloutWorker", "ray::NodeProcess")
    keeper = "-m rollout.cluster.keeper"
    return [line for line in _command_lines() if line.startswith(begins) or keeper in line]


def _command_lines() -> list[str]:
    return [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]


def wait_for(holds: Callable[[], object], what: str) -> None:
    """Wait until it holds: what other programs do gives no event."""
    deadline = time.monotonic() + _QUIET_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.05)
