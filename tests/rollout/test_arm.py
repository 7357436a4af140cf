"""Arms of an evaluation: played once, matched by their seeds, and summed up."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.codec import encode_trajectory, read_trajectories
from fieldkit.errors import BadInput, Unavailable
from fieldkit.files import sharded
from fieldkit.records import StopReason, Task
from rollout.arm import (
    EvalSummary,
    eval_key,
    evaluate_arm,
    read_eval,
    settings_sha,
    tasks_sha,
    transcripts,
)
from rollout.seeds import eval_seed
from rollout.settings import EpisodeSettings, RolloutSettings
from rollout.yardsticks import evaluated_yardsticks, oracle_replies, yardstick_player
from tests.rollout.scripted import (
    SHAPED,
    FailingSampler,
    ScriptedSampler,
    bash,
    player,
    replies,
    worlds,
    write_task,
)

TASKS = [write_task("alpha"), write_task("beta")]
SCRIPT = replies(bash("echo done > alpha.txt"), "Now what?", "TASK_COMPLETE")
LIMITS = EpisodeSettings(max_turns=4, max_new_tokens=64, temperature=0.2, concurrency=1)


def evaluate(
    tmp_path: Path,
    sampler: ScriptedSampler,
    *,
    tasks: list[Task] = TASKS,
    adapter_sha: str = "sha-a",
    samples: int = 1,
) -> EvalSummary:
    one = player(tmp_path, sampler, settings=LIMITS, adapter_sha=adapter_sha)
    arm = evaluate_arm("warm start", tasks, player=one, evals=tmp_path / "evals", samples=samples)
    return asyncio.run(arm)


def test_an_arm_is_summed_up(tmp_path: Path) -> None:
    summary = evaluate(tmp_path, ScriptedSampler(SCRIPT))
    assert (summary.n_tasks, summary.n_trajectories, summary.n_passed) == (2, 2, 1)
    assert summary.pass_rate == 0.5
    assert (summary.assertions_passed, summary.assertions_total) == (3, 4)
    assert summary.stops == {"TASK_COMPLETE": 2}
    assert summary.mean_turns == 3
    assert (summary.commands, summary.commands_failed, summary.no_action_turns) == (2, 0, 2)
    assert summary.temperature == 0.2


def test_the_folder_holds_every_trajectory_and_the_summary(tmp_path: Path) -> None:
    summary = evaluate(tmp_path, ScriptedSampler(SCRIPT), samples=2)
    folder = tmp_path / "evals" / summary.key
    assert sorted(p.name for p in folder.iterdir()) == ["eval.json", "trajectories.jsonl"]
    assert read_eval(folder) == summary
    stored = read_trajectories(folder / "trajectories.jsonl")
    assert [(t.task_id, t.k) for t in stored] == [
        ("alpha", 0), ("alpha", 1), ("beta", 0), ("beta", 1),
    ]  # fmt: skip
    assert sum(t.metrics["tokens"] for t in stored) / 4 == summary.mean_tokens


def test_a_large_arm_is_shards_and_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluate(tmp_path / "one", ScriptedSampler(SCRIPT), samples=2)
    monkeypatch.setattr(sharded, "SHARD_BYTES", 100)
    evaluate(tmp_path / "other", ScriptedSampler(SCRIPT), samples=2)
    one, other = (tmp_path / name / "evals" / whole.key for name in ("one", "other"))
    assert sorted(p.name for p in other.iterdir()) == ["eval.json", "trajectories.jsonl.shards"]
    assert transcripts(other) == other / "trajectories.jsonl"
    lines = (one / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    assert [encode_trajectory(t) for t in read_trajectories(transcripts(other))] == lines


def test_an_arm_that_did_not_change_is_not_played_again(tmp_path: Path) -> None:
    first = evaluate(tmp_path, ScriptedSampler(SCRIPT))
    again = ScriptedSampler(SCRIPT)
    left = tmp_path / "evals" / first.key / "trajectories.partial.jsonl"
    left.write_text("{}\n", encoding="utf-8")  # by a kill after the arm was written
    assert evaluate(tmp_path, again) == first
    assert again.prompts == []
    assert not left.exists()


def test_arms_meet_the_same_noise(tmp_path: Path) -> None:
    one, other = ScriptedSampler(SCRIPT), ScriptedSampler(SCRIPT)
    assert evaluate(tmp_path, one).key != evaluate(tmp_path, other, adapter_sha="sha-b").key
    assert one.seeds == other.seeds
    assert eval_seed("alpha", 0, 1) in one.seeds


def test_an_interrupted_arm_goes_on_from_what_it_had(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="1 of 2 episodes are finished"):
        evaluate(tmp_path, FailingSampler(SCRIPT, "beta", times=100))
    key = eval_key("sha-a", TASKS, LIMITS)
    assert [p.name for p in (tmp_path / "evals" / key).iterdir()] == ["trajectories.partial.jsonl"]
    sampler = ScriptedSampler(SCRIPT)
    summary = evaluate(tmp_path, sampler)
    assert len(sampler.prompts) == 3
    assert (summary.n_trajectories, summary.n_kept) == (2, 1)


def test_the_key_changes_with_whatever_could_change_the_result() -> None:
    key = eval_key("sha", TASKS, LIMITS)
    assert eval_key("other", TASKS, LIMITS) != key
    assert eval_key("sha", TASKS[:1], LIMITS) != key
    assert eval_key("sha", [replace(TASKS[0], prompt="x"), TASKS[1]], LIMITS) != key
    assert eval_key("sha", TASKS, replace(LIMITS, max_turns=5)) != key
    assert eval_key("sha", TASKS, LIMITS.at(0.3)) != key
    assert eval_key("sha", TASKS, LIMITS, samples=2) != key


def test_the_key_does_not_change_with_what_could_not() -> None:
    assert settings_sha(replace(LIMITS, concurrency=9), 1) == settings_sha(LIMITS, 1)
    rollout = RolloutSettings(max_turns=4, max_new_tokens=64, tasks_per_step=3, run_seed=5)
    assert settings_sha(rollout.at(0.2), 1) == settings_sha(LIMITS, 1)


def test_an_evaluation_keeps_the_limits_of_the_rollout() -> None:
    rollout = RolloutSettings(max_turns=7, max_new_tokens=33, protocol="literal")
    limits = rollout.at(0.2)
    assert (limits.max_turns, limits.max_new_tokens, limits.protocol) == (7, 33, "literal")
    assert limits.sampling.temperature == 0.2


def test_no_tasks_are_no_evaluation(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no task to evaluate on"):
        evaluate(tmp_path, ScriptedSampler(SCRIPT), tasks=[])


def test_a_summary_with_a_strange_key_is_refused(tmp_path: Path) -> None:
    summary = evaluate(tmp_path, ScriptedSampler(SCRIPT))
    path = tmp_path / "evals" / summary.key / "eval.json"
    path.write_text(path.read_text().replace('"n_passed"', '"n_past"'))
    with pytest.raises(BadInput, match=r"eval\.json:1"):
        read_eval(path.parent)


def yardstick(tmp_path: Path, name: str) -> EvalSummary:
    one = yardstick_player(name, worlds=worlds(tmp_path), settings=LIMITS, reward=SHAPED)
    return asyncio.run(evaluate_arm(name, TASKS, player=one, evals=tmp_path / "evals"))


def test_the_oracle_passes_every_assertion(tmp_path: Path) -> None:
    summary = yardstick(tmp_path, "oracle")
    assert (summary.arm, summary.n_passed, summary.pass_rate) == ("oracle", 2, 1.0)
    assert summary.assertions_passed == summary.assertions_total == 4
    assert summary.mean_turns == 1
    assert summary.mean_tokens == 0


def test_doing_nothing_passes_what_was_true_from_the_start(tmp_path: Path) -> None:
    summary = yardstick(tmp_path, "do-nothing")
    assert (summary.n_passed, summary.assertions_passed, summary.mean_turns) == (0, 2, 0)


def test_yardsticks_have_folders_and_hashes_of_their_own(tmp_path: Path) -> None:
    keys = {yardstick(tmp_path, name).key for name in evaluated_yardsticks()}
    assert len(keys | {eval_key("sha-a", TASKS, LIMITS)}) == 3
    for key in keys:
        stored = read_trajectories(tmp_path / "evals" / key / "trajectories.jsonl")
        assert {t.stop_reason for t in stored} == {StopReason.TASK_COMPLETE}
        assert read_eval(tmp_path / "evals" / key).tasks_sha == tasks_sha(TASKS)


def test_a_task_without_an_oracle_names_itself() -> None:
    with pytest.raises(BadInput, match=r"task alpha: info\.oracle"):
        oracle_replies(write_task("alpha", oracle=None))
