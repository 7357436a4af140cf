"""The limit on open files is raised as far as the system allows, and no further."""

from __future__ import annotations

import subprocess
import sys

ASK = """
import resource, sys
from fieldkit.errors import Shortage
from fieldkit.limits import allow_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
for needed in map(int, sys.argv[1:]):
    try:
        allow_open_files(needed)
    except Shortage as e:
        print(e)
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def limits_after(*needed: int) -> list[str]:
    words = [sys.executable, "-c", ASK, *map(str, needed)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_limit_is_raised_where_more_is_needed_and_never_lowered() -> None:
    assert limits_after(32, 200, 100) == ["64", "200", "200"]


def test_a_hard_limit_that_is_lower_is_a_shortage_with_the_command_that_raises_it() -> None:
    said, left = limits_after(257)
    assert said.startswith("256 open files are allowed here, and about 257 are needed")
    assert "`ulimit -n 257`" in said
    assert left == "64"
