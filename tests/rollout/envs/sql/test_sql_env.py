"""The SQL agent's class: its tools, its budget, and one episode apart from the next."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import get_json_schema

from fieldkit.errors import MissingFile, Unavailable
from fieldkit.records import StopReason, Task, Trajectory
from reward.reward import Reward
from rollout.envs.base import Site
from rollout.envs.configured import environment, register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.envs.sql.locked_db import POOL
from rollout.envs.sql.sql_env import OVER, SqlEnv
from rollout.envs.sql.sql_rewards import correctness, operational, progress
from rollout.player import Player
from rollout.policies import RecitedPolicy
from rollout.sandbox.command import SandboxSettings
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer
from scripts.base.checkout import ROOT
from scripts.prepare.model import default_model_dir
from scripts.run.config import read_config
from tests.rollout.envs.sql.library import write_library
from tests.rollout.envs.test_tool_world import Asked, call, random_model, require_equal
from tests.rollout.envs.trl_templates import templates

ROW: dict[str, Any] = {"database": "library", "answer": 500, "sql": "SELECT max(pages) FROM books"}


@pytest.fixture(autouse=True)
def _databases(tmp_path: Path) -> Iterator[None]:
    write_library(tmp_path)
    SqlEnv.configure(db_dir=str(tmp_path))
    yield
    SqlEnv.configure()


def begun() -> SqlEnv:
    env = SqlEnv()
    env.reset(**ROW)
    return env


def test_reset_names_the_tables() -> None:
    assert SqlEnv().reset(**ROW) == "\nTables: authors, books"


def test_the_tools_show_columns_rows_and_results() -> None:
    env = begun()
    assert env.describe("Authors") == "authors: 3 rows\nname TEXT\nhome TEXT"
    assert env.sample("books").splitlines()[:2] == [
        "title | author | kind | year | bought | pages",
        "Ash | Ada | novel | 1990 | 2001-01-01 | 100",
    ]
    assert env.query("SELECT avg(pages), NULL FROM books") == "avg(pages) | NULL\n300 | NULL"
    assert env.query("SELECT 1 WHERE 0") == "(no rows)"
    assert env.answer("500") == "The answer is taken."
    assert env.done
    assert env.record.given == "500"


def test_what_a_policy_does_wrong_is_a_text_for_it_to_read() -> None:
    env = begun()
    assert env.describe("cars") == "error: no table 'cars'; there are authors, books"
    assert env.sample('books"; DROP TABLE books; --').startswith("error: no table")
    assert env.query("SELECT colour FROM books") == "error: no such column: colour"
    assert env.query("DELETE FROM books").startswith("error: ")
    assert [call.failed for call in env.record.calls] == [True] * 4


def test_at_most_twenty_rows_are_shown_and_the_rest_is_said_to_be_there() -> None:
    lines = begun().query("SELECT a.title FROM books a, books b").splitlines()
    assert len(lines) == 22
    assert lines[-1] == "(the first 20 rows; there are more)"


def test_the_episode_is_over_after_fifteen_steps_or_an_answer() -> None:
    env = begun()
    for _ in range(14):
        env.describe("books")
        assert not env.done
    assert env.query("SELECT 1").endswith("\nThat was the last step.")
    assert env.done
    assert env.query("SELECT 1") == env.describe("books") == env.answer("500") == OVER
    assert env.record.given is None
    assert len(env.record.calls) == 15


def test_a_step_that_was_taken_before_is_known_however_it_is_spaced() -> None:
    env = begun()
    env.query("SELECT  1;")
    env.query("SELECT 1")
    env.query("SELECT 2")
    assert [call.repeated for call in env.record.calls] == [False, True, False]


def test_one_episode_sees_nothing_of_another() -> None:
    env, other = begun(), begun()
    env.query("SELECT 1")
    env.answer("7")
    assert not other.done
    assert not other.record.calls
    env.reset(**ROW)
    assert not env.done
    assert env.record.given is None
    env.query("SELECT 1")
    assert not env.record.calls[0].repeated
    refused = env.query("CREATE TEMP TABLE note AS SELECT 1")
    assert refused.startswith("error: ")


def test_without_a_row_a_question_is_drawn_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"prompt": "How many pages?", "info": ROW}) + "\n")
    SqlEnv.configure(str(file), str(tmp_path), step_budget=1)
    env = SqlEnv()
    assert env.reset() == "How many pages?\nTables: authors, books"
    env.describe("books")
    assert env.done


def test_a_row_that_cannot_be_played_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no `answer`"):
        SqlEnv().reset(database="library")
    with pytest.raises(ValueError, match=r"must be a name, found '\.\./library'"):
        SqlEnv().reset(database="../library", answer=1)
    with pytest.raises(MissingFile, match=r"nowhere\.sqlite.*python -m rollout\.envs\.sql"):
        SqlEnv().reset(database="nowhere", answer=1)
    with pytest.raises(ValueError, match="needs configure"):
        SqlEnv().reset()
    with pytest.raises(ValueError, match="step_budget must be at least 1"):
        SqlEnv.configure(step_budget=0)


def test_on_a_machine_that_is_too_busy_for_its_own_queries_an_episode_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = begun()
    POOL.close()
    monkeypatch.setattr(POOL, "limits", replace(POOL.limits, seconds=0))
    with pytest.raises(Unavailable, match="is this machine very busy"):
        SqlEnv().reset(**ROW)
    with pytest.raises(Unavailable, match="is this machine very busy"):
        env.describe("books")
    with pytest.raises(Unavailable, match="is this machine very busy"):
        env.record.gold_reads()
    POOL.close()


def test_every_tool_is_described_to_a_policy() -> None:
    for tool in (SqlEnv.describe, SqlEnv.sample, SqlEnv.query, SqlEnv.answer):
        function = get_json_schema(tool)["function"]
        assert function["description"]
        assert [p["type"] for p in function["parameters"]["properties"].values()] == ["string"]


# --- in the loop ----------------------------------------------------------------------------------


def play(replies: Sequence[str], tmp_path: Path) -> Trajectory:
    """An episode with the preset's environment, on the small database."""
    preset = read_config(ROOT / "scripts/prepare/presets/sql.toml").envs["sql"]
    settings = EnvSettings(**{**vars(preset), "config": {"db_dir": str(tmp_path)}})
    made = environment("sql", settings, ROOT)
    player = Player(
        policy=lambda *_: RecitedPolicy(replies),
        worlds=lambda task: made.make(Site(SandboxSettings(), tmp_path)),
        settings=EpisodeSettings(max_turns=15),
        adapter_sha="recited",
        policy_version="recited",
        reward=Reward(),
        clock=lambda: 0.0,
    )
    task = Task("t0", "sql", "What is the highest pages of a book?", ROW)
    return asyncio.run(player.play(task, 0, lambda turn: turn))


def test_the_preset_plays_a_policy_that_wins(tmp_path: Path) -> None:
    won = play(["describe: books", "SELECT max(pages) FROM books", "answer: 500"], tmp_path)
    assert won.grade.passed
    assert won.stop_reason is StopReason.ENV_DONE
    assert {part.name: part.value for part in won.grade.rewards} == pytest.approx(
        {"correctness": 1.0, "progress": 1.0, "operational": 0.015, "published_progress": 1.0}
    )
    assert won.reward == pytest.approx(0.6 + 0.3 + 0.015)


def test_the_preset_pays_nothing_for_a_policy_that_only_looks(tmp_path: Path) -> None:
    looked = play(["sample: books"] * 15, tmp_path)
    assert not looked.grade.passed
    assert looked.reward is not None
    assert looked.reward < 0


def test_a_missing_database_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    (tmp_path / "library.sqlite").unlink()
    with pytest.raises(MissingFile, match=r"library\.sqlite.*`\S*python\S* -m rollout\.envs\.sql`"):
        play(["describe: books"], tmp_path)


# --- in TRL ---------------------------------------------------------------------------------------

QUESTION = "What is the highest pages of a book?"
SAID = [
    [call("query", '{"sql": "SELECT max(pages) FROM books"}'), "I cannot."],
    [call("answer", '{"value": "500"}')],
    ["Done."],
]
"""By turn, of the attempts that go on."""


@pytest.mark.parametrize(
    "replies",
    [
        [SAID[0][0], SAID[1][0], "Done."],
        [
            call("describe", '{"table": "nothing"}') + "\n" + call("sample", '{"table": "books"}'),
            "?",
        ],
        [call("query", '{"sql": "DROP TABLE books"}'), call("answer", '{"value": "1"}'), "Done."],
    ],
    ids=["solved", "two calls, one of them wrong", "refused by the lock"],
)
def test_an_episode_is_the_same_as_in_trl_token_for_token(
    replies: list[str], tmp_path: Path
) -> None:
    where = "rollout.envs.sql.sql_rewards"
    rewards = {f"{where}:{part.__name__}": 1.0 for part in (correctness, progress, operational)}
    use, config = "rollout.envs.sql.sql_env:SqlEnv", {"db_dir": str(tmp_path)}
    settings = EnvSettings(use, "correctness >= 1", rewards=rewards, config=config)
    asked = Asked(SqlEnv, (correctness, progress, operational), QUESTION, ROW)
    register_environments({"sql": settings}, ROOT)
    try:
        require_equal("qwen2_5", "sql", asked, replies)
    finally:
        register_environments({}, ROOT)


def test_trl_trains_a_step_on_the_class_and_its_three_rewards(tmp_path: Path) -> None:
    """TRL's own trainer, with a model of random weights; only what the model says is given, so that
    one of the two attempts is right and there is something to learn."""
    import torch
    from datasets import Dataset

    transformers: Any = import_module("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL names the vLLM versions that it was tried with
        trl: Any = import_module("trl")
    renderer = ChatRenderer(default_model_dir(), templates()["qwen2_5"])
    script = [[renderer.encode_reply(text) for text in turn] for turn in SAID]

    class Scripted(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **more: Any) -> Any:
            said = script.pop(0)
            assert len(said) == len(prompt_ids)
            return [list(ids) for ids in said], [[0.0] * len(ids) for ids in said]

    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model_dir())
    tokenizer.chat_template = templates()["qwen2_5"]
    model = random_model(len(tokenizer))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    row = {"prompt": [{"role": "user", "content": QUESTION}], **ROW}
    trainer = Scripted(
        model=model,
        reward_funcs=[correctness, progress, operational],
        train_dataset=Dataset.from_list([row, row]),
        processing_class=tokenizer,
        environment_factory=SqlEnv,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=1024,
            max_steps=1,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
        ),
    )
    trainer.train()
    logged = {key: value for entry in trainer.state.log_history for key, value in entry.items()}
    assert logged["rewards/correctness/mean"] == 0.5
    assert logged["rewards/progress/mean"] == 0.5
    assert logged["rewards/operational/mean"] == pytest.approx((0.02 + 0) / 2)
    moved = [n for n, weight in model.state_dict().items() if not torch.equal(weight, before[n])]
    assert moved
