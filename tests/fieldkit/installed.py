"""Install a wheel with all that it declares into an empty environment from the index, and use it
by the examples of its docstrings and its guide that need no torch:
`python -m tests.fieldkit.installed WHEEL`. Then run what `make test` leaves out of tests/fieldkit.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.base.checkout import ROOT
from tests.fieldkit.compat.scratch import environment
from tests.fieldkit.test_distribution import USE_EVERYTHING

GUIDE = ROOT / "docs" / "fieldkit" / "README.md"
EXAMPLES = """
import doctest, importlib, pkgutil, fieldkit
for module in pkgutil.walk_packages(fieldkit.__path__, "fieldkit."):
    found = importlib.import_module(module.name)
    for test in doctest.DocTestFinder().find(found):
        if test.examples and "torch" not in test.docstring:  # which it does not install
            failed, tried = doctest.DocTestRunner().run(test)
            print(f"{test.name}: {tried} examples, {failed} failed")
            assert not failed
"""


def main(wheel: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder) / "env", wheel, borrow=False)
        blocks = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.M | re.S)
        guide = [block for block in blocks if "torch" not in block]
        for program in (USE_EVERYTHING, EXAMPLES, *guide):
            subprocess.run([python, "-I", "-c", program], cwd=folder, check=True)
        for words in (["--version"], ["procs"]):
            subprocess.run([python.with_name("fieldkit"), *words], cwd=folder, check=True)
    slow = ["-m", "pytest", "-q", "-m", "slow", "tests/fieldkit"]
    return subprocess.run([sys.executable, *slow], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
