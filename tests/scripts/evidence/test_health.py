from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.records import Outcome, StepSummary
from rollout.settings import RolloutSettings
from scripts.evidence import health as w
from scripts.evidence.findings import read_findings
from scripts.evidence.milestones import Milestones, milestones
from scripts.run.config import RunConfig
from tests.scripts.evals import step
from tests.scripts.made_night import make_night, tasks


def steps(**columns: Sequence[float]) -> list[StepSummary]:
    """One step a value: `reward`, `passed`, `tokens` or any figure of the trainer."""
    n = len(next(iter(columns.values())))
    out = []
    for i in range(n):
        row = {key: values[i] for key, values in columns.items()}
        base = step(i + 1, f"sha-{i}", stop_rate=0.5, turns=10.0, reward=row.pop("reward", 0.3))
        base = replace(base, pass_rate=row.pop("passed", 0.5), mean_tokens=row.pop("tokens", 100.0))
        out.append(replace(base, train=row))
    return out


def found(those: Sequence[StepSummary]) -> Milestones:
    return milestones(those)


def test_a_kl_that_jumps_is_named_with_its_step() -> None:
    spike = w.kl_spike(steps(kl=[0.01, 0.012, 0.011, 0.013, 0.2, 0.02]))
    assert spike is not None
    assert spike.title == "The KL jumped at step 5"


REAL_NIGHT = [0.0, 0.0009, 0.0020, 0.0035, 0.0051, 0.0116, 0.0114, 0.0152, 0.0282, 0.0345, 0.0434]
"""The first steps of a healthy night: it doubles from step to step and is no spike."""


@pytest.mark.parametrize(
    "kl",
    [
        [0.0, 0.001, 0.002, 0.003, 0.004, 0.006],
        [0.0001, 0.0001, 0.0001, 0.005],
        [0.0, 0.5],
        REAL_NIGHT,
    ],
)
def test_a_kl_that_grows_steadily_or_stays_tiny_or_is_young_is_no_spike(kl: list[float]) -> None:
    assert w.kl_spike(steps(kl=kl)) is None


def test_a_reward_that_rises_while_fewer_rollouts_pass_is_a_warning() -> None:
    night = steps(reward=[0.3, 0.3, 0.3, 0.5, 0.5, 0.5], passed=[0.6, 0.6, 0.6, 0.3, 0.3, 0.3])
    seen = w.reward_without_work(found(night), None)
    assert seen is not None
    assert "tasks passed −30.0 points" in seen.seen


def test_where_held_out_tasks_were_played_they_are_asked_and_not_the_rollouts(
    tmp_path: Path,
) -> None:
    worse = steps(reward=[0.3, 0.3, 0.3, 0.5, 0.5, 0.5], passed=[0.6, 0.6, 0.6, 0.3, 0.3, 0.3])
    for lost, warned in ((2, False), (14, True)):
        on = tasks(40)
        night = make_night(tmp_path / str(lost), held_out=on, lost=lost)
        evidence = read_findings(night.folder, night.config).evidence
        assert (w.reward_without_work(found(worse), evidence) is not None) == warned


def test_a_reward_that_rises_with_the_work_is_none() -> None:
    night = steps(reward=[0.3, 0.3, 0.3, 0.5, 0.5, 0.5], passed=[0.3, 0.3, 0.3, 0.6, 0.6, 0.6])
    assert w.reward_without_work(found(night), None) is None


def test_replies_that_shrink_to_less_than_half_have_collapsed() -> None:
    assert w.length_collapse(steps(tokens=[100.0] * 3 + [90.0] * 3)) is None
    assert w.length_collapse(steps(tokens=[100.0] * 3 + [40.0] * 3)) is not None


def test_fewer_turns_alone_are_no_collapse() -> None:
    night = steps(tokens=[120.0, 120.0, 120.0, 30.0, 30.0, 30.0])
    night[3:] = [replace(s, mean_turns=2.5) for s in night[3:]]
    assert w.length_collapse(night) is None


def test_an_entropy_below_a_quarter_of_where_it_began_has_collapsed() -> None:
    assert w.entropy_collapse(steps(entropy=[0.4] * 3 + [0.2] * 3)) is None
    assert w.entropy_collapse(steps(entropy=[0.4] * 3 + [0.05] * 3)) is not None


def test_sampler_and_trainer_drift_only_where_the_gap_is_wide_and_grew() -> None:
    assert w.drift(steps(sampler_mean_abs=[0.007] * 3 + [0.015] * 3)) is None
    assert w.drift(steps(sampler_mean_abs=[0.03] * 6)) is None
    assert w.drift(steps(sampler_mean_abs=[0.007] * 3 + [0.05] * 3)) is not None


def test_many_clipped_tokens_are_a_warning() -> None:
    assert w.clipped(steps(clipped_share=[0.0] * 3 + [0.01] * 3)) is None
    assert w.clipped(steps(clipped_share=[0.0] * 3 + [0.2] * 3)) is not None


def test_too_few_steps_to_compare_first_and_last_say_nothing() -> None:
    assert w.entropy_collapse(steps(entropy=[0.4, 0.01, 0.01])) is None


def test_a_sandbox_that_is_off_is_a_warning_whatever_else_went_well() -> None:
    assert w.sandbox_off({"sandbox": "bwrap"}) is None
    off = w.sandbox_off({"sandbox": "none"})
    assert off is not None
    assert "bwrap" in off.remedy


def test_an_adapter_that_names_another_base_is_a_warning() -> None:
    model = {"dir": "/cache/hub/models--org--Big-Instruct/snapshots/0123"}
    assert w.base_in_doubt({"model": model, "adapter": {"other_base": None}}) is None
    assert w.base_in_doubt({"model": model}) is None
    other = w.base_in_doubt({"model": model, "adapter": {"other_base": "Big"}})
    assert other is not None
    assert "trained on Big;" in other.seen
    assert "on Big-Instruct." in other.seen


def test_a_night_of_steps_without_signal_is_a_warning() -> None:
    night = steps(reward=[0.3] * 4)
    silent = [replace(s, outcome=Outcome.NO_SIGNAL) for s in night[:2]]
    assert w.silent_steps([*silent, *night[2:]]) is not None
    assert w.silent_steps([silent[0], *night[1:]]) is None


def test_small_groups_are_a_warning() -> None:
    small = RunConfig(rollout=RolloutSettings(group_size=2))
    assert w.small_groups(small) is not None
    assert w.small_groups(RunConfig()) is None


def test_a_good_night_has_no_warning() -> None:
    night = steps(
        reward=[0.3, 0.4, 0.5, 0.6, 0.7, 0.8],
        passed=[0.3, 0.3, 0.3, 0.4, 0.4, 0.4],
        kl=[0.0, 0.001, 0.002, 0.003, 0.004, 0.005],
        entropy=[0.2] * 6,
        sampler_mean_abs=[0.007] * 6,
        clipped_share=[0.0] * 6,
    )
    assert w.warnings(night, found(night), RunConfig(), {"sandbox": "bwrap"}, None) == ()
