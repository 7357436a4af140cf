"""The seeds of turns, of worlds, and of the orders of tasks.

Every seed derives from the run's seed and from names, never from the state of a generator, so a
phase that was killed and starts again has the same seeds, whatever it had finished. Evaluation
seeds leave out run and step, so that two arms have the same noise.
"""

from __future__ import annotations

import hashlib
import json

SEED_BITS = 48
"""Engines take 63 bits; 48 bits are exact in a JSON reader that uses doubles."""

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
    """The sampling seed of one evaluation turn, the same for every arm, step and run."""
    return _derive("eval", task_id, k, turn)


def world_seed(task_id: str) -> int:
    """The seed of a world with randomness, the same for every attempt at a task."""
    return _derive("world", task_id)


def epoch_seed(run_seed: int, epoch: int, env: str | None = None) -> int:
    """The seed that shuffles one pass over the pool, or over one environment's tasks."""
    return _derive("epoch", run_seed, *([] if env is None else [env]), epoch)


def draw_seed(run_seed: int, step: int, task_id: str) -> int:
    """The random number of one task in one step's draw, for draws at random."""
    return _derive("draw", run_seed, step, task_id)


def author_seed(seed: int, number: int) -> int:
    """The sampling seed of the reply in which a model writes task `number` of a file."""
    return _derive("author", seed, number)
