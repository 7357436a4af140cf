"""The oracle's episodes as demonstrations of the SQL agent, on a small database."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.configured import register_environments
from rollout.envs.sql.sql_catalog import Use
from rollout.envs.sql.sql_questions import write_questions
from scripts.base.checkout import ROOT
from scripts.prepare.model import default_model_dir
from scripts.prepare.oracle_episodes import oracle_episodes
from scripts.prepare.presets import run_text
from scripts.prepare.sft import as_examples
from scripts.run.config import RunConfig, config_of
from tests.rollout.envs.sql.library import library, write_library
from tests.rollout.envs.trl_templates import templates


@pytest.fixture
def config(tmp_path: Path) -> Iterator[RunConfig]:
    write_library(tmp_path)
    text = run_text("sql", assignments=[f'envs.sql.config={{ db_dir = "{tmp_path}" }}'])
    found = config_of(tomllib.loads(text), "sql")
    register_environments(found.envs, ROOT)
    yield found
    register_environments({}, ROOT)


def written(tmp_path: Path, *more: Task) -> Path:
    tasks = write_questions(Use.POOL, 12, tmp_path, [library(Use.POOL)])
    file = tmp_path / "demonstrations.jsonl"
    file.write_text("".join(encode(task) + "\n" for task in (*tasks, *more)))
    return file


def test_every_task_is_one_passed_episode_with_the_ids_that_a_rollout_shows(
    config: RunConfig, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    chosen = oracle_episodes(
        config, written(tmp_path), default_model_dir(), tmp_path, lambda *said: told.append(said)
    )
    assert len(chosen.demos) == chosen.origin["episodes"] == 12
    assert all(demo.grade.passed for demo in chosen.demos)
    assert told[-1] == ("the oracle's episodes", 12, 12)
    for demo in chosen.demos:
        (example,) = as_examples(demo)
        learned = [i for i in example["labels"] if i != -100]
        assert learned == [i for turn in demo.turns for i in turn.completion_ids]
        assert len(example["input_ids"]) > 2 * len(learned)


def test_a_task_that_its_oracle_does_not_pass_is_an_error_that_names_it(
    config: RunConfig, tmp_path: Path
) -> None:
    row: dict[str, object] = {"database": "library", "sql": "SELECT title FROM books LIMIT 3"}
    row["answer"] = ["Gum, red", "Elm", "Ash"]  # a comma parts the elements of a written list
    wrong = Task("wrong", "sql", "Which three?", row)
    file = written(tmp_path, wrong)
    with pytest.raises(BadInput, match=r"the oracle does not pass 1 of 13 tasks; .* wrong \("):
        oracle_episodes(config, file, default_model_dir(), tmp_path, lambda *_: None)


def test_held_out_tasks_are_refused_with_both_files(config: RunConfig, tmp_path: Path) -> None:
    file, kept = written(tmp_path), tmp_path / "heldout.jsonl"
    kept.write_text(file.read_text().splitlines(keepends=True)[3])
    apart = replace(config, data=replace(config.data, heldout=str(kept)))
    with pytest.raises(BadInput, match=rf"^{file}: task .* is one of {kept}, or is like one"):
        oracle_episodes(apart, file, default_model_dir(), tmp_path, lambda *_: None)


def test_a_template_with_a_form_of_its_own_is_refused_with_the_setting(
    config: RunConfig, tmp_path: Path
) -> None:
    (tmp_path / "qwen.jinja").write_text(templates()["qwen2_5"])
    model = replace(config.model, chat_template=str(tmp_path / "qwen.jinja"))
    with pytest.raises(BadInput, match=r"in the form hermes.*set model\.tool_form to \"text\""):
        oracle_episodes(
            replace(config, model=model),
            written(tmp_path),
            default_model_dir(),
            tmp_path,
            lambda *_: None,
        )
