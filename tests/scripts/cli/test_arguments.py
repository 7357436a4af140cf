"""What --engine writes into run.toml, and options that would do nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.envs.configured import register_environments
from scripts.base.checkout import ROOT
from scripts.cli.arguments import endpoint_key, refuse, write_engine
from scripts.run.config import read_config
from tests.scripts.cli.in_process import grpo
from tests.scripts.typed import BAD_INPUT


def test_a_run_goes_to_a_cluster_and_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "night" / "run.toml"
    file.parent.mkdir()
    file.write_text("[run]\nseed = 3  # kept\n")
    write_engine(str(file.parent), None)
    assert file.read_text() == "[run]\nseed = 3  # kept\n"
    write_engine(str(file.parent), "ray")
    assert read_config(file).cluster.used
    write_engine(str(file.parent), "here")
    assert not read_config(file).cluster.used
    assert "seed = 3  # kept" in file.read_text()


def test_the_first_option_that_was_typed_is_refused_by_its_flag() -> None:
    refuse({"--a": None, "--b": False, "--c": []}, "does nothing here")
    with pytest.raises(BadInput, match=r"^--b: does nothing here$"):
        refuse({"--a": None, "--b": 0, "--c": "x"}, "does nothing here")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["synth", "--tasks", "5"], "--tasks: goes only with --author"),
        (["synth", "--model", "m"], "--model: goes only with --author"),
        (["synth", "--replies", "5"], "--replies: goes only with --author"),
        (["synth", "--apart", "data/final.jsonl"], "--apart: goes only with --author"),
        (["synth", "--key-from", "FOO"], "--key-from: goes only with --author"),
        (["eval", "tonight", "--preset", "spark"], "--preset: goes only with --adapter or"),
        (["eval", "tonight", "--key-from", "FOO"], "--key-from: goes only with --adapter or"),
        (["eval", "--adapter", "x", "--key-from", "FOO"], "--key-from: goes only with --endpoint"),
        (
            ["env", "eval", "sql", "--adapter", "x", "--key-from", "FOO"],
            "--key-from: goes only with --endpoint",
        ),
        (["run", "first-night", "--steps", "5", "--minutes", "90"], "--minutes: limits nothing"),
        (["env", "check", "x.py", "--model", "m"], "--model: goes only with --endpoint"),
        (
            ["env", "tasks", "x.py:X", "--out", "x", "--rows", "2", "--split", "eval"],
            "--split: goes only with a verifiers environment",
        ),
        (
            ["env", "tasks", "x.py:X", "--out", "x", "--from", "y", "--seed", "0"],
            "--seed: not with --from",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_before_anything_is_written(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = grpo(*words)
    assert ended.code == BAD_INPUT
    (line,) = ended.error.splitlines()
    assert line.startswith(f"error: {said}")
    assert not list(tmp_path.iterdir())


def test_a_key_that_was_asked_for_by_name_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert endpoint_key(None) == "local"
    monkeypatch.setenv("MY_KEY", "sk-1")
    assert endpoint_key("MY_KEY") == "sk-1"
    for name in ("MY_KEI", "OPENAI_API_KEY"):
        with pytest.raises(BadInput, match=f"--key-from {name}: .* `export {name}=KEY`"):
            endpoint_key(name)


def test_what_a_runs_environment_of_another_style_cannot_use_is_refused(tmp_path: Path) -> None:
    lines = ("[envs.{0}]", 'passes = "reward > 0"', f"python = {json.dumps(sys.executable)}")
    server = ('serve = "x:app"', 'style = "openenv"')
    (tmp_path / "run.toml").write_text(
        "\n".join(lines).format("v")
        + '\nuse = "v"\nstyle = "verifiers"\n'
        + "\n".join((*lines, *server)).format("s")
        + "\n"
        '[envs.c]\nuse = "x:X"\npasses = "reward > 0"\n'
    )
    try:
        for words, said in (
            (("check", "s", "--ends", "over"), "envs.s.ends: an OpenEnv server"),
            (("check", "s", "--passes", "good"), "'good' compares no part"),
            (("check", "c", "--python", "x"), "--python: c of "),
            (("play", "s", "--rows", "y", "--seed", "3"), "--seed: not with --rows"),
            (("tasks", "v", "--out", "x", "--from", "y"), "--from: not for v"),
            (("tasks", "v", "--out", "x", "--as", "w"), "--as: not for v"),
        ):
            ended = grpo("env", *words, "--run", tmp_path)
            assert ended.code == BAD_INPUT
            assert said in ended.error
    finally:
        register_environments({}, ROOT)
