"""`grpo` itself: version, help and completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import typer
from typer.main import get_command

from scripts.base.checkout import ROOT
from scripts.cli.app import _print_version, app
from tests.scripts.typed import BAD_INPUT, grpo


def commands() -> dict[str, click.Command]:
    """Every command by the words that a person types."""
    found: dict[str, click.Command] = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {n}": c for n, c in inner.items()} if inner else {name: command}
    return found


def test_version_and_short_help_end_well() -> None:
    assert grpo("--version").stdout.startswith("grpo 0.")
    assert "KEY=VALUE" in grpo("run", "-h").stdout


def test_the_version_of_a_folder_that_is_not_installed_is_said_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scripts.base.machine.versions", lambda: {"python": "3.12.3"})
    with pytest.raises(typer.Exit):
        _print_version(asked=True)
    assert capsys.readouterr().out == "grpo from a folder that is not installed, Python 3.12.3\n"


def test_the_help_groups_the_commands() -> None:
    said = grpo("-h").stdout
    for panel in ("A night", "Read a run", "Single phases", "Checks"):
        assert f" {panel} " in said


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_help_of_every_command_has_an_example_of_it(name: str) -> None:
    command = commands()[name]
    said = command.help or ""
    assert f"grpo {name}" in said.partition("Example")[2], said


def test_a_shell_completes_commands_and_the_names_of_runs() -> None:
    def completed(*words: str) -> str:
        line = " ".join(words)
        env = {
            "_GRPO_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        }
        script = [str(Path(sys.executable).with_name("grpo"))]
        return subprocess.run(
            script,
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    assert "watch" in completed("grpo", "wat")
    assert "first-night" in completed("grpo", "show", "first")


def test_settings_are_found_by_a_word_with_default_unit_and_values() -> None:
    [found] = json.loads(grpo("keys", "start_seconds", "--json").stdout)
    assert (found["key"], found["unit"]) == ("engine.start_seconds", "seconds")
    shown = grpo("keys", "TURN_PENALTY")
    said = shown.stdout
    assert "A preset writes other values" in shown.stderr
    assert said.startswith("reward.turn_penalty = 0.2\n")
    assert len(json.loads(grpo("keys", "--json").stdout)) > 60


def test_a_word_that_no_setting_has_names_the_nearest() -> None:
    done = grpo("keys", "tempratur")
    assert done.returncode == BAD_INPUT
    assert "did you mean 'temperature'?" in done.stderr


def test_the_reward_without_a_run_is_said_to_be_that_of_the_defaults() -> None:
    assert "(defaults)" in grpo("reward", "explain").stdout
    assert "(defaults)" not in grpo("reward", "explain", "first-night").stdout


def test_tasks_of_an_unknown_environment_are_one_line_with_the_option_that_knows_it() -> None:
    done = grpo("tasks", "check", str(ROOT / "data" / "sql" / "heldout.jsonl"))
    assert done.returncode == BAD_INPUT
    (line,) = done.stdout.splitlines()
    assert "heldout.jsonl:1: " in line
    assert line.endswith("env 'sql' is unknown; known: clawgym (and so in 119 more lines)")
    assert "heldout.jsonl --run RUN`" in done.stderr


@pytest.mark.parametrize(
    "words", [("table", "first-night"), ("doctor",), ("reward", "explain"), ("ls",)]
)
def test_what_prints_a_table_prints_json(words: tuple[str, ...]) -> None:
    done = grpo(*words, "--json")
    assert json.loads(done.stdout), done.stderr
