"""`grpo new --env`: from a class, an address or a verifiers file to a run with tasks of its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldkit.training.adapter import check_adapter
from rollout.envs.configured import register_environments
from rollout.tasks import check_disjoint, read_tasks
from scripts.base.checkout import ROOT
from scripts.environments.own_env import HELDOUT_ROWS, POOL_ROWS
from scripts.run.config import read_config
from tests.conftest import TinyModel
from tests.rollout.envs.openenv.openenv_local import DOUBLE, THIS_PYTHON
from tests.scripts.cli.in_process import grpo

FAULTY = ROOT / "tests" / "scripts" / "environments" / "faulty.py"
SOUND = (f"{FAULTY}:Sound", "--passes", "reward >= 1", "--ends", "over")
ORACLE = f"""
from {FAULTY.stem} import Sound

def solution(**row):
    own = Sound()
    own.reset(**row)
    return [("guess", {{"number": own._secret}})]
"""


@pytest.fixture(autouse=True)
def _none_registered() -> Iterator[None]:
    yield
    register_environments({}, ROOT)


def test_a_class_becomes_a_run_whose_tasks_differ_by_seed(tmp_path: Path) -> None:
    run = tmp_path / "mine"
    ended = grpo("new", run, "--env", *SOUND, "--set", "run.minutes=5")
    assert ended.code == 0, ended.error
    config = read_config(run / "run.toml")
    assert config.run.minutes == 5
    assert config.advantages.credit == "turn", "the preset's is of the shell tasks"
    assert config.trainer.at_step(100) == config.trainer
    (own,) = config.envs.values()
    assert (own.passes, own.ends, own.style) == ("reward >= 1", "over", "trl")
    pool, heldout = Path(config.data.pool), Path(config.data.heldout)
    assert (pool.parent, heldout.parent, config.data.final) == (run, run, "")
    assert (len(read_tasks(pool)), len(read_tasks(heldout))) == (POOL_ROWS, HELDOUT_ROWS)
    check_disjoint(pool, heldout)
    checked = grpo("tasks", "check", heldout, "--run", run, "--play")
    assert checked.code == 0, checked.error
    assert "every task is sound" in checked.out
    row = tmp_path / "rows.jsonl"
    row.write_text('{"level": 1}\n')
    unnamed = grpo("tasks", "check", row, "--run", run)
    assert 'rows.jsonl:1: a row without "environment"' in unnamed.out + unnamed.error
    assert "calls no tool" in ended.out  # of the default adapter, and what to type instead
    assert "starts it" not in ended.out


def test_what_is_typed_comes_before_what_suits_most_environments(tmp_path: Path) -> None:
    typed = ("--set", "advantages.credit=episode", "--set", "trainer.decay_after=30")
    ended = grpo("new", tmp_path / "mine", "--env", *SOUND, *typed)
    assert ended.code == 0, ended.error
    config = read_config(tmp_path / "mine" / "run.toml")
    assert (config.advantages.credit, config.trainer.decay_after) == ("episode", 30)


def test_an_environment_that_is_written_by_hand_gets_the_same_warning(tmp_path: Path) -> None:
    own = [f'envs.sound.use="{FAULTY}:Sound"', 'envs.sound.passes="reward >= 1"']
    ended = grpo("new", tmp_path / "mine", *(word for one in own for word in ("--set", one)))
    assert ended.code == 0, ended.error
    assert "calls no tool" in ended.out
    assert "starts it" not in ended.out


def test_a_preset_whose_adapter_is_not_there_names_what_makes_it_before_what_starts_the_run(
    tmp_path: Path,
) -> None:
    run, gone = tmp_path / "mine", "model.adapter=adapters/not-there"
    ended = grpo("new", run, "--preset", "sql", "--set", gone)
    assert ended.code == 0, ended.error
    made, _, started = ended.out.partition(f" --run {run} --lora q_proj ")
    assert "adapters/not-there --oracle " in made
    assert f"run {run}` starts it" in started
    ended = grpo("new", tmp_path / "other", "--preset", "spark", "--set", gone)
    assert "--model Qwen/Qwen2.5-7B-Instruct` makes a start for shell tasks" in ended.out


def test_a_model_and_task_files_that_are_not_there_are_told_before_what_starts_the_run(
    tmp_path: Path,
) -> None:
    gone = [f"{key}={tmp_path}/gone" for key in ("model.path", "data.heldout")]
    ended = grpo("new", tmp_path / "mine", *(word for one in gone for word in ("--set", one)))
    assert ended.code == 0, ended.error
    model, tasks = ended.out.splitlines()
    assert f"mine/run.toml: model.path: {tmp_path}/gone: no such folder" in model
    assert f"mine/run.toml: data.heldout is {tmp_path}/gone: no such file" in tasks
    assert tasks.endswith(f" run {tmp_path}/mine` starts it")


def test_task_files_that_are_named_stay_as_they_are(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"environment": "sound", "prompt": "Go. "}\n')
    words = ["--set", f"data.pool={rows}", "--set", "model.adapter=adapters/own"]
    ended = grpo("new", tmp_path / "mine", "--env", *SOUND, *words)
    assert ended.code == 0, ended.error
    config = read_config(tmp_path / "mine" / "run.toml")
    assert config.data.pool == str(rows)
    assert [p.name for p in sorted((tmp_path / "mine").iterdir())] == ["heldout.jsonl", "run.toml"]
    assert "calls no tool" not in ended.out


def test_the_address_of_a_server_becomes_a_run(tmp_path: Path) -> None:
    words = ["--env", "http://127.0.0.1:8000", "--passes", "reward > 0"]
    ended = grpo("new", tmp_path / "mine", *words)
    assert ended.code == 0, ended.error
    (own,) = read_config(tmp_path / "mine" / "run.toml").envs.values()
    assert (own.style, own.url) == ("openenv", "http://127.0.0.1:8000")


def test_a_servers_program_becomes_a_run_that_starts_it(tmp_path: Path) -> None:
    words = ["--env", f"{DOUBLE}:two", "--python", str(THIS_PYTHON), "--passes", "reward > 0"]
    ended = grpo("new", tmp_path / "mine", *words)
    assert ended.code == 0, ended.error
    ((name, own),) = read_config(tmp_path / "mine" / "run.toml").envs.items()
    assert (name, own.style) == ("openenv_double", "openenv")
    assert (own.serve, own.python) == (f"{ROOT / DOUBLE}:two", str(THIS_PYTHON))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--env", f"{FAULTY}:Sound"), "--passes 'reward >= 1'`"),
        (("--env", f"{FAULTY}:Sound", "--passes", "good"), "'good' compares no part"),
        (("--env", f"{FAULTY}:Nothing", "--passes", "reward >= 1"), "has no 'Nothing'"),
        (("--env", f"{FAULTY}:Needs", "--passes", "reward >= 1"), "`grpo env check`"),
        (("--env", f"{FAULTY}:Unpaid", "--passes", "reward >= 1"), "nothing gives a reward; add a"),
        (("--env", "clawgym", "--passes", "reward >= 1"), "part of the project"),
        (("--env", "nowhere.py", "--passes", "reward >= 1"), "nowhere.py: no such file"),
        (("--passes", "reward >= 1"), "only with --env"),
    ],
)
def test_what_cannot_be_a_run_is_one_line_and_nothing_is_written(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    ended = grpo("new", tmp_path / "mine", *words)
    assert (ended.code, ended.error.count("\n")) == (2, 1), ended
    assert said in ended.error
    assert not (tmp_path / "mine").exists()


def test_a_hint_of_another_folder_names_files_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my runs").mkdir()
    monkeypatch.chdir(tmp_path / "my runs")
    (tmp_path / "own.py").write_text(ORACLE)
    oracle = f'envs.sound.oracle="{tmp_path}/own.py:solution"'
    ended = grpo("new", tmp_path / "my runs/mine", "--env", *SOUND, "--set", oracle)
    assert ended.code == 0, ended.error
    hint = re.search(r"`([^`]+ --oracle [^`]+ --run [^`]+)`", ended.out)
    assert hint is not None
    words = shlex.split(hint[1])
    assert Path(words[words.index("--oracle") + 1]).is_file()


def test_an_adapter_for_the_run_is_made_fresh_or_from_the_oracle(
    tmp_path: Path, tiny: TinyModel
) -> None:
    (tmp_path / "own.py").write_text(ORACLE)
    (tmp_path / FAULTY.name).write_text(FAULTY.read_text())
    run, few = tmp_path / "mine", tmp_path / "few.jsonl"
    named = [f"model.path={tiny.folder}", f'envs.sound.oracle="{tmp_path}/own.py:solution"']
    made = grpo("new", run, "--env", *SOUND, *(w for one in named for w in ("--set", one)))
    assert made.code == 0, made.error
    few.write_text("".join((run / "pool.jsonl").read_text().splitlines(keepends=True)[:8]))
    fresh, warm = tmp_path / "fresh", tmp_path / "warm"
    ended = grpo("sft", fresh, "--fresh", "--model", tiny.folder)
    assert ended.code == 0, ended.error
    ended = grpo("sft", warm, "--oracle", few, "--run", run)
    assert ended.code == 0, ended.error
    for adapter in (fresh, warm):
        check_adapter(adapter, tiny.folder)


@pytest.mark.envs
def test_a_verifiers_file_becomes_a_run_with_rows_of_its_own(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "environments-verifiers.md").read_text(encoding="utf-8")
    (tmp_path / "sums.py").write_text(page.split("```python\n")[1].split("```")[0])
    words: list[str | Path] = ["--env", tmp_path / "sums.py", "--passes", "right == 1"]
    ended = grpo("new", tmp_path / "mine", *words)
    assert ended.code == 0, ended.error
    config = read_config(tmp_path / "mine" / "run.toml")
    pool, heldout = Path(config.data.pool), Path(config.data.heldout)
    check_disjoint(pool, heldout)
    assert (len(read_tasks(pool)), len(read_tasks(heldout))) == (100 - HELDOUT_ROWS, HELDOUT_ROWS)
    checked = grpo("tasks", "check", heldout, "--run", tmp_path / "mine", "--play")
    assert "every task is sound" in checked.out, checked.error  # the arm that says nothing too


@pytest.mark.envs
def test_the_tasks_are_those_of_the_config_that_is_typed(tmp_path: Path) -> None:
    (tmp_path / "quiz.py").write_text(
        '# /// script\n# dependencies = ["verifiers==0.3.1"]\n# ///\n'
        "import verifiers as vf\n"
        "from datasets import Dataset\n"
        "def right(completion, **row): return 0.0\n"
        "def load_environment(word='easy'):\n"
        "    rows = [{'question': f'{word} {n}?', 'answer': ''} for n in range(100)]\n"
        "    rubric = vf.Rubric(funcs=[right])\n"
        "    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=rubric)\n"
    )
    words: list[str | Path] = ["--env", tmp_path / "quiz.py", "--passes", "right == 1"]
    ended = grpo("new", tmp_path / "mine", *words, "--set", 'envs.quiz.config={word="hard"}')
    assert ended.code == 0, ended.error
    for file in ("pool.jsonl", "heldout.jsonl"):
        assert all("hard" in task.prompt for task in read_tasks(tmp_path / "mine" / file))
