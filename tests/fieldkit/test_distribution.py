"""fieldkit as its own distribution: built from this tree, installed where nothing else is."""

from __future__ import annotations

import doctest
import importlib
import importlib.metadata
import json
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fieldkit
from scripts.base.checkout import ROOT

PACKAGING = ROOT / "packaging" / "fieldkit"
MODULES = sorted(m.name for m in pkgutil.walk_packages(fieldkit.__path__, "fieldkit."))

USE_EVERYTHING = """
import importlib.util, json, pkgutil, sys
import fieldkit
for module in pkgutil.walk_packages(fieldkit.__path__, "fieldkit."):
    found = importlib.import_module(module.name)
    if module.ispkg:
        [getattr(found, name) for name in dir(found)]
ours = [n for n in ("rollout", "trainer", "scripts", "tests") if importlib.util.find_spec(n)]
print(json.dumps([fieldkit.__file__, ours, "torch" in sys.modules]))
"""


def build(folder: Path) -> Path:
    """The wheel of this tree, made in a copy so that none of it is left behind."""
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fieldkit", folder / "fieldkit", ignore=leave)
    copy = shutil.copytree(PACKAGING, folder / "packaging" / "fieldkit")
    earlier = copy / "build" / "lib" / "fieldkit" / "gone.py"  # as an earlier build leaves
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    program = f"import backend; backend.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", program], cwd=copy, check=True, capture_output=True)
    (wheel,) = folder.glob("grpo_fieldkit-*.whl")
    return wheel


def closure(names: list[str]) -> Iterator[importlib.metadata.Distribution]:
    """The installed distributions that these need, themselves included."""
    known: set[str] = set()
    while names:
        found = importlib.metadata.distribution(names.pop())
        if found.name not in known:
            known.add(found.name)
            yield found
            asked = map(Requirement, found.requires or ())
            names += [r.name for r in asked if not r.marker or r.marker.evaluate({"extra": ""})]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel, what it declares, and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    wheel = build(folder)
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    uv = str(Path(sys.executable).with_name("uv"))
    install = [uv, "pip", "install", "--no-deps", "--offline", "--python", str(python), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = (folder / "env" / "lib").glob("*/site-packages")
    declared = tomllib.loads((PACKAGING / "pyproject.toml").read_text())["project"]
    for needed in closure([Requirement(text).name for text in declared["dependencies"]]):
        for top in {file.parts[0] for file in needed.files or () if file.parts[0] != ".."}:
            source = Path(str(needed.locate_file(top)))
            if not (site / top).exists() and top != "__pycache__":
                (site / top).symlink_to(source)
    return python.parent


def test_all_of_it_is_used_where_nothing_else_is_installed(alone: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        [alone / "python", "-I", "-c", USE_EVERYTHING], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    file, ours, torch = json.loads(ended.stdout)
    assert Path(file).is_relative_to(alone.parent)
    assert (ours, torch) == ([], False)


def test_a_module_that_an_earlier_build_left_is_not_installed(alone: Path) -> None:
    (site,) = (alone.parent / "lib").glob("*/site-packages")
    assert not (site / "fieldkit" / "gone.py").exists()


def test_the_command_is_installed_and_says_what_is_wrong(alone: Path, tmp_path: Path) -> None:
    shown = subprocess.run([alone / "fieldkit", "--help"], capture_output=True, text=True)
    assert "delta" in shown.stdout
    wrong = subprocess.run(
        [alone / "fieldkit", "check", tmp_path, "--base", tmp_path], capture_output=True, text=True
    )
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_the_checkouts_own_set_up_installs_the_same_command() -> None:
    of = [tomllib.loads((at / "pyproject.toml").read_text()) for at in (ROOT, PACKAGING)]
    ours, alone = (project["project"]["scripts"]["fieldkit"] for project in of)
    assert ours == alone


STRANGER = """
from fieldkit import BadInput
from fieldkit.eval import pass_at_k_estimator
from fieldkit.lineage import LineageStore
from fieldkit.training import group_advantages, group_advantage

reveal_type(group_advantages([1.0, 0.0]))
reveal_type(LineageStore("x").best())
try:
    pass_at_k_estimator(4, 1, "2")
except BadInput as e:
    reveal_type(e.exit_code)
"""


def test_a_strangers_type_checker_knows_every_type(alone: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STRANGER)
    words: list[str | Path] = [
        "--strict",
        "--python-executable",
        alone / "python",
        "--cache-dir",
        tmp_path,
        program,
    ]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert re.findall(r'is "(.*)"$', checked.stdout, re.M) == [
        "tuple[float, ...]",
        "fieldkit.lineage.trial.Trial | None",
        "int",
    ]
    misspelt, wrong = [line for line in checked.stdout.splitlines() if "error:" in line]
    assert '"fieldkit.training" has no attribute "group_advantage"' in misspelt
    assert 'incompatible type "str"; expected "int"' in wrong


@pytest.mark.parametrize("name", MODULES)
def test_every_example_in_a_docstring_does_what_it_shows(name: str) -> None:
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module)
    assert failed == 0
