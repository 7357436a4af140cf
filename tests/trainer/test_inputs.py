"""A step's inputs are checked before a model is loaded, in whatever form the bundle is stored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.sharded import read_records, shards_of, write_records
from fieldkit.training.adapter import CONFIG_FILE
from trainer.inputs import StepInputs, check_inputs
from trainer.settings import TrainerSettings

SETTINGS = TrainerSettings()


@pytest.fixture
def inputs(bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path) -> StepInputs:
    return StepInputs(bundle, adapter, adapter, tiny_model, None, tmp_path / "out")


def sharded(inputs: StepInputs, folder: Path) -> StepInputs:
    """The same inputs, the bundle's groups in a shard each."""
    folder.mkdir()
    path = folder / "trajectory_bundle.jsonl"
    write_records(path, [line for _, line in read_records(inputs.bundle)], most=1)
    assert len(list(shards_of(path).glob("*.zst"))) == 3
    return replace(inputs, bundle=path)


def test_a_bundle_in_shards_is_the_same_bundle(inputs: StepInputs, tmp_path: Path) -> None:
    one = check_inputs(inputs, SETTINGS)
    other = check_inputs(sharded(inputs, tmp_path / "large"), SETTINGS)
    assert (other.identity, other.batch) == (one.identity, one.batch)


def test_a_reference_whose_update_is_scaled_otherwise_is_refused(
    inputs: StepInputs, adapter: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(adapter, tmp_path / "other")
    config = json.loads((other / CONFIG_FILE).read_text())
    (other / CONFIG_FILE).write_text(json.dumps({**config, "use_rslora": True}))
    with pytest.raises(BadInput, match="use_rslora is True, the initial adapter's is False"):
        check_inputs(replace(inputs, reference=other), SETTINGS)


def test_a_damaged_shard_is_named_before_anything_is_trained(
    inputs: StepInputs, tmp_path: Path
) -> None:
    large = sharded(inputs, tmp_path / "large")
    (shards_of(large.bundle) / "00001.jsonl.zst").write_bytes(b"")
    with pytest.raises(BadInput, match=r"00001\.jsonl\.zst: damaged.*`rm -r .*shards`"):
        check_inputs(large, SETTINGS)
