"""What a reward pays to doing nothing, to chance and to the oracle, before a night is spent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fieldkit.records import Task
from rollout.envs.configured import register_environments
from rollout.envs.env_settings import EnvSettings
from rollout.settings import RolloutSettings
from scripts.base.checkout import ROOT
from scripts.evidence.replay import worth_table
from scripts.prepare.worth import play_worth
from scripts.run.config import RunConfig
from scripts.words.table import Table
from tests.rollout.scripted import renderer

CODE = """
class Vault:
    \"\"\"Say the word that opens it.\"\"\"
    def reset(self, word="", **row):
        self.word, self.open, self.looks, self.done = word, False, 0, False
    def look(self) -> str:
        \"\"\"Look at the vault.\"\"\"
        self.looks += 1
        return "It is shut."
    def say(self, word: str) -> str:
        \"\"\"Say a word.

        Args:
            word: the word
        \"\"\"
        self.open, self.done = word == self.word, True
        return "It opens." if self.open else "Nothing happens."

def opened(environments, **row):
    return [float(e.open) for e in environments]

def looked(environments, **row):
    return [min(1.0, e.looks / 3) for e in environments]

def solution(word, **row):
    return [("look", {}), ("say", {"word": word})]

def nobody(word, **row):
    raise LookupError("nobody knows the word")

def looker(rng, shown, **row):
    return "look", {}
"""
TASKS = [Task(f"t{i}", "vault", "Open it.", {"word": f"zq{i}"}) for i in range(4)]


@contextmanager
def vault(tmp_path: Path, oracle: str = "solution", looked: float = 0.0) -> Iterator[RunConfig]:
    (tmp_path / "vault.py").write_text(CODE)
    file = tmp_path / "vault.py"
    envs = {
        "vault": EnvSettings(
            f"{file}:Vault",
            "opened >= 1",
            ends="done",
            oracle=f"{file}:{oracle}" if oracle else "",
            chance=f"{file}:looker",
            rewards={f"{file}:opened": 1.0, f"{file}:looked": looked},
        )
    }
    register_environments(envs, tmp_path)
    limits = RolloutSettings(max_turns=5, max_new_tokens=64, max_model_len=2000)
    yield RunConfig(envs=envs, rollout=limits)
    register_environments({}, ROOT)


def table(config: RunConfig, tmp_path: Path) -> Table:
    (one,) = play_worth(config, TASKS, renderer, tmp_path, lambda *_: None)
    return worth_table(one.env, one.tasks, one.played, one.absent)


def test_passes_reward_and_each_part_are_shown_for_nothing_chance_and_oracle(
    tmp_path: Path,
) -> None:
    with vault(tmp_path) as config:
        found = table(config, tmp_path)
    assert found.columns == ("", "doing nothing", "by chance", "oracle")
    cells = {name: values for name, *values in found.rows}
    assert cells["passed"] == ["0.0%", "0.0%", "100.0%"]
    assert cells["replies"] == ["0.0", "5.0", "2.0"]
    assert cells["opened, weight 1"] == ["0.000", "0.000", "1.000"]
    assert cells["looked, weight 0"] == ["0.000", "1.000", "0.333"]


def test_coroutines_of_an_environment_meet_one_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of the module belongs to the loop in which it is waited for first."""
    waits = "asyncio.get_running_loop().call_soon(answers.put_nowait, 1)"
    code = CODE.replace("    def look(", "    async def look(").replace(
        "self.looks += 1", f"{waits}\n        self.looks += await answers.get()"
    )
    start = "import asyncio\nanswers = asyncio.Queue()\n"
    monkeypatch.setattr("tests.scripts.prepare.test_worth.CODE", start + code)
    with vault(tmp_path) as config:
        found = table(config, tmp_path)
    cells = {name: values for name, *values in found.rows}
    assert cells["looked, weight 0"] == ["0.000", "1.000", "0.333"]


def test_a_part_of_weight_0_raises_no_alarm(tmp_path: Path) -> None:
    with vault(tmp_path) as config:
        assert table(config, tmp_path).alarm == ""


def test_a_part_that_pays_chance_without_passing_is_warned_of(tmp_path: Path) -> None:
    with vault(tmp_path, looked=0.5) as config:
        found = table(config, tmp_path)
    cells = {name: values for name, *values in found.rows}
    assert cells["reward"] == ["0.000", "0.500", "1.167"]
    assert "earn 43% of what the oracle earns and pass 0% of the tasks" in found.alarm


@pytest.mark.parametrize(
    ("oracle", "why"), [("", "names no oracle"), ("nobody", "nobody knows the word")]
)
def test_an_oracle_that_cannot_be_played_is_left_out_and_named(
    tmp_path: Path, oracle: str, why: str
) -> None:
    with vault(tmp_path, oracle=oracle) as config:
        found = table(config, tmp_path)
    assert found.columns == ("", "doing nothing", "by chance")
    assert any("Not played: oracle" in note and why in note for note in found.notes)


def test_an_environment_without_a_task_in_the_pool_has_no_table(tmp_path: Path) -> None:
    with vault(tmp_path) as config:
        assert play_worth(config, [], renderer, tmp_path, lambda *_: None) == []
