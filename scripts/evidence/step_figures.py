"""Figures of a step, as curves, warnings and the table of numbers read them off its summary.

A figure that a step does not have is None, and is left out by whoever shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fieldkit.records import StepSummary

Read = Callable[[StepSummary], float | None]


def train(key: str) -> Read:
    """The trainer's figure of that name."""
    return lambda step: step.train.get(key)


def tokens_a_turn(step: StepSummary) -> float | None:
    """Mean length of a reply."""
    if not step.mean_tokens or not step.mean_turns:
        return None
    return step.mean_tokens / step.mean_turns


def sampled_rate(s: StepSummary) -> float | None:
    """Tokens that the server sampled in a second of rollout."""
    seconds = s.seconds.get("rollout")
    return s.n_trajectories * s.mean_tokens / seconds if seconds and s.mean_tokens else None


def by_step(steps: Sequence[StepSummary], read: Read) -> list[tuple[int, float]]:
    """(step, figure) of every step that has it."""
    return [(s.step, v) for s in steps if (v := read(s)) is not None]
