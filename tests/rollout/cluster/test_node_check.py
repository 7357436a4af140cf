"""A node that is not like this machine is named before a run, with what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import Unavailable
from rollout.cluster.node_check import NodeFacts, check_nodes, look, refuse_other, versions
from rollout.cluster.ray_cluster import Node
from rollout.sandbox.command import SandboxSettings
from tests.rollout.cluster.nodes import Nodes, local_nodes

NODE = Node("1", "box-1", "10.0.0.1", {"CPU": 1.0})
HERE = versions()
ALIKE = NodeFacts(HERE, (), "")


def test_this_machine_is_alike_and_sees_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "nonce").write_text("abc")
    facts = look([str(tmp_path)], str(tmp_path / "nonce"), "abc", SandboxSettings(), plays=True)
    assert facts == ALIKE
    refuse_other(NODE, facts, HERE)


def test_a_folder_of_the_same_name_that_is_another_one_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / "nonce").write_text("another")
    facts = look([], str(tmp_path / "nonce"), "abc", SandboxSettings(), plays=False)
    assert facts.unseen == (str(tmp_path),)
    with pytest.raises(Unavailable, match=r"node box-1 \(10\.0\.0\.1\) does not see .* \(NFS\)"):
        refuse_other(NODE, facts, HERE)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "nonce").write_text("abc")
    wanted = [str(tmp_path), str(tmp_path / "model")]
    facts = look(wanted, str(tmp_path / "nonce"), "abc", SandboxSettings(), plays=False)
    assert facts.unseen == (str(tmp_path / "model"),)


@pytest.mark.parametrize("theirs", [{"torch": "1.0"}, {"vllm": "0.1"}, {"python": "3.8.0"}])
def test_another_version_is_told_with_ours(theirs: dict[str, str]) -> None:
    (name, version), facts = *theirs.items(), replace(ALIKE, versions={**HERE, **theirs})
    with pytest.raises(
        Unavailable, match=f"has {name} {version}, and this machine has {re.escape(HERE[name])}"
    ):
        refuse_other(NODE, facts, HERE)


def test_a_package_that_only_one_side_has_is_another_version() -> None:
    lacking = {name: version for name, version in HERE.items() if name != "vllm"}
    with pytest.raises(Unavailable, match="has vllm none, and this machine has"):
        refuse_other(NODE, replace(ALIKE, versions=lacking), HERE)


def test_a_sandbox_that_does_not_work_there_is_told() -> None:
    with pytest.raises(Unavailable, match=r"node box-1 \(10\.0\.0\.1\): no bwrap"):
        refuse_other(NODE, replace(ALIKE, sandbox="no bwrap"), HERE)


# -- a cluster -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Nodes:  # type: ignore[misc]
    with local_nodes() as found:
        found.add("a", play=1.0, train=1.0)
        yield found


@pytest.mark.ray
def test_every_node_that_may_be_used_is_asked(cluster: Nodes, tmp_path: Path) -> None:
    told = check_nodes(cluster.settings(), SandboxSettings(), tmp_path, tmp_path)
    assert told.startswith("2 node(s) alike, with the same folders: ")
    assert not list(tmp_path.iterdir()), "the file that they looked for is gone"


@pytest.mark.ray
def test_a_model_that_a_node_does_not_see_is_named(cluster: Nodes, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"does not see .*/nowhere as it is here"):
        check_nodes(cluster.settings(), SandboxSettings(), tmp_path, tmp_path / "nowhere")


@pytest.mark.ray
def test_a_part_that_no_node_can_hold_is_told_before_the_run(
    cluster: Nodes, tmp_path: Path
) -> None:
    settings = cluster.settings(trainer_needs={"GPU": 8.0})
    with pytest.raises(Unavailable, match=r"can hold the trainer: cluster\.trainer_needs"):
        check_nodes(settings, SandboxSettings(), tmp_path, tmp_path)
