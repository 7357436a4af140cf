"""What an endpoint said in an environment of tools, as demonstrations for a model of one's own."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json
from fieldkit.records import Task
from rollout.envs.configured import register_environments
from rollout.envs.sql.sql_catalog import Use
from rollout.envs.sql.sql_questions import write_questions
from rollout.tasks import decode_tasks
from rollout.transcript import ChatRenderer
from rollout.yardsticks import oracle_replies
from scripts.base.checkout import ROOT
from scripts.prepare.best_episodes import HELD_OUT, NOT_PASSED, OTHERWISE, choose, find_source
from scripts.prepare.endpoint_ids import with_ids
from scripts.prepare.model import default_model_dir
from scripts.prepare.oracle_episodes import oracle_episodes
from scripts.prepare.presets import preset_config
from scripts.prepare.sft import as_examples
from scripts.run.folder import open_run
from tests.conftest import TinyModel
from tests.fieldkit.answering import answering
from tests.rollout.envs.sql.library import library, write_library
from tests.rollout.envs.trl_templates import templates
from tests.rollout.test_policies import says
from tests.scripts.cli.in_process import grpo

LISTED = json.dumps({"data": [{"id": "large", "max_model_len": 4096}]})
N = 6


@pytest.fixture(autouse=True)
def _environments() -> Iterator[None]:
    yield
    register_environments({}, ROOT)


def database(folder: Path) -> str:
    """The setting that has the SQL agent look at the library."""
    return f'envs.sql.config={{ db_dir = "{folder}" }}'


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    write_library(tmp_path)
    return write_questions(Use.POOL, N, tmp_path, [library(Use.POOL)])


def evaluated(tmp_path: Path, tasks: Sequence[Task], wrong: Sequence[str] = ()) -> Path:
    """What `grpo env eval --out` keeps of a model that solves all tasks but those of `wrong`."""
    preset_config("sql", [database(tmp_path)])
    file, out = tmp_path / "asked.jsonl", tmp_path / "kept"
    file.write_text("".join(encode(task) + "\n" for task in tasks))
    said = [
        says("answer: nothing") if task.task_id in wrong else says(reply)
        for task in tasks
        for reply in (["once"] if task.task_id in wrong else oracle_replies(task)[:-1])
    ]
    with answering(said, 200, LISTED) as endpoint:
        ended = grpo(
            *("env", "eval", "sql", "--preset", "sql", "--endpoint", endpoint.base_url),
            *("--tasks", file, "--out", out, "--set", database(tmp_path)),
            *("--set", "rollout.concurrency=1"),  # so that answers come in the tasks' order
        )
    assert ended.code == 0, ended.error
    return out


def test_an_endpoints_words_are_learned_as_the_ids_of_the_same_words_of_an_oracle(
    tmp_path: Path, tasks: list[Task]
) -> None:
    source = find_source(open_run(str(evaluated(tmp_path, tasks, wrong=[tasks[0].task_id]))))
    chosen = choose(source, default_model_dir(), 4)
    rest = tmp_path / "rest.jsonl"
    rest.write_text("".join(encode(task) + "\n" for task in tasks[1:]))
    config = preset_config("sql", [database(tmp_path)])
    oracle = oracle_episodes(config, rest, default_model_dir(), tmp_path, lambda *_: None)
    expected = {demo.task_id: as_examples(demo) for demo in oracle.demos}
    assert {demo.task_id: as_examples(demo) for demo in chosen.demos} == expected
    assert chosen.origin["left_out"] == {NOT_PASSED: 1}
    assert chosen.origin["played_by"].startswith("large at http://127.0.0.1:")


def test_an_episode_that_its_world_answers_otherwise_is_not_learned(
    tmp_path: Path, tasks: list[Task]
) -> None:
    source = find_source(open_run(str(evaluated(tmp_path, tasks))))
    with sqlite3.connect(tmp_path / "library.sqlite") as changed:
        changed.execute("UPDATE books SET pages = pages + 1")
        changed.execute("INSERT INTO authors VALUES ('Dan', 'Crete')")
        changed.execute("INSERT INTO books VALUES ('Haw', 'Dan', 'poem', 1996, '2008-01-01', 9)")
    changed.close()
    told: list[tuple[str, int, int]] = []
    with pytest.raises(BadInput, match=rf"no episode to learn from \({N} {OTHERWISE}"):
        choose(source, default_model_dir(), 4, lambda *far: told.append(far))
    assert told == [("episodes replayed", n, N) for n in range(1, N + 1)]


def test_of_a_reply_that_was_cut_no_end_of_turn_is_learned(
    tmp_path: Path, tasks: list[Task]
) -> None:
    """Both where an opening is known, and where the replies are replayed."""
    questions, shell = tmp_path / "questions.jsonl", tmp_path / "shell.jsonl"
    questions.write_text("".join(encode(task) + "\n" for task in tasks[:2]))
    shell.write_text("".join((ROOT / "data" / "pool.jsonl").read_text().splitlines(True)[:6]))
    renderer, later = ChatRenderer(default_model_dir()), 0
    for preset, changes, file in (("sql", [database(tmp_path)], questions), ("smol", [], shell)):
        config = preset_config(preset, changes)
        by_id = {task.task_id: task for task in decode_tasks(file)}
        said = oracle_episodes(config, file, default_model_dir(), tmp_path, lambda *_: None).demos
        cut = [
            replace(demo, turns=(replace(demo.turns[0], finish_reason="length"), *demo.turns[1:]))
            for demo in said
        ]
        for whole, found in zip(said, with_ids(config, by_id, cut, renderer), strict=True):
            assert (*found.turns[0].completion_ids, renderer.eot_id) == whole.turns[
                0
            ].completion_ids
            assert len(found.turns[0].logprobs) == len(found.turns[0].completion_ids)
            for after, before in zip(found.turns[1:], whole.turns[1:], strict=True):
                later += 1
                assert (after.prompt_ids, after.completion_ids) == (
                    before.prompt_ids,
                    before.completion_ids,
                )
    assert later > 2


def test_a_question_of_the_presets_held_out_file_is_never_learned(
    tmp_path: Path, tasks: list[Task]
) -> None:
    held = decode_tasks(ROOT / "data" / "sql" / "heldout.jsonl")
    mixed = [replace(tasks[0], task_id=held[0].task_id), *tasks[1:]]
    source = find_source(open_run(str(evaluated(tmp_path, mixed))))
    chosen = choose(source, default_model_dir(), 4)
    assert {demo.task_id for demo in chosen.demos} == {task.task_id for task in tasks[1:]}
    assert chosen.origin["left_out"] == {HELD_OUT: 1}


def test_the_adapter_names_the_model_that_it_learned_from(
    tmp_path: Path, tasks: list[Task], tiny: TinyModel
) -> None:
    out = tmp_path / "warm"
    kept = evaluated(tmp_path, tasks)
    ended = grpo("sft", out, "--from", kept, "--model", tiny.folder)
    assert ended.code == 0, ended.error
    assert f"{N} episodes of {N} tasks from kept" in ended.out
    assert "tool_form" not in ended.out, "the model's template knows no tools"
    made = read_json(out / "sft.json")
    assert made["from"]["played_by"].startswith("large at http://127.0.0.1:")
    assert made["demos_that_stop"] == N
    assert (out / "adapter_model.safetensors").is_file()


def test_a_model_whose_template_shows_tools_is_told_which_form_it_learns(
    tmp_path: Path, tasks: list[Task], tiny: TinyModel
) -> None:
    model = tmp_path / "qwen-like"
    shutil.copytree(tiny.folder, model)
    (model / "chat_template.jinja").write_text(templates()["qwen2_5"])
    kept = evaluated(tmp_path, tasks)
    ended = grpo("sft", tmp_path / "warm", "--from", kept, "--model", model)
    assert ended.code == 0, ended.error
    assert 'needs tool_form = "text" under [model]' in ended.out
