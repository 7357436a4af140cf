"""A sweep that halves: who goes on, how far, and that it can be stopped anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fieldkit.errors import BadInput, Shortage
from scripts.night.halving import ArmsFailed, better_half, is_at_rung, passed, play_halving, up_to
from scripts.night.several import NightsFailed
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


@pytest.mark.parametrize(("steps", "at"), [(2, True), (3, False), (4, True), (5, True), (6, False)])
def test_a_night_is_compared_at_a_rung_and_at_the_last_step(
    steps: int, at: bool, tmp_path: Path
) -> None:
    night = RunFolder(tmp_path)
    for n in range(steps + 1):
        night.step(n).mkdir()
        night.summary(n).write_text("{}")
    assert is_at_rung(night, 2, 5) is at


class Played:
    """What was played, in order; after `most` calls the time is up."""

    def __init__(self, most: int = 99) -> None:
        self.calls: list[tuple[str, int]] = []
        self.most = most

    def __call__(self, arms: Sequence[str], steps: int) -> bool:
        self.calls.append(("".join(arms), steps))
        return len(self.calls) <= self.most


class Failing(Played):
    """The same, where a night of some arms always fails; whole: whether the others are played all
    the same."""

    def __init__(self, failing: str, *, whole: bool = True, most: int = 99) -> None:
        super().__init__(most)
        self.failing, self.whole = failing, whole

    def __call__(self, arms: Sequence[str], steps: int) -> bool:
        in_time = super().__call__(arms, steps)
        if failed := {arm: Shortage("too little memory") for arm in arms if arm in self.failing}:
            raise NightsFailed(failed, "grpo sweep run x", self.whole and in_time)
        return in_time


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


@pytest.mark.usefixtures("by_name")
def test_an_arm_that_always_fails_holds_up_no_other_and_is_told_at_the_end() -> None:
    told: list[str] = []
    played = Failing("d")
    with pytest.raises(ArmsFailed) as error:
        play_halving(arms("abcd"), 5, 40, played, told.append)
    assert played.calls == [("abcd", 5), ("bc", 10), ("c", 40)]
    assert told[0].startswith("d is left out: d failed: too little memory; `grpo sweep run x`")
    assert told[1:3] == [
        "held-out tasks passed after 5 steps: a 9.7 %, b 9.8 %, c 9.9 %",
        "b, c go on",
    ]
    assert error.value.exit_code == Shortage.exit_code
    assert str(error.value) == (
        "d failed: too little memory; `grpo sweep run x` goes on with it; to give up what cannot"
        ' be mended, take it out of sweep.toml: [arms."d"]'
    )


@pytest.mark.usefixtures("by_name")
def test_one_arm_that_is_left_is_played_to_its_end_and_none_is_an_error() -> None:
    played = Failing("b")
    with pytest.raises(ArmsFailed):
        play_halving(arms("ab"), 1, 4, played, lambda text: None)
    assert played.calls == [("ab", 1), ("a", 4)]
    played = Failing("ab")
    with pytest.raises(ArmsFailed, match=r'a failed: .*; b failed: .*\[arms\."a"\], \[arms\."b"\]'):
        play_halving(arms("ab"), 1, 4, played, lambda text: None)
    assert played.calls == [("ab", 1)]


@pytest.mark.usefixtures("by_name")
def test_an_arm_that_fails_on_its_last_steps_is_told_too() -> None:
    played = Failing("b")
    with pytest.raises(ArmsFailed, match="b failed"):
        play_halving(arms("ab"), 9, 9, played, lambda text: None)


@pytest.mark.parametrize("played", [Failing("b", whole=False), Failing("b", most=0)])
@pytest.mark.usefixtures("by_name")
def test_where_the_others_were_not_played_nobody_is_left_out(played: Failing) -> None:
    """What every night lacks ends the sweep, and so does its time."""
    told: list[str] = []
    with pytest.raises(NightsFailed, match="b failed"):
        play_halving(arms("abc"), 1, 4, played, told.append)
    assert played.calls == [("abc", 1)]
    assert told == []


@pytest.mark.usefixtures("by_name")
def test_an_arm_that_was_left_out_is_told_where_the_time_is_up_later() -> None:
    played = Failing("d", most=1)
    with pytest.raises(ArmsFailed, match="d failed"):
        play_halving(arms("abcd"), 5, 40, played, lambda text: None)
    assert played.calls == [("abcd", 5), ("bc", 10)]


def test_an_arm_that_cannot_be_compared_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def share(nights: Sequence[RunFolder], steps: int) -> float:
        if nights[0].name == "b":
            raise BadInput("b: step 1 has no evaluation; `grpo eval b --step 1` plays it")
        return 0.5

    monkeypatch.setattr("scripts.night.halving.passed", share)
    told: list[str] = []
    played = Played()
    with pytest.raises(ArmsFailed, match=r'`grpo eval b --step 1` plays it; .*\[arms\."b"\]'):
        play_halving(arms("abc"), 1, 2, played, told.append)
    assert played.calls == [("abc", 1), ("a", 2)]
    assert told[0].startswith("b is left out: b: step 1 has no evaluation")


def test_a_night_with_a_gap_is_asked_where_it_is_told_and_ends_no_other(tmp_path: Path) -> None:
    gap, fresh = RunFolder(tmp_path / "gap"), RunFolder(tmp_path / "fresh")
    gap.step(3).mkdir(parents=True)
    gap.summary(3).write_text("{}")
    assert up_to([gap, fresh], 2) == [gap, fresh]


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
