from __future__ import annotations

import pytest

from scripts.words.visible import shortened, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text\n\twith a tab", "plain text\n\twith a tab"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("a\x00b\x7f", "a␀b␡"),
        ("if admin \u202e\u2066// check\u2069", "if admin ⟨U+202E⟩⟨U+2066⟩// check⟨U+2069⟩"),
        ("half \ud800 pair", "half ⟨U+D800⟩ pair"),
        ("zero\u200bwidth", "zero⟨U+200B⟩width"),
        ("naïve café – 你好", "naïve café – 你好"),
        ("carriage\rreturn", "carriage␍return"),
    ],
)
def test_characters_without_a_shape_are_spelt_out_and_others_stay(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_what_is_visible_can_always_be_written_to_a_file() -> None:
    every = "".join(map(chr, [*range(0x3000), *range(0xD7F0, 0xE010)]))
    visible(every).encode("utf-8")


def test_a_short_text_is_not_cut_and_a_long_one_keeps_head_and_tail() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("a" * 10 + "z" * 10, 6) == "aaaa\n… 14 characters cut …\nzz"
