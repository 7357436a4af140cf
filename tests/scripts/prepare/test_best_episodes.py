"""From a run's episodes to a warm start: which are taken, which never are, and what is recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.codec import decode, encode, encode_group, read_trajectories
from fieldkit.errors import BadInput
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.files.atomic import read_json, sha256_file
from fieldkit.records import RolloutGroup, Signal, StopReason, Task, Trajectory, Turn
from fieldkit.records import StepSummary as Summary
from fieldkit.training.adapter import check_adapter
from rollout.envs.configured import register_environments
from rollout.envs.shell import shell_opening
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from scripts.prepare.best_episodes import (
    BEYOND,
    HELD_OUT,
    NOT_PASSED,
    REPEATED,
    Chosen,
    check_same_model,
    choose,
    find_source,
)
from scripts.prepare.sft import SftSettings, as_examples, warm_start_from
from scripts.run.folder import RunFolder
from scripts.run.manifest import model_hashes
from tests.conftest import TinyModel
from tests.scripts.evals import trajectory, write_eval
from tests.scripts.made_night import make_night, summary
from tests.scripts.made_night import turn as made_turn
from tests.scripts.typed import BAD_INPUT, grpo
from tests.tiny_policy import tiny_task, write_tasks

WORK, DONE = "```bash\ntouch done.txt\n```", "TASK_COMPLETE"
POOL, HELD = tuple(tiny_task(i, "pool") for i in range(3)), (tiny_task(0, "held"),)


@pytest.fixture(scope="module")
def chat(tiny: TinyModel) -> ChatRenderer:
    return ChatRenderer(tiny.folder)


def episode(
    chat: ChatRenderer, task: Task, k: int, replies: Sequence[str], *, reward: float, passed: bool
) -> Trajectory:
    """As a rollout would have recorded it."""
    opening = shell_opening(task)
    talk = chat.start(opening.messages)
    turns: list[Turn] = []
    for text in replies:
        ids = chat.encode_reply(text)
        turns.append(
            replace(
                made_turn(text),
                prompt_ids=talk.prompt_ids,
                completion_ids=ids,
                logprobs=(-0.1,) * len(ids),
            )
        )
        talk.add_completion(ids)
        talk.add_observation([{"role": "user", "content": "a"}])
    made = trajectory(task.task_id, "sha-0", 4, 1, stopped=True, k=k)
    grade = Grade((AssertionResult("file_exists", "done.txt", passed),))
    return replace(made, turns=tuple(turns), grade=grade, reward=reward)


def a_run(root: Path, model: Path, bundles: Sequence[Sequence[Sequence[Trajectory]]]) -> RunFolder:
    """A run whose steps have these groups; its evaluations are of 24 held-out tasks, four arms."""
    night = make_night(root, n_steps=len(bundles))
    folder = night.folder
    write_toml(folder, model, write_tasks(root / "own.jsonl", 3, "pool"), root / "heldout.jsonl")
    for n, groups in enumerate(bundles, start=1):
        lines = [
            RolloutGroup(n, "clawgym", g[0].task_id, tuple(g), (0.0,) * len(g), Signal.LEARNABLE)
            for g in groups
        ]
        folder.bundle(n).write_text("".join(encode_group(g) + "\n" for g in lines))
        sha = sha256_file(folder.bundle(n))
        step = replace(summary(n, len(bundles)), bundle_sha=sha)
        folder.summary(n).write_text(encode(step))
    return folder


def write_toml(folder: RunFolder, model: Path, pool: Path, held_out: Path) -> None:
    """run.toml, and a manifest that names the model by its hashes."""
    folder.config.write_text(
        f'[model]\npath = "{model}"\n[data]\npool = "{pool}"\nheldout = "{held_out}"\n'
    )
    manifest = json.loads(folder.manifest.read_text())
    manifest["model"] = {"dir": str(model), "files": model_hashes(model)}
    folder.manifest.write_text(json.dumps(manifest))


@pytest.fixture
def run(tmp_path: Path, tiny: TinyModel, chat: ChatRenderer) -> RunFolder:
    """Two steps: task 0 is passed in two ways and again, task 1 once, task 2 never."""
    a, b, c = POOL
    first = [
        episode(chat, a, 0, [WORK, WORK, DONE], reward=0.8, passed=True),
        episode(chat, a, 1, [WORK, DONE], reward=0.9, passed=True),
    ]
    second = [episode(chat, b, k, [WORK, DONE][k:], reward=0.9 - k, passed=k == 0) for k in (0, 1)]
    third = [episode(chat, c, k, [DONE], reward=0.0, passed=False) for k in (0, 1)]
    return a_run(tmp_path, tiny.folder, [[first, second], [third, first]])


def chosen_of(run: RunFolder, tiny: TinyModel, per_task: int = 4) -> Chosen:
    return choose(find_source(run), tiny.folder, per_task)


def test_only_passed_episodes_are_taken_the_best_of_each_task_first(
    run: RunFolder, tiny: TinyModel
) -> None:
    chosen = chosen_of(run, tiny)
    taken = [(d.task_id, len(d.turns), d.reward) for d in chosen.demos]
    assert taken == [("pool-0", 2, 0.9), ("pool-0", 3, 0.8), ("pool-1", 2, 0.9)]
    assert chosen.origin["left_out"][NOT_PASSED] == 3
    assert chosen.origin["left_out"][REPEATED] == 2


def test_it_says_how_far_it_has_read(run: RunFolder, tiny: TinyModel) -> None:
    told: list[tuple[str, int, int]] = []
    choose(find_source(run), tiny.folder, 4, lambda *far: told.append(far))
    assert told == [("steps read", 1, 2), ("steps read", 2, 2)]


def test_equal_rewards_are_ordered_by_fewer_turns_and_a_task_is_bounded(
    tmp_path: Path, tiny: TinyModel, chat: ChatRenderer
) -> None:
    long = episode(chat, POOL[0], 0, [WORK, WORK, DONE], reward=1.0, passed=True)
    short = episode(chat, POOL[0], 1, [WORK, DONE], reward=1.0, passed=True)
    chosen = chosen_of(a_run(tmp_path, tiny.folder, [[[long, short]]]), tiny, per_task=1)
    assert [len(d.turns) for d in chosen.demos] == [2]
    assert chosen.origin["left_out"][BEYOND] == 1


def test_episodes_of_steps_that_were_paid_differently_are_ordered_by_one_rule(
    tmp_path: Path, tiny: TinyModel, chat: ChatRenderer
) -> None:
    """A turn was free at first, so that the long episode was paid more than the short one."""
    long = episode(chat, POOL[0], 0, [WORK, WORK, DONE], reward=1.0, passed=True)
    short = episode(chat, POOL[0], 0, [WORK, DONE], reward=0.9, passed=True)
    folder = a_run(tmp_path, tiny.folder, [[[long]], [[short]]])
    paid = "[reward]\nturn_penalty = 0.6\nschedule = { turn_penalty = [[1, 0.0], [2, 0.6]] }\n"
    folder.config.write_text(folder.config.read_text() + paid)
    assert [len(d.turns) for d in chosen_of(folder, tiny, per_task=1).demos] == [2]


def test_a_held_out_task_is_never_learned_and_is_counted(
    tmp_path: Path, tiny: TinyModel, chat: ChatRenderer
) -> None:
    pair = [
        [episode(chat, t, k, [WORK, DONE][k:], reward=1.0, passed=True) for k in (0, 1)]
        for t in (*HELD, POOL[0])
    ]
    folder = a_run(tmp_path, tiny.folder, [pair])
    evaluated = chosen_of(folder, tiny).origin["left_out"][HELD_OUT]
    write_toml(folder, tiny.folder, tmp_path / "own.jsonl", write_tasks(tmp_path / "h", 1, "held"))
    chosen = chosen_of(folder, tiny)
    assert {d.task_id for d in chosen.demos} == {"pool-0"}
    assert chosen.origin["left_out"][HELD_OUT] == evaluated + 2
    assert f"{evaluated + 2} {HELD_OUT}" in chosen.told


def test_rows_that_both_files_repeat_stand_for_seeds_and_are_learned(
    tmp_path: Path, tiny: TinyModel, chat: ChatRenderer
) -> None:
    """A class of TRL's: the prompt comes from reset, so every row of a file may be the same."""

    def rows(name: str) -> tuple[Task, ...]:
        return tuple(Task(f"{name}-{i}", "counter-of-rows", "", {"target": 3}) for i in range(3))

    pool, held = rows("rows"), rows("kept")
    pair = [
        [
            replace(
                episode(chat, POOL[0], k, [WORK, DONE][k:], reward=1.0, passed=True),
                task_id=task.task_id,
            )
            for k in (0, 1)
        ]
        for task in (pool[0], held[0])
    ]
    folder = a_run(tmp_path, tiny.folder, [pair])
    for name, tasks in (("own.jsonl", pool), ("heldout.jsonl", held)):
        (tmp_path / name).write_text("".join(encode(t) + "\n" for t in tasks))
    with folder.config.open("a") as toml:
        use = ROOT / "tests/rollout/envs/counter.py"
        toml.write(f'[envs.counter-of-rows]\nuse = "{use}:Counter"\npasses = "reward >= 1"\n')
    try:
        chosen = chosen_of(folder, tiny)
    finally:
        register_environments({}, ROOT)
    assert {d.task_id for d in chosen.demos} == {"rows-0"}


def test_a_step_under_way_is_not_read(run: RunFolder, tiny: TinyModel) -> None:
    run.summary(2).unlink()
    run.bundle(2).write_text('{"half a li')
    chosen = chosen_of(run, tiny)
    assert chosen.origin["steps"] == [1]
    assert len(chosen.demos) == 3


def test_a_changed_bundle_is_refused(run: RunFolder, tiny: TinyModel) -> None:
    run.bundle(2).write_bytes(run.bundle(2).read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"step-002/trajectory_bundle.jsonl: not as it was written"):
        chosen_of(run, tiny)


def test_an_unreadable_bundle_is_refused_by_file_and_line(run: RunFolder, tiny: TinyModel) -> None:
    run.bundle(1).write_text("what\n")
    step = decode(Summary, run.summary(1).read_text(), "step.json")
    run.summary(1).write_text(encode(replace(step, bundle_sha=sha256_file(run.bundle(1)))))
    with pytest.raises(BadInput, match=r"step-001/trajectory_bundle.jsonl:1: "):
        chosen_of(run, tiny)


def test_nothing_passed_is_said_with_the_counts(
    tmp_path: Path, tiny: TinyModel, chat: ChatRenderer
) -> None:
    lost = [episode(chat, POOL[0], k, [DONE], reward=0.0, passed=False) for k in (0, 1)]
    with pytest.raises(BadInput, match=r"no episode to learn from \(\d+ of held-out.*2 not passed"):
        chosen_of(a_run(tmp_path, tiny.folder, [[lost]]), tiny)


def test_a_run_of_another_tokenizer_is_refused_and_other_weights_only_unasked(
    run: RunFolder, tiny: TinyModel
) -> None:
    manifest = json.loads(run.manifest.read_text())
    manifest["model"]["files"]["model.safetensors"] = "0" * 64
    run.manifest.write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=r"whose model.safetensors is not that of"):
        check_same_model(find_source(run), tiny.folder, other_weights=False)
    check_same_model(find_source(run), tiny.folder, other_weights=True)
    manifest["model"]["files"]["tokenizer.json"] = "0" * 64
    run.manifest.write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=r"whose tokenizer.json is not that of .* cannot be learned"):
        check_same_model(find_source(run), tiny.folder, other_weights=True)


def test_the_text_of_an_endpoint_becomes_the_ids_that_a_rollout_would_have_shown(
    tmp_path: Path, tiny: TinyModel, chat: ChatRenderer
) -> None:
    task = POOL[0]
    sampled = episode(chat, task, 0, [WORK, DONE], reward=1.0, passed=True)
    text = tuple(replace(t, prompt_ids=(), completion_ids=(), logprobs=()) for t in sampled.turns)
    folder = make_night(tmp_path, n_steps=1, evaluated=False).folder
    tasks = write_tasks(tmp_path / "own.jsonl", 1, "pool")
    write_toml(folder, tiny.folder, tasks, tasks)
    manifest = json.loads(folder.manifest.read_text())
    manifest["model"] = {"dir": "large at http://x/v1", "files": {"endpoint": "endpoint-1"}}
    folder.manifest.write_text(json.dumps(manifest))
    for old in folder.evals.iterdir():
        old.rename(tmp_path / old.name)
    write_eval(folder.evals, [replace(sampled, turns=text)], [task])
    chosen = chosen_of(folder, tiny)
    assert [as_examples(d) for d in chosen.demos] == [as_examples(sampled)]
    assert chosen.origin["played_by"] == "large at http://x/v1"
    tasks.write_text(encode(POOL[1]) + "\n")
    with pytest.raises(BadInput, match=r"own.jsonl: not the tasks that .* was played on"):
        chosen_of(folder, tiny)


def test_masks_follow_the_segments_of_a_template_that_rewrites_earlier_turns(
    chat: ChatRenderer,
) -> None:
    whole = episode(chat, POOL[0], 0, [WORK, DONE], reward=1.0, passed=True)
    cut = replace(whole.turns[1], prompt_ids=whole.turns[1].prompt_ids[5:])
    examples = as_examples(replace(whole, turns=(whole.turns[0], cut)))
    learned = [[i for i in e["labels"] if i != -100] for e in examples]
    assert learned == [list(turn.completion_ids) for turn in whole.turns]


def test_the_adapter_says_where_it_came_from(
    run: RunFolder, tiny: TinyModel, tmp_path: Path
) -> None:
    out = tmp_path / "next"
    settings = SftSettings(batch_size=2, rank=4, alpha=8)
    chosen = chosen_of(run, tiny)
    warm_start_from(
        settings,
        tiny.folder,
        chosen,
        f"--from {run.path} --per-task 4",
        out,
        lambda *_: None,
        base=str(tiny.folder),
    )
    assert check_adapter(out, tiny.folder).rank == 4
    said = read_json(out / "sft.json")
    assert said["from"]["run"] == "night"
    assert said["from"]["steps"] == [1, 2]
    assert said["from"]["files"] == {
        f"step-{n:03d}/trajectory_bundle.jsonl": sha256_file(run.bundle(n)) for n in (1, 2)
    }
    kept = tmp_path / "next.work" / "demos-chosen.jsonl"
    assert said["demos_sha256"] == sha256_file(kept)
    assert read_trajectories(kept) == chosen.demos
    assert said["demos_that_stop"] == sum(
        d.stop_reason is StopReason.TASK_COMPLETE for d in chosen.demos
    )
    assert said["command"].startswith(f"grpo sft {out} --from {run.path} --per-task 4")
    assert said["command"].endswith(f" && grpo prove {out} --model {tiny.folder}")


def test_the_command_refuses_what_does_not_go_together(run: RunFolder, tmp_path: Path) -> None:
    typed = grpo("sft", tmp_path / "a", "--from", run.path, "--demos", "9")
    assert (typed.returncode, "--per-task" in typed.stderr) == (BAD_INPUT, True), typed.stderr
    assert not (tmp_path / "a").exists()
