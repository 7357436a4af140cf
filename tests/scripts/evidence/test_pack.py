"""A run that was packed and committed can be looked at on a clone, and no look changes it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.files.journal import Journal
from rollout.arm import PACKED_TRAJECTORIES, TRAJECTORIES, transcripts
from scripts.cli.app import app
from scripts.evidence.ending import EndKind, ending, next_steps
from scripts.evidence.findings import Findings, read_findings
from scripts.evidence.pack import COMMITTED, pack
from scripts.evidence.played import read_played
from scripts.evidence.text_page import plain_page
from scripts.report.files import write_files
from scripts.run.folder import RunFolder
from scripts.run.reader import read_step
from tests.scripts.evidence.test_learning import play
from tests.scripts.made_night import Night, make_night


def written(root: Path) -> Night:
    """A finished night with its journal, evidence and page."""
    night = make_night(root)
    data = night.config.data
    night.folder.config.write_text(
        "[run]\nsteps = 8\neval_every = 0\n"
        f'[data]\npool = "{data.pool}"\nheldout = "{data.heldout}"\n'
    )
    Journal(night.folder.journal).append("loop_end", next="done")
    assert len(write_files(read_findings(night.folder, night.config))) == 4
    return night


def cloned(night: Night, to: Path) -> Night:
    """What a clone has of a run: the files that `grpo pack` lists."""
    for pattern in COMMITTED:
        for file in night.folder.path.glob(pattern):
            there = to / "night" / file.relative_to(night.folder.path)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, there)
    return Night(RunFolder(to / "night"), night.config)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Night:
    night = written(tmp_path_factory.mktemp("original"))
    told: list[tuple[str, int, int]] = []
    packed = pack(night.folder, lambda *far: told.append(far))
    assert told == [("arms packed", n, packed.n_arms) for n in range(1, packed.n_arms + 1)]
    return night


@pytest.fixture
def clone(original: Night, tmp_path: Path) -> Night:
    return cloned(original, tmp_path)


@pytest.fixture
def figures_only(original: Night, tmp_path: Path) -> Night:
    """A clone of a night that was committed without any episode."""
    night = cloned(original, tmp_path)
    for file in night.folder.evals.glob(f"*/{PACKED_TRAJECTORIES}"):
        file.unlink()
    return night


def grpo(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def contents(folder: Path) -> dict[str, str]:
    """Every file below `folder` with its hash."""
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def found(night: Night) -> Findings:
    return read_findings(night.folder, night.config)


def test_packed_episodes_are_the_episodes_and_a_tenth_of_their_size(original: Night) -> None:
    for arm in original.evals:
        packed = arm / PACKED_TRAJECTORIES
        whole = read_played(arm).trajectories
        size = (arm / TRAJECTORIES).stat().st_size
        assert packed.stat().st_size < size / 10
        moved = (arm / TRAJECTORIES).rename(arm / "aside")
        assert transcripts(arm) == packed
        assert read_played(arm).trajectories == whole
        moved.rename(arm / TRAJECTORIES)


def test_packing_prints_the_command_that_commits_the_run(original: Night) -> None:
    stale = original.folder.path / "evidence.md"
    page = stale.read_text()
    stale.write_text("of an earlier version\n")
    said = grpo("pack", str(original.folder.path))
    assert said.exit_code == 0, said.output
    assert stale.read_text() == page
    assert "5 arms packed" in said.output
    assert f"git -C {original.folder.path} add -f -- run.toml manifest.json" in said.output
    assert f"'evals/**/{PACKED_TRAJECTORIES}'" in said.output


def test_a_clone_has_the_same_numbers_flips_and_verdict(original: Night, clone: Night) -> None:
    assert plain_page(found(clone)) == plain_page(found(original))
    assert found(clone).flips == found(original).flips
    assert found(clone).absent == ("the episodes of training",)


READING: dict[str, Callable[[str], tuple[str, ...]]] = {
    "table": lambda run: ("table", run),
    "report": lambda run: ("report", run),
    "compare": lambda run: ("compare", f"{run}@base", f"{run}@warm", run),
    "list": lambda run: ("show", run),
    "show": lambda run: ("show", run, "--task", "t003", "--base"),
    "replay": lambda run: ("replay", run),
    "watch": lambda run: ("watch", run, "--once"),
    "explain": lambda run: ("reward", "explain", run),
}


@pytest.mark.parametrize("command", READING)
def test_every_reading_command_works_on_a_clone_and_changes_nothing(
    clone: Night, command: str
) -> None:
    before = contents(clone.folder.path)
    said = grpo(*READING[command](str(clone.folder.path)))
    assert said.exit_code == 0, said.output
    assert contents(clone.folder.path) == before


def test_on_a_clone_the_night_is_done_and_its_page_is_kept(clone: Night) -> None:
    run = str(clone.folder.path)
    assert "· done" in grpo("watch", run, "--once").output
    said = grpo("report", run)
    assert "kept as it was: this copy of the run lacks the episodes of training" in said.output
    assert said.stdout == f"{run}/report.html\n"


def test_the_history_of_the_pool_is_in_the_steps_and_of_older_ones_in_bundles_alone(
    clone: Night,
) -> None:
    assert found(clone).pool is not None
    for n in range(1, 9):
        file = clone.folder.summary(n)
        file.write_text(encode(replace(read_step(file, n), draws=())))
    (gap,) = found(clone).gaps
    assert "does not have the episodes of training, so the history of its pool" in gap.why


def test_a_new_page_can_be_written_elsewhere(clone: Night) -> None:
    page = clone.folder.path.parent / "pages" / "page.html"
    said = grpo("report", str(clone.folder.path), "--out", str(page))
    assert said.exit_code == 0, said.output
    text = page.read_text()
    assert "The habit is gone" in text
    assert "does not have the episodes of training" not in text
    own = clone.folder.path / "report.html"
    before, kept = own.read_bytes(), grpo("report", str(clone.folder.path), "--out", str(own))
    assert (kept.exit_code, own.read_bytes()) == (0, before)
    assert "kept as it was: this copy of the run lacks" in kept.output
    with pytest.raises(BadInput, match="this is a folder; name a file"):
        grpo_raises("report", str(clone.folder.path), "--out", str(page.parent))


def test_a_step_that_was_not_committed_is_named_with_what_can_be_shown(clone: Night) -> None:
    run = str(clone.folder.path)
    with pytest.raises(BadInput, match=r"only held-out ones are committed.*--eval step-8"):
        grpo_raises("show", run, "--step", "3")
    assert "not scored: the episodes of training" in grpo("replay", run).output
    with pytest.raises(BadInput, match="step 9 has no rollouts"):
        grpo_raises("show", run, "--step", "9")


def grpo_raises(*words: str) -> None:
    error = grpo(*words).exception
    assert error is not None
    raise error


def test_a_night_without_any_episode_still_has_its_tables_and_verdict(
    original: Night, figures_only: Night
) -> None:
    before = contents(figures_only.folder.path)
    assert plain_page(found(figures_only)) == plain_page(found(original))
    assert found(figures_only).flips is None
    assert found(figures_only).absent == ("the episodes of training", "held-out episodes")
    run = str(figures_only.folder.path)
    for words in (("table", run), ("report", run), ("watch", run, "--once")):
        assert grpo(*words).exit_code == 0, words
    for words in (("show", run), ("replay", run), ("compare", run, f"{run}@warm"), ("pack", run)):
        with pytest.raises(BadInput, match=r"this copy of the run .*`grpo table "):
            grpo_raises(*words)
    assert contents(figures_only.folder.path) == before


def test_without_the_episodes_at_the_training_temperature_the_verdict_is_the_one_written(
    tmp_path: Path,
) -> None:
    """Judged again it would make four tests instead of five, and every p be another."""
    night = written(tmp_path)
    for sha, stops in (("sha-0", 1), ("sha-8", 12)):
        play(night, sha, stops=stops)
    write_files(found(night))
    before = found(night).verdict
    assert before is not None
    assert len(before.tests) == 5
    for file in night.folder.evals.rglob(TRAJECTORIES):
        file.unlink()
    assert found(night).sampled is None
    assert found(night).verdict == before


def test_evidence_of_other_evaluations_is_not_taken(figures_only: Night) -> None:
    shutil.rmtree(figures_only.eval_of("sha-8"))
    here = found(figures_only)
    assert here.evidence is None
    assert any("not the evidence of the finished evaluations" in gap.why for gap in here.gaps)


def test_a_night_without_its_journal_is_a_copy_and_not_a_night_to_start(clone: Night) -> None:
    clone.folder.journal.unlink()
    said = grpo("watch", str(clone.folder.path), "--once").output
    assert "not started" not in said
    assert "a copy of a night, without its journal" in said


def test_a_clone_says_how_the_night_ended_and_that_it_is_played_again_elsewhere(
    clone: Night,
) -> None:
    on_another_host = replace(found(clone), plan=None)
    end = ending(on_another_host)
    assert (end.kind, end.sentence) == (EndKind.COMPLETE, "Complete: 8 steps.")
    (again,) = next_steps(on_another_host, end)
    assert clone.folder.how_to_play_again in again
    clone.folder.journal.unlink()
    end = ending(replace(found(clone), plan=None))
    assert (end.kind, end.failure) == (EndKind.KEPT, "")


def test_a_night_that_lost_a_bundle_and_goes_on_still_gets_new_pages(tmp_path: Path) -> None:
    night = written(tmp_path)
    night.folder.adapter(8).mkdir()
    night.folder.bundle(3).unlink()
    assert len(write_files(found(night))) == 4
    (night.eval_of("base") / TRAJECTORIES).unlink()
    said: list[str] = []
    assert write_files(found(night), said.append) == []
    assert said == [
        "kept as they were: evidence.json, evidence.md, curve.png, report.html (this copy of the"
        " run lacks held-out episodes)"
    ]


def test_a_torn_pack_is_named(clone: Night) -> None:
    file = clone.eval_of("base") / PACKED_TRAJECTORIES
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadInput, match=rf"{file}: not a whole \.xz file"):
        read_played(file.parent)


def test_a_run_with_nothing_evaluated_cannot_be_packed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "night")
    with pytest.raises(BadInput, match=r"no evaluation is finished; `grpo run "):
        pack(folder)
    assert not folder.path.exists()
