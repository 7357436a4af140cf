"""`grpo env eval`: environments of every style, with a model behind a real local endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode, read_trajectories
from fieldkit.errors import Interrupted
from fieldkit.process.ledger import LEDGER_FILE
from fieldkit.process.owned import marked
from fieldkit.records import Task
from rollout.envs.configured import register_environments
from scripts.base.checkout import ROOT
from scripts.run.config import ModelSettings, read_config
from tests.chaos.night import SITE
from tests.fieldkit.answering import Endpoint, answering
from tests.rollout.envs.openenv.openenv_local import DOUBLE, THIS_PYTHON, launch, local
from tests.rollout.test_policies import Answer, says
from tests.scripts import typed
from tests.scripts.cli.in_process import Ended, grpo
from tests.scripts.cli.test_evaluate import TINY
from tests.tiny_model import make_adapter

LISTED = json.dumps({"data": [{"id": "m", "max_model_len": 4096}]})
FAULTY = ROOT / "tests" / "scripts" / "environments" / "faulty.py"
PASSES = ("--passes", "reward >= 1")
CLASS = """
class Light:
    def __init__(self):
        self.over = False

    def reset(self, **row):
        self.over, self.wanted = False, row.get("wanted", 1)
        return f"Press {self.wanted} times."

    def press(self, times: int) -> str:
        \"\"\"Press the button.

        Args:
            times: How often.
        \"\"\"
        self.over = times == self.wanted
        return "on" if self.over else "off"

    def get_reward(self) -> float:
        return float(self.over)
"""
RUN = """
[envs.light]
use = "{file}:Light"
passes = "reward >= 1"
ends = "over"

[data]
heldout = "{tasks}"

[rollout]
max_turns = 3
"""
SUMS = (ROOT / "docs" / "environments-verifiers.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where an evaluation lies that nobody wants to keep."""
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "evals"
    register_environments({}, ROOT)


@pytest.fixture
def light(tmp_path: Path) -> Path:
    file = tmp_path / "light.py"
    file.write_text(CLASS)
    return file


@pytest.fixture
def run(tmp_path: Path, light: Path) -> Path:
    """A run whose held-out file has tasks of two environments."""
    tasks = [Task(f"light-{i}", "light", "", {"wanted": i}) for i in (1, 2)]
    held = tmp_path / "held.jsonl"
    held.write_text("".join(encode(t) + "\n" for t in [*tasks, Task("other-1", "other", "", {})]))
    other = '[envs.other]\nuse = "other.py:Other"\npasses = "reward >= 1"\n'
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.toml").write_text(RUN.format(file=light, tasks=held) + other)
    return folder


def evaluate(name: str | Path, *words: str | Path, answers: tuple[Answer, ...]) -> Asked:
    with answering(answers, 200, LISTED) as endpoint:
        return Asked(grpo("env", "eval", name, "--endpoint", endpoint.base_url, *words), endpoint)


class Asked:
    """How the command ended, and what the endpoint was asked."""

    def __init__(self, ended: Ended, endpoint: Endpoint) -> None:
        self.ended = ended
        self.asked = endpoint.asked

    @property
    def summary(self) -> dict[str, Any]:
        assert self.ended.code == 0, self.ended.error
        found: dict[str, Any] = json.loads(self.ended.out)["summary"]
        return found


PRESSES_ONCE = (says("press: 1"),)


def test_a_class_is_evaluated_without_a_run_and_nothing_is_left(light: Path, cache: Path) -> None:
    words = (*PASSES, "--ends", "over", "--tasks", "4", "--samples", "2", "--json")
    found = evaluate(f"{light}:Light", *words, answers=PRESSES_ONCE)
    summary = found.summary
    assert (summary["n_tasks"], summary["n_trajectories"], summary["n_passed"]) == (4, 8, 8)
    assert summary["stops"] == {"ENV_DONE": 8}
    system, user = found.asked[0]["messages"]
    assert "press" in system["content"]  # told in text: nobody sees the endpoint's template
    assert user["content"] == "Press 1 times."
    assert [*cache.iterdir()] == []


def test_the_end_of_one_evaluation_takes_nothing_from_another_on_the_same_tasks(
    light: Path, cache: Path
) -> None:
    """The first one's endpoint answers when the second one has ended."""
    words = (*PASSES, "--ends", "over", "--tasks", "2", "--json")
    command = [sys.executable, "-P", "-m", "scripts.cli", "env", "eval", f"{light}:Light", *words]
    free = threading.Event()

    class Late(tuple[Answer, ...]):
        def __getitem__(self, at: Any) -> Any:
            assert free.wait(60)
            return super().__getitem__(at)

    with answering(Late(PRESSES_ONCE), 200, LISTED) as endpoint:
        first = subprocess.Popen(
            [*command, "--endpoint", endpoint.base_url], stdout=subprocess.PIPE, text=True
        )
        while not endpoint.asked:
            assert first.poll() is None
            time.sleep(0.01)
        assert evaluate(f"{light}:Light", *words, answers=PRESSES_ONCE).summary["n_passed"] == 2
        free.set()
        told, _ = first.communicate()
    assert first.returncode == 0
    assert json.loads(told)["summary"]["n_passed"] == 2
    assert [*cache.iterdir()] == []


def test_rows_are_played_as_they_stand_and_the_episodes_kept(light: Path, tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "kept"
    rows.write_text('{"wanted": 1}\n{"wanted": 2}\n')
    words = ["--ends", "over", "--set", "rollout.max_turns=2"]
    with answering(PRESSES_ONCE, 200, LISTED) as endpoint:
        begun: list[str | Path] = ["env", "eval", light, "--endpoint", endpoint.base_url]
        asked: list[str | Path] = [*begun, "--out", out, "--tasks", rows, *PASSES, *words]
        first = grpo(*asked)
        assert first.code == 0, first.error
        assert "1/2" in first.out
        assert len(endpoint.asked) == 1 + 2  # a call that passes; two turns of the other row
        again = grpo(*asked)
        assert (again.out, len(endpoint.asked)) == (first.out, 3)  # what is finished is read
        other = grpo(*asked, "--tasks", "3")
    (kept,) = out.glob("evals/*/trajectories.jsonl")
    assert {t.grade.passed: len(t.turns) for t in read_trajectories(kept)} == {True: 1, False: 2}
    assert grpo("show", out).code == 0
    assert other.code == 2
    assert f"`--out {out}-2`" in other.error


def test_a_runs_environment_has_the_runs_settings_and_its_own_held_out_tasks(run: Path) -> None:
    found = evaluate("light", "--run", run, "--json", answers=PRESSES_ONCE)
    assert (found.summary["n_tasks"], found.summary["n_passed"]) == (2, 1)
    assert len(found.asked) == 1 + 3  # a call that passes; [rollout] max_turns = 3


OWN_MODEL = """
[model]
path = "models/own"
adapter = "adapters/own"
chat_template = "{template}"
chat_template_kwargs = {{ enable_thinking = false, style = "plain" }}
tool_form = "hermes"
"""


@pytest.fixture
def own_model(run: Path) -> ModelSettings:
    """What the run's file says of its model."""
    template = run / "own.jinja"
    template.write_text("{{ messages }}")
    file = run / "run.toml"
    file.write_text(file.read_text() + OWN_MODEL.format(template=template))
    return read_config(file).model


def asked_to_play(
    run: Path, *words: str | Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, ModelSettings]:
    """The adapter that the command has to play, and the model's settings under which it would."""
    adapter, out = make_adapter(run.parent / "tuned", run.parent / "model"), run.parent / "kept"

    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("enough")

    monkeypatch.setattr("scripts.phases.single_arm.play_adapter", stopped)
    asked = ["light", "--run", run, "--adapter", adapter, "--out", out, *words]
    ended = grpo("env", "eval", *asked)
    assert ended.code == Interrupted.exit_code, ended.error
    return adapter, read_config(out / "run.toml").model


def test_an_adapter_is_shown_an_environment_by_the_template_of_its_run(
    run: Path, own_model: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, model = asked_to_play(run, monkeypatch=monkeypatch)
    assert model == replace(own_model, adapter=str(adapter))


def test_a_base_model_that_was_typed_comes_before_that_of_the_run(
    run: Path, own_model: ModelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, model = asked_to_play(run, "--model", "owner/other", monkeypatch=monkeypatch)
    assert model == replace(own_model, adapter=str(adapter), path="owner/other")


def test_a_run_that_names_no_model_has_the_default_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter, model = asked_to_play(run, monkeypatch=monkeypatch)
    assert model == ModelSettings(adapter=str(adapter))


def test_an_endpoint_is_told_of_tools_in_text_whatever_the_runs_template_shows(
    run: Path, own_model: ModelSettings, tmp_path: Path
) -> None:
    out = tmp_path / "kept"
    found = evaluate("light", "--run", run, "--json", "--out", out, answers=PRESSES_ONCE)
    assert found.summary["n_tasks"] == 2
    assert "press" in found.asked[0]["messages"][0]["content"]
    kept = read_config(out / "run.toml").model
    assert (kept.chat_template, kept.tool_form) == ("", "auto")


def test_a_class_that_was_edited_after_a_stop_is_played_as_it_is_now(
    light: Path, cache: Path
) -> None:
    with answering([(401, "no"), *PRESSES_ONCE], 200, LISTED) as endpoint:
        words: list[str | Path] = ["env", "eval", f"{light}:Light", "--ends", "over", *PASSES]
        words += ["--endpoint", endpoint.base_url, "--tasks", "2", "--json"]
        assert grpo(*words).code == 2
        assert len([*cache.glob("*/manifest.json")]) == 1
        light.write_text(f"{CLASS}# edited\n", encoding="utf-8")
        ended = grpo(*words)
    assert ended.code == 0, ended.error
    assert f"{light}:Light has changed since an earlier start" in ended.error
    assert json.loads(ended.out)["summary"]["n_passed"] == 2
    assert [*cache.iterdir()] == []


def test_tasks_frozen_under_a_name_are_played_under_it(light: Path, tmp_path: Path) -> None:
    file = tmp_path / "frozen.jsonl"
    words: list[str | Path] = ["--rows", "3", "--seed", "7", "--as", "lamp", "--out", file]
    assert grpo("env", "tasks", f"{light}:Light", *words).code == 0
    asked = ("--tasks", file, *PASSES, "--ends", "over", "--json")
    refused = evaluate(light, *asked, answers=PRESSES_ONCE)
    assert refused.ended.code == 2
    assert "`--as lamp` gives a file or a class that name" in refused.ended.error
    found = evaluate(light, *asked, "--as", "lamp", answers=PRESSES_ONCE)
    assert (found.summary["n_tasks"], found.summary["n_passed"]) == (3, 3)


def test_a_broken_line_is_named_in_the_file_that_was_typed(run: Path) -> None:
    held = run.parent / "held.jsonl"
    held.write_text(held.read_text().replace('"wanted":2', '"wanted":2},"prompt":{"a":1'))
    ended = evaluate("light", "--run", run, answers=PRESSES_ONCE).ended
    assert (ended.code, ended.error.count("\n")) == (2, 1), ended
    assert f"{held}:2: " in ended.error


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("clawgym", (), "`grpo eval --endpoint URL --tasks FILE`"),
        ("nowhere", PASSES, "add `--run RUN`"),
        ("nowhere.py", PASSES, "nowhere.py: no such file"),
        (f"{FAULTY}:Sound", (), "--passes 'reward >= 1'`"),
        (f"{FAULTY}:Sound", ("--passes", "good"), "'good' compares no part"),
        (f"{FAULTY}:Sound", (*PASSES, "--tasks", "0"), "--tasks 0: at least 1"),
        (f"{FAULTY}:Sound", (*PASSES, "--tasks", "nowhere.jsonl"), "nowhere.jsonl: no such file"),
        (f"{FAULTY}:Sound", (*PASSES, "--tasks", "--7"), "--tasks --7: no such file"),
        (f"{FAULTY}:Sound", (*PASSES, "--tasks", str(FAULTY)), "faulty.py:1:"),
        (f"{FAULTY}:Nothing", PASSES, "has no 'Nothing'"),
        (f"{FAULTY}:Sound", (*PASSES, "--set", "rollout.turns=3"), "unknown key 'rollout.turns'"),
        ("light", ("--run", "RUN", "--as", "lamp"), "--as: goes only with"),
        ("lihgt", ("--run", "RUN"), "no [envs.lihgt] in run.toml; known: light, other"),
        ("light", ("--run", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    name: str, words: tuple[str, ...], said: str, run: Path, cache: Path
) -> None:
    chosen = [str(run) if word == "RUN" else word for word in words]
    found = evaluate(name, *chosen, answers=PRESSES_ONCE)
    assert (found.ended.code, found.ended.error.count("\n")) == (2, 1), found.ended
    assert said in found.ended.error
    assert "`" in found.ended.error
    assert not cache.exists() or [*cache.iterdir()] == []
    assert found.asked == []


def test_an_endpoint_that_is_not_there_is_told_of_first(light: Path, cache: Path) -> None:
    ended = grpo("env", "eval", light, "--endpoint", "http://127.0.0.1:9/v1", *PASSES)
    assert (ended.code, ended.error.count("\n")) == (4, 1)
    assert not cache.exists()


SAYS = [says(f"guess: {n}") for n in [*range(1, 11)] * 3]
FEW = ("--set", "rollout.concurrency=1", "--set", "rollout.max_turns=20")


def test_a_server_of_a_run_is_started_played_and_ended(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        f'[envs.guess]\nserve = "{DOUBLE}:app"\npython = "{THIS_PYTHON}"\npasses = "reward > 0"\n'
    )
    out = tmp_path / "kept"
    words = ("env", "eval", "guess", "--run", tmp_path, "--tasks", "2", "--json", "--out", out)
    with answering(SAYS, 200, LISTED) as endpoint:
        ended = typed.grpo(*words, *FEW, "--endpoint", endpoint.base_url)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["summary"]["stops"] == {"ENV_DONE": 2}
    assert "Higher." in json.dumps(endpoint.asked)
    assert [p.pid for p in marked() if p.ledger == out / LEDGER_FILE] == []


def test_an_adapter_plays_an_environment_on_an_engine_of_its_own(
    policy: tuple[Path, Path], light: Path, tmp_path: Path
) -> None:
    folder, adapter = map(str, policy)
    words = ["env", "eval", str(light), "--adapter", adapter, "--model", folder, *PASSES]
    words += ["--tasks", "2", "--json", "--out", str(tmp_path / "kept"), *TINY]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "scripts.cli", *words],
        env={**os.environ, "PYTHONPATH": str(SITE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert (summary["n_tasks"], summary["n_passed"]) == (2, 0)  # this policy writes shell commands
    assert sum(summary["stops"].values()) == 2
    assert "canary" in done.stderr


def test_one_of_endpoint_and_adapter_plays(light: Path, tmp_path: Path) -> None:
    both = ("--endpoint", "http://127.0.0.1:9/v1", "--adapter", tmp_path)
    for words in ((), both):
        ended = grpo("env", "eval", light, *PASSES, *words)
        assert (ended.code, ended.error.count("\n")) == (2, 1)
        assert "name one: --endpoint URL or --adapter DIR" in ended.error
    ended = grpo("env", "eval", light, *PASSES, "--adapter", tmp_path)
    assert ended.code == 2
    assert "adapter_config.json" in ended.error


def test_a_server_is_evaluated_by_its_address(tmp_path: Path) -> None:
    with local(launch(), tmp_path) as server, answering(SAYS, 200, LISTED) as endpoint:
        words = ["env", "eval", asyncio.run(server.address()), "--passes", "reward > 0"]
        ended = grpo(*words, "--endpoint", endpoint.base_url, "--tasks", "1", "--json", *FEW)
    assert ended.code == 0, ended.error
    assert json.loads(ended.out)["summary"]["stops"] == {"ENV_DONE": 1}


@pytest.mark.envs
def test_a_verifiers_file_is_evaluated_on_its_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRPO_CACHE")  # the virtual environment is made once for all tests
    file = tmp_path / "sums.py"
    file.write_text(SUMS.split("```python\n")[1].split("```")[0], encoding="utf-8")
    words = ("--passes", "right == 1", "--tasks", "5", "--json")
    found = evaluate(file, *words, answers=(says("It is 4, or 2, or 0, or 6, or 8."),))
    assert found.summary["n_tasks"] == 5
    questions = {a["messages"][-1]["content"] for a in found.asked}
    assert len(questions) == 5
    assert all(q.startswith("What is ") for q in questions)
