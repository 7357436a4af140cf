"""canary.json says what a server that holds the right weights in its own dtype must answer, but for
its rounding."""

from __future__ import annotations

import dataclasses
import json
import random
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from fieldkit.errors import BadInput
from fieldkit.gate.memory import Available
from fieldkit.training.adapter import adapter_sha
from tests.trainer.conftest import VOCABULARY, make_group
from trainer.canary import NOISE_FLOOR, TOKENS_EACH, canary_ids, prove_adapter
from trainer.inputs import StepInputs
from trainer.progress import Lines
from trainer.settings import TrainerSettings
from trainer.step import train

IDS = [[3, 14, 15, 92, 65, 35, 89, 79], [2, 71, 82, 81, 82]]


def served(model: Path, adapter: Path | None, ids: list[int], dtype: torch.dtype) -> torch.Tensor:
    """What a server would answer that casts the weights of base and adapter to one dtype and rounds
    nothing else: logprobs of ids[1:]."""
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    if adapter is not None:
        base = PeftModel.from_pretrained(base, str(adapter))
    for parameter in base.parameters():
        parameter.data = parameter.data.to(dtype).float()
    base.eval()
    with torch.no_grad():
        # The last id only comes out. One row more is another matrix product, which some processors
        # round in another way.
        logits = base(input_ids=torch.tensor([ids[:-1]])).logits[0].float()
    targets = torch.tensor(ids[1:])
    return torch.log_softmax(logits, -1).gather(-1, targets[:, None]).squeeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_policy_has_the_logprobs_that_a_server_would_give(
    dtype: torch.dtype, tiny_model: Path, adapter: Path, reference: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in adapter.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    name = str(dtype).removeprefix("torch.")
    prove_adapter(copy, tiny_model, IDS, serving=name, previous=reference)
    canary = json.loads((copy / "canary.json").read_text())

    assert canary["schema"] == 1
    assert canary["dtype"] == name
    assert canary["exact"] == (dtype == torch.bfloat16)
    assert canary["ids"] == IDS
    assert canary["adapter_sha"] == adapter_sha(adapter) == adapter_sha(copy)
    assert canary["parent_sha"] == adapter_sha(reference)
    for key, which in (("base", None), ("previous", reference), ("new", adapter)):
        for ids, values in zip(IDS, canary[key], strict=True):
            assert len(values) == len(ids) - canary["prompt_len"]
            expected = served(tiny_model, which, ids, dtype)
            assert torch.tensor(values) == pytest.approx(expected, abs=1e-5)


def test_without_a_previous_adapter_there_is_no_previous_row(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    for file in adapter.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = prove_adapter(tmp_path, tiny_model, IDS, serving="float32")
    assert values.previous is None
    assert values.base != values.new


def test_noise_is_the_rounding_of_the_serving_dtype_and_below_the_signal(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    for file in adapter.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    narrow = prove_adapter(tmp_path, tiny_model, IDS, serving="bfloat16")
    wide = prove_adapter(tmp_path, tiny_model, IDS, serving="float32")
    differences = [
        abs(a - b)
        for new, base in zip(narrow.new, narrow.base, strict=True)
        for a, b in zip(new, base, strict=True)
    ]
    assert NOISE_FLOOR <= wide.noise < narrow.noise
    assert narrow.noise < sum(differences) / len(differences)


def test_without_room_for_a_copy_in_float32_the_logprobs_have_the_serving_dtypes_rounding(
    tiny_model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in adapter.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    exact = prove_adapter(tmp_path, tiny_model, IDS, serving="bfloat16")
    monkeypatch.setattr("trainer.canary.available", lambda: Available(1000, None))
    rounded = prove_adapter(tmp_path, tiny_model, IDS, serving="bfloat16")
    assert exact.exact
    assert not rounded.exact
    pairs = zip(exact.new, rounded.new, strict=True)
    apart = [abs(a - b) for x, y in pairs for a, b in zip(x, y, strict=True)]
    assert sum(apart) / len(apart) == pytest.approx(exact.noise, rel=1e-6)


def test_a_step_proves_the_adapter_that_it_wrote(
    bundle: Path, adapter: Path, reference: Path, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "step"
    settings = TrainerSettings(dtype="fp32", serving_dtype="float32", lr=1e-2)
    inputs = StepInputs(bundle, adapter, reference, tiny_model, None, out)
    train(inputs, settings, Lines(StringIO()))
    canary = json.loads((out / "adapter" / "canary.json").read_text())
    assert canary["adapter_sha"] == adapter_sha(out / "adapter")
    assert canary["parent_sha"] == adapter_sha(adapter)
    for key, which in (("base", None), ("previous", adapter), ("new", out / "adapter")):
        expected = served(tiny_model, which, canary["ids"][0], torch.float32)
        assert torch.tensor(canary[key][0]) == pytest.approx(expected, abs=1e-5)


def test_a_server_wider_than_the_training_base_is_refused(
    bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    settings = TrainerSettings(dtype="bf16", serving_dtype="float32")
    inputs = StepInputs(bundle, adapter, adapter, tiny_model, None, tmp_path / "step")
    with pytest.raises(BadInput, match="set the trainer's dtype to fp32"):
        train(inputs, settings, Lines(StringIO()))
    assert not list((tmp_path / "step").iterdir())
    follows = dataclasses.replace(settings, dtype="auto")
    assert train(inputs, follows, Lines(StringIO()))["train"]["training_bits"] == 32


def test_canary_sequences_are_the_ends_of_the_first_groups_and_are_short() -> None:
    groups = [make_group(random.Random(i), "a", f"t{i}") for i in range(7)]
    turn = dataclasses.replace(
        groups[0].trajectories[0].turns[0], prompt_ids=tuple(range(VOCABULARY)) * 4
    )
    first = dataclasses.replace(groups[0].trajectories[0], turns=(turn,))
    groups[0] = dataclasses.replace(groups[0], trajectories=(first, *groups[0].trajectories[1:]))
    ids = canary_ids(groups)
    assert len(ids) == 4
    whole = turn.prompt_ids + turn.completion_ids
    assert ids[0] == [whole[0], *whole[1 - TOKENS_EACH :]]
    assert len(ids[0]) == TOKENS_EACH
    assert canary_ids(groups) == ids


def test_a_group_whose_first_attempt_took_no_turn_gives_a_sequence_of_the_next_one() -> None:
    group = make_group(random.Random(0), "a", "t0")
    none, second = dataclasses.replace(group.trajectories[0], turns=()), group.trajectories[1]
    group = dataclasses.replace(group, trajectories=(none, second))
    turn = second.turns[-1]
    assert canary_ids([group]) == [list(turn.prompt_ids + turn.completion_ids)]
    assert canary_ids([group, group]) == canary_ids([group])  # the same twice tells nothing more


def test_an_adapter_of_another_base_is_refused(
    adapter: Path, tmp_path: Path, tiny_model: Path
) -> None:
    with pytest.raises(BadInput, match="no model folder"):
        prove_adapter(adapter, tmp_path, IDS)
    with pytest.raises(BadInput, match="a sequence of more than 1"):
        prove_adapter(adapter, tiny_model, [[1]])
