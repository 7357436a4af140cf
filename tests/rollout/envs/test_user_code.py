"""A person's own code: what its hash stands for, and how a class of a notebook gets into a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.envs.user_code import identity, keep, load
from scripts.base.checkout import ROOT
from tests.rollout.envs.counter import Counter
from tests.scripts.typed import BAD_INPUT, grpo

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


def package(home: Path, imports: str) -> Path:
    """A package whose class imports a constant of another folder of it; the class's file."""
    inner = home / "my_game" / "play"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("")
    (inner.parent / "rules.py").write_text("GOAL = 7\n")
    file = inner / "environment.py"
    file.write_text(f"{imports}\nclass Game:\n    goal = GOAL\n")
    return file


@pytest.mark.parametrize(
    ("name", "imports"),
    [("above", "from ..rules import GOAL"), ("whole", "from my_game.rules import GOAL")],
)
def test_a_file_of_a_package_is_loaded_and_hashed_with_what_it_imports_of_it(
    name: str, imports: str, tmp_path: Path
) -> None:
    """As `grpo env new` writes one. In a process of its own, where no other is called my_game."""
    file = package(tmp_path / name, imports)
    code = (
        "from pathlib import Path; from rollout.envs.user_code import identity, load\n"
        f"use = '{file}:Game'\n"
        "print(load(use, Path('/'), 'envs.game').goal, identity(use, Path('/'), 'envs.game'))"
    )

    def printed() -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout

    before = printed()
    assert before.startswith("7 ")
    (file.parents[1] / "rules.py").write_text("GOAL = 7  # and no other\n")
    assert printed() != before


def test_a_virtual_environment_in_an_imported_package_is_not_read(home: Path) -> None:
    before = hashed(home)
    site = home / "inside/.venv/lib"
    site.mkdir(parents=True)
    (home / "inside/.venv/pyvenv.cfg").write_text("")
    (site / "theirs.py").write_text("")
    assert hashed(home) == before


# --- a class of a notebook: written by one process, trained on by others -----------

CELLS = '''
from typing import Literal
import random
from rollout.envs.user_code import keep

STEP = {step}  # another cell's

def bounded(n: int) -> int:
    return max(0, min(10, n))

class Dial:
    """Turn the dial to five."""

    def __init__(self) -> None:
        self.over = False

    def reset(self, **row) -> str:
        self.over, self._at = False, random.choice([0, 10])
        return f"The dial is at {{self._at}}."

    def turn(self, way: Literal["up", "down"]) -> str:
        """Turn the dial.

        Args:
            way: Where to.
        """
        self._at = bounded(self._at + (STEP if way == "up" else -STEP))
        self.over = self._at == 5
        return f"The dial is at {{self._at}}."

    def get_reward(self) -> float:
        return float(self.over)

print(keep(Dial, {path!r}))
'''


def notebook(path: Path, step: int = 5) -> str:
    """Run the cells in a process of their own; what they print."""
    code = CELLS.format(step=step, path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_class_of_a_notebook_is_checked_and_played_with_what_other_cells_hold(
    tmp_path: Path,
) -> None:
    use = notebook(tmp_path / "dial.pkl")
    assert use == f"{tmp_path}/dial.pkl:Dial"
    checked = grpo("env", "check", use, "--passes", "reward >= 1", "--ends", "over")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "random policy: 32 episodes" in checked.stdout
    run = tmp_path / "run"
    words = [f'envs.dial.use="{use}"', 'envs.dial.passes="reward >= 1"', 'envs.dial.ends="over"']
    made = grpo("new", run, *(each for word in words for each in ("--set", word)))
    assert made.returncode == 0, made.stderr
    assert f"dial: trl {use}" in grpo("env", "list", "--run", run).stdout


def test_another_version_of_the_class_is_other_code(tmp_path: Path) -> None:
    use = notebook(tmp_path / "dial.pkl")
    first = identity(use, ROOT, "envs.dial")
    assert identity(use, ROOT, "envs.dial") == first
    notebook(tmp_path / "dial.pkl", step=1)
    assert identity(use, ROOT, "envs.dial") != first


def test_a_class_of_a_module_stays_where_it_is(tmp_path: Path) -> None:
    use = keep(Counter, tmp_path / "counter.pkl")
    assert use == f"{ROOT}/tests/rollout/envs/counter.py:Counter"
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_kept_or_read_is_told_with_what_to_do(tmp_path: Path) -> None:
    here = type("Here", (), {"__module__": "__main__", "file": (tmp_path / "x").open("w")})
    with pytest.raises(BadInput, match=r"Here: uses something that cannot be written: Pick"):
        keep(here, tmp_path / "here.pkl")
    with pytest.raises(BadInput, match=r"here.py: Here has to be kept in a file such as Here.pkl"):
        keep(here, tmp_path / "here.py")
    use = notebook(tmp_path / "dial.pkl")
    with pytest.raises(BadInput, match=r"envs.dial: .*has no 'Dail'; did you mean 'Dial'"):
        load(use.replace(":Dial", ":Dail"), ROOT, "envs.dial")
    (tmp_path / "dial.pkl").write_bytes(b"torn")
    torn = grpo("env", "check", use, "--passes", "reward >= 1")
    assert torn.returncode == BAD_INPUT
    assert "dial.pkl cannot be read" in torn.stderr
    assert "keep Dial again with this Python" in torn.stderr
    (tmp_path / "dial.pkl").unlink()
    with pytest.raises(BadInput, match=r"envs.dial: .*dial.pkl: no such file"):
        load(use, ROOT, "envs.dial")


def test_what_a_file_takes_from_elsewhere_changes_with_that_file_too(tmp_path: Path) -> None:
    (tmp_path / "far_game.py").write_text("class Far:\n    goal = 1\n")
    mine = tmp_path / "names_far_game.py"
    mine.write_text("from far_game import Far\nFar.goal = 2\n")
    before = identity("names_far_game.py:Far", tmp_path, "envs.far")
    mine.write_text("from far_game import Far\nFar.goal = 3\n")
    assert identity("names_far_game.py:Far", tmp_path, "envs.far") != before


def test_a_list_of_functions_changes_with_its_file_and_with_those_of_its_functions(
    tmp_path: Path,
) -> None:
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b\n")
    (tmp_path / "lists.py").write_text("from sums import add\nTOOLS = [add]\n")
    program = (
        "import sys; from pathlib import Path; from rollout.envs.user_code import identity\n"
        f"print(identity('lists.py:TOOLS', Path({str(tmp_path)!r}), 'envs.sums'))\n"
    )

    def hashed() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout

    first = hashed()
    assert hashed() == first
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return b + a\n")
    second = hashed()
    assert second != first
    (tmp_path / "lists.py").write_text("from sums import add\nTOOLS = [add, add]\n")
    assert hashed() != second


def test_a_syntax_error_of_a_file_that_is_imported_names_that_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import broken_helper\nclass Mine: ...\n")
    (tmp_path / "broken_helper.py").write_text("ONE = 1\nTWO = (\n")
    with pytest.raises(BadInput, match=r"broken_helper\.py:2: SyntaxError: '\(' was never closed$"):
        load("mine.py:Mine", tmp_path, "envs.mine")


def test_a_file_that_would_get_another_environments_neighbour_is_refused(tmp_path: Path) -> None:
    for game in ("maze", "chess"):
        (tmp_path / game).mkdir()
        (tmp_path / game / "boards_of_two.py").write_text(f"KIND = {game!r}\n")
        (tmp_path / game / "game.py").write_text("from boards_of_two import KIND\n\nGame = KIND\n")
    assert load(f"{tmp_path}/maze/game.py:Game", tmp_path, "envs.maze") == "maze"
    with pytest.raises(BadInput, match=r"envs\.chess: .*another boards_of_two \(.*maze.*rename"):
        load(f"{tmp_path}/chess/game.py:Game", tmp_path, "envs.chess")
