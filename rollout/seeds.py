"""Which seed each turn samples with, each world draws with, and each order of tasks is shuffled by.

Everything derives from the run's seed and from names, never from a generator that is carried
along: a phase that was killed and starts again has the same seeds, whatever it had finished.
Evaluation seeds leave out run and step, so that two arms meet the same noise.
"""

from __future__ import annotations

import hashlib
import json

SEED_BITS = 48
"""Engines take 63 bits; 48 survive a JSON reader that holds numbers as doubles."""

EPISODE_TURN = -1
"""The turn number that stands for the whole episode: the seed kept in `Trajectory.seed`."""


def _derive(*parts: str | int) -> int:
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest, "big") >> (len(digest) * 8 - SEED_BITS)


def training_seed(run_seed: int, step: int, task_id: str, k: int, turn: int) -> int:
    """The sampling seed of one training turn, in [0, 2**48).

    Every turn has its own: an engine restarts its generator with each request's seed, and one seed
    for a whole episode would repeat the same noise each turn.
    """
    return _derive("train", run_seed, step, task_id, k, turn)


def eval_seed(task_id: str, k: int, turn: int) -> int:
    """The sampling seed of one evaluation turn: the same for every arm, step and run."""
    return _derive("eval", task_id, k, turn)


def world_seed(task_id: str) -> int:
    """What a world that draws at random is seeded with: the same for every attempt at a task."""
    return _derive("world", task_id)


def epoch_seed(run_seed: int, epoch: int, env: str | None = None) -> int:
    """What the order of a pass over the pool is shuffled by; of one environment's tasks."""
    return _derive("epoch", run_seed, *([] if env is None else [env]), epoch)


def draw_seed(run_seed: int, step: int, task_id: str) -> int:
    """What decides whether a step draws this task, where a draw is by chance."""
    return _derive("draw", run_seed, step, task_id)
