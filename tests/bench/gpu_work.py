"""What `make bench-gpu` trains: a model of the third document's size, and the bundle of one step.

`python -m tests.bench.gpu_work FOLDER` makes the model and its adapter.

Weights and ids are random: the time of a step does not depend on them, and nothing is downloaded.
The lengths are those of a night whose habit is still there: every attempt takes all its turns.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import log
from pathlib import Path
from typing import Annotated

import typer

from fieldkit.codec import encode_group
from fieldkit.eval.grade import Grade
from fieldkit.files.atomic import whole_dir, write_text
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

MODEL, ADAPTER = "model", "adapter"


@dataclass(frozen=True)
class Size:
    """The model's shape, as in its config.json, and the numbers of a step's ids."""

    config: Mapping[str, int]
    rank: int = 16
    tasks: int = 8
    attempts: int = 4
    turns: int = 12
    first_prompt: int = 800
    sampled: range = field(default=range(40, 161))
    """Ids of one turn's completion."""
    read: range = field(default=range(40, 201))
    """Ids of what a turn reads before the next one."""


QWEN_7B = Size(
    {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "max_position_embeddings": 32768,
    }
)
"""Qwen 2.5 7B and the documents' step. A LoRA of rank 16 on all linear layers has their 40,370,176
parameters."""

SMALL = Size(
    {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    },
    rank=4,
    tasks=2,
    attempts=2,
    turns=3,
    first_prompt=40,
)
"""Hardly any work: whether the bench works."""

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def make_policy(folder: Path, size: Size) -> None:
    """Make the model's folder and its adapter in `folder`, with random weights in bfloat16."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen2Config

    from trainer.scoring.policy import pick_device

    torch.manual_seed(0)
    with whole_dir(folder) as new, torch.device(pick_device()):
        config = Qwen2Config.from_dict({**size.config, "tie_word_embeddings": False})
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
        model.save_pretrained(new / MODEL)
        lora = LoraConfig(r=size.rank, lora_alpha=2 * size.rank, target_modules=list(LINEAR))
        policy = get_peft_model(model, lora)
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                if "lora_B" in name:  # peft's own are zeros
                    parameter.normal_(std=1e-3)
        policy.save_pretrained(str(new / ADAPTER))


def write_bundle(path: Path, size: Size, adapter_sha: str, temperature: float) -> None:
    """trajectory_bundle.jsonl of one step, the same for one size, as sampled at `temperature`."""
    rng, sampling = random.Random(0), Sampling(temperature, max(size.sampled), 1.0, 0, 0.0)
    groups = (_group(rng, size, f"task-{i}", adapter_sha, sampling) for i in range(size.tasks))
    write_text(path, "".join(encode_group(group) + "\n" for group in groups))


def _group(
    rng: random.Random, size: Size, task_id: str, sha: str, sampling: Sampling
) -> RolloutGroup:
    prompt = _ids(rng, size, size.first_prompt)
    rewards = [k / (size.attempts - 1) for k in range(size.attempts)]
    trajectories = tuple(
        Trajectory(
            task_id=task_id,
            k=k,
            seed=0,
            adapter_sha=sha,
            sampling=sampling,
            turns=_turns(rng, size, prompt),
            stop_reason=StopReason.MAX_TURNS,
            grade=Grade(()),
            reward=reward,
            metrics={},
        )
        for k, reward in enumerate(rewards)
    )
    advantages = tuple(reward - sum(rewards) / len(rewards) for reward in rewards)
    return RolloutGroup(0, "clawgym", task_id, trajectories, advantages, Signal.LEARNABLE)


def _turns(rng: random.Random, size: Size, prompt: Sequence[int]) -> tuple[Turn, ...]:
    completions = [_ids(rng, size, rng.choice(size.sampled)) for _ in range(size.turns)]
    read = [_ids(rng, size, rng.choice(size.read)) for _ in range(size.turns)]
    said = [completion + after for completion, after in zip(completions, read, strict=True)]
    prompts = accumulate(said[:-1], lambda before, turn: [*before, *turn], initial=[*prompt])
    uniform = -log(size.config["vocab_size"])  # about what random weights give to any id
    return tuple(
        Turn(
            prompt_ids=tuple(before),
            completion_ids=tuple(completion),
            logprobs=(uniform,) * len(completion),
            text="",
            action=Action(ActionKind.RUN, "true"),
            observation="",
            exit_code=0,
            reward=None,
            finish_reason="stop",
            policy_version="bench-v0",
            seed=0,
            seconds=0.0,
        )
        for before, completion in zip(prompts, completions, strict=True)
    )


def _ids(rng: random.Random, size: Size, n: int) -> list[int]:
    return [rng.randrange(size.config["vocab_size"]) for _ in range(n)]


def main(
    folder: Annotated[Path, typer.Argument(help="Where model and adapter go.")],
    small: Annotated[bool, typer.Option("--small", help="Hardly any weights.")] = False,
) -> None:
    """Make the policy."""
    make_policy(folder, SMALL if small else QWEN_7B)


if __name__ == "__main__":
    typer.run(main)
