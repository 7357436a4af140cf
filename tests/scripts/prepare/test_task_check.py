"""`grpo tasks check`: the tasks that a night would stumble over are found by playing them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.eval.assertions import ASSERTION_KINDS
from fieldkit.records import Task
from scripts.base.checkout import ROOT
from scripts.cli.task_files import app
from scripts.prepare.task_check import play
from tests.rollout.scripted import write_task
from tests.scripts.prepare import test_worth
from tests.scripts.typed import BAD_INPUT, grpo

DONE = {"kind": "file_exists", "path": "done.txt"}


def check(folder: Path, *tasks: Task, play: bool = True) -> tuple[str, BaseException | None]:
    file = folder / "tasks.jsonl"
    file.write_text("".join(encode(t) + "\n" for t in tasks))
    ended = CliRunner().invoke(app, ["tasks", "check", str(file), *(["--play"] if play else [])])
    return ended.output.replace(str(file), "FILE"), ended.exception


def without_oracle(task: Task) -> Task:
    return replace(task, info={k: v for k, v in task.info.items() if k != "oracle"})


def test_the_task_that_the_documents_show_is_sound(tmp_path: Path) -> None:
    own = (ROOT / "docs" / "running.md").read_text().partition("## Your own tasks\n")[2]
    shown = json.loads(own.partition("```json\n")[2].partition("```")[0])
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps(shown) + "\n")
    ended = CliRunner().invoke(app, ["tasks", "check", str(file), "--play"])
    assert "do-nothing passes 0 of 1, the oracle 1 of 1\n" in ended.output
    assert ended.exit_code == 0
    for kind in ASSERTION_KINDS:
        assert f"`{kind}`" in own


def test_lines_that_are_no_tasks_are_told_where_the_form_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "from-elsewhere.jsonl"
    file.write_text('{"question": "How many?", "answer": "3"}\n')
    ended = CliRunner().invoke(app, ["tasks", "check", str(file)])
    assert "from-elsewhere.jsonl:1: schema is None" in ended.output
    assert "docs/running.md shows the form of a task (Your own tasks)" in str(ended.exception)
    _, error = check(tmp_path, write_task("a", verifiable_assertions=None), play=False)
    assert "docs/running.md" not in str(error)


def test_tasks_that_the_oracle_alone_passes_are_sound(tmp_path: Path) -> None:
    other = without_oracle(write_task("b"))
    assert check(tmp_path, write_task("a"), other) == (
        "FILE: do-nothing passes 0 of 2, the oracle 1 of 1; 1 tasks have no oracle\n"
        "FILE: every task is sound\n",
        None,
    )


def test_an_oracle_that_misses_an_assertion_is_named_with_what_it_missed(tmp_path: Path) -> None:
    bad = write_task("bad", verifiable_assertions=[DONE])
    said, error = check(tmp_path, write_task("a"), bad)
    assert "FILE:2: bad: its oracle does not pass (file_exists done.txt: no such file)" in said
    assert isinstance(error, BadInput)


def test_a_task_that_is_done_before_it_begins_is_named(tmp_path: Path) -> None:
    kept = {"kind": "file_unchanged", "path": "notes.txt"}
    said, error = check(tmp_path, write_task("idle", verifiable_assertions=[kept], oracle=["ls"]))
    assert "FILE:1: warning: idle: every assertion holds in the seed" in said
    assert "FILE:1: idle: doing nothing passes it" in said
    assert isinstance(error, BadInput)


def test_both_yardsticks_meet_one_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of the module belongs to the loop in which it is waited for first."""
    waits = "asyncio.get_running_loop().call_soon(answers.put_nowait, 1); await answers.get()"
    begins = "        self.word, self.open, self.looks"
    code = test_worth.CODE.replace("    def reset(self", "    async def reset(self")
    code = code.replace(begins, f"        {waits}\n{begins}", 1)
    start = "import asyncio\nanswers = asyncio.Queue()\n"
    monkeypatch.setattr(test_worth, "CODE", start + code)
    tasks = dict(enumerate(test_worth.TASKS, 1))
    with test_worth.vault(tmp_path):
        found = play(tmp_path / "tasks.jsonl", tasks, tmp_path, lambda *_: None)
    assert found == ([], "do-nothing passes 0 of 4, the oracle 4 of 4")


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        (
            "('say', {'wrd': word})",
            r': call 2, say {"wrd": "zq0"}: {\'error\': .*argument \'wrd\'"}',
        ),
        ("('sya', {'word': word})", r': call 2, sya {"word": "zq0"}: there is no such tool'),
        ("('say', {'word': 'x'})", ""),
    ],
)
def test_an_oracle_with_a_faulty_call_is_named_with_its_function_and_the_call(
    calls: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = test_worth.CODE.replace('("say", {"word": word})', calls)
    monkeypatch.setattr(test_worth, "CODE", code)
    with test_worth.vault(tmp_path):
        file = tmp_path / "tasks.jsonl"
        [problem], _ = play(file, {1: test_worth.TASKS[0]}, tmp_path, lambda *_: None)
    begins = rf"its oracle does not pass \(passes opened >= 1: is 0; oracle = {tmp_path}/vault.py"
    assert re.fullmatch(rf"{begins}:solution{says}\)", problem.reason), problem.reason


@pytest.mark.parametrize("play", [False, True])
def test_a_seed_that_no_workspace_holds_is_named_and_not_played(tmp_path: Path, play: bool) -> None:
    stub: dict[str, Any] = {"path": "disk.img", "kind": "binary-stub", "content": 60_000_000}
    task = write_task("big", workspace_seed={"files": [stub]}, verifiable_assertions=[DONE])
    said, error = check(tmp_path, task, play=play)
    assert said.startswith("FILE:1: big: workspace_seed.files take 60002304 bytes, more than")
    assert isinstance(error, BadInput)


def test_a_task_of_a_run_s_own_environment_is_known_with_its_run(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(encode(Task("t-0", "counter-of-tasks", "", {"target": 3})) + "\n")
    use = ROOT / "tests" / "rollout" / "envs" / "counter.py"
    (tmp_path / "run.toml").write_text(
        f'[envs.counter-of-tasks]\nuse = "{use}:Counter"\npasses = "reward >= 1"\n'
    )
    unknown = grpo("tasks", "check", file)
    assert unknown.returncode == BAD_INPUT
    assert "counter-of-tasks" in unknown.stdout
    assert f"tasks check {file} --run RUN" in " ".join(unknown.stderr.split())
    known = grpo("tasks", "check", file, "--run", tmp_path, "--play")
    assert known.returncode == 0, known.stderr
    assert "do-nothing passes 0 of 1" in known.stdout
