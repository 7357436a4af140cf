"""Which attribute looks like the end of an episode, and which only looks so at first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scripts.environments.end_attribute import flags_of, unset_end

OFF, ON = False, True


class Game:
    won = False

    def __init__(self) -> None:
        self.over = False
        self.turns = 0
        self.log: list[str] = []

    @property
    def lost(self) -> bool:
        return self.turns > 3

    @property
    def unready(self) -> bool:
        raise AttributeError("before the first reset")


class Slotted:
    __slots__ = ("done", "unset")

    def __init__(self) -> None:
        self.done = True


def test_booleans_are_found_as_attributes_of_the_object_or_class_as_properties_and_in_slots() -> (
    None
):
    game = Game()
    assert flags_of(game) == {"over": False, "won": False, "lost": False}
    game.turns, game.over = 4, True
    assert flags_of(game) == {"over": True, "won": False, "lost": True}
    assert flags_of(Slotted()) == {"done": True}


def line_of(text: str) -> int:
    """The first line of this file that holds `text`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def suggested(**episodes: Sequence[Sequence[bool]]) -> str:
    """Of flags by name, the values after reset and after each call in every episode."""
    played: list[list[dict[str, Any]]] = []
    for of_episode in zip(*episodes.values(), strict=True):
        values = [dict(zip(episodes, now, strict=True)) for now in zip(*of_episode, strict=True)]
        played.append(values)
    return " ".join(str(finding) for finding in unset_end(Game, played))


def test_an_attribute_that_turns_true_is_suggested_with_its_line_and_how_often_it_did() -> None:
    told = suggested(over=[[OFF, OFF, ON], [OFF, OFF, OFF], [OFF, ON, ON]])
    assert told.startswith(
        f"{__file__}:{line_of('self.over = False')}: warning: over turns true in 2 of 3 episodes: "
    )
    assert 'set `--ends over`, or ends = "over" in [envs.NAME]' in told


def test_a_property_has_the_line_of_its_function() -> None:
    told = suggested(lost=[[OFF, OFF, ON], [OFF, ON, ON]])
    decorator = line_of("def lost") - 1
    assert told.startswith(f"{__file__}:{decorator}: warning: lost")


@pytest.mark.parametrize(
    "values",
    [
        [[OFF, OFF, OFF], [OFF, OFF, OFF]],  # never
        [[ON, ON, ON], [OFF, OFF, ON]],  # true after a reset
        [[OFF, ON, ON], [OFF, ON, ON]],  # with the first call always, like `started`
        [[OFF, ON, OFF], [OFF, OFF, ON]],  # it opens and closes
    ],
)
def test_what_is_no_end_is_not_suggested(values: list[list[bool]]) -> None:
    assert suggested(door=values) == ""


def test_a_name_that_says_it_is_believed_where_a_call_undoes_it() -> None:
    told = suggested(
        is_done=[[OFF, ON, OFF], [OFF, OFF, ON]], hinted=[[OFF, OFF, ON], [OFF, ON, ON]]
    )
    assert "is_done turns true in 2 of 2 episodes:" in told
    assert "hinted" not in told


def test_of_several_the_one_that_turns_true_most_often_is_first() -> None:
    told = suggested(won=[[OFF, OFF, ON], [OFF, OFF, OFF]], lost=[[OFF, OFF, ON], [OFF, OFF, ON]])
    assert "lost turns true in 2 of 2 episodes (also won): if" in told
