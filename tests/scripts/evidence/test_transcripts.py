from __future__ import annotations

from dataclasses import replace

from fieldkit.records import Action, ActionKind, Turn
from scripts.evidence.flips import Change, Flip, Flips
from scripts.evidence.transcripts import (
    MOST,
    TEXT_CHARS,
    TurnView,
    flip_view,
    turn_views,
    views,
)
from tests.scripts.evals import task, trajectory
from tests.scripts.made_night import turn

LS = turn("```bash\nls\n```", command="ls")


def attempt(*turns: Turn) -> tuple[TurnView, ...]:
    return turn_views(replace(trajectory("t", "a", 4, 1, True), turns=turns))


def test_turns_that_say_and_see_the_same_are_told_once() -> None:
    shown = attempt(LS, LS, LS, turn("```bash\ncat a\n```", command="cat a"), LS)
    assert [(t.label, t.repeated) for t in shown] == [
        ("turns 1–3", 3),
        ("turn 4", 1),
        ("turn 5", 1),
    ]


def test_the_same_command_with_another_output_is_another_turn() -> None:
    assert len(attempt(LS, replace(LS, observation="b"))) == 2


def test_a_reply_that_is_only_the_commands_block_is_shown_as_the_command() -> None:
    assert (attempt(LS)[0].reply, attempt(LS)[0].command) == ("", "ls")


def test_words_around_the_block_are_shown() -> None:
    chatty = turn("I look.\n```bash\nls\n```", command="ls")
    assert attempt(chatty)[0].reply == "I look.\n```bash\nls\n```"


def test_a_long_output_loses_its_middle_and_says_how_much() -> None:
    shown = attempt(turn("x", observation="a" * 5000 + "THE END"))[0].output
    assert shown is not None
    assert shown.endswith("THE END")
    assert f"{5007 - TEXT_CHARS} characters cut" in shown
    assert len(shown) < TEXT_CHARS + 60


def test_a_turn_that_says_it_is_done_is_marked() -> None:
    done = replace(LS, action=Action(ActionKind.DONE, ""), text="TASK_COMPLETE", observation=None)
    shown = attempt(done)[0]
    assert (shown.done, shown.command, shown.output) == (True, "", None)


def flip(number: int, change: Change = Change.LOST) -> Flip:
    before = trajectory(f"t{number:03d}", "a", 4, 3, False)
    return Flip(task(number), change, before, trajectory(f"t{number:03d}", "b", 2, 3, True))


def test_every_assertion_is_ticked_for_both_attempts_with_the_reason_it_fails() -> None:
    shown = flip_view(flip(0), "warm start", "step 8")
    assert [(a.before, a.after) for a in shown.assertions] == [
        (True, True),
        (True, True),
        (True, False),
        (True, False),
    ]
    assert shown.assertions[2].why == "missing"


def test_an_assertions_own_words_come_from_the_task() -> None:
    spec = {"kind": "file_exists", "path": "f0", "must_contain": ["a", "b"]}
    told = replace(flip(0), task=replace(task(0), info={"verifiable_assertions": [spec]}))
    shown = flip_view(told, "warm start", "step 8").assertions
    assert (shown[0].wanted, shown[1].wanted) == ("a · b", "")


def test_only_so_many_tasks_of_each_kind_are_shown() -> None:
    lost = [flip(i) for i in range(MOST[Change.LOST] + 3)]
    won = [flip(i, Change.WON) for i in range(2)]
    shown = [v.change for v in views(Flips("warm start", "step 8", (*lost, *won)))]
    assert shown == ["lost"] * MOST[Change.LOST] + ["won"] * 2
