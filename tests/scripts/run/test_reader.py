"""One look at a run: what it reads, and the sums that spare it from reading every step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.codec import encode, encode_group
from fieldkit.eval.grade import RewardPart
from fieldkit.records import StepSummary
from reward.totals import totals
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader, Sums
from scripts.run.timings import Segment, eval_segment, read_timings, write_timings
from tests.scripts.made_night import Night, group, make_night, summary

STEPS = 6


@pytest.fixture
def night(tmp_path: Path) -> Night:
    """Its second step was evaluated on the way."""
    night = make_night(tmp_path, n_steps=STEPS)
    add_evaluation(night.folder, 2)
    return night


def add_evaluation(folder: RunFolder, n: int, seconds: float = 50.0) -> None:
    segment = Segment(eval_segment(f"sha-{n}"), "1", 0.0, seconds, {})
    write_timings(folder.timings(n), read_timings(folder.timings(n), n).with_segment(segment))


def sums(folder: RunFolder) -> Sums:
    return RunReader(folder).sums


def test_stored_sums_are_those_of_all_steps(night: Night) -> None:
    whole = sums(night.folder)
    assert (whole.steps, whole.evaluated, whole.draws.step) == (STEPS + 1, 2, STEPS)
    RunReader(night.folder).store_sums()
    assert night.folder.sums.is_file()
    assert sums(night.folder) == whole


def test_sums_grow_with_the_run_and_do_not_depend_on_when_they_were_stored(
    night: Night, tmp_path: Path
) -> None:
    grown = RunFolder(tmp_path / "grown")
    shutil.copytree(night.folder.path, grown.path)
    for n in range(1, STEPS + 1):
        shutil.rmtree(grown.step(n))
    for n in range(1, STEPS + 1):
        shutil.copytree(night.folder.step(n), grown.step(n))
        RunReader(grown).store_sums()
    assert sums(grown) == sums(night.folder)


def test_only_the_newest_steps_are_read_where_there_are_sums(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunReader(night.folder).store_sums()
    read = opened(night.folder, monkeypatch)
    assert sums(night.folder).steps == STEPS + 1
    assert read == [STEPS]


def opened(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps whose step.json is decoded from here on."""
    from scripts.run import reader

    found: list[int] = []
    real = reader.read_step

    def read_step(path: Path, n: int) -> StepSummary:
        found.append(n)
        return real(path, n)

    monkeypatch.setattr(reader, "read_step", read_step)
    return found


def drop_newest(night: Night) -> None:
    shutil.rmtree(night.folder.step(STEPS))


def change_last_summed(night: Night) -> None:
    changed = replace(summary(STEPS - 1, STEPS), mean_reward=0.9)
    night.folder.summary(STEPS - 1).write_text(encode(changed), encoding="utf-8")


def damage(night: Night) -> None:
    night.folder.sums.write_text('{"schema": 1', encoding="utf-8")


def no_text(night: Night) -> None:
    night.folder.sums.write_bytes(b"\xff")


def other_schema(night: Night) -> None:
    value = json.loads(night.folder.sums.read_text(encoding="utf-8"))
    night.folder.sums.write_text(json.dumps({**value, "schema": 2}), encoding="utf-8")


def older_form(night: Night) -> None:
    """As before the sums told LEARNABLE groups from silent ones."""
    value = json.loads(night.folder.sums.read_text(encoding="utf-8"))
    for task in value["draws"]["attempts"].values():
        for key in ("learnable", "silent", "was_silent"):
            del task[key]
    night.folder.sums.write_text(json.dumps(value), encoding="utf-8")


def lose(night: Night) -> None:
    night.folder.sums.unlink()


@pytest.mark.parametrize(
    "change", [drop_newest, change_last_summed, damage, no_text, other_schema, older_form, lose]
)
def test_sums_that_do_not_fit_the_run_are_made_again(
    night: Night, change: Callable[[Night], None]
) -> None:
    RunReader(night.folder).store_sums()
    change(night)
    found = sums(night.folder)
    night.folder.sums.unlink(missing_ok=True)
    assert found == sums(night.folder)


def test_adapters_are_looked_up_without_reading_every_step(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = replace(summary(4, STEPS), adapter_sha="sha-3")
    night.folder.summary(4).write_text(encode(carried), encoding="utf-8")
    reader = RunReader(night.folder)
    read = opened(night.folder, monkeypatch)
    adapters = reader.adapters
    assert (len(adapters), adapters[-1], adapters[0]) == (STEPS + 1, f"sha-{STEPS}", "sha-0")
    assert f"sha-{STEPS}" in adapters
    assert "base" not in adapters
    assert sorted(read) == [0, STEPS]
    assert adapters.index("sha-3") == 3, "the first step with it"
    assert "sha-9" not in adapters
    with pytest.raises(ValueError, match="sha-9 is the adapter of no step"):
        adapters.index("sha-9")
    assert adapters[1:3] == ("sha-1", "sha-2")
    assert list(adapters) == [f"sha-{n}" if n != 4 else "sha-3" for n in range(STEPS + 1)]


def test_one_evaluation_is_looked_up_by_its_folder(
    night: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scripts.run import reader

    read: list[Path] = []
    real = reader._evaluation

    def note(path: Path) -> dict[str, Any]:
        read.append(path)
        return real(path)

    monkeypatch.setattr(reader, "_evaluation", note)
    found = RunReader(night.folder).evaluations
    assert "sha-0" in found.keys()  # noqa: SIM118
    assert "sha-1" not in found
    assert [path.parent.name for path in read] == [night.eval_of("sha-0").name]
    assert found["sha-0"]["arm"] == "warm start"
    assert set(found) == {"do-nothing", "oracle", "base", "sha-0", f"sha-{STEPS}"}
    assert len(found) == 5


def test_a_bundle_that_waits_has_the_mean_reward_that_its_step_will_have(night: Night) -> None:
    n = STEPS + 1
    paid, unpaid = group(n, "p000").trajectories
    none_applies = (RewardPart("short", None, 1.0),)
    unpaid = replace(unpaid, grade=replace(unpaid.grade, rewards=none_applies))
    night.folder.step(n).mkdir()
    waiting = replace(group(n, "p000"), trajectories=(paid, unpaid))
    night.folder.bundle(n).write_text(encode_group(waiting) + "\n")
    found = RunReader(night.folder).under_way
    assert found is not None
    assert found.mean_reward == paid.reward == totals((paid, unpaid)).mean_reward
