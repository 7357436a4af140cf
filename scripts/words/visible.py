"""Makes text from a model or a command safe to show.

Such text may be hostile: it may hold escape sequences, characters that reverse the reading
direction, or unpaired surrogates that no file can hold. They are replaced by visible signs, never
dropped. HTML is escaped by the templates.
"""

from __future__ import annotations

import unicodedata

CONTROL_PICTURES = 0x2400
"""First of Unicode's pictures of the control characters: ESC is shown as ␛."""

KEPT = "\n\t"

_INVISIBLE = {"Cf", "Cs", "Co", "Cn"}
"""Unicode categories without glyphs: format (bidi overrides), surrogate, private, unassigned."""


def visible(text: str) -> str:
    """The text with every invisible character replaced by a visible sign."""
    if text.isprintable():
        return text
    return "".join(map(_shown, text))


def _shown(char: str) -> str:
    if char in KEPT or char.isprintable():
        return char
    code = ord(char)
    if code < 0x20:
        return chr(CONTROL_PICTURES + code)
    if code == 0x7F:
        return "\u2421"
    if code < 0xA0 or unicodedata.category(char) in _INVISIBLE:
        return f"⟨U+{code:04X}⟩"
    return char


def shortened(text: str, most: int) -> str:
    """About `most` characters at most: head and tail, and how much was cut between them."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]}\n… {len(text) - most} characters cut …\n{text[-tail:]}"
