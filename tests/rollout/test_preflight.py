"""The look before a night: is there anything to learn from?"""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.records import Signal, StopReason
from fieldkit.training.advantages import group_advantages
from rollout.envs.shell import SHELL
from rollout.preflight import HEADER, Preflight, Verdict, explain, preflight, render_rows
from rollout.seeds import training_seed
from rollout.settings import EpisodeSettings
from tests.rollout.scripted import (
    Script,
    ScriptedSampler,
    bash,
    player,
    replies,
    write_task,
)

POOL = [write_task(f"task{i}") for i in range(6)]


def look(
    tmp_path: Path, script: Script | ScriptedSampler, pool: int = 6, group_size: int = 4
) -> Preflight:
    one = player(tmp_path, script)
    return asyncio.run(preflight(POOL[:pool], player=one, run_seed=0, group_size=group_size))


def sometimes_stops(conversation: str, turn: int, seed: int) -> str:
    return "TASK_COMPLETE" if seed % 2 else bash("ls")


def test_rewards_that_differ_are_a_signal(tmp_path: Path) -> None:
    report = look(tmp_path, sometimes_stops)
    assert report.verdict is Verdict.HAS_SIGNAL
    assert len(report.rows) == 4
    assert report.n_episodes == 16
    assert sum(report.stops.values()) == 16
    for row in report.rows:
        assert (row.stdev > 0) == (row.signal is Signal.LEARNABLE) == any(row.advantages)
        assert len(row.rewards) == len(row.stops) == 4


def test_a_figure_that_rounds_to_nothing_has_no_sign(tmp_path: Path) -> None:
    report = look(tmp_path, sometimes_stops)
    small = replace(report.rows[0], rewards=(-0.0001, 0.0001), advantages=(-0.001, 0.001))
    cells = render_rows(replace(report, rows=(small,)))[1]
    assert "0.000 0.000" in cells
    assert "+0.00 +0.00" in cells


def test_a_policy_that_always_does_the_same_has_none(tmp_path: Path) -> None:
    report = look(tmp_path, replies(bash("ls")))
    assert report.verdict is Verdict.NO_SIGNAL
    assert report.stops == {StopReason.MAX_TURNS: 16}
    assert report.n_stopped == 0
    assert {row.signal for row in report.rows} == {Signal.STUCK}
    assert "rollout.temperature" in explain(report)


def test_a_policy_that_never_stops_is_told_apart_from_one_that_learns_nothing(
    tmp_path: Path,
) -> None:
    def sometimes_works(conversation: str, turn: int, seed: int) -> str:
        return bash("rm notes.txt" if turn == 0 and seed % 2 else "ls")

    report = look(tmp_path, sometimes_works)
    assert report.verdict is Verdict.HAS_SIGNAL
    assert report.n_stopped == 0
    assert "Stopping cannot be reinforced" in explain(report)


def test_replies_that_are_cut_or_not_understood_are_the_likelier_cause(tmp_path: Path) -> None:
    said = explain(look(tmp_path, replies("I would sort the file. " * 60)))
    assert said.startswith("NO_SIGNAL: ")
    n = re.search(r"(\d+) of \1 replies were cut at rollout.max_new_tokens: raise it", said)
    assert n is not None, said
    assert f"{n[1]} of {n[1]} replies had nothing to run, such as 'I would sort the file. " in said
    assert "replies" not in explain(look(tmp_path, sometimes_stops))


def test_openings_that_only_the_world_knows_and_that_leave_no_room_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_late = replace(SHELL, opening=None)
    monkeypatch.setattr("rollout.player.environment_of", lambda task: known_late)
    limits = EpisodeSettings(max_turns=4, max_new_tokens=64, max_model_len=70)
    one = player(tmp_path, replies(bash("ls")), settings=limits)
    report = asyncio.run(preflight(POOL[:2], player=one, run_seed=0, group_size=2))
    assert report.verdict is Verdict.NO_SIGNAL
    said = explain(report)
    assert "4 of 4 episodes had no room for a reply" in said
    assert said.endswith("raise engine.max_model_len.")


def test_rewards_that_differ_by_turns_alone_are_told_from_work_that_differs(
    tmp_path: Path,
) -> None:
    turns = explain(look(tmp_path, sometimes_stops))
    assert re.search(r"[1-4] of 4 groups have rewards that differ, 0 of them in the work", turns)

    def sometimes_works(conversation: str, turn: int, seed: int) -> str:
        return bash("rm notes.txt") if turn == 0 and seed % 2 else "TASK_COMPLETE"

    report = look(tmp_path, sometimes_works)
    assert all(row.grades_differ for row in report.rows if row.signal is Signal.LEARNABLE)
    n = sum(row.grades_differ for row in report.rows)
    assert f"{n} of 4 groups have rewards that differ, {n} of them in the work" in explain(report)


def test_the_advantages_are_those_that_the_trainer_uses(tmp_path: Path) -> None:
    one = player(tmp_path, sometimes_stops)
    one = replace(one, reward=replace(one.reward, credit="turn"))
    report = asyncio.run(preflight(POOL, player=one, run_seed=0, group_size=4))
    learnable = [row for row in report.rows if row.signal is Signal.LEARNABLE]
    assert learnable
    for row in learnable:
        assert row.advantages != group_advantages(row.rewards, one.reward.scale)


def test_a_small_pool_is_looked_at_whole(tmp_path: Path) -> None:
    assert len(look(tmp_path, sometimes_stops, pool=2).rows) == 2


def test_a_preflight_does_not_use_up_the_noise_of_the_first_step(tmp_path: Path) -> None:
    sampler = ScriptedSampler(sometimes_stops)
    look(tmp_path, sampler)
    first_step = {
        training_seed(0, 1, t.task_id, k, turn) for t in POOL for k in range(4) for turn in range(4)
    }
    assert not first_step & set(sampler.seeds)


def test_the_table_has_a_line_a_task(tmp_path: Path) -> None:
    report = look(tmp_path, sometimes_stops)
    table = render_rows(report)
    assert table[0] == HEADER
    assert [line[0] for line in table[1:]] == [row.task_id for row in report.rows]
    assert all(len(line) == len(HEADER) for line in table)
    assert f"{report.rows[0].rewards[0]:.3f}" in table[1][1]
