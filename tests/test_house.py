"""docs/HOUSE.md tells the truth: its examples register what they say, and its files are there."""

from __future__ import annotations

import re
import subprocess
import sys

from scripts.base.checkout import ROOT

HOUSE = (ROOT / "docs" / "HOUSE.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", HOUSE, re.DOTALL | re.MULTILINE)

KNOWN = """
assert "echo" in ENVIRONMENTS and "file_at_least" in ASSERTION_KINDS
assert "rate" in REWARDS and "last_turn" in CREDITS and "lister" in YARDSTICKS
rewards, turns = (0.0, 1.0), ((0.0, 0.0), (0.0,))
for credit in CREDITS.values():
    assert any(map(any, credit(rewards, turns, turns, "mean"))), "the trainer would refuse it"
    assert not any(map(any, credit((1.0, 1.0), turns, turns, "mean")))
from rollout.draw.base import Drawing
from fieldkit.records import Task
pool = [Task(str(i), "echo", "", {}) for i in range(5)]
assert DRAWS["file"](Drawing(0, 1, pool, 2, spare=1)) == pool[:3]
from scripts.run.keys import settings_page
page = settings_page()
assert all(name in page for name in ("file", "rate", "last_turn", "squared", "adagrad", "careful"))
from scripts.evidence.findings import Findings
assert PHASES["count"].load() and TABLES[-1].make.__name__ == "<lambda>"
assert isinstance(TRACKERS[-1], Printer) and FIGURES[-1].tag == "rollout/tokens"
"""
"""What holds once every example has run."""


def test_every_example_adds_what_it_says_from_outside_the_packages() -> None:
    program = "\n".join([*EXAMPLES, KNOWN])
    ended = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_every_kind_that_has_a_registry_has_an_example() -> None:
    registries = ["ENVIRONMENTS", "ASSERTION_KINDS", "REWARDS", "CREDITS", "YARDSTICKS"]
    registries += ["DRAWS", "OBJECTIVES", "OPTIMIZERS", "LIFECYCLES", "PHASES"]
    in_order = ("TRACKERS", "TABLES", "FIGURES")
    shown = "\n".join(EXAMPLES)
    for name in registries:
        assert f"{name}.register(" in shown
    for name in in_order:
        assert f"{name}.append(" in shown


def test_every_file_and_folder_that_it_names_is_there() -> None:
    named = re.findall(r"`((?:fieldkit|reward|rollout|trainer|scripts|tests|docs)/[\w/.]*)`", HOUSE)
    assert len(named) > 40
    assert [name for name in named if not (ROOT / name).exists()] == []
