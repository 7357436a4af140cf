"""The findings of a run: read once, judged once, and whole where a part of the run is not."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.records import Outcome
from scripts.base.checkout import ROOT
from scripts.cli.app import app
from scripts.evidence import findings as findings_module
from scripts.evidence.ending import ending, next_steps
from scripts.evidence.findings import Findings, Plan, read_findings
from scripts.evidence.run_tables import TABLES, Section, Shown
from scripts.evidence.step_figures import FIGURES, StepFigure, curves
from scripts.evidence.text_page import markdown, rich_page
from scripts.evidence.verdict import REWARD_TREND
from scripts.report.files import write_files, write_report
from scripts.report.headline import headline
from scripts.run.config import read_config
from scripts.run.folder import open_run
from scripts.run.next_phase import Phase
from scripts.run.reader import read_step
from scripts.track.points import read_points
from scripts.words.table import Table
from scripts.words.text import as_text
from tests.scripts.made_night import Night, make_night, summary

T = TypeVar("T")

_opened: Counter[str] | None = None
"""Names of the files that are opened while somebody counts: an audit hook cannot be taken away."""


def _count(event: str, words: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(words[0], str | os.PathLike):
        path = Path(words[0])
        _opened[f"{path.parent.name}/{path.name}"] += 1


sys.addaudithook(_count)


@pytest.fixture
def night(tmp_path: Path) -> Night:
    made = make_night(tmp_path)
    data = made.config.data
    made.folder.config.write_text(
        "[run]\nsteps = 8\neval_every = 0\n"
        f'[data]\npool = "{data.pool}"\nheldout = "{data.heldout}"\n'
    )
    return made


def opened(call: Callable[[], object]) -> Counter[str]:
    """How often each file is opened, by folder and name."""
    global _opened
    _opened = counted = Counter[str]()
    try:
        call()
    finally:
        _opened = None
    return counted


def test_one_table_opens_each_step_and_the_manifest_once_and_judges_once(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    for name in ("judge", "milestones", "warnings"):
        real = getattr(findings_module, name)

        def counted(*words: Any, name: str = name, real: Any = real) -> Any:
            calls[name] += 1
            return real(*words)

        monkeypatch.setattr(findings_module, name, counted)

    def table() -> None:
        done = CliRunner().invoke(app, ["table", str(night.folder.path)], catch_exceptions=False)
        assert done.exit_code == 0
        assert "The habit is gone" in done.output

    times = opened(table)
    assert {times[f"step-{n:03d}/step.json"] for n in range(9)} == {1}
    assert {times[f"step-{n:03d}/timings.json"] for n in range(9)} == {1}
    assert times["night/manifest.json"] == 1
    assert calls == {"judge": 1, "milestones": 1, "warnings": 1}


def test_the_points_of_the_trackers_open_each_step_and_the_manifest_once(night: Night) -> None:
    times = opened(lambda: read_points(night.folder))
    assert {times[f"step-{n:03d}/step.json"] for n in range(9)} == {1}
    assert times["night/manifest.json"] == 1
    assert not [name for name in times if name.endswith("trajectories.jsonl")]


def test_what_cannot_be_read_is_a_gap_and_the_rest_is_there(night: Night) -> None:
    (night.eval_of("base") / "trajectories.jsonl").unlink()
    found = read_findings(night.folder, night.config)
    assert [gap.what for gap in found.gaps] == ["matched tables"]
    assert (len(found.steps), len(found.summaries), found.verdict) == (9, 5, None)
    with pytest.raises(BadInput, match=r"trajectories\.jsonl: no such file"):
        found.require_evidence()


def test_a_step_that_cannot_be_read_is_named_and_no_page_says_that_nothing_was_played(
    night: Night,
) -> None:
    write_files(read_findings(night.folder, night.config))
    page = (night.folder.path / "evidence.md").read_text()
    night.folder.summary(3).write_text("{")
    found = read_findings(night.folder, night.config)
    assert ending(found).sentence == "Its steps cannot be read."
    said: list[str] = []
    write_report(found, tell=said.append)
    assert "step-003/step.json" in said[0]
    assert (night.folder.path / "evidence.md").read_text() == page


def test_a_run_without_a_step_has_no_evidence_and_says_what_goes_on(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=1, evaluated=False)
    for n in range(2):
        night.folder.summary(n).unlink()
    with pytest.raises(BadInput, match=f"`grpo run {night.folder.path}` goes on"):
        read_findings(night.folder, night.config).require_evidence()


def test_a_further_figure_is_one_entry_and_everybody_shows_it(night: Night) -> None:
    patience = StepFigure(
        "Patience", "patience", "turns a token", lambda s: 0.125 * s.step, "rollout/patience"
    )
    with added(FIGURES, patience):
        page = write_report(read_findings(night.folder, night.config)).read_text()
        points = {p.step: p.scalars for p in read_points(night.folder) if p.step}
        assert curves(())["Patience"] == [patience]
    assert '<th scope="col">patience</th>' in page
    assert '<td data-label="patience"><span>0.625</span></td>' in page
    assert "<strong>Patience</strong> turns a token" in page
    assert points[5]["rollout/patience"] == 0.625


def test_a_further_table_is_one_function_and_one_entry_and_is_shown_everywhere(
    night: Night,
) -> None:
    def weather(found: Findings) -> Table | None:
        rows = tuple((str(s.step), "clear") for s in found.played)
        return Table("Weather", ("step", "sky"), rows)

    with added(TABLES, Shown(weather, Section.SPLITS)):
        found = read_findings(night.folder, night.config)
        text, terminal = markdown(found), as_text(rich_page(found))
        page = write_report(found).read_text()
    assert "## Weather" in text
    assert "Weather" in terminal
    splits = page[page.index('<section id="splits">') : page.index('<section id="stops">')]
    assert "<summary>Weather</summary>" in splits


@contextmanager
def added(registry: list[T], entry: T) -> Iterator[None]:
    """As a package that adds one of its own would do it, for as long as the test runs."""
    registry.append(entry)
    try:
        yield
    finally:
        registry.remove(entry)


def test_a_reward_that_a_schedule_pays_by_is_no_sign_of_learning(night: Night) -> None:
    schedule = {"turn_penalty": [[1, 0.4], [8, 0.0]]}
    falling = replace(night.config, reward=replace(night.config.reward, schedule=schedule))
    for config, compared in ((night.config, True), (falling, False)):
        found = read_findings(night.folder, config)
        assert found.verdict is not None
        assert any(test.what == REWARD_TREND for test in found.verdict.tests) is compared
        assert any(gain.figure == "reward" for gain in found.milestones.gains) is compared


def test_what_the_verdict_calls_luck_has_no_step_by_which_it_rose(tmp_path: Path) -> None:
    """By itself the rise has p = 0.03; corrected for the verdict's other test, 0.06."""
    rewards = (0.40, 0.43, 0.38, 0.44, 0.50, 0.42, 0.48, 0.41, 0.52, 0.45, 0.55, 0.49)
    night = make_night(tmp_path, n_steps=len(rewards))
    for n, reward in enumerate(rewards, start=1):
        still = replace(summary(n, 12), mean_reward=reward, stop_rate=0.5, mean_turns=6.0)
        night.folder.summary(n).write_text(encode(still))
    found = read_findings(night.folder, night.config)
    assert found.verdict is not None
    test = found.verdict.test(REWARD_TREND)
    assert test.p_value < 0.05 <= test.adjusted
    assert "(no steady change is proven, p = 0." in markdown(found)
    assert "rise in reward" not in markdown(found)


def test_a_reward_of_tasks_that_are_drawn_by_weight_is_no_sign_of_learning(night: Night) -> None:
    """The frontier's tasks are those that pass half of the time, whatever the policy."""
    drawn = replace(night.config, rollout=replace(night.config.rollout, draw="frontier"))
    found = read_findings(night.folder, drawn)
    assert found.verdict is not None
    assert REWARD_TREND not in [test.what for test in found.verdict.tests]
    assert any(gain.figure == "reward" for gain in found.milestones.gains), "what moved is shown"


def test_a_night_without_any_signal_is_not_one_whose_adapter_is_still_to_be_evaluated(
    night: Night,
) -> None:
    shutil.rmtree(night.eval_of("sha-8"))
    for n in range(9):
        file = night.folder.summary(n)
        kept = replace(read_step(file, n), adapter_sha="sha-0", outcome=Outcome.NO_SIGNAL)
        file.write_text(encode(kept))
    found = read_findings(night.folder, night.config)
    for shown in (markdown(found), as_text(rich_page(found)), headline(found, None).sentence):
        assert "Nothing was trained in 8 steps: no group had rewards that differ." in shown
    advice = " ".join(next_steps(found, ending(found)))
    assert "Groups need rewards that differ" in advice
    assert "grpo eval" not in advice
    under_way = replace(found, plan=Plan(Phase.ROLLOUT, 20))
    (said,) = next_steps(under_way, ending(under_way))
    assert "goes on from here" in said


def test_what_is_judged_follows_what_was_read(night: Night) -> None:
    found = read_findings(night.folder, night.config)
    assert found.verdict is not None
    assert replace(found, evidence=None).verdict is None


def test_a_verdict_on_an_earlier_step_says_which_and_how_many_are_not_evaluated(
    night: Night,
) -> None:
    """As in a night that failed between two evaluations."""
    found = read_findings(night.folder, night.config)
    assert found.verdict is not None
    assert "not evaluated" not in found.verdict.headline
    later = replace(found.steps[-1], step=9, adapter_sha="sha-9")
    more = replace(found, steps=(*found.steps, later))
    assert more.verdict is not None
    assert more.verdict.headline.endswith(" This is of step 8; 1 later step not evaluated.")
    carried = replace(later, adapter_sha="sha-8", outcome=Outcome.NO_SIGNAL)
    same = replace(found, steps=(*found.steps, carried))
    assert same.verdict is not None
    assert "not evaluated" not in same.verdict.headline


def test_the_page_of_what_grpo_eval_played_says_whose_adapter_it_is() -> None:
    folder = open_run(str(ROOT / "docs/default-night/development-0"))
    page = markdown(read_findings(folder, read_config(folder.config)))
    said = "An evaluation of runs/night-0/step-029/adapter, which the tables call the warm start."
    assert said in page
    assert "where the night starts" not in page
