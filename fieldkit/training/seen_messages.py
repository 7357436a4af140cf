"""The messages that a policy saw, read back from the token ids that it was given.

A stored trajectory holds the exact ids of every prompt. They are decoded and cut where the chat
template puts its own text; nothing is reconstructed from settings or task files, and a prompt that
the template did not make is an error.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.records import Trajectory, Turn

Message = dict[str, str]
"""role and content, as chat templates take them."""

_SLOT = "\x02{}\x03"  # a content that no template has in its own text
_START, _END = "start", "end"

# Between them these conversations hold every pair of neighbours; templates refuse some of them.
_PROBES = ("U", "SU", "UU", "SUU", "UAU", "SUAU", "UAUAU", "UAUU", "UAT", "UATT", "UATAU", "UATU")
_ROLES = {"S": "system", "U": "user", "A": "assistant", "T": "tool"}


def replay_messages_from_trajectory(
    trajectory: Trajectory, tokenizer: Any
) -> tuple[tuple[Message, ...], ...]:
    """For each turn the messages of its prompt, the system text and earlier replies among them.

    trajectory: one that `grpo` stored (`fieldkit.codec.read_trajectories`). tokenizer: the
    model's own (from transformers), with its chat template. Contents are as the policy saw them:
    trimmed where the template trims, with the tools where it writes them out, and without the
    system text that a template adds by itself. Raises `BadInput` that names task, k and turn for a
    prompt that this template does not make.
    """
    template = _Template(tokenizer)
    seen: list[tuple[Message, ...]] = []
    last: Turn | None = None
    for number, turn in enumerate(trajectory.turns):
        where = f"task {trajectory.task_id} k={trajectory.k} turn {number}"
        before: tuple[Message, ...] = ()
        ids, role = turn.prompt_ids, _START
        if last is not None and _grew(last, turn):
            reply = template.reply(last.completion_ids)
            content = template.decode(reply)
            before = (*seen[-1], {"role": "assistant", "content": content})
            ids, role = ids[len(last.prompt_ids) + len(reply) :], "assistant"
        seen.append((*before, *template.read(template.decode(ids), role, where)))
        last = turn
    return tuple(seen)


def _grew(last: Turn, turn: Turn) -> bool:
    """Whether a prompt is the one before, the reply, and what followed."""
    before = last.prompt_ids + last.completion_ids
    return turn.prompt_ids[: len(before)] == before


class _Template:
    """A chat template as the texts that it puts between contents, by the roles around them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._frames: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for probe in _PROBES:
            for role, after, text in self._frames_of([_ROLES[letter] for letter in probe]):
                self._frames[role].add((after, text))
        if _START not in self._frames:
            raise BadInput(f"{self.name}: the chat template renders no conversation")

    @property
    def name(self) -> str:
        return self._tokenizer.name_or_path or "this tokenizer"

    def _frames_of(self, roles: Sequence[str]) -> Iterator[tuple[str, str, str]]:
        from jinja2 import TemplateError

        slots = [_SLOT.format(i) for i in range(len(roles))]
        messages = [{"role": r, "content": s} for r, s in zip(roles, slots, strict=True)]
        try:
            rest: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except TemplateError:
            return
        texts = []
        for slot in slots:
            text, found, rest = rest.partition(slot)
            if not found:  # the template leaves this message out
                return
            texts.append(text)
        around = pairwise([_START, *roles, _END])
        yield from ((a, b, text) for (a, b), text in zip(around, [*texts, rest], strict=True))

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def reply(self, completion_ids: Sequence[int]) -> Sequence[int]:
        """A completion without the end of turn, where it reached one."""
        ended = bool(completion_ids) and completion_ids[-1] in self._special
        return completion_ids[:-1] if ended else completion_ids

    def read(self, text: str, role: str, where: str) -> Iterator[Message]:
        """The messages of a text that follows the content of `role`, up to the next reply's."""
        refusal = BadInput(
            f"{where}: its prompt does not follow the chat template of {self.name}; give the "
            "tokenizer of the model that sampled it"
        )
        role, frame = self._next(text, role, at_once=True) or (_END, None)
        if frame is None:
            raise refusal
        while role != _END:
            text = text.partition(frame)[2]
            found = self._next(text, role)
            if found is None:
                raise refusal
            after, frame = found
            content = text.partition(frame)[0] if frame else text
            yield {"role": role, "content": content}
            role = after

    def _next(self, text: str, role: str, *, at_once: bool = False) -> tuple[str, str] | None:
        """The role that comes next in `text`, and the frame before it: of those that begin first
        the longest. The frame of the end reaches the end of the text."""
        found = []
        for after, frame in self._frames[role]:
            at = len(text) - len(frame) if after == _END else text.find(frame)
            if (at == 0 or (at > 0 and not at_once)) and text[at:].startswith(frame):
                found.append((at, -len(frame), after != _END, after, frame))
        return min(found)[3:] if found else None
