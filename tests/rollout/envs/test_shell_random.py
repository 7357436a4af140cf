"""What no skill looks like: the random policy, played in the real sandbox."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fieldkit.records import ActionKind, Trajectory
from rollout.envs.base import Reply
from rollout.envs.shell_protocol import parse_action
from rollout.envs.shell_random import COMMANDS, Grammar, random_reply
from rollout.policies import WrittenSampler
from rollout.seeds import eval_seed
from rollout.settings import EpisodeSettings
from rollout.yardsticks import RANDOM, yardstick_player
from tests.rollout.scripted import SHAPED, renderer, worlds, write_task

TASK = write_task("alpha", oracle=["echo done > alpha.txt"])
LIMITS = EpisodeSettings(max_turns=5)


def play(tmp_path: Path, k: int) -> Trajectory:
    one = yardstick_player(
        RANDOM, worlds=worlds(tmp_path), settings=LIMITS, reward=SHAPED, load=renderer
    )
    return asyncio.run(one.play(TASK, k, partial(eval_seed, TASK.task_id, k)))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Trajectory:
    return play(tmp_path_factory.mktemp("random"), 0)


def test_the_same_task_and_attempt_draw_the_same_commands_and_meet_the_same_world(
    played: Trajectory, tmp_path: Path
) -> None:
    again = play(tmp_path, 0)
    told = [(t.text, t.observation, t.exit_code, t.reward) for t in again.turns]
    assert told == [(t.text, t.observation, t.exit_code, t.reward) for t in played.turns]
    assert again.grade == played.grade


def test_another_attempt_draws_other_commands(played: Trajectory, tmp_path: Path) -> None:
    other = play(tmp_path, 1)
    assert [t.text for t in other.turns] != [t.text for t in played.turns]


def test_it_is_bound_by_the_limits_of_the_run_and_graded_like_any_policy(
    played: Trajectory,
) -> None:
    assert 1 <= len(played.turns) <= 5
    assert played.grade.n_total == 2
    assert all(t.observation is not None for t in played.turns if t.action.command)


def test_every_reply_is_one_command_over_the_tasks_own_names_or_the_end() -> None:
    grammar = Grammar.of(TASK)
    assert set(grammar.files) == {"notes.txt", "alpha.txt"}
    kinds = set()
    for seed in range(300):
        action = parse_action(grammar.reply(random.Random(seed)))
        kinds.add(action.kind)
        assert action.kind is ActionKind.DONE or action.command.split()[0] in {
            c.split()[0] for c in COMMANDS
        }
    assert kinds == {ActionKind.RUN, ActionKind.DONE}


def test_it_reads_the_prompt_and_the_seed_and_never_the_assertions() -> None:
    secret = {"kind": "file_exists", "path": "secret.txt"}
    told = replace(TASK, info={**TASK.info, "verifiable_assertions": [secret]})
    assert Grammar.of(told) == Grammar.of(TASK)


async def test_a_file_name_that_looks_like_a_command_is_only_a_name(tmp_path: Path) -> None:
    name = "a; touch escaped.txt"
    grammar = Grammar((name,), ("$(touch escaped.txt)",))
    seed = {"files": [{"path": name, "kind": "text", "content": "x\n"}]}
    escaped = [{"kind": "file_not_exists", "path": "escaped.txt"}]
    task = write_task("beta", workspace_seed=seed, verifiable_assertions=escaped)
    world = worlds(tmp_path)(task)
    try:
        await world.reset(task, 0)
        for n in range(60):
            await world.step(Reply(grammar.reply(random.Random(n))))
        assert (await world.grade()).passed
    finally:
        await world.close()


async def test_a_reply_longer_than_a_turn_is_cut_as_an_engine_cuts_it() -> None:
    grammar = Grammar(("a-rather-long-file-name.txt",), ("word",))
    sampler = WrittenSampler(lambda seed, _: grammar.reply(random.Random(seed)), renderer())
    sampling = replace(LIMITS.sampling, max_tokens=6)
    cut = [await sampler.sample((), sampling, seed) for seed in range(20)]
    assert {len(c.ids) for c in cut if c.finish_reason == "length"} == {6}
    assert all(len(c.ids) < 7 for c in cut)


def test_a_task_without_files_or_words_can_be_played_too() -> None:
    bare = replace(TASK, prompt="…", info={"workspace_seed": {"files": []}})
    assert all(parse_action(random_reply(bare, "", random.Random(n))) for n in range(30))
