"""What is said where no cluster can be joined or no node has room. Ray is needed where marked."""

from __future__ import annotations

import socket
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, Unavailable
from rollout.cluster.cluster_settings import ClusterSettings
from rollout.cluster.ray_cluster import (
    _require_answer,
    joined,
    no_room_now,
    nodes,
    options,
    require_room,
    require_room_together,
)


def cluster(*resources: dict[str, float]) -> Any:
    """What Ray would tell of such nodes, and of one that is gone."""
    told = [
        {
            "NodeID": str(i),
            "Alive": True,
            "NodeManagerHostname": f"box-{i}",
            "NodeManagerAddress": f"10.0.0.{i}",
            "Resources": {**found, "node:10.0.0.1": 1.0, "memory": 2.5e9},
        }
        for i, found in enumerate(resources)
    ]
    gone = {**told[0], "NodeID": "gone", "Alive": False, "Resources": {"GPU": 8.0}}
    return types.SimpleNamespace(nodes=lambda: [*told, gone])


def join(address: str) -> None:
    with joined(ClusterSettings(kind="ray", address=address)):
        raise AssertionError("nobody is there")


def only_what_ray_remembers(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """No address in the environment, and no cluster of another test."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"Ray is not installed: .*-r requirements/ray\.txt"):
        join("auto")


def test_an_address_where_nobody_listens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(Unavailable, match=rf'"{address}", and no Ray cluster answers there'):
            join(address)


def test_an_ipv6_address_is_asked_without_its_brackets() -> None:
    try:
        head = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as e:
        pytest.skip(f"no IPv6 here: {e.strerror}")
    with head:
        _require_answer(f"[::1]:{head.getsockname()[1]}")


def test_the_address_in_the_environment_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setenv("RAY_ADDRESS", "nobody.invalid:6379")
    with pytest.raises(Unavailable, match=r"nobody\.invalid:6379.*`ray start --head` starts one"):
        join("auto")


@pytest.mark.ray
def test_a_cluster_that_ray_remembers_and_that_has_ended_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only_what_ray_remembers(monkeypatch, tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(f"127.0.0.1:{port}")
        began = time.monotonic()
        with pytest.raises(Unavailable, match=rf':{port}", and no Ray cluster answers there'):
            join("auto")
    assert time.monotonic() - began < 30  # Ray alone tries for over a minute


@pytest.mark.ray
def test_no_cluster_at_all_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only_what_ray_remembers(monkeypatch, tmp_path)
    with pytest.raises(Unavailable, match="Could not find any running Ray instance"):
        join("auto")


def test_only_living_nodes_count() -> None:
    assert [n.name for n in nodes(cluster({"CPU": 2.0}, {"CPU": 4.0}))] == ["box-0", "box-1"]


def test_what_no_node_could_ever_hold_is_an_error_at_once() -> None:
    two = cluster({"CPU": 2.0}, {"CPU": 4.0, "GPU": 1.0})
    require_room(two, {"CPU": 3.0, "GPU": 1.0}, "the trainer", "trainer_needs")
    with pytest.raises(Unavailable) as caught:
        require_room(two, {"GPU": 2.0}, "the trainer", "trainer_needs")
    assert str(caught.value) == (
        "no node of the Ray cluster can hold the trainer: cluster.trainer_needs asks for 2 GPU, and"
        " the nodes have box-0 2 CPU, 2.5e+09 memory; box-1 4 CPU, 1 GPU, 2.5e+09 memory; add a"
        " node with `ray start --address=HOST:PORT`, or set cluster.trainer_needs"
    )


def test_servers_that_stay_have_to_fit_beside_the_trainer() -> None:
    gpu = {"GPU": 1.0}
    two = nodes(cluster({"GPU": 1.0, "CPU": 8.0}, {"GPU": 1.0, "CPU": 8.0}))
    require_room_together(two, 1, gpu, gpu)
    require_room_together(two, 2, gpu, {"CPU": 4.0})
    with pytest.raises(Unavailable, match=r"hold 1 server\(s\) beside.*is 2.*\"restart\""):
        require_room_together(two, 2, gpu, gpu)
    four = nodes(cluster({"GPU": 4.0}, {"GPU": 1.0}))
    require_room_together(four, 3, gpu, {"GPU": 2.0})
    with pytest.raises(Unavailable, match="hold 3 server"):
        require_room_together(four, 4, gpu, {"GPU": 2.0})


def test_what_found_no_room_in_time_says_what_to_look_at() -> None:
    error = no_room_now({"GPU": 1.0}, "the engine", "engine_needs", 120)
    assert "within 120 s (cluster.engine_needs: 1 GPU): `ray status` shows" in str(error)


def test_needs_become_rays_options() -> None:
    assert options({"CPU": 2.0, "memory": 1e9, "big": 1.0}) == {
        "num_cpus": 2.0,
        "num_gpus": 0,
        "memory": 1e9,
        "resources": {"big": 1.0},
    }
