"""A sweep that halves: who goes on, how far, and that it can be stopped anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from scripts.night.halving import better_half, passed, play_halving, up_to
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader
from tests.scripts.night.test_several import grpo, made_sweep, nights

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        ({"a": 0.1, "b": 0.3, "c": 0.2, "d": 0.4}, ["b", "d"]),
        ({"a": 0.1, "b": 0.3, "c": 0.2}, ["b", "c"]),
        ({"a": 0.2, "b": 0.2}, ["a"]),
        ({"a": 0.0}, ["a"]),
    ],
)
def test_the_better_half_goes_on(share: Mapping[str, float], kept: Sequence[str]) -> None:
    assert better_half(share) == kept


class Played:
    """What was played, in order; after `most` calls the time is up."""

    def __init__(self, most: int = 99) -> None:
        self.calls: list[tuple[str, int]] = []
        self.most = most

    def __call__(self, arms: Sequence[str], steps: int) -> bool:
        self.calls.append(("".join(arms), steps))
        return len(self.calls) <= self.most


def arms(names: str) -> dict[str, list[RunFolder]]:
    """Arms of one night each."""
    return {name: [RunFolder(Path(name))] for name in names}


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nights of an arm pass the more the later its name is."""
    monkeypatch.setattr(
        "scripts.night.halving.passed", lambda nights, steps: ord(nights[0].name) / 1000
    )


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (5, 40, [("abcd", 5), ("cd", 10), ("d", 40)]),
        (5, 8, [("abcd", 5), ("cd", 8)]),
        (5, 10, [("abcd", 5), ("cd", 10)]),
        (9, 9, [("abcd", 9)]),
    ],
)
@pytest.mark.usefixtures("by_name")
def test_arms_are_played_twice_as_far_until_one_is_left_or_all_are_at_their_end(
    first: int, last: int, expected: list[tuple[str, int]]
) -> None:
    played = Played()
    assert play_halving(arms("abcd"), first, last, played, lambda text: None)
    assert played.calls == expected


@pytest.mark.usefixtures("by_name")
def test_where_the_time_is_up_nobody_is_dropped() -> None:
    told: list[str] = []
    played = Played(most=0)
    assert not play_halving(arms("ab"), 1, 2, played, told.append)
    assert told == []


def test_a_night_at_a_rung_is_asked_and_one_beyond_it_is_not(tmp_path: Path) -> None:
    at, beyond = RunFolder(tmp_path / "at"), RunFolder(tmp_path / "beyond")
    for night, steps in ((at, 2), (beyond, 3)):
        for n in range(steps + 1):
            night.step(n).mkdir(parents=True)
            night.summary(n).write_text("{}")
    fresh = RunFolder(tmp_path / "fresh")
    assert up_to([fresh, at, beyond], 2) == [fresh, at]


def test_a_sweep_drops_an_arm_and_plays_the_other_to_its_end(
    policy: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = made_sweep(policy, tmp_path / "sweep", 2, "--halve-after", "1")
    first, second = nights(folder)
    alone = grpo("run", str(first.path), "--steps", "1")  # as if it had been stopped after it
    assert alone.returncode == 0, alone.stderr

    whole = grpo("sweep", "run", str(folder))
    assert whole.returncode == 0, whole.stderr
    said = whole.stdout + whole.stderr
    assert "held-out tasks passed after 1 step: turn_penalty-0 " in said
    # Two arms with equal adapters pass alike, and then the earlier one goes on.
    goes, dropped = ("turn_penalty-0", "turn_penalty-1")
    if passed([first], 1) < passed([second], 1):
        goes, dropped = dropped, goes
    assert f"{goes} goes on" in said
    steps = {n.name.removesuffix("-seed0"): RunReader(n).n_steps - 1 for n in (first, second)}
    assert steps == {goes: 2, dropped: 1}
    assert "Nights have different numbers of steps:" in whole.stdout

    again = grpo("sweep", "run", str(folder))
    assert again.returncode == 0, again.stderr
    assert [RunReader(n).n_steps - 1 for n in (first, second)] == [*steps.values()]

    shutil.rmtree(first.evals)
    with pytest.raises(BadInput, match="step 1 has no evaluation, so its arm cannot be compared"):
        passed([first], 1)
