"""Whatever is in a file of a run that a command reads: success, or one line that helps.

As `test_any_input`, for what the loop writes: step.json, eval.json, manifest.json,
timings.json and the journal.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldkit.files.atomic import read_json
from scripts.run.folder import RunFolder
from tests.scripts.cli.in_process import Ended, grpo, helps
from tests.scripts.cli.test_any_input import QUICK as OFTEN
from tests.scripts.cli.test_any_input import mutants
from tests.scripts.made_night import make_night

QUICK = settings(OFTEN, max_examples=8)  # six commands an example, of which three draw tables
READERS = (("next",), ("watch", "--once"), ("ls",), ("compare",), ("show",), ("replay",))


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished night that the commands below can read."""
    made = make_night(tmp_path_factory.mktemp("nights"), n_steps=2)
    data = made.config.data
    lines = ["[run]", "steps = 2", "eval_every = 0", "[data]"]
    lines += [f'pool = "{data.pool}"', f'heldout = "{data.heldout}"', ""]
    made.folder.config.write_text("\n".join(lines))
    return made.folder


def read(night: RunFolder, command: str, *words: str) -> Ended:
    if command == "ls":
        return grpo("ls", night.path.parent)
    if command == "compare":
        return grpo("compare", f"{night.path}@warm", night.path)
    return grpo(command, night.path, *words)


def damaged(night: RunFolder, file: Path, data: st.DataObject) -> None:
    """Every reader copes with any content of the file."""
    whole = file.read_bytes()
    file.write_bytes(data.draw(mutants(whole.decode())))
    try:
        for command in READERS:
            helps(read(night, *command), str(night.path), night.path.name)
    finally:
        file.write_bytes(whole)


@QUICK
@given(data=st.data())
def test_any_step_file(night: RunFolder, data: st.DataObject) -> None:
    damaged(night, night.summary(data.draw(st.sampled_from([0, 2]))), data)


@QUICK
@given(data=st.data())
def test_any_evaluation(night: RunFolder, data: st.DataObject) -> None:
    damaged(night, sorted(night.evals.glob("*/eval.json"))[data.draw(st.integers(0, 3))], data)


@QUICK
@given(data=st.data())
def test_any_manifest(night: RunFolder, data: st.DataObject) -> None:
    damaged(night, night.manifest, data)


@QUICK
@given(data=st.data())
def test_any_timings(night: RunFolder, data: st.DataObject) -> None:
    damaged(night, night.timings(data.draw(st.sampled_from([0, 2]))), data)


@QUICK
@given(data=st.data())
def test_any_journal(night: RunFolder, data: st.DataObject) -> None:
    line = {"schema": 1, "time": 1.0, "pid": 1, "event": "arm_played", "wrote": {"a": "b"}}
    tasks = read_json(night.manifest)["evaluation"]["tasks_sha"]
    opened = {"event": "final_set_opened", "tasks_sha": tasks, "earlier": ["run a"]}
    night.journal.write_text(json.dumps(line) + "\n" + json.dumps(line | opened) + "\n")
    damaged(night, night.journal, data)
