"""Names of live parameters and of the tensors in a file translate as peft's own do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict

from fieldkit.errors import BadInput
from fieldkit.training.live import adapter_parameters, live_lora, trained_parameters
from fieldkit.training.snapshot import LoraReferenceSnapshot
from fieldkit.training.weight_delta import WeightDeltaTracker
from tests.fieldkit.peft_models import ARCHITECTURES, peft_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_lora_matrices_have_pefts_file_names(architecture: str) -> None:
    model = peft_model(architecture)
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    found = live_lora(model)
    assert list(found) == sorted(expected)
    assert all(p.data_ptr() == expected[name].data_ptr() for name, p in found.items())


@pytest.mark.parametrize(
    "settings", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}], ids=str
)
def test_a_file_needs_what_peft_would_save(settings: dict[str, Any]) -> None:
    model = peft_model("qwen2", **settings)
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    needed = adapter_parameters(model, "default", expected)
    assert needed.keys() == expected.keys()
    assert set(needed.values()) == trained_parameters(model).keys()


def test_an_adapter_that_is_not_loaded_is_named() -> None:
    with pytest.raises(BadInput, match="no adapter 'other'; it has default"):
        adapter_parameters(peft_model(), "other")


@pytest.mark.parametrize("made_of", [LoraReferenceSnapshot, WeightDeltaTracker])
def test_a_parameter_whose_values_deepspeed_keeps_elsewhere_is_named(made_of: Any) -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    weight: Any = model.weight
    weight.ds_numel, weight.data = weight.numel(), torch.empty(0)  # as ZeRO stage 3 leaves it
    with pytest.raises(BadInput, match="weight has no values here: DeepSpeed"):
        made_of(model)
