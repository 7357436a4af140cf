from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldkit.errors import BadInput
from fieldkit.lineage import FailureLabel, LineageStore, Trial
from tests.fieldkit.compat.test_compat_lineage import trial

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@settings(max_examples=60)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5), st.data())
def test_a_write_torn_anywhere_loses_no_row_before_it(
    texts: list[tuple[str, str]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = LineageStore(folder)
        ends, trials = [], []
        for i, (hypothesis, notes) in enumerate(texts):
            trials.append(trial(str(i), hypothesis=hypothesis, notes=notes))
            store.append(trials[-1])
            ends.append(store.results_path.stat().st_size)
        whole = store.results_path.read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        store.results_path.write_bytes(whole[:cut])
        kept = [t for t, end in zip(trials, ends, strict=True) if end <= cut]
        assert store.all_trials() == kept
        store.append(trial("after"))
        assert store.all_trials() == [*kept, trial("after")]


def test_a_row_torn_in_a_text_of_several_lines_is_cut_off(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    store.append(trial("0"))
    store.append(trial("1", notes='one\n"two"\nthree\nfour'))
    whole = store.results_path.read_bytes()
    store.results_path.write_bytes(whole[: whole.index(b"four")])
    store.append(trial("2"))
    assert [t.exp_id for t in store.all_trials()] == ["0", "2"]


def test_a_file_of_something_else_is_kept_as_it_is(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    for notes in ("my notes: seed 3 was best", "my notes\n"):
        store.results_path.write_text(notes)
        with pytest.raises(BadInput, match=r"results\.tsv:1: "):
            store.append(trial("0"))
        assert store.results_path.read_text() == notes


WRITER = """
import sys
from pathlib import Path
from fieldkit.lineage import LineageStore
from tests.fieldkit.compat.test_compat_lineage import trial
store = LineageStore(Path(sys.argv[1]))
for i in range(40):
    store.append(trial(f"{sys.argv[2]}{i}", notes="two\\nlines " + "x" * 5000))
"""


def test_two_processes_lose_no_row_and_mix_none(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "ab"
    ]
    assert [w.wait(60) for w in writers] == [0, 0]
    trials = LineageStore(tmp_path).all_trials()
    for name in "ab":
        mine = [t.exp_id for t in trials if t.exp_id.startswith(name)]
        assert mine == [f"{name}{i}" for i in range(40)]
    assert {len(t.notes) for t in trials} == {5010}


def test_a_row_that_is_no_trial_is_named(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    store.append(trial("0"))
    whole = store.results_path.read_text()
    store.results_path.write_text(whole + "one\ttwo\n")
    with pytest.raises(BadInput, match=r"results\.tsv:3: 2 cells, a row has 17"):
        store.all_trials()
    store.results_path.write_text(whole.replace("keep", "kept"))
    with pytest.raises(BadInput, match=r"results\.tsv:2: status: 'kept' is unknown"):
        store.all_trials()
    store.results_path.write_text(whole.replace("1.5", "fast"))
    with pytest.raises(BadInput, match=r"results\.tsv:2: train_s: 'fast' is not a finite number"):
        store.all_trials()
    store.results_path.write_text("a\tb\n")
    with pytest.raises(BadInput, match=r"results\.tsv:1: the columns are not those"):
        store.all_trials()


def test_a_stray_quote_that_a_person_wrote_costs_no_row(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    for i in range(5):
        store.append(trial(str(i)))
    whole = store.results_path.read_text()
    inside = whole.replace("\th\t", '\tof 5" width\t', 1)
    store.results_path.write_text(inside)
    store.append(trial("5"))
    assert [t.exp_id for t in store.all_trials()] == list("012345")
    assert store.all_trials()[0].hypothesis == 'of 5" width'

    opened = whole.replace("\th\t", '\t"h\t', 1)
    store.results_path.write_text(opened)
    for use in (store.all_trials, lambda: store.append(trial("5"))):
        with pytest.raises(BadInput, match=r"results\.tsv:2: a quote opens a cell that nothing"):
            use()
    assert store.results_path.read_text() == opened


def test_only_a_kept_trial_or_a_baseline_is_the_best(tmp_path: Path) -> None:
    store = LineageStore(tmp_path, lower_is_better=False)
    store.append(trial("base", metric=0.2, status=FailureLabel.BASELINE))
    store.append(trial("kept", "base", 0.5))
    for label in set(FailureLabel) - {FailureLabel.BASELINE, FailureLabel.KEEP}:
        store.append(trial(label.value, "base", 1.0, status=label))
    best = store.best()
    assert best is not None
    assert best.exp_id == "kept"
    assert store.render_prompt("arch").current_best == best


def test_a_trial_that_is_appended_again_is_corrected_everywhere(tmp_path: Path) -> None:
    store = LineageStore(tmp_path, lower_is_better=False)
    store.append(trial("base", metric=0.2, status=FailureLabel.BASELINE))
    store.append(trial("a", "base", 0.9))
    store.append(trial("a", "base", 0.9, status=FailureLabel.DISQUALIFIED))
    best, told = store.best(), store.render_prompt("arch")
    assert best is not None
    assert best.exp_id == "base"
    assert told.current_best == best
    assert [t.exp_id for t in told.top_k_leaderboard] == []
    assert len(store.all_trials()) == 3


def test_a_trial_that_is_not_there_is_bad_input_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^'gone' is not in .*results\.tsv$"):
        LineageStore(tmp_path).chain_to("gone")


def test_a_row_is_not_added_to_another_table(tmp_path: Path) -> None:
    store, text = LineageStore(tmp_path), "commit\tval_bpb\nabc\t0.99\n"
    store.results_path.write_text(text)
    with pytest.raises(BadInput, match=r"results\.tsv:1: the columns are not those.*val_bpb"):
        store.append(trial("0"))
    assert store.results_path.read_text() == text


def test_a_trial_that_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    with pytest.raises(BadInput, match="core_metric: 'nan'"):
        store.append(trial("0", metric=float("nan")))
    with pytest.raises(BadInput, match="trial 0: a cell is longer than 131072"):
        store.append(trial("0", notes="x" * 131073))
    assert store.all_trials() == []


@pytest.mark.parametrize(("exp_id", "parent"), [("", ""), ("", "a"), ("a", "a")])
def test_a_trial_without_a_name_or_that_is_its_own_parent_is_not_written(
    tmp_path: Path, exp_id: str, parent: str
) -> None:
    """The table is only ever appended to, so such a row could not be taken back."""
    store = LineageStore(tmp_path)
    with pytest.raises(BadInput, match=r"has no exp_id|is its own parent"):
        store.append(Trial.of(exp_id, FailureLabel.KEEP, parent_exp=parent))
    assert not store.results_path.exists()


def test_a_trial_that_is_its_own_ancestor_is_named(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    store.append(trial("a", "b"))
    store.append(trial("b", "a"))
    with pytest.raises(BadInput, match="b is its own ancestor"):
        store.chain_to("b")
    assert store.tree() == "(2 trials are their own ancestors)"


def test_a_tree_shows_who_came_from_whom(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    plain = replace(trial("0", metric=1.0), hypothesis="", status=FailureLabel.BASELINE)
    for t in (plain, trial("1", "0", 0.5), trial("1a", "1"), trial("2", "0"), trial("z", "gone")):
        store.append(t)
    assert store.tree().splitlines() == [
        "0 baseline 1.000000",
        "├─ 1 keep 0.500000: h",
        "│  └─ 1a keep —: h",
        "└─ 2 keep —: h",
        "z keep —: h",
    ]


def test_a_trial_of_a_few_cells_is_read_again_and_an_unknown_cell_is_refused(
    tmp_path: Path,
) -> None:
    store, few = LineageStore(tmp_path), Trial.of("b", FailureLabel.KEEP, parent_exp="a", train_s=2)
    store.append(few)
    assert store.all_trials() == [few]
    assert (few.hypothesis, few.core_metric) == ("", None)
    with pytest.raises(TypeError, match="parent"):
        Trial.of("c", FailureLabel.KEEP, parent="b")


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(BadInput, match="the column 'exp_id' is missing"):
        Trial.from_row({})


def test_a_cell_with_a_nul_is_not_written(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    with pytest.raises(BadInput, match="trial 0: a cell holds a NUL character"):
        store.append(trial("0", notes="a\0b"))
    assert store.all_trials() == []


def test_a_cell_with_half_a_surrogate_pair_is_refused_and_the_table_stays(tmp_path: Path) -> None:
    store = LineageStore(tmp_path)
    store.append(trial("a", ""))
    with pytest.raises(BadInput, match="trial 'b': a cell that UTF-8 cannot hold"):
        store.append(replace(trial("b", "a"), hypothesis="so \ud83d"))
    assert [t.exp_id for t in store.all_trials()] == ["a"]


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"\xff\n", ": not UTF-8"), (b'a\t"b"c"\n"\n', ":1: '\t' expected after '\"'")],
)
def test_a_file_that_is_no_table_is_named(tmp_path: Path, data: bytes, says: str) -> None:
    store = LineageStore(tmp_path)
    store.results_path.write_bytes(data)
    with pytest.raises(BadInput, match=re.escape(f"{store.results_path}{says}")):
        store.all_trials()


def test_a_kept_trial_without_a_metric_ranks_last_and_an_empty_part_says_so(
    tmp_path: Path,
) -> None:
    store = LineageStore(tmp_path)
    store.append(replace(trial("0", metric=1.0), status=FailureLabel.BASELINE))
    assert "## Kept, best first\n\n(none)" in store.render_prompt("arch").rendered_prompt
    for exp_id, metric in (("1", None), ("2", 0.9), ("3", 0.5)):
        store.append(trial(exp_id, "0", metric, notes=f"note {exp_id}"))
    found = store.render_prompt("arch")
    assert [t.exp_id for t in found.top_k_leaderboard] == ["3", "2", "1"]
    assert "- notes: note 1" in found.rendered_prompt
