"""`grpo ls`: every run is a line, also one that cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fieldkit.files.atomic import write_json
from fieldkit.files.journal import Journal
from scripts.base.checkout import ROOT
from scripts.base.machine import host_identity
from scripts.evidence.findings import read_findings
from scripts.run.config import read_config
from scripts.run.folder import SWEEP_FILE, RunFolder, open_run
from scripts.watch.listing import Listed, list_runs, listing_text
from tests.scripts.typed import grpo


def run_below(runs: Path, name: str) -> RunFolder:
    (runs / name).mkdir(parents=True)
    (runs / name / "run.toml").write_text("")
    return RunFolder(runs / name)


def test_each_run_says_steps_state_verdict_and_size(tmp_path: Path) -> None:
    folder = run_below(tmp_path, "tonight")
    for n in range(3):
        folder.step(n).mkdir()
        folder.summary(n).write_text("{}")
    Journal(folder.journal).append("loop_end", next="done")
    write_json(folder.path / "evidence.json", {"verdict": {"headline": "The habit is gone."}})
    (folder.path / "large").write_bytes(b"x" * 3 * 2**20)
    [listed] = list_runs(tmp_path)
    assert (listed.steps, listed.state, listed.verdict) == (2, "done", "The habit is gone.")
    assert 3 * 2**20 <= listed.bytes < 4 * 2**20
    assert "  3 MiB  " in listing_text([listed], 200)


CAUTION = " The final set had been opened before, by 1 run: run long-2 on 2026-11-26."
VERDICTS = {
    "Done. The habit is gone: it ends 9 of 9 tasks by itself, 0 before. It passes 3 of 9.": (
        "Done. The habit is gone: it ends 9 of 9 tasks by itself, 0 before."
    ),
    "Fewer tasks pass: 3 of 9, 4 before (−1.7 points; luck). No sign of learning.": (
        "Fewer tasks pass: 3 of 9, 4 before (−1.7 points; luck)."
    ),
    "The work got better. It passes more tasks: 9 of 9 (+1.0 points). This is of step 2.": (
        "The work got better. It passes more tasks: 9 of 9 (+1.0 points)."
    ),
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_verdict_stands_below_its_run_without_who_opened_the_final_set(verdict: str) -> None:
    found = listing_text([Listed("tonight", 2, "done", verdict + CAUTION, 0, 0.0)], 120)
    assert found.splitlines()[2:] == [f"  {VERDICTS[verdict]}"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_run_takes_a_line_and_its_cells_are_never_broken(width: int) -> None:
    verdict = "Done. The habit is gone: it ends 48 of 48 tasks by itself, 0 before."
    name, state = "docs/penalty/turn_penalty-0.05-seed0", "cannot be read: a reason `of/this` kind"
    runs = [Listed(name, 20, state, "", 0, 0.0), Listed("b", 20, "done", verdict, 0, 0.0)]
    heading, first, reason, second, *below = listing_text(runs, width).splitlines()
    assert max(map(len, (heading, first, reason, second, *below))) <= width
    assert first.startswith(f"{name}  cannot be read")
    assert reason == "  a reason `of/this` kind"
    assert second.startswith("b ")
    assert " ".join(" ".join(below).split()) == verdict
    assert ("changed" in heading) == (width > 80)


def test_the_nights_of_a_sweep_are_listed_and_no_other_folder_below(tmp_path: Path) -> None:
    (tmp_path / "penalty").mkdir()
    (tmp_path / "penalty" / SWEEP_FILE).write_text("")
    run_below(tmp_path / "penalty", "base-seed0")
    run_below(tmp_path / "copies", "tonight")
    run_below(tmp_path, "alone")
    listed = [Path(r.run).relative_to(tmp_path) for r in list_runs(tmp_path)]
    assert sorted(map(str, listed)) == ["alone", "penalty/base-seed0"]


def test_a_run_of_another_host_is_told_by_its_journal_and_not_called_stopped(
    tmp_path: Path,
) -> None:
    for name, host in (("here", host_identity()), ("there", {"name": "box2", "machine_id": ""})):
        folder = run_below(tmp_path, name)
        write_json(folder.manifest, {"schema": 1, "host": host})
        Journal(folder.journal).append("loop_start")
        said = json.loads(folder.journal.read_text())
        gone = {**said, "event": "phase_start", "phase": "rollout", "pid": 2**22 + 1}
        folder.journal.write_text(json.dumps(said) + "\n" + json.dumps(gone) + "\n")
    states = {Path(r.run).name: r.state for r in list_runs(tmp_path)}
    assert states == {"here": "stopped", "there": "rollout, by the journal of box2"}
    Journal(tmp_path / "there" / "journal.jsonl").append("loop_end", next="done")
    assert {Path(r.run).name: r.state for r in list_runs(tmp_path)}["there"] == "done"


def test_a_run_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    torn = run_below(tmp_path, "torn")
    torn.step(2).mkdir()
    torn.summary(2).write_text("{}")
    run_below(tmp_path, "fresh")
    listed = {Path(r.run).name: r for r in list_runs(tmp_path)}
    assert listed["fresh"].state == "not started"
    assert listed["torn"].steps is None
    assert "step-002 is finished but step-000 is not" in listed["torn"].state


@pytest.mark.parametrize("page", ["[]", '{"verdict": 3}', '{"verdict": {"said": "no"}}', "{"])
def test_a_page_that_is_no_evidence_is_the_reason_in_its_runs_line(
    page: str, tmp_path: Path
) -> None:
    run_below(tmp_path, "fresh")
    run_below(tmp_path, "odd").evidence.write_text(page)
    listed = {Path(r.run).name: r for r in list_runs(tmp_path)}
    assert listed["fresh"].state == "not started"
    assert listed["odd"].state.startswith(f"cannot be read: {tmp_path}/odd/evidence.json")


def test_the_committed_night_is_listed_as_text_and_as_json(tmp_path: Path) -> None:
    shown, plain = grpo("ls"), grpo("ls", "--json")
    assert shown.returncode == 0
    assert "first-night" in shown.stdout
    [night] = [r for r in json.loads(plain.stdout) if r["run"] == "first-night"]
    assert night["steps"] == 20
    assert night["verdict"].startswith("Done. The habit is gone: it ends 156 of 158 tasks")


@pytest.mark.parametrize("name", ["first-night", "last-3", "long-2", "sql-0"])
def test_the_verdict_is_that_of_the_tables_where_an_older_version_wrote_the_page(name: str) -> None:
    folder = open_run(name)
    judged = read_findings(folder, read_config(folder.config)).verdict
    assert judged is not None
    assert judged.headline != json.loads(folder.evidence.read_text())["verdict"]["headline"]
    [listed] = [r for r in list_runs(ROOT / "runs") if r.run == name]
    assert listed.verdict == judged.headline


def test_a_night_whose_page_is_not_of_its_evaluations_keeps_the_pages_words(tmp_path: Path) -> None:
    night = tmp_path / "night-0"
    shutil.copytree(ROOT / "runs" / "night-0", night)
    page = json.loads((night / "evidence.json").read_text())
    page["verdict"]["headline"] = "Under way."
    write_json(night / "evidence.json", page)
    [judged] = list_runs(tmp_path)
    assert judged.verdict.startswith("Done. The habit is gone")
    shutil.rmtree(next((night / "evals").glob("*/eval.json")).parent)
    [kept] = list_runs(tmp_path)
    assert kept.verdict == "Under way."


def test_what_grpo_eval_played_is_an_evaluation_and_no_night_that_has_not_started() -> None:
    listed = {Path(r.run).name: r for r in list_runs(ROOT / "docs" / "default-night")}
    assert listed["long-steps"].state == "done"
    played = "108 of 150 attempts passed, by runs/night-0/step-029/adapter"
    assert listed["development-0"].state == f"an evaluation: {played}"
    shown = listing_text([listed["development-0"]], 80).splitlines()
    assert " an evaluation " in shown[1]
    assert shown[2:] == [f"  {played}"]


def test_a_folder_without_runs_says_how_to_make_one(tmp_path: Path) -> None:
    done = grpo("ls", tmp_path)
    assert done.returncode == 0
    assert "`grpo new NAME` makes one" in done.stdout
    assert grpo("ls", tmp_path, "--json").stdout.strip() == "[]"
    assert grpo("ls", tmp_path / "none").returncode == 2
