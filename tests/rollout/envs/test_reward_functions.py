"""A reward function that compares attempts is given a whole group, as TRL gives it one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.grade import RewardPart
from fieldkit.records import RolloutGroup, StopReason, Task, Trajectory
from reward.group_signal import LATE
from reward.reward import Reward
from rollout.envs.base import Site
from rollout.envs.configured import environment_hashes, register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.envs.registry import make_world
from rollout.envs.reward_functions import (
    RewardFunction,
    checked,
    completion_of,
    group_rewards,
)
from rollout.envs.user_code import keep
from rollout.flight import PartialFile
from rollout.group import play_groups
from rollout.player import Player
from rollout.policies import RecitedPolicy
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from tests.rollout.envs import ranked

pytestmark = pytest.mark.trl

HERE = Path(__file__).parent
ATTEMPTS = (["add: 3", "Done."], ["add: 1", "add: 2", "Done."], ["add: 3", "Done."], ["Done."])
TASK = Task("count-3", "counter", "Count to 3.", {"target": 3})


@pytest.fixture(autouse=True)
def _none_registered() -> Iterator[None]:
    yield
    register_environments({}, HERE)


def settings(**weights: float) -> EnvSettings:
    return EnvSettings(
        use="counter.py:Counter",
        passes="reward >= 1",
        group_rewards={f"ranked.py:{name}": weight for name, weight in weights.items()},
    )


def play(
    asked: EnvSettings, tmp_path: Path, task: Task = TASK, attempts: Sequence[list[str]] = ATTEMPTS
) -> RolloutGroup:
    """One group, its attempts one after the other, so that the k-th says the k-th replies."""
    register_environments({"counter": asked}, HERE)
    replies = iter(attempts)
    player = Player(
        policy=lambda *_: RecitedPolicy(next(replies)),
        worlds=lambda t: make_world(t, Site(SandboxSettings(), tmp_path)),
        settings=EpisodeSettings(max_turns=8, concurrency=1),
        adapter_sha="recited",
        policy_version="recited",
        reward=Reward(scale="mean"),
        clock=lambda: 0.0,
    )
    partial = PartialFile(tmp_path / "partial.jsonl")
    (group,) = asyncio.run(
        play_groups(1, [task], player=player, run_seed=0, group_size=len(attempts), partial=partial)
    )
    return group


def part(group: RolloutGroup, name: str) -> list[float | None]:
    found = [{p.name: p.value for p in t.grade.rewards}[name] for t in group.trajectories]
    return found


def test_a_function_that_ranks_sees_every_attempt_of_the_group(tmp_path: Path) -> None:
    group = play(settings(shortest=0.5, new_words=0.1), tmp_path)
    assert part(group, "reward") == [1.0, 1.0, 1.0, 0.0]
    assert part(group, "shortest") == [0.0, 0.0, 0.0, 1.0]
    assert part(group, "new_words") == [0.0, 2.0, 0.0, 0.0]


def test_what_a_comparison_pays_is_in_rewards_and_advantages(tmp_path: Path) -> None:
    group = play(settings(shortest=0.5, new_words=0.1), tmp_path)
    rewards = [t.reward for t in group.trajectories]
    assert rewards == pytest.approx([1.0, 1.2, 1.0, 0.5])
    mean = sum(rewards) / len(rewards)
    assert group.advantages == pytest.approx([r - mean for r in rewards])
    assert [t.grade.passed for t in group.trajectories] == [True, True, True, False]


def test_a_comparison_that_does_not_apply_counts_nothing(tmp_path: Path) -> None:
    far = Task("count-101", "counter", "Count.", {"target": 101})
    group = play(settings(new_words=1.0), tmp_path, far)
    assert part(group, "new_words") == [None] * len(ATTEMPTS)
    alone = play(settings(), tmp_path, far)
    assert [t.reward for t in group.trajectories] == [t.reward for t in alone.trajectories]


async def test_an_attempt_that_a_late_call_ended_is_paid_by_no_comparison(tmp_path: Path) -> None:
    """The others have the environment's own reward beside it."""
    asked = replace(settings(), group_rewards={f"{HERE / 'ranked.py'}:shortest": 0.5})
    of_group = group_rewards("counter", asked, HERE)
    assert of_group is not None
    played = await asyncio.to_thread(play, settings(), tmp_path)
    first, *others = played.trajectories
    nothing = replace(first.grade, rewards=(RewardPart("reward", None),))
    ended = replace(first, grade=nothing, stop_reason=StopReason.TIME_LIMIT)
    late = replace(ended, metrics={**ended.metrics, LATE: 1.0})
    found = await of_group(TASK, [late, *others])
    assert found[0].unrewarded
    assert [g.rewards[-1].name for g in found] == ["shortest"] * len(found)
    assert [g.rewards[-1].value for g in found] == [None, 0.0, 0.0, 1.0]
    only_slow = await of_group(TASK, [ended, *others])
    assert only_slow[0].rewards[-1].value is not None, "its tools took long, and it was graded"


def calculated_by_trl(function: Any, attempts: Sequence[Trajectory]) -> list[float | None]:
    """What TRL's own trainer makes of the function, for one group of its batch."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(device="cpu", is_main_process=True),
        args=SimpleNamespace(report_to=[]),
        reward_funcs=[function],
        reward_processing_classes=[None],
        reward_func_names=[function.__name__],
        state=SimpleNamespace(global_step=0),
        environments=None,
        _log_completion_extra=None,
        _log_metric=None,
    )
    prompt = [{"role": "user", "content": TASK.prompt}]
    columns = [{"prompt": prompt, **TASK.info} for _ in attempts]
    found = GRPOTrainer._calculate_rewards(
        trainer, columns, [prompt] * len(attempts), [*map(completion_of, attempts)], []
    )
    return [float(value) for [value] in found]


def test_trls_trainer_calculates_the_same_rewards_with_the_same_function(tmp_path: Path) -> None:
    group = play(settings(shortest=0.5), tmp_path)
    assert part(group, "shortest") == calculated_by_trl(ranked.shortest, group.trajectories)
    one_by_one = [calculated_by_trl(ranked.shortest, [t])[0] for t in group.trajectories]
    assert one_by_one == [1.0] * len(ATTEMPTS), "alone, every attempt would be the shortest"


def test_a_function_that_asks_for_environments_is_told_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"envs\.counter\.group_rewards: looks_inside asks for"):
        play(settings(looks_inside=1.0), tmp_path)


def test_a_part_that_is_there_already_is_refused(tmp_path: Path) -> None:
    asked = settings(shortest=1.0)
    asked.rewards["ranked.py:shortest"] = 1.0
    with pytest.raises(BadInput, match=r"the reward already has a part 'shortest'"):
        play(asked, tmp_path)


def test_what_is_no_list_of_all_attempts_is_an_error_that_names_the_function(
    tmp_path: Path,
) -> None:
    with pytest.raises(BadInput, match=r"too_few: gave \[1.0\] for 4 attempts, expected a list of"):
        play(settings(too_few=1.0), tmp_path)


def test_a_comparison_that_fails_fails_the_step_and_keeps_its_episodes(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"broken: RuntimeError: no judge is there \(.*ranked.py"):
        play(settings(broken=1.0), tmp_path)
    assert len((tmp_path / "partial.jsonl").read_text().splitlines()) == len(ATTEMPTS)


def test_the_functions_are_part_of_the_environments_code(tmp_path: Path) -> None:
    def sha(asked: EnvSettings) -> str:
        return environment_hashes({"counter": asked}, HERE)["counter"]

    assert sha(settings(shortest=1.0)) == sha(settings(shortest=0.5))  # a weight is a setting
    assert sha(settings(shortest=1.0)) != sha(settings())


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("1", r"gave '1' \(str\), expected a number"),
        (np.array([1.0, 2.0]), r"gave array\(\[1\., 2\.\]\) \(ndarray\), expected a number"),
        (torch.ones(2), r"gave tensor\(\[1\., 1\.\]\) \(Tensor\), expected a number"),
        (float("nan"), "gave nan, which is not a reward"),
        (10**5000, "gave inf, which is not a reward"),
    ],
    ids=["text", "array", "tensor", "nan", "huge"],
)
def test_a_value_that_is_not_one_finite_number_is_bad_input(value: Any, says: str) -> None:
    with pytest.raises(BadInput, match=f"^envs.a: get_reward: {says}"):
        checked(value, "envs.a: get_reward")


async def test_a_column_never_takes_the_place_of_what_was_played() -> None:
    """Data sets of conversations have a column `completions`."""
    said = [{"role": "assistant", "content": "I give up."}]
    function = RewardFunction("f", lambda completions, **_: [len(completions[0])], 1.0)
    row = {"completions": [*said, *said], "prompts": ""}
    assert await function.of([], said, None, row, 5.0, "envs.a") == [RewardPart("f", 1.0)]


def test_a_function_fits_a_row_whose_columns_it_names_or_takes_together() -> None:
    def names(prompts: Any, completions: Any, environments: Any, seed: Any) -> None: ...

    def takes(answer: Any, log_metric: Any, tone: str = "plain", **columns: Any) -> None: ...

    named, taken = RewardFunction("names", names, 1.0), RewardFunction("takes", takes, 1.0)
    assert named.misfit(["prompt", "seed"]) == taken.misfit(["prompt", "answer", "seed"]) == ""
    further = f"takes no `**columns`: add it, because it is called with answer too ({__file__}:"
    assert further in named.misfit(["seed", "answer"])
    assert "needs the column answer, and the row has none:" in taken.misfit(["prompt"])
    assert "needs the column environments" in named.misfit(["seed"], environments=False)


async def test_a_function_that_a_group_s_rows_do_not_fit_is_bad_input_and_not_called() -> None:
    function = RewardFunction("f", lambda prompts, completions: [1.0], 1.0)
    said = rf"^envs.a: reward function f takes no `\*\*columns`.*with seed too \({__file__}:"
    with pytest.raises(BadInput, match=said):
        await function.of_all([[]], [[]], {"seed": 1}, 5.0, "envs.a")


@pytest.mark.parametrize("gives", [np.array([0.5]), torch.tensor([0.5]), (0.5,)])
async def test_values_may_come_as_an_array_or_a_tensor_as_in_trl(gives: Any) -> None:
    function = RewardFunction("f", lambda **given: gives, 1.0)
    assert await function.of([], [], None, {}, 5.0, "envs.a") == [RewardPart("f", 0.5)]


@pytest.mark.parametrize("value", [1, True, 1.0, np.float32(1), np.array(1.0), torch.tensor(1)])
def test_a_number_of_any_library_is_a_reward(value: Any) -> None:
    assert checked(value, "envs.a") == 1.0
    assert checked(None, "envs.a") is None


async def test_what_a_kept_function_knows_it_knows_of_the_next_group(tmp_path: Path) -> None:
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "seen = []\ndef nth(prompts, **more): seen.append(1); return [len(seen)] * len(prompts)",
        cell,
    )
    use = keep(cell["nth"], tmp_path / "nth.pkl")
    of_group = group_rewards("counter", replace(settings(), group_rewards={use: 1.0}), HERE)
    assert of_group is not None
    attempt = (await asyncio.to_thread(play, settings(), tmp_path)).trajectories[:1]
    grades = [grade for _ in range(2) for grade in await of_group(TASK, attempt)]
    assert [grade.rewards[-1].value for grade in grades] == [1.0, 2.0]
