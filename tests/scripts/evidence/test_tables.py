from __future__ import annotations

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fieldkit.files.journal import Journal
from fieldkit.records import StepSummary
from rollout.arm import read_eval
from scripts.evidence.collect import Evidence
from scripts.evidence.findings import Findings, Plan, read_findings
from scripts.evidence.played import finished
from scripts.evidence.run_tables import text_tables
from scripts.evidence.tables import main_table, wide_paired_table
from scripts.evidence.text_page import markdown, plain_page, rich_page
from scripts.report.files import write_files
from scripts.run.config import DEVELOPMENT
from scripts.run.folder import RunFolder
from scripts.run.next_phase import Phase
from scripts.words.table import Table
from scripts.words.text import as_text
from tests.scripts.evals import arm, collect, step, tasks, write_eval
from tests.scripts.evidence.test_collect import N, night
from tests.scripts.made_night import make_night


@pytest.fixture(scope="module")
def evals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evals")


@pytest.fixture(scope="module")
def steps(evals: Path) -> list[StepSummary]:
    return night(evals, late=True)


@pytest.fixture(scope="module")
def evidence(evals: Path, steps: list[StepSummary]) -> Evidence:
    return collect(evals, tasks(N), steps)


@pytest.fixture
def found(evidence: Evidence, steps: list[StepSummary], tmp_path: Path) -> Findings:
    return findings(evidence, steps, tmp_path)


def findings(evidence: Evidence, steps: list[StepSummary], root: Path) -> Findings:
    return Findings(RunFolder(root / "first-night"), steps=tuple(steps), evidence=evidence)


def cell(table: Table, row: str, column: str) -> str:
    line = next(r for r in table.rows if r[0] == row)
    return line[table.columns.index(column)]


def test_the_main_table_has_every_arm_and_the_yardsticks(evidence: Evidence) -> None:
    table = main_table(evidence)
    assert cell(table, "tasks passed", "oracle") == "24/24 (100.0 %)"
    assert cell(table, "tasks passed", "warm start") == "10/24 (41.7 %)"
    assert cell(table, "mean turns", "step 2") == "4.0"
    assert cell(table, "assertions that hold", "do-nothing") == "24/96 (25.0 %)"


def test_tables_of_the_development_tasks_say_so(tmp_path: Path) -> None:
    made = make_night(tmp_path)
    found = read_findings(made.folder, made.config)
    title = "Held-out tasks (24, T = 0.2)"
    assert title in markdown(found)
    assert "played_on" not in plain_page(found)
    manifest = json.loads(made.folder.manifest.read_text())
    manifest["data"]["heldout"]["path"] = DEVELOPMENT
    made.folder.manifest.write_text(json.dumps(manifest))
    found = read_findings(made.folder, made.config)
    assert "Development tasks (24, T = 0.2)" in markdown(found)
    assert "Settings are chosen on the development tasks" in markdown(found)
    assert title not in markdown(found)
    assert found.verdict is not None
    assert found.verdict.headline.endswith("so these figures prove nothing.")
    assert plain_page(found)["played_on"] == "development"
    # A copy without its episodes is shown from evidence.json.
    write_files(found)
    for played in made.evals:
        (played / "trajectories.jsonl").unlink()
    again = read_findings(made.folder, made.config)
    assert "Development tasks (24, T = 0.2)" in markdown(again)


def test_a_yardstick_that_samples_nothing_has_no_stops_and_no_tokens(evidence: Evidence) -> None:
    for yardstick in ("do-nothing", "oracle"):
        assert cell(main_table(evidence), "tokens a task", yardstick) == "–"
        assert cell(main_table(evidence), "ended by itself", yardstick) == "–"


def test_facts_have_a_row_only_where_some_are_stated_twice(evidence: Evidence) -> None:
    total = evidence.arms[0].assertions_total
    same = replace(evidence, arms=tuple(replace(a, once=(0, total)) for a in evidence.arms))
    fewer = replace(evidence, arms=tuple(replace(a, once=(0, total - 1)) for a in evidence.arms))
    row = "… each fact counted once"
    assert row not in [first for first, *_ in main_table(same).rows]
    assert cell(main_table(fewer), row, "warm start") == f"0/{total - 1} (0.0 %)"


def test_the_difference_carries_its_interval_and_p(evidence: Evidence) -> None:
    table = main_table(evidence)
    assert "p < 0.001" in cell(table, "ended by itself", "step 2 − warm start")
    passed = cell(table, "tasks passed", "step 2 − warm start")
    assert passed.startswith("+8.3 [")
    assert passed.endswith("p = 0.50")


def test_the_main_table_has_median_turns_wall_time_and_the_rewards_spread(
    evidence: Evidence,
) -> None:
    table = main_table(evidence)
    assert cell(table, "median turns", "warm start") == "12"
    assert re.fullmatch(
        r"0\.\d\d \(± 0\.\d\d\)", cell(table, "reward (± its spread)", "warm start")
    )
    assert cell(table, "wall time, s", "warm start") == "12.0"
    assert cell(table, "wall time, s", "step 2 − warm start") == "", "tasks do not say how busy"
    on_page = wide_paired_table(evidence)
    assert on_page is not None
    assert "wall time, s" not in on_page.columns


def test_before_an_adapter_was_trained_there_is_no_table_of_differences(
    found: Findings, tmp_path: Path
) -> None:
    steps, on = [step(0, "warm-sha")], tasks(N)
    write_eval(tmp_path / "evals", arm("warm-sha", on, passes=10, turns=12, stops=0), on)
    untrained = findings(collect(tmp_path / "evals", on, steps), steps, tmp_path)
    heading = "Each arm against the warm start"
    assert heading in [table.title for table in text_tables(found)]
    assert heading not in [table.title for table in text_tables(untrained)]


def test_every_comparing_table_has_intervals(found: Findings) -> None:
    for table in text_tables(found):
        if table.title != "Why attempts ended":
            assert any("[" in c for row in table.rows for c in row), table.title


def test_the_page_says_that_the_last_steps_bought_only_turns(found: Findings) -> None:
    table = next(t for t in text_tables(found) if t.title == "What the last steps bought")
    assert table.notes[0] == "After step 1: turns down; the rest can be luck."


def test_the_markdown_page_opens_with_the_verdict(found: Findings) -> None:
    page = markdown(found)
    assert page.splitlines()[0] == "# Run first-night"
    assert page.splitlines()[2].startswith("**Done. The habit is gone")
    assert "## Milestones" in page
    assert "## By persona" in page


def test_the_terminal_page_shows_the_verdict_last(found: Findings) -> None:
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(rich_page(found))
    text = console.export_text()
    assert text.index("The habit is gone") > text.index("By persona")


def test_the_written_page_is_the_same_numbers_twice(found: Findings) -> None:
    found.path.mkdir()
    write_files(found)
    value = json.loads((found.path / "evidence.json").read_text())
    assert value["verdict"]["habit"] == "GONE"
    assert value["milestones"]["stops_100"] == 2
    assert value == json.loads(json.dumps(plain_page(found)))
    assert (found.path / "evidence.md").read_text() == markdown(found)


def test_the_written_pages_have_what_the_verdict_must_not_be_read_without(tmp_path: Path) -> None:
    """A night that an error ended, whose reward rose while fewer held-out tasks pass."""
    made = make_night(tmp_path, lost=14)
    journal = Journal(made.folder.journal)
    journal.append("phase_end", phase="train", exit=5, error="no memory; free 2 GiB")
    made.folder.timings(3).write_text("[]")
    found = replace(read_findings(made.folder, made.config), plan=Plan(Phase.ROLLOUT, 20))
    for page in (markdown(found), " ".join(as_text(rich_page(found)).split())):
        assert "Stopped by an error after 8 of 20 steps" in page
        assert "(exit 5). The error: no memory; free 2 GiB" in page
        assert "Warning: The reward rose while fewer tasks pass. Reward 0.4 → 0.65" in page
        assert "Missing: wall time: " in page


def test_a_night_that_has_only_begun_has_tables_and_no_verdict(tmp_path: Path) -> None:
    evals = tmp_path / "begun"
    night(evals)
    start = [step(0, "warm-sha")]
    found = findings(collect(evals, tasks(N), start), start, tmp_path)
    assert found.verdict is None
    page = markdown(found)
    assert "No trained adapter has been evaluated yet" in page
    assert "warm start" in page


def test_a_row_that_does_not_fit_its_columns_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 columns"):
        Table("t", ("a", "b"), (("only one",),))


def test_a_pipe_in_a_cell_does_not_break_the_markdown() -> None:
    assert "a \\| b" in Table("t", ("x",), (("a | b",),)).markdown()


def test_difficulties_are_listed_from_easy_to_hard(found: Findings) -> None:
    table = next(t for t in text_tables(found) if t.title == "By difficulty")
    assert [row[0] for row in table.rows] == ["easy", "middle", "hard"]


def test_a_split_table_names_its_arms_once_in_the_heading(found: Findings) -> None:
    table = next(t for t in text_tables(found) if t.title == "By persona")
    assert "passed: base / warm start / step 2" in table.columns
    assert cell(table, "ml-engineer", "passed: base / warm start / step 2") == "0 / 5 / 6"


def test_the_terminal_page_fits_a_narrow_window_without_breaking_an_interval(
    found: Findings,
) -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(rich_page(found))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("[") == text.count("]")
    assert all(("[" in line) == ("]" in line) for line in text.splitlines())


def test_arms_that_were_played_without_a_sandbox_are_named_wherever_the_figures_are(
    evals: Path, steps: list[StepSummary], tmp_path: Path
) -> None:
    shutil.copytree(evals, tmp_path / "evals")
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 1, "sandbox": "none"}))
    bare = collect(tmp_path / "evals", tasks(N), steps)
    line = (
        "Played without a sandbox (--sandbox none): do-nothing, oracle, base, warm start, step 1,"
        " step 2."
    )
    found = findings(bare, steps, tmp_path)
    assert f"**{line}" in markdown(found)
    assert plain_page(found)["unprotected"] == tuple(a.name for a in bare.arms)
    assert line in as_text(main_table(bare).rich()), "what the evening shows"
    console = Console(width=250, file=io.StringIO(), color_system="standard", force_terminal=True)
    with console.capture() as captured:
        console.print(rich_page(found))
    assert f"\x1b[1;31m{line}" in captured.get()


def test_arms_that_another_run_played_are_named_with_it(
    evals: Path, steps: list[StepSummary], tmp_path: Path
) -> None:
    shutil.copytree(evals, tmp_path / "evals")
    own = collect(tmp_path / "evals", tasks(N), steps)
    assert "taken over" not in markdown(findings(own, steps, tmp_path))
    journal = Journal(tmp_path / "journal.jsonl")
    keys = {read_eval(arm).adapter_sha: arm.name for arm in finished(tmp_path / "evals")}
    journal.append("arm_taken_over", arm="base", key=keys["base"], run="monday")
    journal.append("arm_taken_over", arm="warm start", key="other limits", run="monday")
    journal.append("arm_taken_over", arm="oracle", key=keys["oracle"], run="monday")
    journal.append("dropped", removed=[f"evals/{keys['oracle']}"], why="other conditions")
    found = collect(tmp_path / "evals", tasks(N), steps)
    assert found.taken_over == {"base": "monday"}, "the others were played here"
    assert "same model, tasks and limits: base (run monday)." in markdown(
        findings(found, steps, tmp_path)
    )


def test_nothing_is_said_of_a_sandbox_that_was_there(
    evals: Path, evidence: Evidence, steps: list[StepSummary], tmp_path: Path
) -> None:
    assert evidence.unprotected == (), "no manifest says otherwise"
    shutil.copytree(evals, tmp_path / "evals")
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": 1, "sandbox": "bwrap"}))
    boxed = collect(tmp_path / "evals", tasks(N), steps)
    assert boxed.unprotected == ()
    assert "without a sandbox" not in markdown(findings(boxed, steps, tmp_path))
