"""A text in pieces that fit a budget of tokens, which are estimated from characters.

A chunk is a slice of the text, so what stands inside it is as it was. No tokenizer is loaded: the
estimate is for budgets, not for bills.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fieldkit.errors import BadInput

CHARACTERS_PER_TOKEN = 4
"""The rule of thumb for English text; code and other scripts have fewer."""

DEFAULT_CHUNK_TOKENS = 1024
"""Three such chunks and a question fit a window of 8,192 tokens with room for an answer."""

_PARAGRAPHS = re.compile(r"\n\s*\n")
_SENTENCES = re.compile(r"""(?<=[.!?])\s+(?=["'(\[A-Z])""")
_WORDS = re.compile(r"\s+")

_Span = tuple[int, int]
"""Where a piece begins in the text, and where it ends."""


def estimate_tokens(text: str) -> int:
    """A token for every four characters begun.

    >>> estimate_tokens("hello")
    2
    """
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def chunk_text(text: str, *, max_tokens: int = DEFAULT_CHUNK_TOKENS) -> list[str]:
    """The text in chunks of at most `max_tokens` estimated tokens, and at least one chunk.

    A chunk ends between paragraphs; inside a paragraph that is too long between sentences; inside
    such a sentence between words; and only inside such a word anywhere. The whitespace between two
    chunks is left out. Raises `BadInput` for a budget below 1.

    >>> chunk_text("One two. Three four.", max_tokens=3)
    ['One two.', 'Three four.']
    """
    if max_tokens < 1:
        raise BadInput(f"max_tokens is {max_tokens}; a chunk has at least 1")
    limit = max_tokens * CHARACTERS_PER_TOKEN
    chunks: list[_Span] = []
    for start, end in _split(text, _PARAGRAPHS, (0, len(text))):
        if end - start > limit:
            chunks += _packed(_sentences(text, (start, end), limit), limit)
        else:
            chunks = _packed([(start, end)], limit, chunks)
    return [text[start:end] for start, end in chunks] or [""]


def _split(text: str, boundary: re.Pattern[str], span: _Span) -> Iterator[_Span]:
    start, end = span
    for found in boundary.finditer(text, start, end):
        yield start, found.start()
        start = found.end()
    yield start, end


def _sentences(text: str, paragraph: _Span, limit: int) -> Iterator[_Span]:
    """Its sentences, each that is too long in parts that are not."""
    for start, end in _split(text, _SENTENCES, paragraph):
        if end - start <= limit:
            yield start, end
        else:
            yield from _packed(_words(text, (start, end), limit), limit)


def _words(text: str, sentence: _Span, limit: int) -> Iterator[_Span]:
    for start, end in _split(text, _WORDS, sentence):
        yield start, min(start + limit, end)
        for at in range(start + limit, end, limit):
            yield at, min(at + limit, end)


def _packed(pieces: Iterable[_Span], limit: int, into: list[_Span] | None = None) -> list[_Span]:
    """Each piece in the last chunk where that stays within the limit, else in a new one."""
    chunks = [] if into is None else into
    for start, end in pieces:
        if chunks and end - chunks[-1][0] <= limit:
            chunks[-1] = (chunks[-1][0], end)
        elif start < end:
            chunks.append((start, end))
    return chunks
