"""The page of a night that went well, and of nights that broke."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fieldkit.codec import encode
from fieldkit.files.atomic import append_line
from fieldkit.files.journal import Journal
from scripts.evidence.findings import read_findings
from scripts.evidence.text_page import markdown, plain_page
from scripts.evidence.verdict import Habit
from scripts.report.files import write_files, write_report
from scripts.report.page import cell, code
from scripts.report.sections import HABIT, TERMS, terms
from scripts.run.reader import read_step
from scripts.track.points import read_points
from tests.scripts.made_night import (
    Night,
    make_night,
    played_in,
    tasks,
    tell_apart,
    write_tasks,
)

SECTIONS = (
    "verdict",
    "table",
    "curves",
    "milestones",
    "time",
    "splits",
    "stops",
    "work",
    "flips",
    "pool",
    "used",
    "warnings",
)


class Page(HTMLParser):
    """A page as a browser would take it apart: elements, ids, addresses and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href", "action"):
                self.addresses.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page_of(night: Night) -> Page:
    return Page(write_report(read_findings(night.folder, night.config)).read_text())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return page_of(make_night(tmp_path_factory.mktemp("page")))


def test_every_section_is_there_in_the_order_of_one_minutes_reading(page: Page) -> None:
    assert [i for i in page.ids if i in SECTIONS] == list(SECTIONS)


def test_the_verdict_is_told_in_a_sentence_with_its_interval(page: Page) -> None:
    assert "The habit is gone: it ends" in page.text
    card = re.search(r"tasks passed 12 of 24 warm start: 10 \S+ \[\S+ to \S+\] points", page.text)
    assert card is not None, "the work is the first card"
    assert "ended by itself 24 of 24 12 of them passed; warm start: 0 +100.0" in page.text


def test_what_a_card_shows_is_not_said_again(page: Page) -> None:
    assert "Step 8 ended 24 of 24 tasks by itself" not in page.text
    assert "the warm start 10 (" not in page.text
    assert "Over 8 steps of training (means of the first 3 and the last 3, which play" in page.text


def test_the_first_screen_says_what_its_words_mean(page: Page) -> None:
    assert page.text.index("The habit: the model does not say") < page.text.index("tasks passed")
    assert "NOT_DISTINGUISHABLE" not in page.html
    assert "How far the policy has moved from the adapter that the night began with." in page.text


def test_the_page_of_a_night_without_a_habit_does_not_speak_of_one(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    verdict = read_findings(night.folder, night.config).verdict
    assert verdict is not None
    assert HABIT in terms(verdict)
    assert terms(replace(verdict, habit=Habit.NEVER_THERE)) == TERMS


def test_a_page_without_warnings_says_what_would_have_been_one(page: Page) -> None:
    assert "more than 5.0 % of the tokens clipped" in page.text


def test_every_number_of_every_step_lies_next_to_the_page(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    shown = page_of(night)
    assert [a for a in shown.addresses if a in ("steps.csv", "steps.json")] == [
        "steps.csv",
        "steps.json",
    ]
    with open(night.folder.path / "steps.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    stored = json.loads((night.folder.path / "steps.json").read_text())
    assert (
        [int(row["step"]) for row in rows] == [s["step"] for s in stored["steps"]] == [*range(1, 9)]
    )
    assert float(rows[-1]["train/kl"]) == stored["steps"][-1]["train/kl"] == 0.008
    assert rows[0].keys() == stored["steps"][0].keys()
    assert rows[0]["groups/learnable"] == "6"


def test_the_page_says_whether_the_reward_is_earned_by_work(page: Page) -> None:
    curves, work = (
        page.html.split(f'<section id="{name}">')[1].split("</section>")[0]
        for name in ("curves", "work")
    )
    assert "<strong>Work at a stop</strong> % of stops" in work
    assert "Work at a stop" not in curves
    told = Page(work).text
    for row in (
        "reward of an attempt 0.40 0.65 +0.25 up while",
        "attempts that pass 50.0 % 50.0 % 0.0 down while",
        "stops with everything done 12/24 50.0 % [31.4 % to 68.6 %] 42/84 50.0 % [39.5 % to 60.5 %]"
        " 0.0, p = 1.00 ",
        "stops with nothing done 0/24 0.0 % [0.0 % to 13.8 %] 4/84 4.8 % [1.9 % to 11.6 %]",
        "held-out assertions that need work 44/72 (61.1 %) 48/72 (66.7 %) +5.6 [",
        "held-out assertions that doing nothing meets 24/24 (100.0 %) 24/24 (100.0 %) 0.0 [",
    ):
        assert row in told


def test_a_night_in_several_environments_shows_the_training_of_each(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    alone = next(csv.reader(_steps_csv(night).splitlines()))
    shell = [played_in(0.25, 0.5, 0.75)] * 8
    sql = [played_in(0.125 * n, 0.0625 * n) for n in range(1, 8)]  # the last step had none
    tell_apart(night, {"shell": shell, "sql": sql})
    rows = list(csv.DictReader(_steps_csv(night).splitlines()))
    assert [row["rollout/reward/sql"] for row in rows[:2]] == ["0.125", "0.25"]
    assert rows[-1]["rollout/reward/sql"] == ""
    assert rows[0]["rollout/stop_rate/shell"] == "0.75"
    assert set(alone) < rows[0].keys()
    points = {
        p.step: p.scalars for p in read_points(night.folder) if p.step and not p.is_evaluation
    }
    assert points[1]["rollout/pass_rate/sql"] == 0.0625
    assert "rollout/pass_rate/sql" not in points[8]
    found = read_findings(night.folder, night.config)
    page = Page(write_report(found).read_text())
    assert '<td data-label="sql: reward"><span>0.125</span></td>' in page.html
    assert re.search(
        r"Training by environment environment figure .* sql reward 0\.25 0\.75", page.text
    )
    reward_curve = page.html.split("<strong>Reward</strong>")[1].split("</figure>")[0]
    assert [name in reward_curve for name in ("rollouts", "shell", "sql")] == [True] * 3
    assert "## Training by environment" in markdown(found)


def test_a_night_in_one_environment_shows_nothing_by_environment(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    found = read_findings(night.folder, night.config)
    assert not any(tag.count("/") > 1 for tag in _steps_csv(night).splitlines()[0].split(","))
    assert "nvironment" not in markdown(found)
    assert "by_environment" not in json.dumps(plain_page(found))


def _steps_csv(night: Night) -> str:
    write_report(read_findings(night.folder, night.config))
    return (night.folder.path / "steps.csv").read_text()


def test_a_page_without_a_step_links_no_data(tmp_path: Path) -> None:
    night = make_night(tmp_path, n_steps=1, evaluated=False)
    shutil.rmtree(night.folder.step(1))
    assert not [a for a in page_of(night).addresses if a.startswith("steps")]
    assert not (night.folder.path / "steps.csv").exists()


def test_nothing_is_missing_from_the_page_of_a_whole_night(page: Page) -> None:
    assert "missing" not in page.ids
    assert "Complete: 8 steps" in page.text


def test_the_page_holds_no_script_and_no_address_of_anywhere_else(page: Page) -> None:
    assert "script" not in page.tags
    assert not page.handlers
    beside = ("#", "data:", "steps.", "evidence.json")
    assert [a for a in page.addresses if not a.startswith(beside)] == []
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page.html)
    assert "https://" not in page.html
    assert "@import" not in page.html


def test_no_two_elements_share_an_id_although_many_pictures_share_the_page(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    pointed_at = {a[1:] for a in page.addresses if a.startswith("#")}
    assert pointed_at <= set(page.ids)


def test_every_arm_has_its_row_with_paired_tests(page: Page) -> None:
    for name in ("do-nothing", "oracle", "base", "warm start", "step 8"):
        assert f'<th scope="row">{name}</th>' in page.html
    assert "Each arm against the warm start" in page.text
    assert "p = " in page.text


def test_the_lost_and_won_tasks_are_shown_side_by_side(page: Page) -> None:
    assert "2 lost, 4 won, 18 ended differently." in page.text
    assert page.text.count("turns 1–12") == page.text.count("turns 1–3") > 0


def test_what_a_command_printed_is_text_and_never_markup(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    _say_in(
        night, "sha-8", "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e</pre>"
    )
    shown = page_of(night)
    assert "script" not in shown.tags
    assert "img" not in shown.tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown.html
    assert "␛[31m⟨U+202E⟩" in shown.html


def test_names_from_task_files_are_no_markup_in_pictures_either(tmp_path: Path) -> None:
    nasty = '</text><script>$\\frac{1}{0}$"&'
    on = [replace(t, info={**t.info, "persona": nasty}) for t in tasks(24)]
    shown = page_of(make_night(tmp_path, held_out=on))
    assert "script" not in shown.tags
    assert "&lt;script&gt;" in shown.html


def test_half_of_a_surrogate_pair_in_a_transcript_can_be_written(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    _say_in(night, "sha-8", "broken \ud800 pair")
    assert "broken ⟨U+D800⟩ pair" in page_of(night).html


def _say_in(night: Night, sha: str, text: str) -> None:
    """Let the arm's first attempt say and print `text`."""
    file = night.eval_of(sha) / "trajectories.jsonl"
    first, *rest = [json.loads(line) for line in file.read_text().splitlines()]
    for spoken in first["turns"]:
        spoken["text"] = spoken["observation"] = text
    file.write_text("".join(json.dumps(t) + "\n" for t in (first, *rest)))


# --- nights that broke ----------------------------------------------------------------------------


def test_a_run_that_was_never_started_has_a_page_that_says_so(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    empty = replace(night, folder=replace(night.folder, path=tmp_path / "other"))
    empty.folder.path.mkdir()
    shown = page_of(empty)
    assert f"it has not started: grpo run {empty.folder.path} starts it" in shown.text.replace(
        "  ", " "
    )
    assert [i for i in shown.ids if i in SECTIONS] == list(SECTIONS)


def test_a_run_without_any_evaluation_shows_its_curves_and_names_the_command(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path)
    night.folder.evals.rename(tmp_path / "elsewhere")
    shown = page_of(night)
    assert "the warm start has no finished evaluation on these 24 tasks" in shown.text
    assert "Nothing has been evaluated, so there is no verdict." in shown.text
    assert "Put right what is missing above, then" in shown.text
    assert "KL to the start" in shown.text


def test_a_half_done_run_shows_where_it_started_and_how_far_it_is(tmp_path: Path) -> None:
    night = make_night(tmp_path, evaluated=False)
    night.folder.summary(8).unlink()
    shown = page_of(night)
    assert "No trained adapter has been evaluated yet" in shown.text
    assert "Not finished: 7 of 8 steps are done; next: train." in shown.text
    assert f"grpo run {night.folder.path}" in shown.text


def test_a_run_that_ended_by_an_error_opens_with_the_error(tmp_path: Path) -> None:
    night = make_night(tmp_path, evaluated=False)
    night.folder.summary(8).unlink()
    journal = Journal(night.folder.journal)
    journal.append("phase_end", phase="train", exit=5, error="no memory; free 2 GiB")
    shown = page_of(night)
    assert "Stopped by an error after 7 of 8 steps" in shown.text
    assert "no memory; free 2 GiB" in shown.text


@pytest.mark.parametrize("sha", ["sha-0", "sha-8"])
def test_an_unreadable_line_of_an_evaluation_is_named_and_the_rest_is_shown(
    tmp_path: Path, sha: str
) -> None:
    night = make_night(tmp_path)
    file = night.eval_of(sha) / "trajectories.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], '{"schema": 1, "torn', *lines[5:]]) + "\n")
    shown = page_of(night)
    assert f"{file}:5" in shown.text
    by_arm = re.findall(
        r'<th scope="row">(do-nothing|oracle|base|warm start|step 8)</th>', shown.html
    )
    assert sorted(by_arm) == sorted(["do-nothing", "oracle", "base", "warm start", "step 8"])
    assert by_arm[-2:] == ["warm start", "step 8"]
    assert "There is no verdict: what was evaluated could not be compared." in shown.text
    assert "Evaluations, each by itself" in shown.text
    assert "KL to the start" in shown.text


def test_an_unreadable_line_of_an_older_bundle_costs_the_pool_and_nothing_else(
    tmp_path: Path,
) -> None:
    night = make_night(tmp_path)
    append_line(night.folder.bundle(3), "no JSON")
    assert "The pool could not be read." not in page_of(night).text
    older = replace(read_step(night.folder.summary(3), 3), draws=(), bundle_sha="b")
    night.folder.summary(3).write_text(encode(older))
    shown = page_of(night)
    assert f"{night.folder.bundle(3)}:3" in shown.text
    assert "The pool could not be read." in shown.text
    assert "The habit is gone" in shown.text


def test_an_unreadable_step_is_named(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    night.folder.summary(3).write_text("{")
    shown = page_of(night)
    assert f"{night.folder.summary(3)}:1" in shown.text


@pytest.mark.parametrize("name", ["manifest.json", "journal.jsonl", "step-002/timings.json"])
def test_any_other_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    night = make_night(tmp_path)
    (night.folder.path / name).write_text("[]\n")
    shown = page_of(night)
    assert name in shown.text
    assert "The habit is gone" in shown.text


def test_an_empty_pool_is_said_to_be_empty(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    write_tasks(Path(night.config.data.pool), [])
    assert "the pool is empty" in page_of(night).text


def test_a_held_out_file_that_is_gone_is_named(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    Path(night.config.data.heldout).unlink()
    assert f"{night.config.data.heldout}: no such file" in page_of(night).text


# --- how it is written ----------------------------------------------------------------------------


def test_the_files_of_a_run_include_the_page(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    assert night.folder.path / "report.html" in write_files(
        read_findings(night.folder, night.config)
    )


def test_the_same_findings_are_the_same_page(tmp_path: Path) -> None:
    night = make_night(tmp_path)
    found = read_findings(night.folder, night.config)
    write_files(found)
    beside_the_rest = (night.folder.path / "report.html").read_text()
    alone = write_report(read_findings(night.folder, night.config)).read_text()
    assert _without_clock_and_ids(beside_the_rest) == _without_clock_and_ids(alone)


def _without_clock_and_ids(html: str) -> str:
    return re.sub(r"c\d+-|written [0-9: -]+", "", html)


def test_a_cells_interval_stands_behind_its_value() -> None:
    assert str(cell("−1.3 [−4.5 to +2.0], p = 0.69")) == (
        '<span>−1.3 <span class="sub">[−4.5 to +2.0], p = 0.69</span></span>'
    )
    assert str(cell("<b>")) == "<span>&lt;b&gt;</span>"


def test_commands_in_a_message_are_set_as_code_and_escaped() -> None:
    assert str(code("type `a <b>` & go")) == "type <code>a &lt;b&gt;</code> &amp; go"
    assert str(code("a lone ` stays")) == "a lone ` stays"


# --- a very long night ----------------------------------------------------------------------------
