"""A world from outside the house is one registration, and then plays like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fieldkit.codec import encode, read_bundle, read_trajectories
from fieldkit.errors import BadInput
from fieldkit.records import ActionKind, StopReason
from rollout.arm import EvalSummary, evaluate_arm
from rollout.bundle import roll_out
from rollout.envs.base import Environment, Site, World
from rollout.envs.configured import register_environments
from rollout.envs.registry import ENVIRONMENTS, make_world, opening_of
from rollout.preflight import Verdict, preflight
from rollout.sandbox.command import SandboxSettings
from rollout.seeds import eval_seed
from rollout.settings import EpisodeSettings
from rollout.tasks import check_disjoint, check_tasks, read_tasks
from rollout.yardsticks import RANDOM, evaluated_yardsticks, yardstick_player
from tests.rollout.envs.guessing import NAME, GuessingWorld, bisect, guessing_task, registered
from tests.rollout.scripted import SHAPED, ScriptedSampler, player, renderer, write_task

TASKS = [guessing_task(n) for n in (2, 3, 7)]
LIMITS = EpisodeSettings(max_turns=4, max_new_tokens=16)


@pytest.fixture(autouse=True)
def guessing() -> Iterator[None]:
    with registered():
        yield


def test_a_group_is_played_in_a_world_from_outside(tmp_path: Path) -> None:
    sampler = ScriptedSampler(bisect)
    groups = asyncio.run(
        roll_out(
            1,
            TASKS,
            player=player(tmp_path, sampler, settings=LIMITS),
            run_seed=3,
            group_size=4,
            partial=tmp_path / "partial",
            bundle=tmp_path / "bundle",
        )
    )
    assert read_bundle(tmp_path / "bundle") == groups
    played = [t for group in groups for t in group.trajectories]
    assert {g.env for g in groups} == {NAME}
    assert {t.stop_reason for t in played} == {StopReason.ENV_DONE}
    assert all(t.grade.passed for t in played)
    first = played[0].turns[0]
    assert first.action.kind is ActionKind.RUN
    assert first.action.command == first.text
    assert first.exit_code is None
    assert first.observation in ("right", "higher", "lower")
    assert first.reward == (0.75 if first.observation == "right" else -0.25)
    assert any(len(t.turns) > 1 for t in played), "no policy was ever told which way to go"
    assert all("< |" not in renderer().decode(p) for p in sampler.prompts)


def evaluate(tmp_path: Path, name: str) -> EvalSummary:
    one = yardstick_player(
        name,
        worlds=partial(make_world, site=Site(SandboxSettings(), tmp_path)),
        settings=LIMITS,
        reward=SHAPED,
        load=renderer,
    )
    return asyncio.run(evaluate_arm(name, TASKS, player=one, evals=tmp_path / "evals"))


def test_an_evaluation_plays_every_yardstick_and_a_policy_there(tmp_path: Path) -> None:
    policy = player(tmp_path, bisect, settings=LIMITS)
    arm = asyncio.run(evaluate_arm("policy", TASKS, player=policy, evals=tmp_path / "evals"))
    arms = {name: evaluate(tmp_path, name) for name in (*evaluated_yardsticks(), RANDOM)}
    assert arm.n_passed == len(TASKS)
    assert arms["oracle"].n_passed == len(TASKS)
    assert arms["oracle"].stops == {"ENV_DONE": len(TASKS)}
    assert arms["do-nothing"].n_passed == 0
    assert arms["do-nothing"].commands == 0
    stored = read_trajectories(tmp_path / "evals" / arms[RANDOM].key / "trajectories.jsonl")
    assert all(turn.text.isdigit() for t in stored for turn in t.turns)


def test_a_preflight_looks_at_a_world_from_outside(tmp_path: Path) -> None:
    one = player(tmp_path, bisect, settings=LIMITS)
    report = asyncio.run(preflight(TASKS, player=one, run_seed=0, group_size=4))
    assert report.verdict is Verdict.HAS_SIGNAL
    assert report.n_stopped == report.n_episodes  # won or lost: no limit ended them


def test_an_episode_of_a_world_from_outside_is_taken_over_where_it_still_counts(
    tmp_path: Path,
) -> None:
    one = player(tmp_path, bisect, settings=LIMITS)
    seeds = partial(eval_seed, TASKS[0].task_id, 0)
    played = asyncio.run(one.play(TASKS[0], 0, seeds))
    assert one.take_over(played, TASKS[0], seeds) == played
    assert one.take_over(played, guessing_task(5), seeds) is None


def test_where_only_a_world_knows_its_opening_an_episode_counts_by_all_else(
    tmp_path: Path,
) -> None:
    one = player(tmp_path, bisect, settings=LIMITS)
    seeds = partial(eval_seed, TASKS[0].task_id, 0)
    played = asyncio.run(one.play(TASKS[0], 0, seeds))
    ENVIRONMENTS.remove(NAME)
    ENVIRONMENTS.register(NAME, Environment(make=GuessingWorld))
    assert one.take_over(played, TASKS[0], seeds) == played
    other = partial(eval_seed, TASKS[0].task_id, 1)
    assert one.take_over(played, TASKS[0], other) is None


def test_the_world_is_closed_whatever_happens(tmp_path: Path) -> None:
    made: list[GuessingWorld] = []

    def keep(task: object) -> World:
        made.append(GuessingWorld(Site(SandboxSettings(), tmp_path)))
        return made[-1]

    too_long = EpisodeSettings(max_new_tokens=16, max_model_len=17)
    with pytest.raises(BadInput, match="max_model_len"):
        asyncio.run(
            player(tmp_path, bisect, settings=too_long, worlds=keep).play(
                TASKS[0], 0, lambda turn: turn
            )
        )
    assert [world.closed for world in made] == [True]


def test_task_files_of_a_world_from_outside_are_checked_by_it(tmp_path: Path) -> None:
    pool, heldout = tmp_path / "pool.jsonl", tmp_path / "heldout.jsonl"
    pool.write_text("".join(encode(t) + "\n" for t in TASKS))
    heldout.write_text(encode(guessing_task(8)) + "\n" + encode(write_task("a")) + "\n")
    assert read_tasks(pool) == tuple(TASKS)
    check_disjoint(pool, heldout)
    heldout.write_text(encode(guessing_task(0)) + "\n")
    (problem,) = check_tasks(heldout)
    assert problem.reason == "info.secret is missing"


def test_a_world_that_is_not_registered_names_the_nearest() -> None:
    register_environments({}, Path())  # those of a run that another test read
    ENVIRONMENTS.remove(NAME)
    try:
        ENVIRONMENTS.register("guesses", Environment(make=GuessingWorld))
        with pytest.raises(BadInput, match=r"known: clawgym, guesses; did you mean 'guesses'\?"):
            opening_of(TASKS[0])
    finally:
        ENVIRONMENTS.remove("guesses")
        ENVIRONMENTS.register(NAME, Environment(make=GuessingWorld))


def test_two_worlds_of_one_name_are_refused_with_the_homes_of_both() -> None:
    with pytest.raises(ValueError, match=r"'clawgym' is registered twice: by .*registry and by .*"):
        ENVIRONMENTS.register("clawgym", Environment(make=GuessingWorld))
