"""What the loop of `grpo run` says before it runs a phase."""

from __future__ import annotations

import io
import shutil
import time
from pathlib import Path

import pytest

from fieldkit.errors import Interrupted
from scripts.base.display import PlainDisplay
from scripts.night.loop import run_loop
from scripts.night.loop_options import LoopOptions
from scripts.run.folder import RunFolder
from tests.scripts.made_night import make_night


@pytest.fixture
def started(tmp_path: Path) -> RunFolder:
    """A night of twenty steps, of which only the start is finished."""
    night = make_night(tmp_path, n_steps=1)
    shutil.rmtree(night.folder.step(1))
    night.folder.adapter(0).mkdir()  # without any weights it would be a copy, which no loop runs
    data = night.config.data
    night.folder.config.write_text(
        f'[run]\nsteps = 20\n[data]\npool = "{data.pool}"\nheldout = "{data.heldout}"\n'
    )
    return night.folder


@pytest.mark.parametrize(("has_deadline", "told"), [(False, "step 1/20 · "), (True, "step 1 · ")])
def test_how_many_steps_a_deadline_leaves_is_not_told_before_one_was_measured(
    started: RunFolder, monkeypatch: pytest.MonkeyPatch, has_deadline: bool, told: str
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Interrupted("enough")

    monkeypatch.setattr("scripts.night.running_phases.run_children", stopped)
    in_an_hour = time.strftime("%H:%M", time.localtime(time.time() + 3600))
    options = LoopOptions(until=in_an_hour if has_deadline else None)
    out = io.StringIO()
    with pytest.raises(Interrupted, match="enough"):
        run_loop(started, options, PlainDisplay(out, details=False))
    assert f"{told}rollout" in out.getvalue()
