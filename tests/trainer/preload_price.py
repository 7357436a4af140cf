"""`python -m tests.trainer.preload_price`: a gradient with what a trainer can preload.

Takes the gradient of a made bundle (`tests.trainer.microbatch_price`) in processes of their own,
the kinds by turns. Prints for each kind the median of the seconds, their ratio to the first kind,
the most memory that the process held, and the machine's load. All gradients must be equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from io import StringIO
from typing import Annotated, Any

import torch
import typer

from fieldkit.training.adapter import check_adapter
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model
from tests.rollout.engine.preload_price import environment
from tests.trainer.microbatch_price import _batch, _flat, _segment
from trainer.gradient import accumulate_gradient
from trainer.progress import Lines
from trainer.scoring.micro_batch import micro_batches
from trainer.scoring.policy import load_policy
from trainer.settings import TrainerSettings


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Gradients of each kind.")] = 15,
    kinds: Annotated[str, typer.Option(help="Kinds, with commas between them.")] = (
        "plain,tcmalloc,tcmalloc+openmp"
    ),
    tokens: Annotated[int, typer.Option(help="Tokens a micro-batch.")] = 1024,
    one: Annotated[bool, typer.Option(help="Take a gradient for each line of stdin.")] = False,
) -> None:
    """Measure the kinds by turns, after one gradient each that is not counted."""
    if one:
        _serve(tokens)
        return
    named = kinds.split(",")
    words = [sys.executable, "-m", "tests.trainer.preload_price", "--one", "--tokens", str(tokens)]
    programs = {kind: _start(words, kind) for kind in named}
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in named}
    for number in range(rounds + 1):
        for kind in named if number % 2 == 0 else named[::-1]:
            measured = _ask(programs[kind])
            if number:
                found[kind].append(measured)
    for program in programs.values():
        program.communicate()
    gradients = {measured["gradient"] for each in found.values() for measured in each}
    assert len(gradients) == 1, "the gradient depends on what is preloaded"
    for kind in named:
        wall, busy = (_median(found[kind], key) for key in ("seconds", "busy"))
        ratios = [_median(found[named[0]], key) / _median(found[kind], key) for key in KEYS]
        print(
            f"{kind}: median of {rounds} {wall:.2f} s ({ratios[0]:.2f} times as fast), "
            f"{busy:.2f} processor seconds ({ratios[1]:.2f}), at most "
            f"{found[kind][-1]['held']:.2f} GiB"
        )
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{tokens} tokens a micro-batch, equal gradients, load {load}")


KEYS = ("seconds", "busy")


def _median(found: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(each[key] for each in found))


def _start(words: list[str], kind: str) -> subprocess.Popen[str]:
    env = {**os.environ, **environment(kind)}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=env, stdin=pipe, stdout=pipe, text=True)


def _ask(program: subprocess.Popen[str]) -> dict[str, Any]:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("go\n")
    program.stdin.flush()
    return dict(json.loads(program.stdout.readline()))


def _serve(tokens: int) -> None:
    """One gradient for each line of stdin: seconds, processor seconds, hash, GiB at most so far."""
    model = build_model()
    adapter = check_adapter(ROOT / "adapters" / "smol-warm", model)
    policy = load_policy(model, adapter, torch.bfloat16, gradient_checkpointing=False)
    settings = TrainerSettings(tokens_per_microbatch=tokens, kl_coef=0.0)
    drawn = random.Random(0)
    episodes = max(3, tokens // 340)
    batch = _batch([_segment(drawn, n, policy.vocabulary) for n in range(episodes)])
    batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
    for _ in sys.stdin:
        policy.model.zero_grad()
        began, busy = time.perf_counter(), time.process_time()
        accumulate_gradient(policy, batch, batches, None, settings, Lines(StringIO()))
        flat = torch.cat([_flat(p.grad) for p in policy.lora().values()])
        measured = {
            "seconds": time.perf_counter() - began,
            "busy": time.process_time() - busy,
            "gradient": hashlib.sha256(flat.numpy().tobytes()).hexdigest(),
            "held": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        }
        print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    typer.run(main)
