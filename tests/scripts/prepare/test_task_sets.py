"""The committed task files: the generator wrote them, and the sandbox agrees with them."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import pytest

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from rollout.synth.operation import FINAL, OPERATIONS
from rollout.synth.splits import SPLITS, split_tasks
from rollout.tasks import check_disjoint, read_tasks
from rollout.yardsticks import DO_NOTHING
from scripts.base.checkout import ROOT
from scripts.prepare.task_sets import play_yardstick, prove_tasks, write_splits
from tests.tiny_policy import tiny_task

DATA = ROOT / "data"


def silent(what: str, done: int, total: int) -> None:
    """No progress display."""


def test_the_committed_files_are_what_the_default_seed_writes() -> None:
    for name, plans in split_tasks(0).items():
        written = "".join(encode(plan.task) + "\n" for plan in plans)
        assert (DATA / f"{name}.jsonl").read_text() == written, (
            f"`grpo synth` writes another {name}"
        )


@pytest.mark.parametrize("name", ["pool", "heldout", "development"])
def test_every_oracle_passes_and_doing_nothing_passes_no_task(name: str, tmp_path: Path) -> None:
    prove_tasks(read_tasks(DATA / f"{name}.jsonl"), tmp_path, name, silent)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "n"), [("reserve", 850), ("final", 408)])
def test_every_oracle_of_the_long_files_passes_and_doing_nothing_passes_no_task(
    name: str, n: int, tmp_path: Path
) -> None:
    tasks = read_tasks(DATA / f"{name}.jsonl")
    assert len(tasks) == n
    prove_tasks(tasks, tmp_path, name, silent)


def test_the_oracles_of_a_share_of_the_reserve_pass(tmp_path: Path) -> None:
    """Every 25th of its tasks; all of them are a slow case."""
    reserve = read_tasks(DATA / "reserve.jsonl")[::25]
    assert len(reserve) == 34
    prove_tasks(reserve, tmp_path, "reserve", silent)


def test_each_of_the_final_sets_own_operations_is_done_by_the_oracle_and_not_by_doing_nothing(
    tmp_path: Path,
) -> None:
    """Three tasks of each; nothing of the work is done at the start but what must stay as it is."""
    final = read_tasks(DATA / "final.jsonl")
    own = [o.name for o in OPERATIONS if o.only_in == FINAL]
    some = {o: [t for t in final if o in t.info["skills_required"]][:3] for o in own}
    assert {len(tasks) for tasks in some.values()} == {3}
    chosen = [t for tasks in some.values() for t in tasks]
    prove_tasks(chosen, tmp_path, "", silent)
    idle = play_yardstick(DO_NOTHING, chosen, tmp_path, "", silent)
    for task, nothing in zip(chosen, idle, strict=True):
        claims = task.info["verifiable_assertions"]
        assert nothing.grade.n_passed == sum(c["kind"] == "file_unchanged" for c in claims)


def test_no_two_of_the_files_share_a_task() -> None:
    for one, other in combinations(SPLITS, 2):
        check_disjoint(DATA / f"{one}.jsonl", DATA / f"{other}.jsonl")


def test_a_task_whose_oracle_fails_is_named(tmp_path: Path) -> None:
    task = tiny_task(3)
    task.info["oracle"] = ["touch other.txt"]
    with pytest.raises(BadInput, match=r"tiny-3: its oracle does not pass \(file_exists done\.txt"):
        prove_tasks([task], tmp_path, "tiny", silent)


def test_a_task_that_doing_nothing_passes_is_named(tmp_path: Path) -> None:
    task = tiny_task(3)
    task.info["verifiable_assertions"] = [{"kind": "file_unchanged", "path": "notetiny3.txt"}]
    with pytest.raises(BadInput, match="tiny-3: doing nothing passes it"):
        prove_tasks([task], tmp_path, "tiny", silent)


@pytest.mark.parametrize("seed", [0, 1])
def test_task_files_with_other_tasks_are_replaced_only_by_force(tmp_path: Path, seed: int) -> None:
    out, checked = tmp_path / "data", []

    def progress(what: str, done: int, total: int) -> None:
        checked.append(what)
        raise KeyboardInterrupt

    for file in DATA.glob("*.jsonl"):
        out.mkdir(exist_ok=True)
        shutil.copy(file, out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    refused = pytest.raises(BadInput, match=r"pool\.jsonl: it holds other tasks.*--force")
    with pytest.raises(KeyboardInterrupt) if seed == 0 else refused:
        write_splits(seed, out, tmp_path, progress)
    assert bool(checked) == (seed == 0), "the same tasks lose nothing"
    with pytest.raises(KeyboardInterrupt):
        write_splits(seed, out, tmp_path, progress, force=True)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
