"""Which run a person means, and what a folder with a hole in it says."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.base.checkout import ROOT
from scripts.run.folder import RunFolder, open_run, refuse_run_file, resolve_run


def finish(folder: RunFolder, *steps: int) -> None:
    for n in steps:
        folder.step(n).mkdir(parents=True)
        folder.summary(n).write_text("{}")


def test_a_name_lies_below_runs_and_a_path_lies_where_it_says(tmp_path: Path) -> None:
    assert resolve_run("tonight").path == ROOT / "runs" / "tonight"
    assert resolve_run(str(tmp_path / "tonight")).path == tmp_path / "tonight"


def test_a_name_that_no_adapter_could_have_is_refused() -> None:
    with pytest.raises(BadInput, match="letters, digits, dots, dashes"):
        resolve_run("my night")


def test_a_run_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(BadInput, match=r"no such run \(there are: .*`grpo new no-such-run`"):
        open_run("no-such-run")


def test_finished_steps_are_counted_from_the_start(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.finished_steps() == 0
    finish(folder, 0, 1, 2)
    folder.step(3).mkdir()  # under way: it has no step.json yet
    assert folder.finished_steps() == 3


def test_a_step_that_is_missing_in_the_middle_is_named_with_what_to_do(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    finish(folder, 0, 1, 3)
    with pytest.raises(BadInput, match="step-003 is finished but step-002 is not; put step-002"):
        folder.finished_steps()


def test_what_a_person_types_for_a_run_finds_it_again(tmp_path: Path) -> None:
    inside = resolve_run("tonight")
    outside = RunFolder(tmp_path / "my disk" / "tonight")
    assert inside.typed == "tonight"
    for folder in (inside, outside):
        (word,) = shlex.split(folder.typed)
        assert resolve_run(word) == folder


@pytest.mark.parametrize(
    "file", ["run.toml", "new.html", "step-001/step.json", "../link.html", "../other/report.html"]
)
def test_a_page_takes_the_place_of_no_file_of_a_run(file: str, tmp_path: Path) -> None:
    run, other = tmp_path / "tonight", tmp_path / "other"
    for folder in (run, other):
        (folder / "step-001").mkdir(parents=True)
        (folder / "run.toml").write_text("")
    (tmp_path / "link.html").symlink_to(run / "manifest.json")
    page = run / "report.html"
    with pytest.raises(BadInput, match=f"belongs to a run; name another, as in `--out {page}`"):
        refuse_run_file(run / file, "--out", page)


def test_a_page_may_be_the_runs_own_or_lie_outside_but_be_no_folder(tmp_path: Path) -> None:
    run = tmp_path / "tonight"
    run.mkdir()
    (run / "run.toml").write_text("")
    page = run / "report.html"
    refuse_run_file(page, "--out", page)
    refuse_run_file(tmp_path / "pages" / "page.html", "--out", page)
    with pytest.raises(
        BadInput, match=r"this is a folder; name a file, as in `--out .*/report\.html`"
    ):
        refuse_run_file(tmp_path, "--out", page)
