"""A step's rollout: all episodes in flight, nothing finished is lost, and a bundle or none."""

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode_group, last_group, read_bundle, read_trajectories
from fieldkit.errors import BadInput, Unavailable
from fieldkit.files import sharded
from fieldkit.files.atomic import sha256_file
from fieldkit.files.sharded import sha256_records, shards_of
from fieldkit.records import RolloutGroup, Signal, Task
from reward.reward import Reward
from reward.shaping import REWARDS, RewardKind, RewardSettings
from rollout.bundle import roll_out
from rollout.flight import OnProgress, RolloutProgress, ignore_progress
from rollout.player import Player
from rollout.seeds import EPISODE_TURN, training_seed
from rollout.settings import EpisodeSettings
from tests.rollout.scripted import (
    SHAPED,
    FailingSampler,
    Paid,
    Script,
    ScriptedSampler,
    bash,
    player,
    renderer,
    write_task,
)

NAMES = ("alpha", "beta", "gamma")
K = 2
EPISODES = len(NAMES) * K
LIMITS = EpisodeSettings(max_turns=4, max_new_tokens=64)
ONE_BY_ONE = replace(LIMITS, concurrency=1)


def by_seed(conversation: str, turn: int, seed: int) -> str:
    """Solves the task in the first or in the second turn, as the first turn's seed has it."""
    name = next(n for n in NAMES if f"{n}.txt" in conversation)
    if "done" in conversation.partition("assistant")[2]:
        return "TASK_COMPLETE"
    return bash(f"echo done > {name}.txt; cat {name}.txt") if seed % 2 or turn else bash("ls")


def solves_at_once(conversation: str, turn: int, seed: int) -> str:
    name = next(n for n in NAMES if f"{n}.txt" in conversation)
    return f"{bash(f'echo done > {name}.txt')}\nTASK_COMPLETE"


class Step:
    """A step folder and the one command that fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.partial = folder / "trajectories.partial.jsonl"
        self.bundle = folder / "trajectory_bundle.jsonl"
        self.tasks = [write_task(name) for name in NAMES]
        self.spare: list[Task] = []
        self.on_progress: OnProgress = ignore_progress

    def play(
        self, script: Script | ScriptedSampler, run_seed: int = 7, **changes: Any
    ) -> tuple[RolloutGroup, ...]:
        return asyncio.run(self._play(player(self.folder, script, **changes), run_seed))

    async def _play(self, one: Player, run_seed: int) -> tuple[RolloutGroup, ...]:
        return await roll_out(
            3,
            self.tasks,
            player=one,
            run_seed=run_seed,
            group_size=K,
            partial=self.partial,
            bundle=self.bundle,
            on_progress=self.on_progress,
            spare=self.spare,
        )

    def files(self) -> list[str]:
        return sorted(p.name for p in self.folder.glob("traj*"))


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(tmp_path)


def asked(sampler: ScriptedSampler) -> int:
    """How many episodes began."""
    openings = {p for p in sampler.prompts if list(p).count(renderer().eot_id) == 2}
    return sum(p in openings for p in sampler.prompts)


def test_a_step_writes_one_group_a_task_and_leaves_only_the_bundle(step: Step) -> None:
    groups = step.play(by_seed)
    assert [g.task_id for g in groups] == list(NAMES)
    assert step.files() == ["trajectory_bundle.jsonl"]
    assert read_bundle(step.bundle) == groups
    assert all(len(g.trajectories) == K and g.step == 3 for g in groups)
    assert all(t.grade.passed for g in groups for t in g.trajectories)


def test_rewards_become_advantages_and_a_signal(step: Step) -> None:
    for group in step.play(by_seed):
        rewards = [t.reward for t in group.trajectories]
        assert (group.signal is Signal.LEARNABLE) == (rewards[0] != rewards[1])
        assert sum(group.advantages) == pytest.approx(0)
    saturated = Step(step.folder / "two")
    saturated.folder.mkdir()
    assert {g.signal for g in saturated.play(solves_at_once)} == {Signal.SATURATED}


@pytest.mark.parametrize("credit", ["episode", "turn"])
def test_a_bundle_says_what_every_turn_is_worth(step: Step, credit: str) -> None:
    for group in step.play(by_seed, reward=replace(SHAPED, credit=credit)):
        assert group.turn_advantages is not None
        assert group.by_turn == group.turn_advantages
        whole = replace(group, turn_advantages=None).by_turn
        assert (group.turn_advantages == whole) == (
            credit == "episode" or group.signal is not Signal.LEARNABLE
        )


def test_every_episode_samples_with_the_seeds_of_its_step(step: Step) -> None:
    for group in step.play(by_seed, run_seed=11):
        for t in group.trajectories:
            assert t.seed == training_seed(11, 3, t.task_id, t.k, EPISODE_TURN)
            for i, turn in enumerate(t.turns):
                assert turn.seed == training_seed(11, 3, t.task_id, t.k, i)


def test_two_plays_of_a_step_are_equal_to_the_byte(tmp_path: Path) -> None:
    bundles = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        one = Step(tmp_path / name)
        one.play(by_seed)
        bundles.append(one.bundle.read_bytes())
    assert bundles[0] == bundles[1]


def test_all_episodes_are_in_flight_at_once(step: Step) -> None:
    sampler = ScriptedSampler(by_seed)
    arrived = 0
    everybody = asyncio.Event()

    class Gate(ScriptedSampler):
        async def sample(self, *args: Any) -> Any:
            nonlocal arrived
            arrived += 1
            if arrived == EPISODES:
                everybody.set()
            await asyncio.wait_for(everybody.wait(), timeout=30)
            return await sampler.sample(*args)

    step.play(Gate(by_seed))
    assert arrived > EPISODES


def test_concurrency_bounds_the_episodes_in_flight(step: Step) -> None:
    sampler = ScriptedSampler(by_seed)
    step.play(sampler, settings=ONE_BY_ONE)
    assert sampler.most_in_flight == 1


def test_a_broken_engine_keeps_what_is_finished_and_writes_no_bundle(step: Step) -> None:
    with pytest.raises(Unavailable, match=r"gamma.*4 of 6 episodes are finished and kept in"):
        step.play(FailingSampler(by_seed, "gamma", times=100), settings=ONE_BY_ONE)
    assert step.files() == ["trajectories.partial.jsonl"]
    kept = {(t.task_id, t.k) for t in read_trajectories(step.partial)}
    assert kept == {("alpha", 0), ("alpha", 1), ("beta", 0), ("beta", 1)}


def break_off(step: Step) -> None:
    """Four of the six episodes finish."""
    with pytest.raises(Unavailable):
        step.play(FailingSampler(by_seed, "gamma", times=100), settings=ONE_BY_ONE)


def test_a_resumed_step_plays_only_what_is_missing_and_ends_the_same(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = Step(tmp_path / "whole")
    whole.play(by_seed)
    (tmp_path / "broken").mkdir()
    broken = Step(tmp_path / "broken")
    break_off(broken)
    sampler = ScriptedSampler(by_seed)
    events: list[RolloutProgress] = []
    broken.on_progress = events.append
    broken.play(sampler)
    assert asked(sampler) == 2
    assert broken.bundle.read_bytes() == whole.bundle.read_bytes()
    assert events[-1].kept == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"adapter_sha": "sha-b"},
        {"run_seed": 8},
        {"settings": replace(LIMITS, temperature=0.5)},
        {"settings": replace(LIMITS, max_new_tokens=65)},
    ],
    ids=["another adapter", "another seed", "another temperature", "another length"],
)
def test_nothing_is_taken_over_from_another_policy(step: Step, changes: Any) -> None:
    break_off(step)
    sampler = ScriptedSampler(by_seed)
    step.play(sampler, **changes)
    assert asked(sampler) == EPISODES


def test_an_episode_that_a_lower_turn_limit_would_have_ended_is_played_again(step: Step) -> None:
    break_off(step)
    n_long = sum(len(t.turns) > 2 for t in read_trajectories(step.partial))
    assert 0 < n_long < 4
    sampler = ScriptedSampler(by_seed)
    step.play(sampler, settings=replace(LIMITS, max_turns=2))
    assert asked(sampler) == 2 + n_long


def test_a_changed_prompt_is_played_again(step: Step) -> None:
    break_off(step)
    step.tasks[0] = replace(step.tasks[0], prompt=f"{step.tasks[0].prompt} Now.")
    sampler = ScriptedSampler(by_seed)
    step.play(sampler)
    assert asked(sampler) == 4


def test_kept_trajectories_are_rewarded_by_todays_rule(step: Step) -> None:
    break_off(step)
    groups = step.play(by_seed, reward=Paid(pay=lambda grade, turns: 5.0 + turns))
    for group in groups:
        assert [t.reward for t in group.trajectories] == [
            5.0 + len(t.turns) for t in group.trajectories
        ]


def test_a_torn_last_line_is_played_again(step: Step) -> None:
    break_off(step)
    step.partial.write_bytes(step.partial.read_bytes()[:-40])
    sampler = ScriptedSampler(by_seed)
    step.play(sampler)
    assert asked(sampler) == 3
    assert len(read_bundle(step.bundle)) == 3


def test_a_cancelled_step_keeps_what_is_finished(step: Step) -> None:
    async def cancel_after_three() -> None:
        def watch(progress: RolloutProgress) -> None:
            if progress.finished == 3:
                task.cancel()

        step.on_progress = watch
        task = asyncio.create_task(step._play(player(step.folder, by_seed, settings=ONE_BY_ONE), 7))
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel_after_three())
    assert len(read_trajectories(step.partial)) == 3
    assert not step.bundle.exists()


def test_a_finished_step_is_read_and_not_played(step: Step) -> None:
    groups = step.play(by_seed)
    sampler = ScriptedSampler(by_seed)
    assert step.play(sampler) == groups
    assert sampler.prompts == []


def test_a_bundle_of_another_adapter_is_refused(step: Step) -> None:
    step.play(by_seed)
    with pytest.raises(BadInput, match=r"adapter is \{'sha-a'\}.*rm -r .*plays the step again"):
        step.play(by_seed, adapter_sha="sha-b")


def test_a_reward_that_is_no_number_stops_the_step_and_names_the_task(step: Step) -> None:
    REWARDS.register("nan", RewardKind("nan", lambda grade, turns, settings: float("nan")))
    try:
        with pytest.raises(ValueError, match=r"task \w+, k = \d: the reward of \d turns is nan"):
            step.play(by_seed, reward=Reward(RewardSettings(kind="nan")))
    finally:
        REWARDS.remove("nan")
    assert not step.bundle.exists()


def test_progress_counts_turns_tokens_rewards_and_stops(step: Step) -> None:
    events: list[RolloutProgress] = []
    step.on_progress = events.append
    groups = step.play(by_seed)
    trajectories = [t for g in groups for t in g.trajectories]
    last = events[-1]
    assert (last.finished, last.total, last.kept) == (6, 6, 0)
    assert last.turns == sum(len(t.turns) for t in trajectories)
    assert last.tokens == sum(t.metrics["tokens"] for t in trajectories)
    assert last.mean_reward == pytest.approx(sum(t.reward for t in trajectories) / 6)
    assert last.stop_rate == 1.0
    finished = [e.finished for e in events]
    assert finished == sorted(finished)
    assert last.mean_turns == last.turns / 6
    assert (events[0].mean_reward, events[0].mean_turns) == (None, None)


def test_the_turns_of_an_episode_under_way_count_in_no_mean(step: Step) -> None:
    events: list[RolloutProgress] = []
    step.on_progress = events.append
    groups = step.play(by_seed, settings=ONE_BY_ONE)
    turns = [len(t.turns) for g in groups for t in g.trajectories]
    assert len(set(turns)) > 1
    for event in events[1:]:
        done = turns[: event.finished]
        assert event.mean_turns == (sum(done) / len(done) if done else None)
    assert any(event.turns > sum(turns[: event.finished]) for event in events)


def test_the_turns_of_kept_episodes_count_in_the_mean(step: Step) -> None:
    break_off(step)
    kept = [len(t.turns) for t in read_trajectories(step.partial)]
    events: list[RolloutProgress] = []
    step.on_progress = events.append
    step.play(by_seed)
    assert events[0].mean_turns == sum(kept) / len(kept)


SPARE = ("delta", "epsilon", "zeta", "eta")


def passes_by_seed(conversation: str, turn: int, seed: int) -> str:
    """Solves the task at once or gives it up, as the turn's seed has it."""
    name = next(n for n in (*NAMES, *SPARE) if f"{n}.txt" in conversation)
    return f"{bash(f'echo done > {name}.txt')}\nTASK_COMPLETE" if seed % 2 else "TASK_COMPLETE"


def planned(run_seed: int) -> tuple[list[str], list[str]]:
    """The tasks that a step with spare ones should play, by hand, and those that are mixed."""

    def is_mixed(name: str) -> bool:
        return len({training_seed(run_seed, 3, name, k, 0) % 2 for k in range(K)}) > 1

    names = [*NAMES, *SPARE]
    n = len(NAMES)
    while n < len(names) and n - sum(map(is_mixed, names[:n])) > n - len(NAMES):
        n += 1
    return names[:n], [name for name in names[:n] if is_mixed(name)]


def with_spare(step: Step, folder: str = "") -> Step:
    other = Step(step.folder / folder)
    other.folder.mkdir(exist_ok=True)
    other.spare = [write_task(name) for name in SPARE]
    return other


@pytest.mark.parametrize("run_seed", range(6))
def test_a_group_without_a_mix_is_replaced_while_there_are_spare_tasks(
    step: Step, run_seed: int
) -> None:
    names, mixed = planned(run_seed)
    groups = with_spare(step).play(passes_by_seed, run_seed)
    assert [g.task_id for g in groups] == names
    trained = [g.task_id for g in groups if not g.left_out]
    assert len(trained) == len(NAMES)
    assert set(mixed) >= set(trained) or set(trained) >= set(mixed)
    one_by_one = with_spare(step, "slow").play(passes_by_seed, run_seed, settings=ONE_BY_ONE)
    assert [(g.task_id, g.left_out) for g in one_by_one] == [
        (g.task_id, g.left_out) for g in groups
    ]


def test_the_seeds_of_that_test_meet_every_case() -> None:
    plans = [planned(seed) for seed in range(6)]
    assert {len(names) for names, _ in plans} >= {3, 5, 7}
    assert any(len(mixed) < len(NAMES) for _, mixed in plans)


def test_a_step_with_spare_tasks_goes_on_where_it_was_killed(step: Step) -> None:
    run_seed = next(s for s in range(6) if len(planned(s)[0]) == 5)
    whole = with_spare(step, "whole").play(passes_by_seed, run_seed)
    killed = with_spare(step, "killed")
    with pytest.raises(Unavailable, match=r"6 of \d+ episodes are finished"):
        killed.play(FailingSampler(passes_by_seed, "delta.txt", 99), run_seed, settings=ONE_BY_ONE)
    seen: list[RolloutProgress] = []
    killed.on_progress = seen.append
    again = ScriptedSampler(passes_by_seed)
    groups = killed.play(again, run_seed)
    assert [(g.task_id, g.left_out) for g in groups] == [(g.task_id, g.left_out) for g in whole]
    assert len(again.prompts) == 4
    assert (seen[0].kept, seen[-1].kept, seen[-1].finished, seen[-1].total) == (6, 6, 10, 10)
    # The bundle that is there is the plan's, as far as the plan was played.
    assert killed.play(again, run_seed) == groups
    killed.spare = killed.spare[:1]
    with pytest.raises(BadInput, match="its tasks is"):
        killed.play(again, run_seed)


def test_only_groups_that_are_left_out_say_so_in_the_bundle(step: Step) -> None:
    run_seed = next(s for s in range(6) if len(planned(s)[0]) == 5)
    spared = with_spare(step)
    groups = spared.play(passes_by_seed, run_seed)
    lines = spared.bundle.read_text().splitlines()
    assert ["left_out" in line for line in lines] == [g.left_out for g in groups]
    assert read_bundle(spared.bundle) == groups


# --- large bundles --------------------------------------------------------------------------------

SMALL = 3_000
"""Bytes: two or three of the step's groups are more."""


def test_a_large_bundle_is_shards_with_the_same_groups_and_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Step(tmp_path / "one"), Step(tmp_path / "other")
    for each in (one, other):
        each.folder.mkdir()
    groups = one.play(by_seed)
    monkeypatch.setattr(sharded, "SHARD_BYTES", SMALL)
    other.play(by_seed)
    assert other.files() == ["trajectory_bundle.jsonl.shards"]
    assert len(list(shards_of(other.bundle).glob("*.zst"))) > 1
    assert [encode_group(g) for g in read_bundle(other.bundle)] == [encode_group(g) for g in groups]
    assert sha256_records(other.bundle) == sha256_file(one.bundle)
    assert encode_group(last_group(other.bundle) or groups[0]) == encode_group(groups[-1])


@pytest.mark.parametrize("sizes", [(SMALL, None), (None, SMALL)], ids=["grown", "shrunk"])
def test_a_step_that_was_begun_under_another_size_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int | None, ...]
) -> None:
    """Both the finished episodes and the finished bundle are taken, whatever form they have now."""
    whole, step = Step(tmp_path / "whole"), Step(tmp_path / "step")
    for each in (whole, step):
        each.folder.mkdir()
    whole.play(by_seed)
    before, after = (size or sharded.SHARD_BYTES for size in sizes)
    monkeypatch.setattr(sharded, "SHARD_BYTES", before)
    break_off(step)
    monkeypatch.setattr(sharded, "SHARD_BYTES", after)
    sampler = ScriptedSampler(by_seed)
    groups = step.play(sampler)
    assert asked(sampler) == 2
    assert sha256_records(step.bundle) == sha256_file(whole.bundle)
    monkeypatch.setattr(sharded, "SHARD_BYTES", before)
    assert step.play(sampler) == groups
    assert asked(sampler) == 2


def test_a_damaged_shard_is_an_error_and_its_command_plays_the_step_again(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "SHARD_BYTES", SMALL)
    step.play(by_seed)
    whole = sha256_records(step.bundle)
    shard = next(shards_of(step.bundle).glob("*.zst"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(BadInput, match=r"00000\.jsonl\.zst: damaged") as refused:
        step.play(by_seed)
    subprocess.run(str(refused.value).split("`")[1], shell=True, check=True)
    step.play(by_seed)
    assert sha256_records(step.bundle) == whole
