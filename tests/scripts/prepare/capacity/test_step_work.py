"""The work of a step, from step.json and from a bundle."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade
from fieldkit.records import (
    Action,
    ActionKind,
    Outcome,
    Sampling,
    StepSummary,
    StopReason,
    Trajectory,
    Turn,
)
from scripts.base.checkout import ROOT
from scripts.prepare.capacity.step_work import (
    LONGEST_OVER_MEAN,
    first_and_late,
    mean_work,
    summary_work,
    trained_steps,
    with_episodes,
    with_held_out,
    work_of,
)
from scripts.run.folder import RunFolder, open_run
from scripts.run.reader import RunReader
from tests.scripts.prepare.capacity.round_numbers import work

SUMMARY = StepSummary(
    step=1, outcome=Outcome.TRAINED, parent_sha=None, adapter_sha="a", optimizer_sha=None,
    bundle_sha=None, n_trajectories=8, mean_reward=0.0, pass_rate=0.0, assertion_rate=0.0,
    stop_rate=0.0, mean_turns=3.0, mean_tokens=50.0, groups={},
    train={"n_input_tokens": 600.0, "n_scored_tokens": 180.0, "n_used": 4.0}, seconds={},
)  # fmt: skip


def episode(*lengths: tuple[int, int], prompt: tuple[int, ...]) -> Trajectory:
    """Turns of (ids that are new in the prompt, ids sampled); each continues the one before.
    prompt: the ids of the first."""
    turns, ids = [], 0
    for new, sampled in lengths:
        ids += new
        run = Action(ActionKind.RUN, "")
        sampled_ids, logprobs = (0,) * sampled, (0.0,) * sampled
        turns.append(
            Turn(
                (*prompt, *(0,) * (ids - len(prompt))),
                sampled_ids,
                logprobs,
                "",
                run,
                "",
                0,
                None,
                "stop",
                "v",
                0,
                0.0,
            )
        )
        ids += sampled
    return Trajectory(
        "t", 0, 0, "sha", Sampling(1.0, 8, 1.0, 0, 0.0), tuple(turns), StopReason.MAX_TURNS,
        Grade(()), 0.0, {},
    )  # fmt: skip


def test_step_json_tells_all_but_the_longest_attempt() -> None:
    """Half of the 8 attempts were trained on, with 600 ids: so 1,200 of all, 400 of them
    sampled."""
    found = summary_work(SUMMARY, 4, 1000, "step.json")
    assert (found.episodes, found.turns, found.sampled, found.read) == (8, 24, 400, 800)
    assert (found.context, found.inputs, found.scored) == (150, 600, 180)
    assert found.longest == pytest.approx(50 * LONGEST_OVER_MEAN)
    assert not found.is_exact


def test_the_seconds_tell_whether_a_step_had_a_reference_pass() -> None:
    for share, parts in ((0.0, {"gradient": 9.0}), (1.0, {"gradient": 9.0, "reference": 4.0})):
        step = replace(SUMMARY, seconds=parts)
        assert summary_work(step, 4, 1000, "step.json").referenced == share


def test_no_attempt_is_longer_than_the_limits_allow() -> None:
    assert summary_work(SUMMARY, 4, 60, "step.json").longest == 60


def test_a_bundle_tells_the_longest_attempt_and_reads_a_groups_prompt_once() -> None:
    """Prompts of 10 ids, of which all begin with the same 4. First group: 10 + 5, then 3 + 7; and
    10 + 2. Second group: 10 + 1."""
    one, other = (1, 1, 1, 1, 2, 2, 2, 2, 2, 2), (1, 1, 1, 1, 3, 3, 3, 3, 3, 3)
    groups = [
        [episode((10, 5), (3, 7), prompt=one), episode((10, 2), prompt=one)],
        [episode((10, 1), prompt=other)],
    ]
    found = with_episodes(summary_work(SUMMARY, 4, 1000, ""), groups)
    assert found.sampled == 5 + 7 + 2 + 1
    assert found.longest == 12
    assert found.read == 10 + 3 + 6
    assert found.context == pytest.approx((25 + 12 + 11) / 3)
    assert (found.inputs, found.is_exact) == (600, True)


def test_without_a_bundle_as_much_is_read_as_in_held_out_episodes() -> None:
    """Prompts of 10 and 6 ids with 4 in common, so 4 + 2 groups x 4; a further turn reads 3, and 8
    attempts of 3 turns have 16 of them."""
    long, short = (1, 1, 1, 1, 2, 2, 2, 2, 2, 2), (1, 1, 1, 1, 3, 3)
    held_out = [episode((10, 5), (3, 7), prompt=long), episode((6, 2), prompt=short)]
    found = with_held_out(summary_work(SUMMARY, 4, 1000, ""), held_out)
    assert found.read == 4 + 2 * 4 + 16 * 3
    assert not found.is_exact
    assert with_held_out(found, []) == found


def test_twice_the_attempts_are_twice_the_work_but_for_the_longest() -> None:
    few, many = work(turns=30.0, context=5.0), work(turns=30.0, context=5.0).times(2)
    assert (many.episodes, many.turns, many.sampled) == (32, 60, 3200)
    assert (many.inputs, many.scored) == (2000, 2000)
    assert (many.longest, many.context, many.group_size) == (few.longest, few.context, 4)


def test_a_mean_is_exact_only_where_every_step_is() -> None:
    guess = work(sampled=800.0, is_exact=False)
    assert mean_work([work(), guess]).sampled == 1200
    assert mean_work([work(), work(referenced=0.0)]).referenced == 0.5
    assert not mean_work([work(), guess]).is_exact
    assert mean_work([work(), work()]) == work()


def test_the_reference_nights_first_and_late_steps() -> None:
    reader = RunReader(open_run("first-night"))
    found = first_and_late(reader)
    assert found == {"step 1": (1,), "steps 16 to 20": (16, 17, 18, 19, 20)}
    first, last = work_of(reader, 1), work_of(reader, 20)
    assert (first.episodes, first.group_size, first.turns) == (32, 4, 376)
    assert first.sampled == pytest.approx(4018)
    assert last.sampled < first.sampled / 2


def test_a_run_whose_first_step_is_its_only_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "short")
    for n in range(2):
        shutil.copytree(ROOT / f"runs/first-night/step-{n:03d}", folder.step(n))
    assert first_and_late(RunReader(folder)) == {"step 1": (1,)}


def test_a_run_that_never_trained_has_no_work(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no step of this run has trained"):
        trained_steps(RunReader(RunFolder(tmp_path / "new")))


def test_a_step_of_an_older_version_names_what_it_lacks() -> None:
    old = replace(SUMMARY, train={"n_input_tokens": 600.0, "n_scored_tokens": 180.0})
    with pytest.raises(BadInput, match=r"^step.json: train has no n_used"):
        summary_work(old, 4, 1000, "step.json")
