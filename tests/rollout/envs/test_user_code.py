"""A person's own code: what its hash stands for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollout.envs.user_code import identity
from scripts.base.checkout import ROOT

MINE = """
from helper import ONE
import inside.deep
import bare.deep
if False:  # as a module of a package names the one beside it
    import package.beside

class Mine:
    def late(self):
        import late_helper
        return late_helper
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "helper.py").write_text("import json\nfrom second import TWO\nONE = 1\n")
    (tmp_path / "second.py").write_text("TWO = 2\n")
    (tmp_path / "late_helper.py").write_text("LATE = 1\n")
    (tmp_path / "other.py").write_text("OTHER = 1\n")
    (tmp_path / "beside.py").write_text("BESIDE = 1\n")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/deep.py").write_text("DEEP = 1\n")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/__init__.py").write_text("")
    (tmp_path / "inside/deep.py").write_text("DEEP = 1\n")
    return tmp_path


def hashed(home: Path, first: str = "") -> str:
    """The hash, in a process of its own that may import something else before."""
    code = (
        f"import sys; sys.path.append({str(home)!r}); {first}\n"
        "from pathlib import Path; from rollout.envs.user_code import identity\n"
        f"print(identity('mine.py:Mine', Path({str(home)!r}), 'envs.mine'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "file",
    [
        "mine.py",
        "helper.py",
        "second.py",
        "late_helper.py",
        "inside/deep.py",
        "bare/deep.py",
        "beside.py",
    ],
)
def test_a_change_of_the_file_or_of_what_it_imports_is_another_environment(
    home: Path, file: str
) -> None:
    before = hashed(home)
    path = home / file
    path.write_text(path.read_text() + "\nCHANGED = True\n")
    assert hashed(home) != before


def test_a_file_beside_it_that_nothing_imports_does_not_matter(home: Path) -> None:
    before = hashed(home)
    (home / "other.py").write_text("OTHER = 2\n")
    assert hashed(home) == before


def test_the_hash_does_not_depend_on_what_was_imported_before(home: Path) -> None:
    assert hashed(home, "import other, late_helper") == hashed(home)


def test_a_module_of_this_checkout_has_the_same_hash_before_and_after_it_is_used() -> None:
    use = "rollout.envs.sql.sql_env:SqlEnv"
    before = identity(use, ROOT, "envs.sql")
    import rollout.envs.sql.sql_questions  # noqa: F401

    assert identity(use, ROOT, "envs.sql") == before
