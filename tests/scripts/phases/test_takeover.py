"""A run from another host is taken over whole, or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.base.machine import host_identity
from scripts.phases.takeover import takeover
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest
from tests.scripts.cli.in_process import grpo
from tests.scripts.made_night import make_night


@pytest.fixture
def elsewhere(tmp_path: Path) -> RunFolder:
    """A finished night of another host, as a clone of its repository has it: without weights."""
    folder = make_night(tmp_path, n_steps=2).folder
    manifest = json.loads(folder.manifest.read_text())
    manifest["host"] = {"name": "elsewhere", "machine_id": "1", "boot_id": "2"}
    folder.manifest.write_text(json.dumps(manifest))
    return folder


def test_a_copy_without_weights_is_not_taken_over_and_stays_as_it_is(elsewhere: RunFolder) -> None:
    before = {p: p.read_bytes() for p in elsewhere.path.rglob("*.json")}
    with pytest.raises(BadInput, match=r"step-000/adapter: not in this copy.*grpo run .*-again"):
        takeover(elsewhere)
    assert {p: p.read_bytes() for p in elsewhere.path.rglob("*.json")} == before


def test_a_copy_on_the_host_that_played_it_stays_as_it_is_too(tmp_path: Path) -> None:
    """A second clone on one machine: nothing has to be taken over, and nothing can go on."""
    folder = make_night(tmp_path, n_steps=2).folder
    before = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file()}
    for words in (("run",), ("run", "--set", "run.steps=9"), ("eval",), ("rollout",)):
        ended = grpo(*words, folder.path)
        assert ended.code == 2
        assert "step-000/adapter: not in this copy" in ended.error
    # Whoever puts back the adapter that it started from is not led further astray.
    folder.adapter(0).mkdir()
    folder.bundle(2).unlink()
    del before[folder.bundle(2)]
    assert "step-002/adapter: not in this copy" in grpo("run", folder.path).error
    after = {p: p.read_bytes() for p in folder.path.rglob("*") if p.is_file() and p.name != "lock"}
    assert after == before


def test_a_copy_of_another_host_is_refused_before_its_journal_is_written(
    elsewhere: RunFolder,
) -> None:
    settings = elsewhere.config.read_bytes()
    for words in (("run",), ("run", "--set", "run.steps=9"), ("preflight",)):
        ended = grpo(*words, elsewhere.path)
        assert (ended.code, "belongs to host elsewhere" in ended.error) == (6, True)
    assert not elsewhere.journal.exists()
    assert elsewhere.config.read_bytes() == settings


def test_with_its_weights_it_becomes_this_hosts(elsewhere: RunFolder) -> None:
    for n in (0, 2):
        elsewhere.adapter(n).mkdir()
    assert "now belongs to" in takeover(elsewhere)
    manifest = read_manifest(elsewhere)
    assert manifest is not None
    assert manifest["host"] == host_identity()
