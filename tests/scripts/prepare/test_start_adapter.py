"""Which command makes the adapter that a run starts from, of shell tasks and of environments."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.envs.env_settings import EnvSettings
from scripts.base.checkout import ROOT
from scripts.prepare.start_adapter import calls_no_tool, missing_adapter
from scripts.run.config import DataSettings, ModelSettings, RunConfig
from scripts.run.folder import RunFolder

GONE = ModelSettings(adapter="adapters/not-there")
SQL = DataSettings(pool="data/sql/pool.jsonl", heldout="data/sql/heldout.jsonl")
GAME = EnvSettings(use="counter.py:Counter", passes="reward >= 1")
SOLVED = EnvSettings(use="counter.py:Counter", passes="reward >= 1", oracle="counter.py:solve")


def test_a_missing_adapter_of_an_environment_is_made_from_its_oracle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    config = RunConfig(model=GONE, data=SQL, envs={"game": GAME, "sql": SOLVED})
    said = missing_adapter(RunFolder(ROOT / "runs" / "sql-0"), config)
    assert said is not None
    layers = "".join(f" --lora {kind}_proj" for kind in "qkvo")
    demonstrations = "--oracle data/sql/demonstrations.jsonl --run sql-0"
    assert f"`grpo sft adapters/not-there {demonstrations}{layers}`" in said


def test_an_environment_without_an_oracle_is_offered_an_adapter_that_changes_nothing_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a command's paths start
    said = missing_adapter(RunFolder(tmp_path / "night"), RunConfig(model=GONE, envs={"g": GAME}))
    assert said is not None
    assert f"`grpo sft {ROOT}/adapters/not-there --fresh`" in said


def test_a_missing_adapter_of_shell_tasks_is_made_from_demonstrations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    said = missing_adapter(RunFolder(ROOT / "runs" / "night"), RunConfig(model=GONE))
    assert said is not None
    assert "`grpo sft adapters/not-there` makes a start for shell tasks" in said
    assert missing_adapter(RunFolder(ROOT / "runs" / "night"), RunConfig()) is None


def test_the_default_adapter_calls_no_tool_of_an_environment(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "night")
    said = calls_no_tool(folder, RunConfig(envs={"game": GAME}))
    assert said is not None
    assert "calls no tool of game; `grpo sft " in said
    assert f"`grpo run {folder.path} --set model.adapter=adapters/night`" in said
    assert calls_no_tool(folder, RunConfig()) is None
    assert calls_no_tool(folder, RunConfig(model=GONE, envs={"game": GAME})) is None
