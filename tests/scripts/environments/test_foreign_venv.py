"""What `grpo env add` takes, what it refuses, and that a second call finds what the first made."""

import platform
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_json
from scripts.environments import foreign_venv
from scripts.environments.foreign_venv import add_environment, inline_metadata
from scripts.environments.own_env import is_class, own_environment

HEAD = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["verifiers==0.3.1"]\n# ///\n'


def file(folder: Path, text: str) -> Path:
    path = folder / "mine.py"
    path.write_text(text, encoding="utf-8")
    return path


def test_inline_metadata_is_read_as_pep_723_says(tmp_path: Path) -> None:
    found = inline_metadata(file(tmp_path, f"#!/usr/bin/env python\n{HEAD}\nimport verifiers\n"))
    assert found == {"requires-python": ">=3.11", "dependencies": ["verifiers==0.3.1"]}
    assert inline_metadata(file(tmp_path, "import verifiers\n")) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import verifiers\n", r"mine.py:1: it has no inline metadata \(PEP 723\)"),
        ("# /// script\n# dependencies = [\n# ///\n", "its inline metadata is not valid TOML"),
        (
            HEAD.replace(">=3.11", "<3"),
            rf"it requires Python <3, and .venv has {platform.python_version()}",
        ),
    ],
)
def test_a_file_that_does_not_say_what_it_needs_is_refused(
    text: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=said):
        add_environment(str(file(tmp_path, text)))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("gone.py", "gone.py: no such file"),
        ("no such thing!", "no such file or folder, and not the name of a package"),
        (".", r"it has no pyproject.toml"),
    ],
)
def test_what_is_nothing_that_can_be_installed_is_named(
    what: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=said):
        add_environment(what)


V0 = "import verifiers as vf\n\n\ndef load_environment():\n    return vf.SingleTurnEnv()\n"
PROJECT = '[project]\nname = "my-env"\nversion = "0.1.0"\ndependencies = ["verifiers>=0.1.5"]\n'


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, ...]]:
    """What would be installed, of each environment."""
    asked: list[tuple[str, ...]] = []

    def install(folder: Path, source: foreign_venv._Source, say: object) -> None:
        asked.append(source.requirements)
        write_json(folder / "ready.json", {"packages": []})

    monkeypatch.setattr(foreign_venv, "_install", install)
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    return asked


def folder_of_v0(tmp_path: Path) -> Path:
    """As `vf-init` makes one."""
    home = tmp_path / "my_env"
    home.mkdir()
    (home / "my_env.py").write_text(V0)
    (home / "pyproject.toml").write_text(PROJECT)
    return home


def test_a_published_environment_of_v0_gets_a_library_that_has_v0(
    installed: list[tuple[str, ...]], tmp_path: Path
) -> None:
    """Its own requirement takes 0.4 too, which has v1 alone."""
    home = folder_of_v0(tmp_path)
    assert add_environment(str(home)).use == "my-env"
    add_environment(str(file(tmp_path, HEAD.replace("==0.3.1", "") + V0)))
    add_environment(str(file(tmp_path, HEAD + V0)))
    assert installed == [
        (str(home), "verifiers<0.4.0"),
        ("verifiers", "verifiers<0.4.0"),
        ("verifiers==0.3.1",),
    ]


def test_the_file_of_a_folder_with_a_pyproject_is_that_package(
    installed: list[tuple[str, ...]], tmp_path: Path
) -> None:
    home = folder_of_v0(tmp_path)
    made = own_environment(str(home / "my_env.py"), "", {"passes": "reward >= 1"}, "again")
    assert made.values["use"] == "my-env"
    again = own_environment(str(home), "", {"passes": "reward >= 1"}, "again")
    assert again == made
    assert len(installed) == 1
    assert not is_class(str(home))


def test_a_wheel_is_installed_from_its_file_or_its_address(
    installed: list[tuple[str, ...]], tmp_path: Path
) -> None:
    wheel = tmp_path / "my_env-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    assert add_environment(str(wheel)).use == "my-env"
    address = f"https://hub.example/{wheel.name}"
    assert add_environment(address).name == "my-env"
    assert installed == [(str(wheel),), (address,)]


@pytest.mark.envs
def test_a_second_call_finds_what_the_first_made_and_a_half_made_one_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wanted = file(tmp_path, HEAD.replace("verifiers==0.3.1", "tomli==2.5.0"))
    said: list[str] = []
    made = add_environment(str(wanted), say=said.append)
    assert made.packages == ("tomli==2.5.0",)
    assert len(said) == 2
    assert add_environment(str(wanted), say=said.append) == made
    assert len(said) == 2
    (made.python.parents[2] / "ready.json").unlink()
    assert add_environment(str(wanted), say=said.append) == made
    assert len(said) == 4
