"""`python -m tests.trainer.microbatch_price`: micro-batches in parallel and one after the other.

Takes the gradient of one bundle, by default a made one (segments of random ids, as long as episodes
of eight turns, a third of the ids sampled), with the default model and adapter, by turns with large
and small micro-batches, one at a time on all cores and one on each core. Prints the medians of the
seconds, how far each gradient is from the first kind's, and the machine's load. Run it both with
`OMP_WAIT_POLICY=passive` and with `GOMP_SPINCOUNT=5000`.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from io import StringIO
from pathlib import Path
from typing import Annotated

import torch
import typer

from fieldkit.codec import read_bundle
from fieldkit.training.adapter import check_adapter
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model
from trainer.batch import Segment, Span, TrainingBatch, collect
from trainer.gradient import accumulate_gradient
from trainer.progress import Lines
from trainer.scoring.micro_batch import micro_batches
from trainer.scoring.policy import load_policy
from trainer.settings import TrainerSettings

PROMPT, TURNS, TURN, REPLY = 110, 8, 29, 10
"""Tokens of a task's prompt; turns of an episode; tokens of a turn and those that are sampled."""


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Gradients of each kind.")] = 3,
    segments: Annotated[int, typer.Option(min=1, help="Episodes in the bundle.")] = 12,
    dtype: Annotated[str, typer.Option(help="Of the base: bfloat16 or float32.")] = "bfloat16",
    bundle: Annotated[Path | None, typer.Option(help="A step's, in place of a made one.")] = None,
) -> None:
    """Measure all kinds by turns, after one gradient of each that is not counted."""
    model = build_model()
    adapter = check_adapter(ROOT / "adapters" / "smol-warm", model)
    policy = load_policy(model, adapter, getattr(torch, dtype), gradient_checkpointing=False)
    drawn = random.Random(0)
    batch = _batch([_segment(drawn, n, policy.vocabulary) for n in range(segments)])
    if bundle is not None:
        batch = collect(read_bundle(bundle), TrainerSettings(kl_coef=0.0))
    kinds = ((1024, 1), (2048, 1), (768, policy.at_once), (1024, policy.at_once))
    seconds: dict[tuple[int, int], list[float]] = {kind: [] for kind in kinds}
    gradients: dict[tuple[int, int], torch.Tensor] = {}
    for number in range(rounds + 1):
        for kind in kinds[:: 1 if number % 2 else -1]:
            tokens, policy.at_once = kind
            settings = TrainerSettings(tokens_per_microbatch=tokens, kl_coef=0.0)
            policy.model.zero_grad()
            batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
            began = time.perf_counter()
            accumulate_gradient(policy, batch, batches, None, settings, Lines(StringIO()))
            if number:
                seconds[kind].append(time.perf_counter() - began)
            gradients[kind] = torch.cat([_flat(p.grad) for p in policy.lora().values()])
    first = gradients[kinds[0]]
    for kind, found in seconds.items():
        apart = ((gradients[kind] - first).norm() / first.norm()).item()
        told = " ".join(f"{value:.2f}" for value in found)
        print(
            f"{kind[0]} tokens, {kind[1]} at a time: median {statistics.median(found):.2f} s of"
            f" {told}; gradient {apart:.1e} apart"
        )
    print("load", "/".join(f"{value:.1f}" for value in os.getloadavg()))


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
