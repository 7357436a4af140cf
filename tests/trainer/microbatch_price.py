"""`python -m tests.trainer.microbatch_price`: a gradient with small micro-batches and large ones.

Takes the gradient of one made bundle (segments of random ids, as long as episodes of eight turns, a
third of the ids sampled) with the default model and adapter, by turns at 1,024, 2,048 and 4,096
tokens a micro-batch. Prints medians of the seconds, the ratio of the last to the first, the
machine's load, and how far losses and gradients are apart.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from io import StringIO
from typing import Annotated

import torch
import typer

from fieldkit.training.adapter import check_adapter
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model
from trainer.batch import Segment, Span, TrainingBatch
from trainer.gradient import accumulate_gradient
from trainer.progress import Lines
from trainer.scoring.micro_batch import micro_batches
from trainer.scoring.policy import load_policy
from trainer.settings import AMX_TOKENS, CPU_TOKENS, GPU_TOKENS, TrainerSettings

PROMPT, TURNS, TURN, REPLY = 110, 8, 29, 10
"""Tokens of a task's prompt; turns of an episode; tokens of a turn and those that are sampled."""


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Gradients of each kind.")] = 3,
    segments: Annotated[int, typer.Option(min=1, help="Episodes in the bundle.")] = 12,
    dtype: Annotated[str, typer.Option(help="Of the base: bfloat16 or float32.")] = "bfloat16",
) -> None:
    """Measure both kinds by turns, after one gradient that is not counted."""
    model = build_model()
    adapter = check_adapter(ROOT / "adapters" / "smol-warm", model)
    policy = load_policy(model, adapter, getattr(torch, dtype), gradient_checkpointing=False)
    drawn = random.Random(0)
    batch = _batch([_segment(drawn, n, policy.vocabulary) for n in range(segments)])
    seconds: dict[int, list[float]] = {
        tokens: [] for tokens in (CPU_TOKENS, AMX_TOKENS, GPU_TOKENS)
    }
    losses: dict[int, float] = {}
    gradients: dict[int, torch.Tensor] = {}
    for number in range(rounds + 1):
        for tokens in sorted(seconds, reverse=number % 2 == 1):
            settings = TrainerSettings(tokens_per_microbatch=tokens, kl_coef=0.0)
            policy.model.zero_grad()
            batches = micro_batches(batch.segments, settings, shared=policy.shares_prompts)
            began = time.perf_counter()
            quiet = Lines(StringIO())
            figures, _ = accumulate_gradient(policy, batch, batches, None, settings, quiet)
            if number:
                seconds[tokens].append(time.perf_counter() - began)
            losses[tokens] = figures["loss"]
            gradients[tokens] = torch.cat([_flat(p.grad) for p in policy.lora().values()])
    medians = {tokens: statistics.median(found) for tokens, found in seconds.items()}
    for tokens, median in medians.items():
        print(f"{tokens}: median {median:.2f} s of {rounds}, loss {losses[tokens]:.8f}")
    small, large = gradients[CPU_TOKENS], gradients[GPU_TOKENS]
    apart = ((small - large).norm() / large.norm()).item()
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"ratio {medians[GPU_TOKENS] / medians[CPU_TOKENS]:.2f}, load {load}")
    print(f"gradients {apart:.1e} apart, losses {abs(losses[1024] / losses[4096] - 1):.1e}")


def _segment(drawn: random.Random, number: int, vocabulary: int) -> Segment:
    length = PROMPT + TURNS * TURN
    spans = tuple(Span(t, PROMPT + t * TURN, REPLY) for t in range(TURNS))
    ids = tuple(drawn.randrange(vocabulary) for _ in range(length))
    advantages = tuple(drawn.choice((-1.0, 1.0)) for _ in spans for _ in range(REPLY))
    n = TURNS * REPLY
    return Segment(f"t{number}", 0, ids, spans, (-20.0,) * n, advantages, (1.0,) * n)


def _batch(segments: list[Segment]) -> TrainingBatch:
    tokens = sum(s.n_trained for s in segments)
    return TrainingBatch(tuple(segments), tokens, float(tokens), len(segments), len(segments), {})


def _flat(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient.flatten().clone()


if __name__ == "__main__":
    typer.run(main)
