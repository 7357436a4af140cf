"""A two-layer random Llama, LoRA adapters for it, and bundles of random ids, made on the spot."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode_group
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import (
    Action,
    ActionKind,
    RolloutGroup,
    Sampling,
    Signal,
    StopReason,
    Trajectory,
    Turn,
)
from fieldkit.training.adapter import adapter_sha

VOCABULARY = 97
RANK = 4


SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
"""Of a tiny model of a Llama's kind, as settings of its config."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: two random layers with grouped-query attention and tied embeddings."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES,
        initializer_range=0.3,  # with the default 0.02 every distribution is nearly uniform
        attention_dropout=0.5,  # must be taken out by the trainer
    )
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def make_adapter(
    model: Path,
    folder: Path,
    seed: int,
    scale: float = 0.1,
    targets: Sequence[str] = ("q_proj", "v_proj"),
) -> Path:
    """A LoRA with random A and B (peft's own B is all zeros)."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model)
    lora = LoraConfig(r=RANK, lora_alpha=8, lora_dropout=0.5, target_modules=list(targets))
    peft_model = get_peft_model(base, lora)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(peft_model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    peft_model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tiny_model, tmp_path_factory.mktemp("adapter"), seed=1)


@pytest.fixture(scope="session")
def reference(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tiny_model, tmp_path_factory.mktemp("reference"), seed=2)


PROMPT = tuple(range(5, 13))
"""Of every attempt at a task: what an environment says is the same for all of them."""


def make_turns(rng: random.Random, turns: int, prompt: Sequence[int] | None = None) -> list[Turn]:
    """Turns of one segment: each prompt is the previous prompt + completion + an observation."""
    context = list(prompt) if prompt else _ids(rng, 5, 9)
    out = []
    for _ in range(turns):
        completion = _ids(rng, 1, 6)
        out.append(
            Turn(
                prompt_ids=tuple(context),
                completion_ids=tuple(completion),
                logprobs=tuple(-rng.uniform(0.5, 6.0) for _ in completion),
                text="",
                action=Action(ActionKind.RUN, "true"),
                observation="",
                exit_code=0,
                reward=None,
                finish_reason="stop",
                policy_version="test-v0",
                seed=0,
                seconds=0.0,
            )
        )
        context += completion + _ids(rng, 2, 5)
    return out


def _ids(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]


def make_group(
    rng: random.Random,
    sha: str,
    task_id: str = "t0",
    rewards: Sequence[float] = (0.0, 1.0),
    temperature: float = 1.0,
    prompt: Sequence[int] | None = None,
) -> RolloutGroup:
    """A group with these rewards; advantages are reward − mean. prompt: of every attempt; None:
    each has its own."""
    mean = sum(rewards) / len(rewards)
    passed = Grade((AssertionResult("file_exists", "a", passed=True, detail=""),))
    trajectories = tuple(
        Trajectory(
            task_id=task_id,
            k=k,
            seed=0,
            adapter_sha=sha,
            sampling=Sampling(temperature, 96, 1.0, 0, 0.0),
            turns=tuple(make_turns(rng, rng.randint(1, 3), prompt)),
            stop_reason=StopReason.TASK_COMPLETE,
            grade=passed,
            reward=reward,
            metrics={},
        )
        for k, reward in enumerate(rewards)
    )
    signal = Signal.LEARNABLE if len(set(rewards)) > 1 else Signal.SATURATED
    advantages = tuple(r - mean if signal is Signal.LEARNABLE else 0.0 for r in rewards)
    return RolloutGroup(0, "clawgym", task_id, trajectories, advantages, signal)


def write_bundle(path: Path, groups: Sequence[RolloutGroup]) -> Path:
    path.write_text("".join(encode_group(g) + "\n" for g in groups), encoding="utf-8")
    return path


BundleMaker = Callable[..., Path]


@pytest.fixture
def bundle(adapter: Path, tmp_path: Path) -> Path:
    """Two learnable groups and a silent one, sampled by `adapter`."""
    rng = random.Random(5)
    sha = adapter_sha(adapter)
    groups = [
        make_group(rng, sha, "t0", (0.0, 1.0, 0.5), prompt=PROMPT),
        make_group(rng, sha, "t1", (0.3, 0.3), prompt=PROMPT),
        make_group(rng, sha, "t2", (1.0, 0.2), prompt=PROMPT),
    ]
    return write_bundle(tmp_path / "trajectory_bundle.jsonl", groups)


@pytest.fixture
def silent_bundle(adapter: Path, tmp_path: Path) -> Path:
    """Groups whose rewards are all equal."""
    rng = random.Random(6)
    sha = adapter_sha(adapter)
    groups = [make_group(rng, sha, f"t{i}", (1.0, 1.0)) for i in range(2)]
    return write_bundle(tmp_path / "silent_bundle.jsonl", groups)


def read(path: Path) -> dict[str, object]:
    value = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(value, dict)
    return value
