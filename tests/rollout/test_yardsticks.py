"""A yardstick from outside is one entry, and is an arm of every evaluation from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.arm import evaluate_arm
from rollout.envs.shell_protocol import block
from rollout.policies import RecitedPolicy
from rollout.settings import EpisodeSettings
from rollout.yardsticks import (
    YARDSTICKS,
    Yardstick,
    evaluated_yardsticks,
    yardstick_player,
)
from scripts.evidence.played import reading_order
from scripts.run.next_phase import RunFiles, due_arms
from tests.rollout.scripted import SHAPED, worlds, write_task

TASKS = [write_task("alpha"), write_task("beta")]


@pytest.fixture
def listing() -> Iterator[str]:
    """Looks around once and is done."""
    YARDSTICKS.register(
        "listing", Yardstick(lambda task, settings, load: RecitedPolicy([block("ls")]))
    )
    yield "listing"
    YARDSTICKS.remove("listing")


def test_it_is_due_played_and_read_like_those_of_the_house(listing: str, tmp_path: Path) -> None:
    started = RunFiles(True, ("sha",), False, frozenset(), False)
    assert due_arms(started, 5, 0) == ("do-nothing", "oracle", listing, "base", "sha")
    one = yardstick_player(
        listing, worlds=worlds(tmp_path), settings=EpisodeSettings(), reward=SHAPED
    )
    arm = asyncio.run(evaluate_arm(listing, TASKS, player=one, evals=tmp_path / "evals"))
    assert (arm.adapter_sha, arm.commands, arm.n_passed, arm.mean_turns) == (listing, 2, 0, 1)
    names = ["step 3", "base", listing, "warm start", "oracle"]
    assert sorted(names, key=reading_order)[:3] == ["oracle", listing, "base"]


def test_random_replies_are_no_arm_unless_asked_for() -> None:
    assert "random" in YARDSTICKS
    assert evaluated_yardsticks() == ("do-nothing", "oracle")


def test_a_name_is_taken_once_and_an_unknown_one_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"yardstick 'oracle' is registered twice: by rollout\."):
        YARDSTICKS.register("oracle", YARDSTICKS["random"])
    with pytest.raises(BadInput, match="did you mean 'oracle'"):
        yardstick_player(
            "orakle", worlds=worlds(tmp_path), settings=EpisodeSettings(), reward=SHAPED
        )
