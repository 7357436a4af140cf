"""`grpo env new`: writes a small package with one environment that passes every check.

The class imports nothing of this project, so its wheel can also be used with TRL alone.
"""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import whole_dir

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_MOST = 60  # characters of a name

_CLASS = '''"""CLASS: find a secret number. It is a start: put your own game in its place."""

import random


class CLASS:
    """One episode at a time. Public methods are the tools of the policy."""

    def __init__(self) -> None:
        self.over = False
        self._secret = 0
        self._calls = 0

    def reset(self, **row) -> str:
        """Begin an episode. `row` is the task's row; the text follows its prompt. The generators of
        Python and NumPy are seeded before, so draw from them."""
        self.over = False
        self._secret = random.randint(1, 20)
        self._calls = 0
        return "A number from 1 to 20 is secret. Find it with few guesses."

    def guess(self, number: int) -> str:
        """Guess the secret number.

        Args:
            number: A whole number from 1 to 20.
        """
        self._calls += 1
        if number == self._secret:
            self.over = True
            return "That is it."
        return "The secret is higher." if number < self._secret else "The secret is lower."

    def is_even(self) -> str:
        """Ask whether the secret number is even."""
        self._calls += 1
        return "yes" if self._secret % 2 == 0 else "no"

    def get_reward(self) -> float:
        """1 for the secret found, less for every call after the fifth; 0 where it was not found."""
        return max(0.2, 1.0 - 0.1 * max(0, self._calls - 5)) if self.over else 0.0
'''

_PACKAGE = '''"""CLASS, an environment."""

from MODULE.environment import CLASS as CLASS
'''

_TEST = '''import random

from MODULE import CLASS


def halved(seed: int) -> CLASS:
    """An episode that is played well."""
    random.seed(seed)
    env = CLASS()
    env.reset()
    low, high = 1, 20
    while not env.over:
        middle = (low + high) // 2
        if "higher" in env.guess(middle):
            low = middle + 1
        else:
            high = middle - 1
    return env


def test_halving_earns_everything() -> None:
    assert all(halved(seed).get_reward() == 1.0 for seed in range(20))


def test_doing_nothing_earns_nothing() -> None:
    env = CLASS()
    env.reset()
    assert env.get_reward() == 0.0


def test_an_instance_can_be_used_again() -> None:
    env = halved(0)
    env.reset()
    assert not env.over
    assert env.get_reward() == 0.0
'''

_PYPROJECT = """[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "NAME"
version = "0.1.0"
description = "An environment for reinforcement learning."
readme = "README.md"
requires-python = ">=3.11"

[tool.setuptools]
packages = ["MODULE"]
"""

_README = """# NAME

The environment `CLASS` is in `MODULE/environment.py`. In this folder:

```
python -m pytest                          # its test
grpo env check MODULE/environment.py --passes "reward >= 1" --ends over
grpo env play MODULE/environment.py       # by hand
python -m pip wheel --no-deps -w dist .   # a wheel to give away
```
"""


@dataclass(frozen=True)
class Made:
    """What was written."""

    folder: Path
    file: Path
    """Of the class."""


def write_package(name: str, where: Path) -> Made:
    """Make the folder `name` in the folder `where`. Raises `BadInput`, with nothing written, for a
    name that no package can have and for a folder that is there."""
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module) or len(name) > _MOST:
        raise BadInput(
            f"{name!r}: a name has lower case letters, digits, - and _, begins with a letter and"
            f" has up to {_MOST} characters; for example `grpo env new my-game`"
        )
    if module in sys.stdlib_module_names:
        raise BadInput(f"{name!r}: Python has a module of that name; `grpo env new my-{name}`")
    folder = where / name
    if folder.exists():
        raise BadInput(f"{folder}: it exists already; `grpo env new {name}-again` makes another")
    kind = "".join(part.capitalize() for part in module.split("_"))
    files = {
        f"{module}/environment.py": _CLASS,
        f"{module}/__init__.py": _PACKAGE,
        f"tests/test_{module}.py": _TEST,
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
    }
    where.mkdir(parents=True, exist_ok=True)
    with whole_dir(folder) as made:
        for file, text in files.items():
            path = made / file
            path.parent.mkdir(exist_ok=True)
            text = text.replace("CLASS", kind).replace("MODULE", module).replace("NAME", name)
            path.write_text(text, encoding="utf-8")
    return Made(folder, folder / module / "environment.py")
