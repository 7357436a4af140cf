"""`python -m tests.trainer.gains ARM --adapter DIR --keep FOLDER`: what a step gains, by rule.

ARM is the folder of an evaluation with K samples of each task at the training temperature:
`grpo eval --adapter DIR --tasks FILE --temperature 1 --set eval.samples=8 --out RUN` leaves it
below RUN/evals. Its groups are dealt into bundles. Of each bundle and rule the step's direction is
taken as the trainer takes it, and a goal's gradient from other bundles: their product is what a
step of the given length gains, to first order and without bias. So rules are compared on the same
episodes, without a night. Importance weights, which are 1 up to rounding here, and the KL are left
out. With `--goals` the goals are outcomes of another arm of the same adapter on other tasks, which
may have been played at another temperature, such as that of evaluations. Gradients are
kept, and the same command goes on from them; `--share 0/2` and `--share 1/2` take them in two
processes. Needs two megabytes a turn and part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import track
from torch import Tensor

from fieldkit.codec import read_trajectories
from fieldkit.records import Trajectory
from fieldkit.training.adapter import check_adapter
from rollout.arm import stored_transcripts
from scripts.prepare.model import build_model
from tests.trainer.gains.rules import GOALS, Rule, goal_weights, shaped
from tests.trainer.gains.turn_gradients import GroupGradients, Row, group_gradients
from trainer.scoring.policy import load_policy, serving_dtype, training_dtype

_CLAIM = shaped(turn_penalty=0.2, bonus=0.5, claim=0.25)
_ONCE = shaped(turn_penalty=0.2, bonus=0.5, claim=0.25, once=True).reward

RULES: Mapping[str, Rule] = {
    "turn, λ 0.5": shaped("turn"),
    "episode, λ 0.5": shaped("episode"),
    "state, λ 0.5": shaped(),
    "state, λ 0.5, bonus 1": shaped(bonus=1.0),
    "state, λ 0.2": shaped(turn_penalty=0.2),
    "state, λ 0.2, bonus 1": shaped(turn_penalty=0.2, bonus=1.0),
    "state, λ 0.2, finish bonus 1": shaped(turn_penalty=0.2, finish=1.0),
    "state, λ 0.2, bonus 0.5, claim 0.25": _CLAIM,
    "… facts paid once": replace(_CLAIM, reward=_ONCE),
    "… unlikely tokens half": replace(_CLAIM, unlikely=0.5),
    "… unlikely tokens none": replace(_CLAIM, unlikely=0.0),
    "… negative turns half": replace(_CLAIM, negative=0.5),
    "… negative turns none": replace(_CLAIM, negative=0.0),
    "state, λ 0": shaped(turn_penalty=0.0),
    "state, binary": shaped(kind="binary"),
    "episode, binary": shaped("episode", kind="binary"),
}
"""The first one is what the others are compared with. "rloo" is left out: its direction is that of
"episode"."""

Weigh = Callable[[Sequence[Trajectory], Sequence[Row]], list[float]]


def main(
    arm: Annotated[Path, typer.Argument(help="The evaluation's folder.")],
    adapter: Annotated[Path, typer.Option(help="The adapter that played it.")],
    keep: Annotated[Path, typer.Option(help="Where its gradients are kept.")],
    goals: Annotated[
        Path | None, typer.Option(help="Another arm, on other tasks, whose outcomes are the goals.")
    ] = None,
    keep_goals: Annotated[Path | None, typer.Option(help="Where those gradients are kept.")] = None,
    groups: Annotated[int, typer.Option(min=1, help="Groups of a bundle.")] = 8,
    length: Annotated[float, typer.Option(help="L2 of a step.")] = 0.12,
    share: Annotated[str, typer.Option(help="I/N: only every N-th gradient from the I-th.")] = "",
) -> None:
    """Take the gradients that are missing, then print the table (without --share)."""
    found = _groups(arm)
    _take(found, keep, adapter, share)
    other, keep_other = found, keep
    if goals is not None:
        other, keep_other = _groups(goals), keep_goals or keep / "goals"
        _take(other, keep_other, adapter, share)
    if not share:
        steps_BVP = _bundles(keep, found, groups, [rule.weights for rule in RULES.values()])
        wanted = [partial(goal_weights, outcome) for outcome in GOALS.values()]
        goals_BGP = _bundles(keep_other, other, groups, wanted) / groups
        _print(steps_BVP, goals_BGP, length, same=goals is None)


def _groups(arm: Path) -> dict[str, list[Trajectory]]:
    transcripts = stored_transcripts(arm)
    if transcripts is None:
        raise typer.BadParameter(f"{arm}: no trajectories there")
    found: dict[str, list[Trajectory]] = {}
    for trajectory in read_trajectories(transcripts):
        found.setdefault(trajectory.task_id, []).append(trajectory)
    return found


def _take(found: Mapping[str, Sequence[Trajectory]], keep: Path, adapter: Path, share: str) -> None:
    """Take the gradients that are not there yet."""
    keep.mkdir(parents=True, exist_ok=True)
    start, every = (int(n) for n in share.split("/")) if share else (0, 1)
    missing = [t for t in list(found)[start::every] if not _kept(keep, t).is_file()]
    if not missing:
        return
    model = build_model()
    info = check_adapter(adapter, model)
    dtype = training_dtype("auto", serving_dtype("auto", model))
    policy = load_policy(model, info, dtype, gradient_checkpointing=False)
    for task_id in track(missing, "gradients"):
        group = found[task_id]
        if group[0].adapter_sha != info.sha:
            raise typer.BadParameter(f"{adapter}: another adapter played {task_id}")
        group_gradients(policy, group, group[0].sampling.temperature).save(_kept(keep, task_id))


def _kept(keep: Path, task_id: str) -> Path:
    return keep / f"{task_id}.pt"


def _bundles(
    keep: Path, found: Mapping[str, Sequence[Trajectory]], groups: int, ways: Sequence[Weigh]
) -> Tensor:
    """The sums over B bundles of `groups` groups, weighted in each of V ways: BVP."""
    dealt = list(found)
    random.Random(0).shuffle(dealt)  # neighbours in a task file are alike
    bundles = []
    for first in range(0, len(dealt) - groups + 1, groups):
        total_VP = torch.zeros(())
        for task_id in dealt[first : first + groups]:
            kept = GroupGradients.load(_kept(keep, task_id))
            weights_VR = torch.tensor([weigh(found[task_id], kept.rows) for weigh in ways])
            total_VP = total_VP + kept.weighted(weights_VR)
        bundles.append(total_VP)
    return torch.stack(bundles)


def _print(steps_BVP: Tensor, goals_BGP: Tensor, length: float, *, same: bool) -> None:
    units_BVP = steps_BVP / steps_BVP.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    # Entry ij: what the step of bundle i gains by the goal's gradient of bundle j.
    pairs_VGij = length * torch.einsum("ivp,jgp->vgij", units_BVP, goals_BGP)
    alike_V, _ = mean_of_pairs(torch.einsum("ivp,jvp->vij", units_BVP, units_BVP), same=True)
    mean_VG, error_VG = mean_of_pairs(pairs_VGij, same=same)
    more_VG, unsure_VG = mean_of_pairs(pairs_VGij - pairs_VGij[:1], same=same)
    of = f"{len(steps_BVP)} bundles" + ("" if same else f", goals from {len(goals_BGP)} others")
    print(f"{of}; a step of length {length} gains, in points (turns in hundredths of a turn):")
    print(f"| rule | {' | '.join(GOALS)} | passes, less the first rule's | alike |")
    print(f"| :-- |{' --: |' * (len(GOALS) + 2)}")
    for v, name in enumerate(RULES):
        cells = [
            f"{100 * m:+.2f} ± {100 * e:.2f}" for m, e in zip(mean_VG[v], error_VG[v], strict=True)
        ]
        more = f"{100 * more_VG[v, 0]:+.2f} ± {100 * unsure_VG[v, 0]:.2f}"
        print(f"| {name} | {' | '.join(cells)} | {more} | {alike_V[v]:.3f} |")


def mean_of_pairs(pairs_ij: Tensor, *, same: bool) -> tuple[Tensor, Tensor]:
    """Mean over pairs, and its standard error by leaving out one bundle at a time.

    same: rows and columns are the same bundles, and a bundle is no pair with itself.
    """
    counted_ij = torch.ones(pairs_ij.shape[-2:])
    if same:
        counted_ij.fill_diagonal_(0.0)
    pairs_ij = pairs_ij * counted_ij
    total, n = pairs_ij.sum((-1, -2)), counted_ij.sum()
    rows_i, columns_j = (
        (pairs_ij.sum(-1), counted_ij.sum(-1)),
        (pairs_ij.sum(-2), counted_ij.sum(-2)),
    )
    if same:
        rows_i = (rows_i[0] + columns_j[0], rows_i[1] + columns_j[1])
    variance = torch.zeros(())
    for sums, counts in [rows_i] if same else [rows_i, columns_j]:
        without = (total[..., None] - sums) / (n - counts)
        spread = (without - without.mean(-1, keepdim=True)).square().mean(-1)
        variance = variance + spread * (len(counts) - 1)
    return total / n, variance.sqrt()


if __name__ == "__main__":
    typer.run(main)
