"""A package's public names are those that it imports for type checkers, and cost nothing unused."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts.base.checkout import ROOT

ROOMS = sorted(path.parent.name for path in (ROOT / "fieldkit").glob("*/__init__.py"))
PUBLIC = [r for r in ROOMS if importlib.import_module(f"fieldkit.{r}").__doc__]

MOST_SECONDS = 0.1
"""Of the processor; it takes a tenth of that. Seconds on the wall are those of other work too."""
HEAVY = ("torch", "transformers", "peft", "numpy", "scipy", "pydantic", "httpx", "typer")


def fresh(program: str) -> str:
    """What a new Python process prints."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def test_importing_fieldkit_is_quick_and_imports_none_of_its_rooms() -> None:
    program = (
        "import sys, time; began = time.process_time(); import fieldkit;"
        "print(time.process_time() - began);"
        f"print([m for m in sys.modules if m in {HEAVY} or m.startswith('fieldkit.')])"
    )
    seconds, imported = fresh(program).splitlines()
    assert float(seconds) <= MOST_SECONDS
    assert imported == "['fieldkit.lazy']"


def test_no_room_imports_torch_before_it_is_used() -> None:
    program = (
        "import sys, fieldkit\n"
        "for room in dir(fieldkit):\n"
        "    for name in dir(getattr(fieldkit, room)): getattr(getattr(fieldkit, room), name)\n"
        "print([m for m in ('torch', 'transformers', 'peft') if m in sys.modules])"
    )
    assert fresh(program) == "[]"


@pytest.mark.parametrize("package", ["fieldkit", *(f"fieldkit.{room}" for room in PUBLIC)])
def test_every_public_name_is_there_and_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__
    for name in dir(module):
        if name.startswith("__"):
            continue
        found = getattr(module, name)
        of_its_own = inspect.isroutine(found) or inspect.isclass(found)
        assert not of_its_own or found.__doc__, f"{package}.{name} has no docstring"


def test_a_star_import_gives_the_public_names() -> None:
    program = (
        "from fieldkit.eval import *; import fieldkit; print({*dir(fieldkit.eval)} - {*dir()})"
    )
    assert fresh(program) == "set()"


def test_a_name_that_is_not_public_is_named() -> None:
    with pytest.raises(AttributeError, match=r"'fieldkit\.training' has no attribute 'Snapshot'"):
        importlib.import_module("fieldkit.training").Snapshot  # noqa: B018


def test_the_package_is_imported_from_a_zip_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "fieldkit.zip", "w") as z:
        for path in (ROOT / "fieldkit").rglob("*.py"):
            z.write(path, path.relative_to(ROOT))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'fieldkit.zip')!r}); import fieldkit.eval;"
        "print(fieldkit.eval.wilson.__name__ in dir(fieldkit.eval), fieldkit.__file__)"
    )
    assert fresh(program) == f"True {tmp_path}/fieldkit.zip/fieldkit/__init__.py"
