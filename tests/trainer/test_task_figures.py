"""The lines of a step's tasks add up to the step's own figures."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import get_args

import pytest
import torch

from fieldkit.training.adapter import adapter_sha, read_adapter
from fieldkit.training.objectives import Normalisation
from tests.trainer.conftest import make_group
from trainer.batch import collect
from trainer.gradient import accumulate_gradient
from trainer.progress import Lines
from trainer.scoring.micro_batch import micro_batches
from trainer.scoring.policy import load_policy
from trainer.settings import TrainerSettings

SETTINGS = TrainerSettings(temperature=0.8, kl_coef=0.3, tokens_per_microbatch=60)
LINE = re.compile(
    r"\[trainer\] task (\w+): episodes=(\d+) tokens=(\d+) advantage=(\S+)\.\.(\S+) "
    r"policy_loss=(\S+)(?: kl=(\S+))?$"
)


def told(
    model: Path, adapter: Path, kl_coef: float, normalisation: Normalisation = "token"
) -> tuple[list[re.Match[str]], float, float | None]:
    """The tasks' lines, and policy loss and KL of the whole step."""
    rng, sha = random.Random(11), adapter_sha(adapter)
    rewards = [(0.0, 1.0, 0.5), (0.4, 0.4), (1.0, 0.1, 0.2, 0.9)]
    groups = [make_group(rng, sha, f"t{i}", r, temperature=0.8) for i, r in enumerate(rewards)]
    settings = replace(SETTINGS, kl_coef=kl_coef, normalisation=normalisation)
    policy = load_policy(model, read_adapter(adapter), torch.float32, gradient_checkpointing=False)
    batch = collect(groups, settings)
    batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
    assert len(batches) > 2
    references = None
    if kl_coef:
        references = [torch.full((sum(s.n_trained for s in b),), -3.0) for b in batches]
    out = StringIO()
    figures, _ = accumulate_gradient(policy, batch, batches, references, settings, Lines(out))
    found = [m for line in out.getvalue().splitlines() if (m := LINE.match(line))]
    return found, figures["policy_loss"], figures.get("kl")


@pytest.mark.parametrize("normalisation", get_args(Normalisation))
def test_every_scored_task_has_one_line_and_the_lines_add_up(
    normalisation: Normalisation, tiny_model: Path, adapter: Path
) -> None:
    lines, policy_loss, kl = told(tiny_model, adapter, 0.3, normalisation)
    assert sorted((m[1], int(m[2])) for m in lines) == [("t0", 3), ("t2", 4)]  # t1 is silent
    assert sum(float(m[6]) for m in lines) == pytest.approx(policy_loss, abs=2e-5)
    tokens = [int(m[3]) for m in lines]
    mean = sum(float(m[7]) * n for m, n in zip(lines, tokens, strict=True)) / sum(tokens)
    assert mean == pytest.approx(kl, abs=2e-5)
    assert all(float(m[4]) < 0 < float(m[5]) for m in lines)


def test_without_a_reference_there_is_no_kl_in_the_line(tiny_model: Path, adapter: Path) -> None:
    lines, _, _ = told(tiny_model, adapter, kl_coef=0.0)
    assert [m[7] for m in lines] == [None, None]
