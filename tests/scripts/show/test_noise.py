"""Which tasks pass by chance: of an arm with several attempts, and of a step's groups."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from fieldkit.errors import BadInput
from scripts.cli.app import app
from scripts.phases.single_arm import settings_of
from scripts.prepare.presets import run_text
from scripts.run.folder import RunFolder
from scripts.show.show import Request, show
from tests.scripts.evals import trajectory, write_eval
from tests.scripts.made_night import Night, make_night, tasks

ON = tasks(3)
HELD = {"t000": (4, 4, 4, 4), "t001": (2, 2, 2, 2), "t002": (2, 4, 3, 2)}
"""Task → how many of its four assertions held in each attempt."""


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A night of single attempts, beside it an arm with four at each of three tasks."""
    night = make_night(tmp_path_factory.mktemp("noise"))
    four = [
        trajectory(task_id, "sha-8", n, 3, True, k)
        for task_id, held in HELD.items()
        for k, n in enumerate(held)
    ]
    write_eval(night.folder.evals, four, ON, arm="four times", samples=4)
    return night


def shown(night: Night, **wishes: object) -> str:
    out = io.StringIO()
    request = Request(str(night.folder.path), noise=True, **wishes)  # type: ignore[arg-type]
    show(request, Console(file=out, width=160, highlight=False))
    return out.getvalue()


def test_each_task_has_its_passes_and_what_held_always_never_and_by_chance(night: Night) -> None:
    told = re.sub(r"\s+", " ", shown(night, arm="four times"))
    rows = re.findall(r"(t\d{3}) (.*?)(?= t\d{3} | Of 3 tasks)", told)
    assert rows == [
        ("t002", "1 of 4 2 of 4 file_unchanged f2: 2, file_exists f3: 1 (by chance)"),
        ("t001", "0 of 4 2 of 4 file_unchanged f2: never, file_exists f3: never (never)"),
        ("t000", "4 of 4 4 of 4 (always)"),
    ]


def test_the_sums_tell_a_ceiling_from_a_failure(night: Night) -> None:
    told = " ".join(shown(night, arm="four times").split())
    assert "Of 3 tasks 1 always pass, 1 never do, and 1 do by chance." in told
    assert "Of 12 assertions 8 always hold, 2 never do, and 2 do by chance." in told
    assert "1.2 tasks are expected to pass, with a standard deviation of 0.5" in told
    assert re.search(r"pass@4 is the ceiling that these attempts show: 66\.7 % \[", told)
    assert "0 of 4 attempts may still pass in up to 49.0 % of further ones" in told


def test_the_groups_of_a_step_are_attempts_too(night: Night) -> None:
    told = shown(night, step=1)
    assert "step 1, 2 attempts at each" in told
    assert len(re.findall(r"p00\d +1 of 2", told)) == 2


def test_the_noise_as_json_has_every_assertion(night: Night) -> None:
    words = ["show", str(night.folder.path), "--eval", "four-times", "--noise", "--json"]
    value = json.loads(CliRunner().invoke(app, words).stdout)
    assert value["n"] == 4
    by_chance = next(t for t in value["tasks"] if t["held"] == "by chance")
    assert [a["count"] for a in by_chance["assertions"]] == [4, 4, 2, 1]


def test_an_arm_of_single_attempts_says_what_to_type_for_more(night: Night, tmp_path: Path) -> None:
    path = night.folder.path
    adapter = night.folder.adapter(8)
    with pytest.raises(BadInput, match=r"training; a new run with eval\.samples = 4"):
        shown(night, arm="step 8")  # a copy without weights, as a committed run is
    adapter.mkdir()
    with pytest.raises(BadInput) as told:
        shown(night, arm="step 8")
    adapter.rmdir()
    said = str(told.value)
    assert "has one attempt at each task, which does not tell chance from skill" in said
    assert f"`grpo show {path} --noise --step 8` shows the groups of a step of training" in said
    assert f'set [model] adapter = "{adapter}" in the copy' in said
    assert f"`grpo run {path}-noise --steps 0 --skip-preflight --set eval.samples=4`" in said
    assert f"then `grpo show {path}-noise --noise --eval warm-start`" in said
    with pytest.raises(BadInput, match=r"a new run with eval\.samples = 4 in its run\.toml"):
        shown(night, arm="oracle")


def test_an_arm_of_grpo_eval_is_played_more_often_by_grpo_eval(
    night: Night, tmp_path: Path
) -> None:
    run = RunFolder(shutil.copytree(night.folder.path, tmp_path / "one"))
    own = settings_of(tmp_path / "mine", "smol", tmp_path / "held.jsonl", 24, None)
    run.config.write_text(run_text("smol", assignments=own))
    without = "the `grpo eval` command that played it, with --set eval.samples=4 and another --out"
    with pytest.raises(BadInput, match=without):
        show(Request(str(run.path), noise=True, arm="step 8"), Console())
    run.adapter(8).mkdir()
    with pytest.raises(BadInput) as told:
        show(Request(str(run.path), noise=True, arm="step 8"), Console())
    assert (
        f"`grpo eval --adapter {run.adapter(8)} --model smol --tasks {tmp_path}/held.jsonl"
        f" --limit 24 --set eval.samples=4 --out {tmp_path}/one-noise`, then `grpo show"
        f" {tmp_path}/one-noise --noise --eval warm-start`"
    ) in str(told.value)


def test_one_task_alone_has_no_noise_to_show(night: Night) -> None:
    with pytest.raises(BadInput, match="--noise is about all tasks of an arm"):
        Request(str(night.folder.path), task="t000", noise=True)
