"""What a step gains: gradients by turn against the trainer's, and the arithmetic by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch

from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import RolloutGroup, StopReason, Trajectory
from fieldkit.training.adapter import adapter_sha, read_adapter
from tests.trainer.conftest import make_group
from tests.trainer.gains.__main__ import mean_of_pairs
from tests.trainer.gains.rules import GOALS, goal_weights, shaped
from tests.trainer.gains.turn_gradients import GroupGradients, Row, group_gradients
from trainer.batch import collect
from trainer.gradient import accumulate_gradient
from trainer.progress import Lines
from trainer.scoring.micro_batch import micro_batches
from trainer.scoring.policy import load_policy
from trainer.settings import TrainerSettings

CAP = 2.0  # every importance weight is cut to this where the sampler found a token very unlikely


def surprising(group: RolloutGroup) -> RolloutGroup:
    trajectories = tuple(
        replace(
            t,
            turns=tuple(replace(turn, logprobs=(-50.0,) * len(turn.logprobs)) for turn in t.turns),
        )
        for t in group.trajectories
    )
    return replace(group, trajectories=trajectories)


def test_the_weighted_sum_of_the_turns_is_the_gradient_of_the_trainer(
    tiny_model: Path, adapter: Path
) -> None:
    policy = load_policy(
        tiny_model, read_adapter(adapter), torch.float32, gradient_checkpointing=False
    )
    group = surprising(make_group(random.Random(3), adapter_sha(adapter), rewards=(0.0, 1.0, 0.4)))
    settings = TrainerSettings(kl_coef=0.0, tis_cap=CAP)
    batch = collect([group], settings)
    batches = micro_batches(batch.segments, settings, shared=policy.shares_rows)
    policy.model.zero_grad()
    accumulate_gradient(policy, batch, batches, None, settings, Lines(StringIO()))
    theirs_P = torch.cat([p.grad.flatten() for p in policy.lora().values() if p.grad is not None])

    kept = group_gradients(policy, group.trajectories, 1.0)
    weights = torch.tensor([[group.by_turn[row.k][row.turn] for row in kept.rows]])
    ours_P = -CAP * kept.weighted(weights)[0] / batch.n_tokens
    assert any(row.unlikely for row in kept.rows)
    assert any(not row.unlikely for row in kept.rows)
    assert (ours_P - theirs_P).norm() < 1e-3 * theirs_P.norm()  # directions are kept in float16


def test_gradients_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = (Row(0, 0, unlikely=False), Row(1, 2, unlikely=True))
    kept = GroupGradients("t", rows, torch.eye(2).half(), torch.tensor([2.0, 3.0]))
    kept.save(tmp_path / "t.pt")
    again = GroupGradients.load(tmp_path / "t.pt")
    assert (again.task_id, again.rows) == ("t", rows)
    assert again.weighted(torch.tensor([[1.0, -1.0]])).tolist() == [[2.0, -3.0]]


def attempt(k: int, progress: tuple[float, ...], passed: bool) -> Trajectory:
    rng = random.Random(k)
    (of_group,) = make_group(rng, "sha", rewards=(0.0,)).trajectories
    turn = of_group.turns[0]
    result = AssertionResult("file_exists", "a", passed=passed, detail="")
    return replace(
        of_group,
        k=k,
        turns=tuple(replace(turn, reward=p) for p in progress),
        grade=Grade((result,)),
        stop_reason=StopReason.TASK_COMPLETE,
    )


def test_a_turn_is_compared_with_what_the_others_reached_from_its_state() -> None:
    group = [attempt(0, (1.0, 0.0), True), attempt(1, (0.0, 1.0), True), attempt(2, (0.0,), False)]
    rows = [Row(t.k, turn, unlikely=False) for t in group for turn in range(len(t.turns))]
    weights = goal_weights(GOALS["passes"], group, rows)
    # k=0 at the start: k=1 was there twice and passed, k=2 once and did not: 1 - 2/3. After the
    # work: nobody else was there, and of the others one in two passed.
    assert [3 * w for w in weights] == pytest.approx([1 / 3, 1 / 2, 1 / 2, 1 / 2, -1.0])


def test_a_rule_can_leave_out_unlikely_tokens_that_are_pushed_down() -> None:
    group = [attempt(0, (1.0,), True), attempt(1, (0.0,), False)]
    rows = [Row(k, 0, unlikely) for k in (0, 1) for unlikely in (False, True)]
    weights = replace(shaped("rloo", 0.0), unlikely=0.0).weights(group, rows)
    assert weights == [1.0, 1.0, -1.0, 0.0]
    assert replace(shaped("rloo", 0.0), negative=0.5).weights(group, rows) == [1.0, 1.0, -0.5, -0.5]


def test_the_mean_over_pairs_leaves_out_a_bundle_with_itself() -> None:
    pairs = torch.tensor([[100.0, 1.0, 2.0], [3.0, 100.0, 4.0], [5.0, 6.0, 100.0]])
    mean, error = mean_of_pairs(pairs, same=True)
    assert mean.item() == pytest.approx(3.5)
    # Without bundle 0, 1, 2: means of (4, 6), (2, 5), (1, 3).
    assert error.item() == pytest.approx((2 / 3 * ((5 - 3.5) ** 2 + 0 + (2 - 3.5) ** 2)) ** 0.5)


def test_the_mean_over_pairs_of_different_bundles_counts_all_of_them() -> None:
    mean, error = mean_of_pairs(torch.tensor([[1.0, 3.0], [5.0, 7.0]]), same=False)
    assert mean.item() == pytest.approx(4.0)
    assert error.item() == pytest.approx((2.0**2 + 1.0**2) ** 0.5)
