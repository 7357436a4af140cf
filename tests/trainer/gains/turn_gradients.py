"""The gradient of every turn's log-probability, kept on disk.

The gradient of a step is a sum over turns: advantage times this. So once they are kept, any rule
that gives advantages can be tried on the same episodes without another pass over the model.
Tokens that the policy finds unlikely are kept apart from the others of their turn.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fieldkit.files.atomic import write_bytes
from fieldkit.records import RolloutGroup, Signal, Trajectory
from trainer.batch import collect
from trainer.scoring.micro_batch import tensors
from trainer.scoring.policy import Policy
from trainer.settings import TrainerSettings

UNLIKELY = 0.1
"""Tokens with a lower probability than this are the unlikely part of their turn."""


@dataclass(frozen=True)
class Row:
    """Whose gradient a row is: a turn of an episode, and which part of its tokens."""

    k: int
    turn: int
    unlikely: bool


@dataclass(frozen=True)
class GroupGradients:
    """R rows of P numbers each: directions of length 1 in float16, and the lengths."""

    task_id: str
    rows: tuple[Row, ...]
    directions_RP: Tensor
    lengths_R: Tensor

    def weighted(self, weights_VR: Tensor) -> Tensor:
        """V sums of the rows, float32."""
        return (weights_VR * self.lengths_R) @ self.directions_RP.float()

    def save(self, path: Path) -> None:
        """Write the file whole or not at all."""
        rows = [(row.k, row.turn, row.unlikely) for row in self.rows]
        data = io.BytesIO()
        torch.save((self.task_id, rows, self.directions_RP, self.lengths_R), data)
        write_bytes(path, data.getvalue())

    @classmethod
    def load(cls, path: Path) -> GroupGradients:
        task_id, rows, directions_RP, lengths_R = torch.load(path)
        return cls(task_id, tuple(Row(*row) for row in rows), directions_RP, lengths_R)


def group_gradients(
    policy: Policy, trajectories: Sequence[Trajectory], temperature: float
) -> GroupGradients:
    """The gradients of all turns of a group's episodes at the policy that is loaded."""
    found = list(_by_row(policy, trajectories, temperature))
    lengths_R = torch.stack([g.norm() for _, g in found])
    directions = [g / length for (_, g), length in zip(found, lengths_R, strict=True)]
    rows = tuple(row for row, _ in found)
    return GroupGradients(trajectories[0].task_id, rows, torch.stack(directions).half(), lengths_R)


def _by_row(
    policy: Policy, trajectories: Sequence[Trajectory], temperature: float
) -> Iterator[tuple[Row, Tensor]]:
    parameters = list(policy.lora().values())
    task_id, ones = trajectories[0].task_id, (1.0,) * len(trajectories)
    group = RolloutGroup(1, "", task_id, tuple(trajectories), ones, Signal.LEARNABLE)
    for segment in collect([group], TrainerSettings(temperature=temperature)).segments:
        micro = tensors([segment], policy.device, shared=policy.shares_rows)
        logprobs_n, _ = policy.logprobs(micro, temperature)
        unlikely_n = logprobs_n.detach() < math.log(UNLIKELY)
        start = 0
        for span in segment.spans:
            inside_n = torch.zeros_like(unlikely_n)
            inside_n[start : start + span.length] = True
            start += span.length
            for unlikely in (False, True):
                chosen_n = inside_n & (unlikely_n == unlikely)
                if chosen_n.any():
                    gradients = torch.autograd.grad(
                        logprobs_n[chosen_n].sum(), parameters, retain_graph=True
                    )
                    row = Row(segment.k, span.turn, unlikely)
                    yield row, torch.cat([g.flatten() for g in gradients])
