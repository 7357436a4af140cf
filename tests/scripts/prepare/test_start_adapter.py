"""Which command makes the adapter that a run starts from, of shell tasks and of environments."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from rollout.envs.env_settings import EnvSettings
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model
from scripts.prepare.start_adapter import (
    calls_no_tool,
    learned_another_template,
    missing_adapter,
)
from scripts.run.config import DataSettings, ModelSettings, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.template import chat_renderer

ASKED = [{"role": "user", "content": "hi"}]
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
    other = RunConfig(model=replace(GONE, path="Qwen/Qwen2.5-7B-Instruct"))
    said = missing_adapter(RunFolder(ROOT / "runs" / "night"), other)
    assert "`grpo sft adapters/not-there --lr 2e-4 --model Qwen/Qwen2.5-7B-Instruct`" in str(said)


def test_an_adapter_that_lies_in_the_current_folder_or_in_the_runs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, config = RunFolder(tmp_path / "night"), RunConfig(model=ModelSettings(adapter="mine"))
    for there in (folder.path / "mine", tmp_path / "mine"):
        there.mkdir(parents=True)
        said = missing_adapter(folder, config)
        assert said is not None
        assert "paths in run.toml start at the checkout; `grpo run " in said
        assert f"--set model.adapter={there}` takes this one" in said


def starting_from(adapter: Path, tmp_path: Path) -> str:
    config = RunConfig(model=ModelSettings(adapter=str(adapter)))
    said = missing_adapter(RunFolder(tmp_path / "night"), config)
    assert said is not None
    return said


def finished(folder: RunFolder, steps: int) -> RunFolder:
    """A run with so many finished steps besides step 0, and without weights."""
    for n in range(steps + 1):
        folder.step(n).mkdir(parents=True)
        folder.summary(n).write_text("{}")
    folder.config.write_text("")
    return folder


def test_an_adapter_of_a_run_without_weights_is_played_again_and_never_made_in_its_place(
    tmp_path: Path,
) -> None:
    source = finished(RunFolder(tmp_path / "older"), 2)
    said = starting_from(source.adapter(2), tmp_path)
    assert f"older has no weights in this copy. `mkdir {tmp_path}/older-again && cp " in said
    assert f"model.adapter={source.again.adapter(2)}` takes what it makes" in said
    assert "grpo sft" not in said
    source.adapter(1).mkdir()
    said = starting_from(source.adapter(2), tmp_path)
    assert (
        f"that of step 1: `grpo run {tmp_path}/night --set model.adapter={source.adapter(1)}`"
        in (said)
    )


def test_an_adapter_that_a_run_has_not_trained_yet_is_trained_by_that_run(tmp_path: Path) -> None:
    source = finished(RunFolder(tmp_path / "older"), 2)
    for path in (source.adapter(7), source.path / "own"):
        said = starting_from(path, tmp_path)
        assert f"the finished ones 0 to 2; `grpo run {source.path}` trains further ones" in said
        assert "grpo sft" not in said


def test_an_adapter_of_a_run_that_is_not_here_names_that_run(tmp_path: Path) -> None:
    said = starting_from(RunFolder(ROOT / "runs/elsewhere").adapter(25), tmp_path)
    assert "the run elsewhere, which is not here; name another adapter" in said
    assert "grpo sft" not in said


def test_a_file_of_an_adapter_is_answered_with_its_folder(tmp_path: Path) -> None:
    file = ROOT / "adapters/smol-warm/adapter_config.json"
    said = starting_from(file, tmp_path)
    assert f"{file}: a file; `grpo run {tmp_path}/night --set" in said
    assert "model.adapter=adapters/smol-warm` takes its folder" in said


def test_an_adapter_of_the_hub_is_downloaded_by_the_command_that_is_told(tmp_path: Path) -> None:
    config = RunConfig(model=ModelSettings(adapter="somebody/their-lora"))
    said = missing_adapter(RunFolder(tmp_path / "night"), config)
    assert said is not None
    [download, take] = re.findall("`([^`]+)`", said)
    program, *words = shlex.split(download)
    assert os.access(program, os.X_OK)
    own = f"{ROOT}/adapters/their-lora"
    assert words == ["download", "somebody/their-lora", "--local-dir", own]
    assert take.endswith("--set model.adapter=adapters/their-lora")


def test_a_chat_template_that_a_trainer_left_beside_the_adapter_is_told(tmp_path: Path) -> None:
    smol, folder = build_model(), RunFolder(tmp_path / "night")
    model = ModelSettings(adapter=str(tmp_path))
    assert learned_another_template(folder, RunConfig(model=model), smol) is None
    beside = tmp_path / "chat_template.jinja"
    own = (smol / "chat_template.jinja").read_text()
    beside.write_text("{# as it was saved #}" + own)  # other text, the same conversation
    assert learned_another_template(folder, RunConfig(model=model), smol) is None
    beside.write_text(own.replace("assistant\n'", "assistant: '"))
    said = learned_another_template(folder, RunConfig(model=model), smol)
    assert said is not None
    assert f"--set model.chat_template={tmp_path}` takes it" in said
    taken = ModelSettings(adapter=str(tmp_path), chat_template=str(tmp_path))
    assert learned_another_template(folder, RunConfig(model=taken), smol) is None
    assert chat_renderer(taken, smol).start(ASKED).prompt_ids != (
        chat_renderer(model, smol).start(ASKED).prompt_ids
    )


def test_another_model_gets_an_adapter_of_its_own_and_no_advice_for_small_ones(
    tmp_path: Path,
) -> None:
    model = ModelSettings(path="Qwen/Qwen3-0.6B")
    said = calls_no_tool(RunFolder(tmp_path / "night"), RunConfig(model=model, envs={"game": GAME}))
    assert said is not None
    assert "adapters/night --fresh --model Qwen/Qwen3-0.6B` makes another start" in said
    assert "oracle" not in said


def test_the_default_adapter_calls_no_tool_of_an_environment(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "night")
    said = calls_no_tool(folder, RunConfig(envs={"game": GAME}))
    assert said is not None
    assert "calls no tool of game; `grpo sft " in said
    assert f"`grpo run {folder.path} --set model.adapter=adapters/night`" in said
    assert "`oracle` in [envs.game] of run.toml names a function" in said
    assert calls_no_tool(folder, RunConfig()) is None
    assert calls_no_tool(folder, RunConfig(model=GONE, envs={"game": GAME})) is None
