from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.eval.grade import RewardPart
from fieldkit.records import AtStop, Outcome, StepSummary, Trajectory
from rollout.settings import RolloutSettings
from scripts.evidence import health as w
from scripts.evidence.collect import Evidence
from scripts.evidence.findings import read_findings
from scripts.evidence.milestones import Milestones, milestones
from scripts.run.config import RunConfig
from tests.scripts.evals import collect, step, trajectory, write_eval
from tests.scripts.made_night import make_night, played_in, tasks


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


def test_a_reward_that_a_schedule_raised_is_no_warning() -> None:
    night = steps(reward=[0.3, 0.3, 0.3, 0.5, 0.5, 0.5], passed=[0.6, 0.6, 0.6, 0.3, 0.3, 0.3])
    assert w.reward_without_work(milestones(night, paid_alike=False), None) is None


def test_a_reward_that_rises_with_the_work_is_none() -> None:
    night = steps(reward=[0.3, 0.3, 0.3, 0.5, 0.5, 0.5], passed=[0.3, 0.3, 0.3, 0.6, 0.6, 0.6])
    assert w.reward_without_work(found(night), None) is None


UP, DOWN = (0.2, 0.2, 0.2, 0.5, 0.5, 0.5), (0.6, 0.6, 0.6, 0.2, 0.2, 0.2)


def in_two_environments(**sql: Sequence[float]) -> list[StepSummary]:
    """A sound shell, and the reward and passes of a second environment; in all both rise."""
    rising = steps(reward=UP, passed=UP)
    rows = zip(rising, sql["reward"], sql["passed"], strict=True)
    return [
        replace(s, environments={"shell": played_in(0.5, 0.5), "sql": played_in(r, p)})
        for s, r, p in rows
    ]


def test_one_environment_whose_reward_rises_while_it_passes_less_is_named() -> None:
    seen = w.reward_without_work(found(in_two_environments(reward=UP, passed=DOWN)), None)
    assert seen is not None
    assert seen.seen == "In sql: reward 0.2 → 0.5, tasks passed −40.0 points over the steps."
    assert w.reward_without_work(found(in_two_environments(reward=UP, passed=UP)), None) is None


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_a_reward_rises_by_its_own_scale(scale: float) -> None:
    risen = steps(reward=[scale * r for r in UP], passed=DOWN)
    assert w.reward_without_work(found(risen), None) is not None
    still = steps(reward=[scale * r for r in (0.5, 0.5, 0.5, 0.505, 0.505, 0.505)], passed=DOWN)
    assert w.reward_without_work(found(still), None) is None


ENVS = ("game", "clawgym")
ON = [replace(t, env=ENVS[i % 2]) for i, t in enumerate(tasks(40))]


def hints_without_wins(evals: Path, lost: str) -> Evidence:
    """Attempts whose `hints` rise from 0.1 to 0.9 while all tasks of one environment are lost."""

    def paid(sha: str, hints: float, fails: str) -> list[Trajectory]:
        played = []
        for task in ON:
            t = trajectory(task.task_id, sha, 2 if task.env == fails else 4, 3, True)
            parts = (RewardPart("won", float(t.grade.passed)), RewardPart("hints", hints, 3.0))
            is_game = task.env == "game"
            grade = replace(t.grade, rewards=parts) if is_game else t.grade
            played.append(replace(t, grade=grade))
        return played

    write_eval(evals, paid("warm", 0.1, ""), ON)
    write_eval(evals, paid("new", 0.9, lost), ON)
    return collect(evals, ON, [step(0, "warm"), step(1, "new")])


def test_on_held_out_tasks_the_environment_and_the_part_that_rose_are_named(tmp_path: Path) -> None:
    evidence = hints_without_wins(tmp_path, lost="game")
    rising = steps(reward=UP, passed=UP)
    night = [
        replace(s, environments={"game": played_in(r, 0.5), "clawgym": played_in(r, 0.5)})
        for s, r in zip(rising, UP, strict=True)
    ]
    seen = w.reward_without_work(found(night), evidence)
    assert seen is not None
    part = "The part hints went from 0.1 to 0.9."
    assert (
        f"In game: reward 0.2 → 0.5 over the steps, held-out tasks passed −100.0 points. {part}"
        in seen.seen
    )
    assert "In clawgym" not in seen.seen
    assert "envs.NAME.rewards" in seen.remedy


def test_a_night_in_one_environment_with_parts_is_warned_of_too(tmp_path: Path) -> None:
    evidence = replace(hints_without_wins(tmp_path, lost="game"), splits={})
    seen = w.reward_without_work(found(steps(reward=UP, passed=UP)), evidence)
    assert seen is not None
    assert seen.seen.startswith("Reward 0.2 → 0.5 over the steps, held-out tasks passed −50.0")
    assert "The part hints" in seen.seen


def stopping(*stops: AtStop) -> list[StepSummary]:
    night = steps(reward=[0.3] * len(stops))
    return [replace(s, at_stop=e) for s, e in zip(night, stops, strict=True)]


def test_stops_with_nothing_done_are_a_warning_once_they_are_surely_more_than_the_bound() -> None:
    some = [AtStop(4, 2, 1)] * 3
    assert w.idle_stops(stopping(*some, *[AtStop(32, 12, 8)] * 3)) is None, "just the bound"
    assert w.idle_stops(stopping(*some, *[AtStop(2, 0, 2)] * 3)) is not None, "all of six"
    assert w.idle_stops(stopping(*some, *[AtStop(2, 0, 1)] * 3)) is None, "three of six can be luck"
    seen = w.idle_stops(stopping(*some, *[AtStop(32, 4, 16)] * 3))
    assert seen is not None
    assert seen.seen == "48 of 96 stops in the last steps, 3 of 12 in the first."


def test_no_stop_and_no_step_that_tells_say_nothing_of_idleness() -> None:
    assert w.idle_stops(stopping(*[AtStop(0, 0, 0)] * 6)) is None
    assert w.idle_stops(stopping(AtStop(32, 0, 32))) is None
    assert w.idle_stops(steps(reward=[0.3] * 6)) is None


def by_doing(evals: Path, *, unbroken: int, worked: int, passes: bool = False) -> Evidence:
    """Of forty tasks with four assertions, doing nothing meets the first. The start breaks it in
    all; the newest adapter breaks it in all but `unbroken`, and meets one more in `worked`."""
    on = tasks(40)

    def played(sha: str, holds: Callable[[int], set[int]]) -> list[Trajectory]:
        found = []
        for i, task in enumerate(on):
            t = trajectory(task.task_id, sha, 0, 3, True)
            results = [replace(r, passed=j in holds(i)) for j, r in enumerate(t.grade.results)]
            found.append(replace(t, grade=replace(t.grade, results=tuple(results))))
        return found

    def after(i: int) -> set[int]:
        if passes:
            return {0, 1, 2, 3}
        return ({0} if i < unbroken else set()) | {1, *([2] if i < worked else [])}

    write_eval(evals, played("do-nothing", lambda i: {0}), on, arm="do-nothing")
    write_eval(evals, played("warm", lambda i: {1}), on)
    write_eval(evals, played("new", after), on)
    return collect(evals, on, [step(0, "warm"), step(1, "new")])


@pytest.mark.parametrize(
    ("unbroken", "worked", "passes", "warned"),
    [
        (30, 10, False, True),
        (10, 30, False, False),
        (1, 0, False, False),  # luck
        (0, 0, False, False),
        (40, 40, True, False),  # what was not broken was finished too
    ],
)
def test_assertions_that_are_gained_by_doing_less_are_a_warning(
    tmp_path: Path, unbroken: int, worked: int, passes: bool, warned: bool
) -> None:
    evidence = by_doing(tmp_path, unbroken=unbroken, worked=worked, passes=passes)
    seen = w.gained_for_nothing(evidence)
    assert (seen is not None) == warned
    if seen is not None:
        assert seen.seen == (
            "Held-out assertions that doing nothing meets: +30; those that need work: +10."
        )


def test_without_the_do_nothing_arm_nothing_is_said_of_it(tmp_path: Path) -> None:
    evidence = by_doing(tmp_path, unbroken=30, worked=0)
    assert w.gained_for_nothing(replace(evidence, by_need=None)) is None
    assert w.gained_for_nothing(None) is None


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
    many = steps(clipped_share=[0.0] * 3 + [0.2] * 3)
    assert w.clipped(many) is not None
    assert w.clipped([replace(s, train={**s.train, "policy_age": 1.0}) for s in many]) is None


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
    fewer = w.base_in_doubt({"model": model, "adapter": {"other_base": "Big-Instruct-bnb-4bit"}})
    assert fewer is not None
    assert "fewer bits" in fewer.title
    assert "damaged" not in fewer.meaning


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


def test_what_was_not_looked_for_is_not_among_what_was_not_seen() -> None:
    night = steps(reward=[0.3] * 6, sampler_mean_abs=[0.007] * 6, entropy=[0.2] * 6)
    config = RunConfig()
    scheduled = replace(config.reward, schedule={"turn_penalty": [[1, 0.4], [6, 0.0]]})
    older = [replace(s, train=s.train | {"policy_age": 1.0}) for s in night]
    short = night[:2]

    def unseen(night: list[StepSummary], config: RunConfig = config) -> str:
        return w.unseen(config, night, found(night), None)

    assert "a reward that rises" in unseen(night)
    assert "a reward that rises" not in unseen(night, replace(config, reward=scheduled))
    assert "drift apart" in unseen(night)
    assert "drift apart" not in unseen(older)
    assert "tokens clipped" not in unseen(older)
    assert "an entropy below" in unseen(night)
    for what in ("KL", "reward", "stops", "assertions", "replies", "entropy", "drift", "clipped"):
        assert what not in unseen(short)
    assert "a sandbox that is off" in unseen(short)
