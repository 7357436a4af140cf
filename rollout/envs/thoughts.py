"""Where a reply's thoughts end and what it says begins.

Models that reason write `<think>…</think>` before they answer, or only its end where the prompt
opened it. What is only thought of is done in no world, so every reader of replies that has no
parser of its own for it asks here. Nothing here knows commands or tools.
"""

from __future__ import annotations

import re

_BEGINS = re.compile(r"\ufeff?\s*<think>")
_ENDS = re.compile(r"(?m)^[ \t]*</think>|</think>(?=\r?$)")
_END = "</think>"
_MARK = re.compile(r"</?think>")


def after_thoughts(text: str) -> str:
    """The reply after the last `</think>` at the start or the end of a line, whether the reply or
    its prompt opened the thought. One that the reply opens may close anywhere; if it does not,
    nothing is left of the reply."""
    start = 0
    for end in _ENDS.finditer(text):
        start = end.end()
    if _BEGINS.match(text, start) and _END in text[start:]:
        start = text.rindex(_END) + len(_END)
    return "" if _BEGINS.match(text, start) else text[start:]


def thoughts_apart(text: str) -> tuple[str, str | None]:
    """What a reply says, and its thoughts without their marks. A reply without thoughts is given as
    it is, with None."""
    said = after_thoughts(text)
    if said == text:
        return text, None
    thought = text[: len(text) - len(said)]
    return said.strip(), _MARK.sub("", thought).strip()
