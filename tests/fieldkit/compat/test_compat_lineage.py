"""What a script written for fieldkit.lineage 0.34.1 relies on. Passes on that package and on
ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.lineage import FailureLabel, LineageSnapshot, LineageStore, RecipeEdit, Trial


def trial(exp_id: str, parent: str = "", metric: float | None = None, **more: object) -> Trial:
    made = Trial(
        exp_id=exp_id,
        timestamp="2026-01-01T00:00:00",
        specialist="arch",
        parent_exp=parent,
        baseline_exp="0",
        domain="d",
        hypothesis="h",
        expected_delta="-0.01",
        status=FailureLabel.KEEP,
        core_metric=metric,
        val_bpb=None,
        delta_vs_best=None,
        train_s=1.5,
        total_s=None,
        job_name="",
        snapshot_path="",
        notes="",
    )
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_labels_are_texts_and_only_an_abort_says_nothing() -> None:
    assert FailureLabel("keep") is FailureLabel.KEEP
    assert str.__eq__(FailureLabel.CRASH, "crash")
    silent = [label for label in FailureLabel if not label.is_informational]
    assert silent == [FailureLabel.HARNESS_ABORT]
    assert len(FailureLabel) == 10


def test_a_row_has_seventeen_columns_and_gives_its_trial_again() -> None:
    one = trial("1", "0", 0.5, notes="n")
    assert len(Trial.header()) == 17
    assert Trial.header()[:3] == ("exp_id", "timestamp", "specialist")
    row = one.to_row()
    assert row[Trial.header().index("val_bpb")] == ""
    assert Trial.from_row(dict(zip(Trial.header(), row, strict=True))) == one


def test_trials_come_back_in_their_order_whatever_their_texts_hold(tmp_path: Path) -> None:
    store = LineageStore(tmp_path / "new")
    assert store.all_trials() == []
    trials = [
        trial("0", status=FailureLabel.BASELINE, metric=1.0),
        trial("1", "0", 0.5, hypothesis='a "quoted"\ttab\nand a line', notes="ü|"),
        trial("2", "1"),
    ]
    for t in trials:
        store.append(t)
    assert store.all_trials() == trials
    assert store.latest(2) == tuple(trials[1:])
    assert store.latest(0) == ()
    assert store.results_path == tmp_path / "new" / "results.tsv"
    assert store.results_path.read_text().startswith("exp_id\ttimestamp\tspecialist\t")


def test_the_best_is_the_lowest_metric_or_the_highest_as_asked(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    assert store.best() is None
    store.append(trial("0"))
    assert store.best() == trial("0")
    store.append(trial("1", "0", 0.5))
    store.append(trial("2", "0", 0.9))
    store.append(trial("3", "0", 0.1, status=FailureLabel.HARNESS_ABORT))
    best, highest = store.best(), LineageStore(tmp_path, lower_is_better=False).best()
    assert best is not None
    assert highest is not None
    assert (best.exp_id, highest.exp_id) == ("1", "2")


def test_a_chain_leads_from_the_root_to_the_trial(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    for t in (trial("0"), trial("1", "0"), trial("x", "0"), trial("2", "1")):
        store.append(t)
    assert [t.exp_id for t in store.chain_to("2")] == ["0", "1", "2"]
    with pytest.raises(KeyError):
        store.chain_to("nobody")


def test_a_prompt_holds_what_was_tried_as_text_and_as_data(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    assert store.render_prompt("arch").chain_to_best == ()
    store.append(trial("base", metric=1.0, status=FailureLabel.BASELINE))
    for i in range(1, 6):
        store.append(trial(f"e{i}", "base", 1.0 - i / 10, hypothesis=f"idea {i}"))
    found = store.render_prompt("arch", top_k=2, recent_n=3, last_m_full=1)
    assert isinstance(found, LineageSnapshot)
    assert found == store.render_prompt("arch", top_k=2, recent_n=3, last_m_full=1)
    assert found.current_best.exp_id == "e5"
    assert [t.exp_id for t in found.chain_to_best] == ["base", "e5"]
    assert [t.exp_id for t in found.top_k_leaderboard] == ["e5", "e4"]
    assert [t.exp_id for t in found.recent_n_activity] == ["e3", "e4", "e5"]
    assert [t.exp_id for t in found.last_m_with_full_hypothesis] == ["e5"]
    for text in ("arch", "e5", "0.500000", "idea 5"):
        assert text in found.rendered_prompt


def test_an_edit_is_a_diff_against_the_parents_files(tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    for folder, text, data in ((parent, "lr = 1\n", b"\xff\x00"), (child, "lr = 2\n", b"\xff\x01")):
        folder.mkdir()
        (folder / "run.toml").write_text(text)
        (folder / "same.txt").write_text("same\n")
        (folder / "weights.bin").write_bytes(data)
    diff = RecipeEdit(trial("1", "0"), child, parent).diff()
    assert "-lr = 1\n+lr = 2\n" in diff
    assert "--- a/run.toml" in diff
    assert "Binary files a/weights.bin and b/weights.bin differ" in diff
    assert "same.txt" not in diff
    assert RecipeEdit(trial("0"), child, None).diff() == ""
