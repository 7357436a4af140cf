"""Records survive the way to disk and back, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldkit.codec import (
    decode,
    decode_group,
    decode_trajectory,
    encode,
    encode_group,
    encode_trajectory,
    last_group,
    read_bundle,
    read_trajectories,
)
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


def summary() -> StepSummary:
    return StepSummary(
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


def test_a_task_and_a_summary_survive_disk() -> None:
    task = Task("t", "clawgym", "do it", {"difficulty": "easy", "n": [1, {"a": None}]})
    assert decode(Task, encode(task), "f:1") == task
    assert decode(StepSummary, encode(summary()), "f:1") == summary()


PLAYED = replace(
    summary(),
    draws=(Draw("t", Signal.LEARNABLE, 1, 4), Draw("u", Signal.STUCK, 0, 4)),
    mean_reward=0.5,
    train={"kl": 0.25, "loss": 1.5},
)


def _last(line: str) -> str:
    """The line with its schema at the end, which makes the reader take the long way."""
    value = json.loads(line)
    schema = value.pop("schema")
    return json.dumps({**value, "schema": schema})


def test_a_line_as_it_is_written_and_another_order_of_its_keys_are_one_record() -> None:
    line = encode(PLAYED)
    assert _last(line).endswith('"schema": 1}')
    assert decode(StepSummary, line, "f:1") == decode(StepSummary, _last(line), "f:1") == PLAYED


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"step":0', '"step":0,"colour":"red"', "colour: Unexpected keyword argument"),
        ('"step":0', '"stride":0', "step: Field required"),
        ('"kl":0.25', '"kl":NaN', "train.kl: Input should be a finite number"),
        ('"passed":1', '"passed":"one"', "draws.0.passed: Input should be a valid integer"),
        ('"passed":1', '"passed":1,"colour":2', "draws.0.colour: Unexpected keyword argument"),
        ('"STUCK"', '"MAYBE"', "draws.1.signal: Input should be"),
        ('"schema":1,', '"schema":2,', "schema is 2, this version reads 1"),
        ('"schema":1,', '"schema":1,"schema":2,', "schema is 2, this version reads 1"),
        ('"kl":0.25', f'"kl":{"[" * 150 + "]" * 150}', "nested more than 100 levels deep"),
        ('"kl":0.25', '"kl"', "not valid JSON"),
    ],
)
def test_what_is_wrong_with_a_line_does_not_depend_on_how_it_is_read(
    old: str, new: str, says: str
) -> None:
    line = encode(PLAYED)
    assert old in line
    with pytest.raises(BadInput) as found:
        decode(StepSummary, line.replace(old, new), "f:1")
    assert str(found.value).startswith(f"f:1: {says}")


@dataclass(frozen=True)
class Loose:
    """A record that leaves to pydantic what it does with other keys and with NaN."""

    seconds: float = 0.0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"schema":1,"seconds":NaN}', "NaN is no finite number"),
        ('{"schema":1,"schema":2,"seconds":1.0}', "schema is 2"),
        ('{"schema":1,}', "not valid JSON"),
        ('{"schema":1,"other":Infinity}', "Infinity is no finite number"),
        (f'{{"schema":1,"other":{"[" * 150 + "]" * 150}}}', "nested more than 100 levels deep"),
    ],
)
def test_a_record_that_refuses_little_is_read_the_long_way(line: str, says: str) -> None:
    assert decode(Loose, '{"schema":1,"seconds":1.5}', "f:1") == Loose(1.5)
    with pytest.raises(BadInput, match=f"^f:1: {says}"):
        decode(Loose, line, "f:1")


def test_values_of_a_task_may_not_be_nested_deeper_than_others() -> None:
    deep = "[" * 150 + "]" * 150
    line = encode(Task("t", "e", "p", {"x": 1})).replace('{"x":1}', f'{{"x":{deep}}}')
    with pytest.raises(BadInput, match=r"^f:1: nested more than 100 levels deep"):
        decode(Task, line, "f:1")


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


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_so_it_is_where_no_key_has_a_type(number: str) -> None:
    line = f'{{"schema":1,"task_id":"t","env":"e","prompt":"NaN","info":{{"x":[{number}]}}}}'
    with pytest.raises(BadInput, match=f"^f:1: {number} is no finite number"):
        decode(Task, line, "f:1")
    assert decode(Task, line.replace(number, "1"), "f:1").info == {"x": [1]}


def test_a_number_that_is_not_finite_is_refused_on_the_way_out() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_trajectory(trajectory(reward=float("nan")))


def test_a_prefix_longer_than_the_conversation_is_refused() -> None:
    value = json.loads(encode_trajectory(trajectory()))
    value["turns"][0]["prefix_len"] = 4
    with pytest.raises(BadInput, match=r"f:1: turns.0: prefix_len 4 but only 0 ids"):
        decode_trajectory(json.dumps(value), "f:1")


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
