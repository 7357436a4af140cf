"""The records survive the way to disk and back, and nothing else does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldkit.errors import BadInput
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.records import (
    Action,
    ActionKind,
    Draw,
    Outcome,
    RolloutGroup,
    Sampling,
    Signal,
    StepSummary,
    StopReason,
    Task,
    Trajectory,
    Turn,
    decode,
    decode_group,
    decode_trajectory,
    encode,
    encode_group,
    encode_trajectory,
    ended_by_themselves,
    last_group,
    read_bundle,
    read_trajectories,
    segments,
)

SAMPLING = Sampling(temperature=1.0, max_tokens=8, top_p=1.0, top_k=0, min_p=0.0)
GRADE = Grade((AssertionResult("file_exists", "a.txt", True, ""),))


def turn(prompt: tuple[int, ...], completion: tuple[int, ...], **changes: Any) -> Turn:
    values: dict[str, Any] = {
        "prompt_ids": prompt,
        "completion_ids": completion,
        "logprobs": tuple(-0.5 for _ in completion),
        "text": "x",
        "action": Action(ActionKind.RUN, "ls"),
        "observation": "(no output)",
        "exit_code": 0,
        "reward": None,
        "finish_reason": "stop",
        "policy_version": "r-v0",
        "seed": 7,
        "seconds": 0.5,
    }
    return Turn(**{**values, **changes})


def trajectory(k: int = 0, turns: tuple[Turn, ...] | None = None, **changes: Any) -> Trajectory:
    values: dict[str, Any] = {
        "task_id": "t1",
        "k": k,
        "seed": 11,
        "adapter_sha": "ab",
        "sampling": SAMPLING,
        "turns": (turn((1, 2), (3,)),) if turns is None else turns,
        "stop_reason": StopReason.TASK_COMPLETE,
        "grade": GRADE,
        "reward": 0.25,
        "metrics": {"tokens": 1.0},
    }
    return Trajectory(**{**values, **changes})


def group(**changes: Any) -> RolloutGroup:
    values: dict[str, Any] = {
        "step": 1,
        "env": "clawgym",
        "task_id": "t1",
        "trajectories": (trajectory(0), trajectory(1, reward=0.5)),
        "advantages": (-0.5, 0.5),
        "signal": Signal.LEARNABLE,
    }
    return RolloutGroup(**{**values, **changes})


ids = st.lists(st.integers(0, 50_000), min_size=1, max_size=6).map(tuple)


@given(st.lists(st.tuples(ids, ids, st.booleans()), min_size=1, max_size=5))
def test_any_conversation_survives_disk_whether_or_not_its_prompts_grow(
    parts: list[tuple[tuple[int, ...], tuple[int, ...], bool]],
) -> None:
    turns: list[Turn] = []
    seen: tuple[int, ...] = ()
    for suffix, completion, grows in parts:
        prompt = seen + suffix if grows else suffix
        turns.append(turn(prompt, completion))
        seen = prompt + completion
    whole = trajectory(turns=tuple(turns))
    assert decode_trajectory(encode_trajectory(whole), "f:1") == whole


def test_a_growing_conversation_is_stored_once() -> None:
    first = tuple(range(1000))
    turns = (turn(first, (5,)), turn((*first, 5, 6), (7,)))
    stored = json.loads(encode_trajectory(trajectory(turns=turns)))["turns"]
    assert stored[1]["prefix_len"] == 1001
    assert stored[1]["prompt_suffix"] == [6]


def test_a_group_survives_disk() -> None:
    assert decode_group(encode_group(group()), "f:1") == group()


def test_a_task_and_a_summary_survive_disk() -> None:
    task = Task("t", "clawgym", "do it", {"difficulty": "easy", "n": [1, {"a": None}]})
    assert decode(Task, encode(task), "f:1") == task
    summary = StepSummary(
        step=0,
        outcome=Outcome.START,
        parent_sha=None,
        adapter_sha="ab",
        optimizer_sha=None,
        bundle_sha=None,
        n_trajectories=0,
        mean_reward=None,
        pass_rate=None,
        assertion_rate=None,
        stop_rate=None,
        mean_turns=None,
        mean_tokens=None,
        groups={},
        train={},
        seconds={"startup": 0.5},
    )
    assert decode(StepSummary, encode(summary), "f:1") == summary


def _changed(**changes: Any) -> str:
    return json.dumps({**json.loads(encode_group(group())), **changes})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not valid JSON"),
        ("[1]", "expected an object"),
        (_changed(schema=2), "schema is 2"),
        (_changed(colour="red"), "colour"),
        (_changed(signal="MAYBE"), "signal"),
        (_changed(advantages=[1.0, "x"]), "advantages.1"),
        (_changed(trajectories="none"), "trajectories: expected a list"),
        (_changed(trajectories=[3]), r"trajectories.0: turns: expected a list"),
    ],
)
def test_a_malformed_bundle_line_names_file_line_and_key(line: str, says: str) -> None:
    with pytest.raises(BadInput, match=rf"^bundle\.jsonl:7: .*{says}"):
        decode_group(line, "bundle.jsonl:7")


def test_a_missing_key_is_named() -> None:
    value = json.loads(encode(Task("t", "e", "p", {})))
    del value["prompt"]
    with pytest.raises(BadInput, match=r"f:1: prompt: Field required"):
        decode(Task, json.dumps(value), "f:1")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_not_finite_is_refused_on_the_way_in(number: str) -> None:
    line = encode_trajectory(trajectory()).replace('"reward":0.25', f'"reward":{number}')
    with pytest.raises(BadInput, match="reward"):
        decode_trajectory(line, "f:1")


def test_a_number_that_is_not_finite_is_refused_on_the_way_out() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_trajectory(trajectory(reward=float("nan")))


def test_a_prefix_longer_than_the_conversation_is_refused() -> None:
    value = json.loads(encode_trajectory(trajectory()))
    value["turns"][0]["prefix_len"] = 4
    with pytest.raises(BadInput, match=r"f:1: turns.0: prefix_len 4 but only 0 ids"):
        decode_trajectory(json.dumps(value), "f:1")


def test_a_turn_has_a_logprob_for_every_sampled_id() -> None:
    with pytest.raises(ValueError, match="2 completion ids but 1 logprobs"):
        turn((1,), (2, 3), logprobs=(-0.1,))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"advantages": (0.0,)}, "2 trajectories but 1 advantages"),
        ({"turn_advantages": ((0.0,), (0.0, 0.0, 0.0))}, "turn_advantages"),
        ({"trajectories": (trajectory(1), trajectory(0))}, "k = 0..K-1"),
        ({"task_id": "t2"}, "another task"),
        ({"trajectories": (trajectory(0), trajectory(1, adapter_sha="cd"))}, "different adapters"),
    ],
)
def test_a_group_is_whole_or_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        group(**changes)


def test_a_bundle_is_read_group_by_group_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bundle.jsonl"
    path.write_text(encode_group(group()) + "\n" + encode_group(group(step=2)) + "\n")
    assert [g.step for g in read_bundle(path)] == [1, 2]
    path.write_text(encode_group(group()) + "\nrubbish\n")
    with pytest.raises(BadInput, match=r"bundle\.jsonl:2"):
        read_bundle(path)
    with pytest.raises(BadInput, match="no such file"):
        read_bundle(tmp_path / "gone.jsonl")


def test_the_last_group_of_a_bundle_is_read_without_the_others(tmp_path: Path) -> None:
    path = tmp_path / "bundle.jsonl"
    assert last_group(path) is None
    path.write_text("")
    assert last_group(path) is None
    path.write_text("rubbish\n" + encode_group(group(step=2)) + "\n")
    assert last_group(path) == group(step=2)


def test_trajectories_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.jsonl"
    stored = (trajectory(1), trajectory(0))
    path.write_text("".join(encode_trajectory(t) + "\n" for t in stored) + '{"torn')
    assert read_trajectories(path) == stored


def test_segments_break_where_a_prompt_does_not_extend_the_conversation() -> None:
    a, b = turn((1,), (2,)), turn((1, 2, 3), (4,))
    anew = turn((9,), (8,))
    assert segments((a, b, anew)) == [[a, b], [anew]]
    assert segments(()) == []


def test_records_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        trajectory().reward = 1.0  # type: ignore[misc]


def test_an_episode_ended_by_itself_where_no_limit_ended_it() -> None:
    stops = dict.fromkeys(StopReason, 1)
    limits = {StopReason.MAX_TURNS, StopReason.CONTEXT_FULL, StopReason.TIME_LIMIT}
    assert ended_by_themselves(stops) == len(stops) - len(limits)
    assert not any(reason.by_itself for reason in limits)


def test_a_turn_is_trained_with_its_own_advantage_or_with_its_trajectorys() -> None:
    turns = (turn((1,), (2,)), turn((1, 2, 3), (4,)))
    pair = {"trajectories": (trajectory(0, turns), trajectory(1)), "advantages": (-0.5, 0.5)}
    assert group(**pair).by_turn == ((-0.5, -0.5), (0.5,))
    own = ((0.25, -1.0), (0.0,))
    assert group(**pair, turn_advantages=own).by_turn == own


def test_a_group_is_mixed_only_where_some_passed_and_some_did_not() -> None:
    draws = [Draw("t", Signal.LEARNABLE, passed, 4) for passed in (0, 1, 3, 4)]
    assert [d.mixed for d in draws] == [False, True, True, False]


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        (["x"], "turns.0: expected an object"),
        ([{}], "turns.0: prefix_len and prompt_suffix are needed"),
        ([{"prefix_len": "0", "prompt_suffix": []}], "turns.0: prefix_len and prompt_suffix are"),
        ("x", "turns: expected a list"),
    ],
)
def test_turns_that_are_none_are_named(turns: Any, says: str) -> None:
    stored = {**json.loads(encode_trajectory(trajectory())), "turns": turns}
    with pytest.raises(BadInput, match=f"f:1: {says}"):
        decode_trajectory(json.dumps(stored), "f:1")
