"""[cluster]: what it refuses, and in which words."""

from __future__ import annotations

import pytest

from fieldkit.errors import BadInput
from rollout.cluster.cluster_settings import ClusterSettings, told_needs


@pytest.mark.parametrize("address", ["", "localhost", "ray://head:10001", "head:", ":6379"])
def test_an_address_is_auto_or_host_and_port(address: str) -> None:
    with pytest.raises(BadInput, match=r"cluster\.address: .* is neither \"auto\" nor host:port"):
        ClusterSettings(address=address)


def test_the_address_that_ray_prints_is_one() -> None:
    assert ClusterSettings(address="10.0.0.1:6379").address == "10.0.0.1:6379"


def test_a_part_cannot_need_nothing_of_a_resource() -> None:
    with pytest.raises(BadInput, match=r"cluster\.trainer_needs: GPU is 0; it must be above 0"):
        ClusterSettings(trainer_needs={"GPU": 0.0})


def test_a_run_uses_no_cluster_unless_it_says_so() -> None:
    assert not ClusterSettings().used
    assert ClusterSettings(kind="ray").used


def test_needs_are_told_as_one_would_say_them() -> None:
    assert told_needs({"CPU": 4.0, "big": 0.5}) == "4 CPU, 0.5 big"
    assert told_needs({}) == "nothing"
