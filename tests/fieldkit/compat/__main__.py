"""Run the tests of this folder on our wheel and on the index's fieldkit, each in its own
environment, and show the results side by side: `python -m tests.fieldkit.compat WHEEL`.

Ends with 1 if a test fails on either.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.fieldkit.compat.scratch import environment

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
NEEDED = (
    "tests/__init__.py",
    "tests/fieldkit/__init__.py",
    "tests/fieldkit/answering.py",
    "docs/fieldkit/rl.md",
)
"""What the tests import and read beside their package, copied with them."""

ORIGINAL = "fieldkit==0.34.1"


def main(wheel: str) -> int:
    """The exit code; prints one line a test."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        outcomes = {
            name: _outcomes(environment(folder / name, package), folder / f"{name}-tests")
            for name, package in (("ours", wheel), ("original", ORIGINAL))
        }
    tests = sorted(set().union(*outcomes.values()))
    width = max(map(len, tests))
    print(f"{'':{width}}  {'ours':8}  {ORIGINAL}")
    for test in tests:
        cells = [outcomes[name].get(test, "absent") for name in outcomes]
        print(f"{test:{width}}  {cells[0]:8}  {cells[1]}")
    failed = [t for t in tests if any(found.get(t) != "passed" for found in outcomes.values())]
    print(f"{len(tests)} tests, {len(failed)} not passed on both")
    return 1 if failed else 0


def _outcomes(python: Path, folder: Path) -> dict[str, str]:
    """Test -> passed, failed or skipped, run in a copy that holds nothing else of this tree."""
    folder.mkdir()
    for test in HERE.glob("test_*.py"):
        shutil.copy(test, folder)
    for needed in NEEDED:
        (folder / needed).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / needed, folder / needed)
    report = folder / "report.xml"
    words = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
    command: list[str | Path] = [
        python,
        "-P",
        "-m",
        "pytest",
        *words,
        f"--junitxml={report}",
        str(folder),
    ]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 1):
        raise SystemExit(f"{python}: {ended.stdout}{ended.stderr}")
    print(ended.stdout, file=sys.stderr) if ended.returncode else None
    return {
        f"{case.get('classname')}::{case.get('name')}": _outcome(case)
        for case in ET.parse(report).iter("testcase")
    }


def _outcome(case: ET.Element) -> str:
    for tag, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if case.find(tag) is not None:
            return outcome
    return "passed"


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
