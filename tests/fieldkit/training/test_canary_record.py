"""canary.json is one record: what one program writes the other reads, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from fieldkit.training.adapter import adapter_sha
from fieldkit.training.canary_record import read_canary, write_canary


def document() -> dict[str, Any]:
    """A canary.json of two short sequences."""
    return {
        "schema": 1,
        "adapter_sha": "a",
        "parent_sha": None,
        "dtype": "float32",
        "ids": [[1, 2, 3], [4, 5]],
        "prompt_len": 1,
        "base": [[-1.0, -2.0], [-3.0]],
        "previous": [[-1.0, -2.0], [-3.0]],
        "new": [[-1.5, -2.5], [-3.5]],
        "noise": 1e-6,
        "exact": True,
    }


def test_a_canary_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "canary.json"
    path.write_text(json.dumps(document()))
    read = read_canary(path)
    assert read.ids == ((1, 2, 3), (4, 5))
    assert read.new == ((-1.5, -2.5), (-3.5,))
    assert read.exact


def test_one_of_an_earlier_version_is_not_exact(tmp_path: Path) -> None:
    path = tmp_path / "canary.json"
    path.write_text(json.dumps({k: v for k, v in document().items() if k != "exact"}))
    assert not read_canary(path).exact


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": 2}, "schema is 2, this version reads 1; `grpo prove [^`]+` writes"),
        ({"noise": ...}, "noise: Field required"),
        ({"new": [[-1.5, -2.5]]}, "new: one row for each of the 2 sequences"),
        ({"new": [[-1.5, -2.5, -3.0], [-3.5]]}, r"new\[0\]: 3 logprobs for 3 ids"),
        ({"base": [[-1.0, None], [-3.0]]}, r"base\.0\.1: .* valid number"),
        ({"base": [[-1.0, -1.0], [float("nan")]]}, r"base\.1\.0: .* finite number"),
        ({"previous": [[-1.0], [-3.0]]}, r"previous\[0\]: 1 logprobs, but new has 2"),
        ({"seed": 1}, "seed: Unexpected"),
    ],
)
def test_a_malformed_canary_is_bad_input(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    value = {k: v for k, v in (document() | change).items() if v is not ...}
    path = tmp_path / "canary.json"
    path.write_text(json.dumps(value))
    with pytest.raises(BadInput, match=reason):
        read_canary(path)


def test_a_canary_that_is_written_again_is_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "canary.json"
    path.write_text(json.dumps(document(), indent=2) + "\n")
    before = path.read_bytes()
    write_canary(tmp_path, read_canary(path))
    assert path.read_bytes() == before


def test_the_canary_of_the_committed_adapter_is_read() -> None:
    committed = Path(__file__).resolve().parents[3] / "adapters" / "smol-warm"
    assert read_canary(committed / "canary.json").adapter_sha == adapter_sha(committed)
