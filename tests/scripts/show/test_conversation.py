"""One attempt on the terminal: what is said of a turn, and that hostile text stays text."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from fieldkit.records import Action, ActionKind, RolloutGroup, Signal, Task, Trajectory, Turn
from scripts.prepare.model import build_model
from scripts.show.attempts import Played
from scripts.show.conversation import COLUMN, Exhibit, conversation, fresh_ids
from scripts.show.tokens import SHADES, Vocabulary, given, read_vocabulary, shade
from tests.scripts.evals import task, trajectory
from tests.scripts.made_night import turn

NAME = "warm start"
LS = turn("```bash\nls\n```", command="ls", observation="notes.txt")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    found = read_vocabulary(build_model())
    assert found is not None
    return found


def talk(*turns: Turn) -> tuple[Turn, ...]:
    """Turns whose prompts grow as a transcript's do: reply, then a bridge of two ids."""
    prompt: tuple[int, ...] = (1, 2)
    grown = []
    for t in turns:
        grown.append(replace(t, prompt_ids=prompt))
        prompt = (*prompt, *t.completion_ids, 7, 8)
    return tuple(grown)


def attempt(*turns: Turn, grown: bool = True) -> Trajectory:
    played = trajectory("t000", "a", 4, 1, False)
    return replace(played, turns=talk(*turns) if grown else turns)


def page(
    played: Trajectory | Played | Sequence[Exhibit],
    *,
    width: int = 100,
    vocabulary: Vocabulary | None = None,
    tokens: bool = False,
    of: Task | None = None,
) -> str:
    if isinstance(played, Trajectory):
        played = Played(played)
    exhibits = [Exhibit(NAME, played)] if isinstance(played, Played) else played
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(
        conversation(of or task(0), exhibits, width=width, vocabulary=vocabulary, tokens=tokens)
    )
    return out.getvalue()


def test_a_turn_says_its_command_its_output_its_exit_code_and_its_progress() -> None:
    told = replace(LS, exit_code=2, observation="[exit 2]\nno such file", reward=-0.25)
    shown = page(attempt(LS, told))
    assert "turn 2 · 3 tokens · exit 2 · progress −0.25" in shown
    assert "$ ls" in shown
    assert "no such file" in shown


def test_the_end_is_told_in_one_line() -> None:
    assert "passed 4/4 · MAX_TURNS · 1 turn · reward 0.98" in page(attempt(LS))


def test_words_around_the_command_are_shown_before_it() -> None:
    shown = page(attempt(turn("I look around.\n```bash\nls\n```", command="ls")))
    assert shown.index("I look around.") < shown.index("$ ls")


def test_a_reply_without_a_command_and_one_that_was_cut_are_named() -> None:
    shown = page(attempt(replace(turn("Hello"), finish_reason="length")))
    assert "no command was found" in shown
    assert "cut at its token limit" in shown


def test_the_last_output_is_marked_as_one_that_the_model_never_read() -> None:
    shown = page(attempt(replace(LS, observation="first"), replace(LS, observation="second")))
    assert shown.index("first") < shown.index("second") < shown.index("has not read this")
    assert shown.count("has not read this") == 1


def test_a_stop_has_no_output_and_says_so() -> None:
    done = replace(LS, text="TASK_COMPLETE", action=Action(ActionKind.DONE, ""), observation=None)
    shown = page(attempt(LS, done))
    assert "says that it is done" in shown
    assert "has not read this" not in shown


def test_turns_that_repeat_are_told_once_with_every_turns_own_numbers() -> None:
    turns = [replace(LS, reward=r) for r in (0.5, 0.0, 0.0)]
    shown = page(attempt(*turns))
    assert "turns 1–3 · 3 times the same" in shown
    assert "progress +0.50 0.00 0.00" in shown
    assert "has not read the last of these" in shown
    assert shown.count("$ ls") == 1


def grouped(turn_advantages: tuple[float, ...] | None) -> Played:
    mine = attempt(LS, replace(LS, observation="x"))
    by_turn = None if turn_advantages is None else (turn_advantages, (0.1, 0.1))
    group = RolloutGroup(
        3, "clawgym", "t000", (mine, replace(mine, k=1)), (0.7, -0.7), Signal.LEARNABLE, by_turn
    )
    return Played(mine, group)


def test_an_episodes_advantage_and_its_groups_signal_stand_beside_its_reward() -> None:
    shown = page(grouped(None))
    assert "advantage +0.70 · LEARNABLE" in shown
    assert shown.count("advantage") == 1


def test_advantages_by_turn_stand_at_their_turns() -> None:
    shown = page(grouped((0.31, -1.2)))
    assert "turn 1 · 3 tokens · exit 0 · advantage +0.31" in shown
    assert "turn 2 · 3 tokens · exit 0 · advantage −1.20" in shown


def test_an_evaluation_has_no_advantage() -> None:
    assert "advantage" not in page(attempt(LS))


def test_every_assertion_is_ticked_with_what_it_wants_and_why_it_fails() -> None:
    wants = {"kind": "file_exists", "path": "f0", "must_contain": ["a", "b"]}
    told = replace(task(0), info={"verifiable_assertions": [wants] * 4})
    shown = page(trajectory("t000", "a", 2, 1, True), of=told)
    assert "✓ file_exists f0\n  a · b" in shown
    assert "✗ file_unchanged f2\n  a · b\n  missing" in shown


def test_a_conversation_that_was_rendered_anew_is_told(vocabulary: Vocabulary) -> None:
    first, second = LS, replace(LS, prompt_ids=(5, 6), observation="b")
    shown = page(attempt(first, second, grown=False), vocabulary=vocabulary)
    assert "rendered anew for turn 2" in shown
    assert "rendered anew" not in page(attempt(first, second), vocabulary=vocabulary)


# --- side by side ---------------------------------------------------------------------------------


def pair() -> list[Exhibit]:
    return [Exhibit(NAME, Played(attempt(LS))), Exhibit("base", Played(attempt(turn("Hello"))))]


def test_two_attempts_stand_side_by_side_from_120_columns_on() -> None:
    lines = page(pair(), width=2 * COLUMN).splitlines()
    assert any("$ ls" in line and "Hello" in line for line in lines)


def test_on_a_narrower_terminal_one_follows_the_other() -> None:
    shown = page(pair(), width=2 * COLUMN - 1)
    assert not any("$ ls" in line and "Hello" in line for line in shown.splitlines())
    assert shown.index("$ ls") < shown.index("Hello")


def test_assertions_are_ticked_for_each_attempt_in_the_order_of_the_names() -> None:
    worse = Exhibit("base", Played(trajectory("t000", "b", 1, 1, False)))
    shown = page([Exhibit(NAME, Played(trajectory("t000", "a", 4, 1, True))), worse])
    assert "from left to right: warm start; base" in shown
    assert "✓ ✗ file_unchanged f2\n    base: missing" in shown


def test_no_line_is_wider_than_the_terminal() -> None:
    long = replace(LS, action=Action(ActionKind.RUN, "echo " + "x" * 300), observation="y" * 300)
    for width in (60, 80, 120):
        exhibits = [Exhibit(NAME, Played(attempt(long))), *pair()[1:]]
        assert max(map(len, page(exhibits, width=width).splitlines())) <= width


# --- hostile text ---------------------------------------------------------------------------------

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\x08\r\u202egnp.exe [bold]not a style[/bold]"


def test_nothing_that_a_model_or_a_command_wrote_reaches_the_terminal_as_a_control() -> None:
    told = turn(HOSTILE, command=f"cat {HOSTILE}", observation=HOSTILE)
    played = replace(
        attempt(told, turn(HOSTILE)),
        task_id=f"t{HOSTILE}",
        grade=replace(
            trajectory("t", "a", 0, 1, False).grade,
            results=tuple(
                replace(r, path=HOSTILE, detail=HOSTILE)
                for r in trajectory("t", "a", 0, 1, False).grade.results
            ),
        ),
    )
    of = Task(f"t{HOSTILE}", "clawgym", HOSTILE, {"persona": HOSTILE})
    shown = page(played, of=of)
    assert {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs")} == {"\n"}
    assert "␛[2J" in shown
    assert "[bold]not a style[/bold]" in shown


# --- tokens ---------------------------------------------------------------------------------------


def test_the_first_prompt_is_shown_from_its_very_ids_template_and_all(
    vocabulary: Vocabulary,
) -> None:
    shown = page(attempt(replace(LS, prompt_ids=(1, 9690, 198))), vocabulary=vocabulary)
    assert "<|im_start|>" in shown


def test_without_a_tokenizer_the_prompt_is_told_in_the_tasks_words() -> None:
    assert "do it" in page(attempt(LS))


def test_tokens_show_text_logprob_and_id_and_the_boundaries_of_what_was_given(
    vocabulary: Vocabulary,
) -> None:
    said = replace(LS, completion_ids=(3725, 44029, 198), logprobs=(-0.001, -2.5, -0.3))
    shown = page(attempt(said), vocabulary=vocabulary, tokens=True)
    texts, logprobs, ids = next(
        (a.split(), b.split(), c.split())
        for a, b, c in zip(*[shown.splitlines()[i:] for i in range(3)], strict=False)
        if "44029" in c
    )
    assert texts == ["```", "bash", "↵"]
    assert logprobs == ["0.00", "−2.50", "−0.30"]
    assert ids == ["3725", "44029", "198"]


def test_every_turn_of_a_repeated_one_has_its_own_tokens(vocabulary: Vocabulary) -> None:
    turns = [replace(LS, logprobs=(lp,) * 3) for lp in (-0.11, -0.22)]
    shown = page(attempt(*turns), vocabulary=vocabulary, tokens=True)
    assert "−0.11" in shown
    assert "−0.22" in shown


def test_what_is_new_in_a_prompt_is_what_follows_the_last_reply() -> None:
    turns = attempt(LS, LS).turns
    assert fresh_ids(turns, 0) == (1, 2)
    assert fresh_ids(turns, 1) == (7, 8)
    anew = (turns[0], replace(turns[1], prompt_ids=(4, 5, 6)))
    assert fresh_ids(anew, 1) == (4, 5, 6)


def test_boundaries_stand_between_all_tokens_and_lose_none(vocabulary: Vocabulary) -> None:
    ids = (1, 9690, 198, 2683, 746)
    assert given(ids, vocabulary).plain == "<|im_start|>│system│↵│You│·work"


def test_a_policy_that_sampled_nothing_has_no_probabilities(vocabulary: Vocabulary) -> None:
    random = Exhibit("a random policy", Played(attempt(LS)), sampled=False)
    shown = page([random], vocabulary=vocabulary, tokens=True)
    assert "sampled tokens" not in shown


@pytest.mark.parametrize(
    ("p", "rank"), [(1.0, 0), (0.9, 0), (0.89, 1), (0.5, 1), (0.2, 2), (0.01, 3)]
)
def test_a_tokens_colour_says_how_likely_it_was(p: float, rank: int) -> None:
    assert shade(math.log(p) + 1e-12) == SHADES[rank][1]
