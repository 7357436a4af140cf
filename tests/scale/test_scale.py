"""What a step reads does not grow with the run, however it is counted.

Bytes are those that the kernel handed over, so nothing depends on how fast or how busy the machine
is. `make test-scale` measures the same at ten thousand tasks and a thousand steps.
"""

from __future__ import annotations

import pytest

from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader
from scripts.run.state import look
from scripts.run.timings import LOOP_VARIABLE
from tests.scale import probes
from tests.scale.made_run import MadeRun, Size

SIZE = Size(pool=40, batch=8, group=2)
EARLY, LATE = 30, 120
"""Finished steps when the parts of the loop are measured."""

MOST_GROWTH = 1.2
"""Times what is read early, that may be read late: numbers get longer, and a pool fills."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, MadeRun]:
    """The same run after few and after many steps."""
    found = {}
    for steps in (EARLY, LATE):
        made = MadeRun(tmp_path_factory.mktemp(f"after-{steps}"), SIZE)
        made.begin()
        made.grow(steps, workers=1)
        RunReader(made.folder).store_sums()
        found[steps] = made
    return found


@pytest.fixture(autouse=True)
def _in_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOOP_VARIABLE, "1")


def read_bytes(name: str, folder: RunFolder) -> int:
    """What the part reads when it is done the second time, as in a loop."""
    probes.PARTS[name](folder)
    before = probes.read_so_far()
    probes.PARTS[name](folder)
    return probes.read_so_far() - before


@pytest.mark.parametrize("name", list(probes.PARTS))
def test_a_step_reads_as_much_late_in_a_run_as_early(name: str, runs: dict[int, MadeRun]) -> None:
    early, late = (read_bytes(name, runs[n].folder) for n in (EARLY, LATE))
    assert 0 < late < MOST_GROWTH * early


def test_the_measure_sees_a_part_that_reads_every_step(runs: dict[int, MadeRun]) -> None:
    """Without the sums the same look reads all steps."""
    for made in runs.values():
        made.folder.sums.rename(made.folder.path / "aside")
    try:
        early, late = (_once(runs[n].folder) for n in (EARLY, LATE))
    finally:
        for made in runs.values():
            (made.folder.path / "aside").rename(made.folder.sums)
    assert late > 2 * early


def _once(folder: RunFolder) -> int:
    before = probes.read_so_far()
    look(folder, read_config(folder.config))
    return probes.read_so_far() - before
