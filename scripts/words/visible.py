"""Text that a model or a command wrote, made safe to look at.

Transcripts are hostile: they may hold escape sequences, characters that turn the reading direction
around, or halves of a surrogate pair that no file can hold. Those are made visible here; HTML is
escaped by the template, always. Nothing is lost without a sign.
"""

from __future__ import annotations

import unicodedata

CONTROL_PICTURES = 0x2400
"""Unicode's pictures of the control characters begin here: ESC is shown as ␛."""

KEPT = "\n\t"

_INVISIBLE = {"Cf", "Cs", "Co", "Cn"}
"""Categories with no shape of their own: format (bidi overrides), surrogates, unassigned."""


def visible(text: str) -> str:
    """The text with every character that has no shape of its own spelt out."""
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
    """At most about `most` characters: head and tail, and how much was cut between them."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    tail = most - head
    return f"{text[:head]}\n… {len(text) - most} characters cut …\n{text[-tail:]}"
