"""Where thoughts end, for every reader of replies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.envs.thoughts import after_thoughts, thoughts_apart


@pytest.mark.parametrize(
    ("reply", "said", "thought"),
    [
        ("ls", "ls", None),
        ("<think>\nHm.\n</think>\n\nls\n", "ls", "Hm."),
        ("Hm.\n</think>\nls", "ls", "Hm."),
        ("<think>Hm.</think>\r\nls", "ls", "Hm."),
        ("\ufeff<think>Hm.", "", "\ufeffHm."),
        (" <think>Hm.</think>\n<think>Hm", "", "Hm.\nHm"),
        ("<think>Three.</think>add: 3", "add: 3", "Three."),
        ("<think>a</think>b</think> ls <think>", "ls <think>", "ab"),
        ("echo '</think>' > a", "echo '</think>' > a", None),
        ("I <think> so", "I <think> so", None),
    ],
)
def test_a_reply_is_what_follows_its_thoughts(reply: str, said: str, thought: str | None) -> None:
    assert after_thoughts(reply).strip() == said
    assert thoughts_apart(reply) == (said, thought)


@given(st.lists(st.sampled_from(["<think>", "</think>", "\n", "\r\n", "ls", " "])).map("".join))
def test_what_is_said_is_the_end_of_the_reply_and_begins_with_no_thought(reply: str) -> None:
    said = after_thoughts(reply)
    assert reply.endswith(said)
    assert not said.strip().startswith("<think>")
