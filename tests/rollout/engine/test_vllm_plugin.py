"""The plain LoRA product, in the plugin and in the patch for vLLM, gives what vLLM's own functions
give on a CPU; the plugin stays away elsewhere."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import shutil
import subprocess
from types import ModuleType
from typing import Any

import pytest
import torch

from rollout.engine import vllm_plugin
from scripts.base.checkout import ROOT

PATCH = ROOT / "docs/upstream/vllm-cpu-lora.patch"

RANK, IN, OUT = 16, 64, 96
TOKENS = 23

BATCHES = {
    "one adapter": [0] * TOKENS,
    "two adapters": [0] * 10 + [1] * 13,
    "two adapters by turns": [i // 3 % 2 for i in range(TOKENS)],
}


def metadata(slots: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    from vllm.lora.punica_wrapper.utils import compute_meta

    starts, lengths, indices, batches, longest, tokens, _ = compute_meta(torch.tensor(slots))
    return starts, lengths, indices, batches, longest, tokens


def adapters(seed: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(2, 1, rows, columns, generator=generator) / math.sqrt(columns)
    return weights.to(dtype)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """vLLM's module as the patch for it would leave it."""
    from vllm.lora.ops.torch_ops import lora_ops

    root = tmp_path_factory.mktemp("vllm")
    file = root / "vllm/lora/ops/torch_ops/lora_ops.py"
    file.parent.mkdir(parents=True)
    shutil.copy(str(lora_ops.__file__), file)
    subprocess.run(["git", "apply", str(PATCH)], cwd=root, check=True)
    spec = importlib.util.spec_from_file_location("patched_lora_ops", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def both(
    slots: list[int], dtype: torch.dtype, changed: Any = vllm_plugin
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(vLLM's, the changed) result of a shrink and of an expand on the same inputs."""
    from vllm.lora.ops import torch_ops

    x = torch.randn(len(slots), IN, generator=torch.Generator().manual_seed(3)).to(dtype)
    meta, results = metadata(slots), []
    for shrink in (torch_ops.sgmv_shrink, changed.sgmv_shrink):
        y = torch.zeros(len(slots), RANK)
        shrink(x, adapters(1, RANK, IN, dtype), y, *meta, 2.0)
        results.append(y)
    pairs = [(results[0], results[1])]
    expanded = []
    for expand in (torch_ops.sgmv_expand_slice, changed.sgmv_expand_slice):
        out = torch.ones(len(slots), OUT + 8, dtype=dtype)
        expand(results[0], adapters(2, OUT, RANK, dtype), out, *meta, 4, OUT, add_inputs=True)
        expanded.append(out)
    return [*pairs, (expanded[0], expanded[1])]


@pytest.mark.parametrize("slots", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_it_gives_what_the_original_gives(
    slots: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    for theirs, ours in both(slots, dtype):
        assert torch.allclose(theirs.float(), ours.float(), rtol=tolerance, atol=tolerance)
        assert ours.abs().sum() > 0


@pytest.mark.parametrize("slots", BATCHES.values(), ids=BATCHES.keys())
def test_the_patch_for_vllm_gives_what_the_original_gives(
    slots: list[int], patched: ModuleType
) -> None:
    for theirs, changed in both(slots, torch.float32, patched):
        assert torch.allclose(theirs, changed, rtol=1e-6, atol=1e-6)
        assert changed.abs().sum() > 0


@pytest.mark.parametrize("of", ["plugin", "patch"])
def test_a_token_without_an_adapter_gets_none_in_a_mixed_batch(
    of: str, patched: ModuleType
) -> None:
    changed: Any = {"plugin": vllm_plugin, "patch": patched}[of]
    slots = [-1] * 5 + [0] * 9 + [-1] * 4
    meta = metadata(slots)
    out = torch.ones(len(slots), OUT)
    x = torch.ones(len(slots), RANK)
    changed.sgmv_expand_slice(
        x, adapters(2, OUT, RANK, torch.float32), out, *meta, 0, OUT, add_inputs=True
    )
    alone = torch.tensor([slot < 0 for slot in slots])
    assert torch.equal(out[alone], torch.ones(9, OUT))
    assert not torch.equal(out[~alone], torch.ones(9, OUT))


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> object:
    """vLLM's module as it is without the plugin, put back after the test."""
    from vllm.lora.ops import torch_ops
    from vllm.lora.punica_wrapper import punica_cpu

    for name in ("sgmv_shrink", "sgmv_expand_slice"):
        monkeypatch.setattr(punica_cpu, name, getattr(torch_ops, name))
    return punica_cpu


def test_it_takes_the_place_of_the_original(
    target: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(vllm_plugin.FLAG, raising=False)
    vllm_plugin.register()
    vllm_plugin.register()  # vLLM may call it twice
    assert target.sgmv_shrink is vllm_plugin.sgmv_shrink  # type: ignore[attr-defined]
    assert target.sgmv_expand_slice is vllm_plugin.sgmv_expand_slice  # type: ignore[attr-defined]


def test_a_flag_turns_it_off(target: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.FLAG, "0")
    vllm_plugin.register()
    assert target.sgmv_shrink is not vllm_plugin.sgmv_shrink  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", ["0.33.0", None])
def test_a_version_or_a_build_that_it_does_not_know_is_left_as_it_is(
    version: str | None, target: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.delenv(vllm_plugin.FLAG, raising=False)
    monkeypatch.setattr(importlib.metadata, "version", installed)
    vllm_plugin.register()
    assert target.sgmv_shrink is not vllm_plugin.sgmv_shrink  # type: ignore[attr-defined]


def test_vllm_finds_it_under_its_entry_point() -> None:
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert [e.value for e in found if e.name == "grpo-lora-matmul"] == [
        "rollout.engine.vllm_plugin:register"
    ]
