"""Who evaluated on the final set is on record beside it, in the run, and in the tables."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file
from fieldkit.files.journal import Journal
from rollout.engine.serve import stop_engine
from rollout.tasks import read_tasks
from scripts.base.events import Event
from scripts.base.signals import Wish
from scripts.phases.context import Context
from scripts.phases.final_set import open_final_set, opened_file, read_openings
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch
from tests.fieldkit.answering import answering
from tests.rollout.test_policies import says
from tests.scripts.cli.in_process import Ended
from tests.scripts.cli.in_process import grpo as grpo_here
from tests.scripts.made_night import make_night
from tests.scripts.phases.test_eval import grpo
from tests.tiny_policy import REPLIES, write_run, write_tasks

LISTED = json.dumps({"data": [{"id": "m", "max_model_len": 4096}]})


@pytest.fixture
def final(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "final.jsonl", 3, "final")


def evaluated(folder: RunFolder) -> str:
    try:
        return grpo("eval", str(folder.path))
    finally:
        stop_engine(folder.path)


def night(path: Path, policy: tuple[Path, Path], final: Path, heldout: Path) -> RunFolder:
    """A run below `path` that is started."""
    path.mkdir()
    pool = write_tasks(path / "pool.jsonl", 6, "pool")
    data: dict[str, object] = {"pool": str(pool), "heldout": str(heldout), "final": str(final)}
    folder = RunFolder(write_run(path / "night", *policy, data=data))
    grpo("start", str(folder.path))
    return folder


def test_the_arms_of_a_run_are_on_record_beside_the_set_and_in_its_table(
    policy: tuple[Path, Path], tmp_path: Path, final: Path
) -> None:
    first = night(tmp_path / "a", policy, final, heldout=final)
    said = evaluated(first)
    assert "is a final set: that base opens it is recorded in" in said
    assert "was opened before" not in said
    base, warm = read_openings(final)
    assert (base.arm, base.adapter_sha) == ("base", "base")
    assert warm.arm.startswith("warm start (")
    assert (warm.run, warm.n_tasks) == ("night", 3)
    assert warm.final_sha256 == sha256_file(final)
    assert evaluated(first)  # nothing is due, so nothing is opened
    assert len(read_openings(final)) == 2
    entries = Journal(first.journal).read()
    played = [e.data["tasks"] for e in entries if e.event == "arm_played"]
    assert played[-1] == {"path": str(final), "sha256": sha256_file(final), "n": 3}
    table = grpo("table", str(first.path))
    assert "Final tasks (3, T = 0.2)" in table
    assert "The final set had not been opened before." in table


def context(root: Path, final: Path, told: list[Event]) -> Context:
    """Of a night whose held-out set is the final set."""
    made = make_night(root, held_out=read_tasks(final))
    config = replace(made.config, data=replace(made.config.data, final=str(final)))
    return Context(made.folder, config, told.append, Wish(), Stopwatch(time.time()))


def test_a_further_adapter_of_the_same_run_is_a_second_look(tmp_path: Path, final: Path) -> None:
    """Its starting arms and its first trained adapter are one look."""
    told: list[Event] = []
    ctx = context(tmp_path, final, told)
    open_final_set(ctx, "warm start", "sha-0")
    open_final_set(ctx, "step 4", "sha-4", trained=True)
    open_final_set(ctx, "step 4", "sha-4", trained=True)  # after a kill
    open_final_set(ctx, "base", "base")
    assert not any("opened before" in str(event) for event in told)
    open_final_set(ctx, "step 8", "sha-8", trained=True)
    assert "was opened before, by run night on" in str(told[-1])
    assert "(step 4)" in str(told[-1])
    assert [o.arm for o in read_openings(final)] == ["warm start", "step 4", "base", "step 8"]


def test_models_behind_endpoints_open_it_too_and_a_copy_is_no_other_set(
    tmp_path: Path, final: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    others = write_tasks(tmp_path / "others.jsonl", 2, "other")
    copy = Path(shutil.copy(final, tmp_path / "copy.jsonl"))
    with answering([says(REPLIES[0])] * 5 + [says(REPLIES[1])], 200, LISTED) as endpoint:

        def play(tasks: Path, *words: str) -> Ended:
            one = ("eval", "--endpoint", endpoint.base_url, "--set", f"data.final={final}")
            ended = grpo_here(*one, "--tasks", tasks, *words)
            assert ended.code == 0, ended.error
            return ended

        play(others)
        assert not opened_file(final).exists(), "tasks of another set open nothing"
        first = play(final)
        (opening,) = read_openings(final)
        assert opening.arm == f"m at {endpoint.base_url}"
        assert "The final set had not been opened before." in first.out
        second = play(copy, "--limit", "2", "--json")
    assert "had been opened before, by 1 run" in json.loads(second.out)["notes"][0]
    assert "is a final set and was opened before, by run eval-" in " ".join(second.error.split())
    assert [o.n_tasks for o in read_openings(final)] == [3, 2]


def test_yardsticks_and_checks_open_nothing(tmp_path: Path, final: Path) -> None:
    assert grpo_here("tasks", "check", final, "--play").code == 0
    assert not opened_file(final).exists()


def test_a_record_that_cannot_be_read_names_its_line(tmp_path: Path, final: Path) -> None:
    opened_file(final).write_text('{"schema": 1, "date": 3}\n')
    with pytest.raises(BadInput, match=r"final\.opened\.jsonl:1: "):
        open_final_set(context(tmp_path, final, []), "base", "base")
