"""Renders token ids: the text, the boundaries and the probability of each.

Only tokenizer.json of the model folder is read, because importing transformers takes several
seconds. The ids are the stored ones; text is never encoded again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.text import Text

from scripts.words import quantities
from scripts.words.visible import visible

TOKENIZER = "tokenizer.json"

SHADES = ((0.9, "green"), (0.5, "cyan"), (0.1, "yellow"), (0.0, "bold red"))
"""Lowest probability of a sampled token → its style."""

TEMPLATE_STYLE = "dim magenta"
"""The style of special tokens; ordinary text never has it."""

BOUNDARY = "│"

SPACE, LINE_END, TAB = "·", "↵", "⇥"
_SHAPES = {ord(" "): SPACE, ord("\n"): LINE_END, ord("\t"): TAB}


class Vocabulary:
    """Decodes token ids."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: a `tokenizers.Tokenizer`."""
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(i for i, token in added.items() if token.special)

    def styled(self, ids: Sequence[int]) -> Text:
        """The text of many ids, safe to print, with special tokens in their own style."""
        text = Text()
        for special, run in itertools.groupby(ids, self._special.__contains__):
            text.append(visible(self._decode([*run])), TEMPLATE_STYLE if special else "")
        return text

    def piece(self, token: int) -> Text:
        """The text of one id, with whitespace and control characters made visible."""
        shown = visible(self._decode([token])).translate(_SHAPES)
        return Text(shown, TEMPLATE_STYLE if token in self._special else "")

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def read_vocabulary(model_dir: Path) -> Vocabulary | None:
    """Read the vocabulary of a model folder; None if it has no tokenizer.json."""
    if not (model_dir / TOKENIZER).is_file():
        return None
    from tokenizers import Tokenizer

    return Vocabulary(Tokenizer.from_file(str(model_dir / TOKENIZER)))


def shade(logprob: float) -> str:
    """The style of a sampled token."""
    return next(style for least, style in SHADES if math.exp(logprob) >= least)


def legend(temperature: float) -> Text:
    """The legend for `given` and `sampled`, in one line."""
    shades = [(f"{least:g} or more  " if least else "less", style) for least, style in SHADES]
    rest = (
        f"; below it ln p at T = {temperature:g}, and its id; {BOUNDARY} between given tokens;"
        f" {SPACE} a space, {LINE_END} a new line, {TAB} a tab"
    )
    return Text.assemble(("probability of the sampled token: ", "dim"), *shades, (rest, "dim"))


def given(ids: Sequence[int], vocabulary: Vocabulary) -> Text:
    """The text of prompt ids, with token boundaries."""
    return Text.assemble((BOUNDARY, "dim")).join(map(vocabulary.piece, ids))


def sampled(
    ids: Sequence[int], logprobs: Sequence[float], vocabulary: Vocabulary
) -> RenderableType:
    """Sampled ids: text, logprob and id of each, one below the other."""
    cells = []
    for token, logprob in zip(ids, logprobs, strict=True):
        text = (vocabulary.piece(token).plain, shade(logprob))
        cell = Text.assemble(text, f"\n{quantities.plain(logprob, 2)}\n", (str(token), "dim"))
        cell.no_wrap = True
        cells.append(cell)
    return Group(Columns(cells, padding=(0, 2)))
