"""The connection to a Ray cluster, what its nodes have, and whether something has room there.

A program that has joined is a driver of Ray: what it starts on nodes ends with it, however it ends.
So the ledger owns what runs on nodes by owning the programs here that have started it. Ray is
imported when a run asks for it, and by this folder alone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from rollout.cluster.cluster_settings import AUTO, ClusterSettings, Needs, told_needs

_ANSWER_SECONDS = 10.0  # for the head to take a connection


@dataclass(frozen=True)
class Node:
    """A node that is alive. resources: all that it has, whether or not it is in use."""

    node_id: str
    name: str
    host: str
    resources: Needs

    def can_hold(self, needs: Needs) -> bool:
        return all(self.resources.get(name, 0.0) >= amount for name, amount in needs.items())


def lost_errors(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises where an actor's node is gone: before its answer was made, and after that but
    before a large one was fetched."""
    return ray.exceptions.RayActorError, ray.exceptions.ObjectLostError


@contextlib.contextmanager
def joined(cluster: ClusterSettings) -> Iterator[Any]:
    """Be a driver of the cluster for the length of the block; gives the package `ray`.

    Call it in the main thread. Raises `BadInput` where Ray is not installed, and `Unavailable`
    where no cluster answers.
    """
    try:
        import ray
    except ImportError as e:
        raise BadInput(
            'cluster.kind is "ray", and Ray is not installed: `scripts/setup/uv.sh pip install'
            " --python .venv/bin/python --no-deps -r requirements/ray.txt` installs it, on every"
            " node"
        ) from e
    _require_answer(cluster.address)
    ours = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as e:
        raise _no_cluster(cluster.address, " ".join(str(e).split())) from e
    finally:
        signal.signal(signal.SIGTERM, ours)  # Ray puts its own in its place
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_answer(address: str) -> None:
    """Raise `Unavailable` where nobody listens: Ray itself tries for a minute, and then aborts."""
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS") or _last_started()
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        at = (host.removeprefix("[").removesuffix("]"), int(port))  # an IPv6 address has brackets
        socket.create_connection(at, _ANSWER_SECONDS).close()
    except OSError as e:
        raise _no_cluster(address, str(e)) from e


def _last_started() -> str:
    """What Ray takes "auto" for on this machine. It remembers a cluster that has ended, too."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        return canonicalize_bootstrap_address(AUTO) or AUTO
    except (OSError, ValueError) as e:
        raise _no_cluster(AUTO, " ".join(str(e).split())) from e


def _no_cluster(address: str, why: str) -> Unavailable:
    return Unavailable(
        f'cluster.address is "{address}", and no Ray cluster answers there: {why}. `ray start'
        " --head` starts one and prints its address; `ray start --address=HOST:PORT` makes this"
        " machine a node of it, which it has to be (docs/SCALE.md)"
    )


def nodes(ray: Any) -> list[Node]:
    """The living nodes, those with the same name in the order of their ids."""
    found = [
        Node(n["NodeID"], n["NodeManagerHostname"], n["NodeManagerAddress"], n["Resources"])
        for n in ray.nodes()
        if n["Alive"]
    ]
    return sorted(found, key=lambda node: (node.name, node.node_id))


def require_room(ray: Any, needs: Needs, what: str, key: str) -> None:
    """Raise `Unavailable` where no node could hold `what`, even if nothing else ran there.

    key: the setting that says what it needs.
    """
    there = nodes(ray)
    if not any(node.can_hold(needs) for node in there):
        raise Unavailable(
            f"no node of the Ray cluster can hold {what}: cluster.{key} asks for"
            f" {told_needs(needs)}, and the nodes have {_told_nodes(there)}; add a node with `ray"
            f" start --address=HOST:PORT`, or set cluster.{key}"
        )


def require_room_together(
    there: Sequence[Node], servers: int, engine: Needs, trainer: Needs
) -> None:
    """Raise `Unavailable` where these nodes cannot hold so many servers and the trainer at once, as
    they have to unless the servers are ended before each training."""
    beside_it = (
        sum(_fitting(other, engine, trainer if other is node else {}) for other in there)
        for node in there
        if node.can_hold(trainer)
    )
    most = max(beside_it, default=0)
    if most < servers:
        raise Unavailable(
            f"the nodes of the Ray cluster hold {most:g} server(s) beside the trainer, and"
            f" engine.replicas is {servers}: a server keeps what it asked for while the trainer"
            ' works. Set engine.lifecycle = "restart", take fewer replicas or add a node; the nodes'
            f" have {_told_nodes(there)}"
        )


def _fitting(node: Node, needs: Needs, beside: Needs) -> float:
    """How often `needs` fits on a node beside what else is there."""
    left = [
        math.floor((node.resources.get(name, 0.0) - beside.get(name, 0.0)) / amount)
        for name, amount in needs.items()
        if amount > 0
    ]
    return max(0, min(left)) if left else math.inf


def no_room_now(needs: Needs, what: str, key: str, seconds: float) -> Unavailable:
    """The error for what found no room in time, where some node could hold it."""
    return Unavailable(
        f"no node of the Ray cluster had room for {what} within {seconds:g} s (cluster.{key}:"
        f" {told_needs(needs)}): `ray status` shows what is in use; end what is not needed there,"
        f" add a node with `ray start --address=HOST:PORT`, or raise cluster.room_seconds; then run"
        " the same command again"
    )


def options(needs: Needs) -> dict[str, Any]:
    """`needs` as Ray's options of an actor."""
    own = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU", "memory")}
    asked = {"num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0), "resources": own}
    return {**asked, "memory": needs["memory"]} if "memory" in needs else asked


def _told_nodes(there: Sequence[Node]) -> str:
    def own(node: Node) -> Needs:
        # Ray's names of the node itself, and what only it uses.
        hidden = ("node:", "object_store_memory", "accelerator_type:")
        return {
            name: math.floor(amount) if name == "memory" else amount
            for name, amount in sorted(node.resources.items())
            if not name.startswith(hidden)
        }

    return "; ".join(f"{node.name} {told_needs(own(node))}" for node in there) or "nothing"
