"""The only module that composes the text that the policy sees.

A transcript is a list of token ids that only grows: sampled ids are kept as they are, and only the
new text between two completions (end of turn, the observation, the next header) is tokenised. So
training sees exactly what sampling saw. If a chat template does not allow a conversation to grow
that way, the conversation is rendered again and the trajectory gets a new segment. The template is
tried once for each kind of reply.

Messages and tools come from the world and may spell the model's control tokens.
They are broken up before they are tokenised, so that no text can end its turn and speak for
another.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json
from rollout.envs.base import Message

Tools = Sequence[Mapping[str, Any]] | None
"""JSON schemas of tools, as chat templates take them; None if there are none."""

_GENERIC = "TokenizersBackend"  # what transformers calls a tokenizer that is all in tokenizer.json

# Placeholders that a template passes through unchanged; no template contains their text.
_SYSTEM, _USER, _REPLY = "\x02system\x03", "\x02user\x03", "\x02reply\x03"
_NEXT = "what the world says next"  # plain, because some templates quote the answers of tools

_THINKS = re.compile("</?think>")
"""What marks reasoning in a reply. Templates take it out, or put an empty one in."""

_OPENED = re.compile(r"<think>\s*\Z")
_OPENED_IDS = 8  # at the end of a prompt, where the mark may be several tokens

_MARKS = frozenset(("<think>", "</think>", "<tool_call>", "</tool_call>"))
"""What a reply means depends on these. Some models have them as special tokens, which a text of ids
leaves out otherwise; they are text here, as of all other models."""

Switch = bool | int | str
"""A variable of a chat template."""

_TODAY = datetime(2024, 7, 26)
"""The date for templates that show one; Llama 3's template has it as its default. With the real
date, sampling would depend on the day, and arms of two days could not be compared."""

_BEGINNING: tuple[Message, ...] = (
    {"role": "system", "content": _SYSTEM},
    {"role": "user", "content": _USER},
)


class ChatRenderer:
    """The parts of a model folder's tokenizer and chat template that a transcript needs."""

    def __init__(
        self,
        model_dir: Path,
        template: str | None = None,
        switches: Mapping[str, Switch] | None = None,
    ) -> None:
        """template: replaces the model's own. switches: further variables for it."""
        if not (model_dir / "tokenizer_config.json").is_file():
            raise BadInput(f"{model_dir}: no tokenizer there; `grpo model` builds the default one")
        self._tokenizer: Any = _load_tokenizer(model_dir)
        self._switches = {"strftime_now": _TODAY.strftime, **(switches or {})}
        if template is not None:
            self._tokenizer.chat_template = template
        if self._tokenizer.chat_template is None:
            raise BadInput(f"{model_dir}: the tokenizer has no chat template")
        special = _special_tokens(self._tokenizer) - _MARKS
        self._special_ids = frozenset(self._tokenizer.convert_tokens_to_ids([*special]))
        self._control = _any_of(special)
        self._takes_system = self._shows_system()
        self.eot_id = self._end_of_turn(self._after_reply([{"role": "user", "content": ""}]))
        self.preserving: dict[tuple[str, bool], bool] = {}
        """`preserves_prefixes` without tools, by role and kind of reply, where it was asked."""

    def _shows_system(self) -> bool:
        """Whether the template has a place for a system message. Some refuse one, some leave it
        out, and a policy would never learn how to act."""
        from jinja2 import TemplateError

        try:
            return _SYSTEM in self._text_of(_BEGINNING, None)
        except TemplateError:
            return False

    def preserves_prefixes(self, role: str, thinks: bool, tools: Tools = None) -> bool:
        """Whether a finished turn stays the same when a message of `role` follows. Templates of
        reasoning models keep a reply's reasoning only while tools answer, and add an empty one to
        a reply without. thinks: the reply has reasoning."""
        before = self._render(_BEGINNING, tools)
        reply = f"<think>\nx\n</think>\n\n{_REPLY}" if thinks else _REPLY
        told = {"role": role, "name": "tool", "content": _NEXT}
        whole = self._render([*_BEGINNING, {"role": "assistant", "content": reply}, told], tools)
        return whole.startswith(before + reply) and _NEXT in whole

    def _after_reply(self, told: Sequence[Message], tools: Tools = None) -> str:
        """The text that the template puts after a reply: its end, `told`, the header of the next
        reply."""
        reply = {"role": "assistant", "content": _REPLY}
        return self._render([*_BEGINNING, reply, *told], tools).partition(_REPLY)[2]

    def _end_of_turn(self, after_reply: str) -> int:
        ids = self._encode(after_reply)
        if not ids or ids[0] not in self._special_ids:
            raise BadInput(
                f"{self._tokenizer.name_or_path}: the chat template closes a reply with "
                f"{after_reply[:20]!r}, which is no special token, so an end of turn cannot be "
                "recognised; use a template of the model's own family, or a model whose template "
                "has one (ChatML, Llama 3, Qwen)"
            )
        return ids[0]

    def _render(self, messages: Sequence[Message], tools: Tools = None) -> str:
        """The conversation as text, ending with the header of the next reply."""
        from jinja2 import TemplateError

        if not self._takes_system:
            messages = _without_system(messages)
        try:
            return self._text_of(messages, tools)
        except TemplateError as e:
            raise BadInput(
                f"{self._tokenizer.name_or_path}: the chat template refuses a conversation of "
                f"{', '.join(m['role'] for m in messages)} ({e}); use a model whose template takes "
                "it (ChatML, Llama 3, Qwen)"
            ) from None

    def _text_of(self, messages: Sequence[Message], tools: Tools) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [dict(m) for m in messages],
            tools=None if tools is None else [dict(t) for t in tools],
            tokenize=False,
            add_generation_prompt=True,
            **self._switches,
        )
        return text

    def harmless(self, outside: Any) -> Any:
        """A text from outside with a blank in every control token, which makes it ordinary text; in
        a list or a mapping, every text."""
        match outside:
            case str():
                return self._control.sub(lambda m: f"{m[0][0]} {m[0][1:]}", outside)
            case Mapping():
                return {self.harmless(key): self.harmless(v) for key, v in outside.items()}
            case [*values]:
                return [self.harmless(value) for value in values]
        return outside

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, without special tokens but for `_MARKS`."""
        kept = [i for i in ids if i not in self._special_ids]
        text: str = self._tokenizer.decode(kept, clean_up_tokenization_spaces=False)
        return text

    def opened_thought(self, prompt_ids: Sequence[int]) -> str:
        """The mark of the thought in which a prompt has its reply begin, as the prompts of some
        reasoning models do; empty where there is none."""
        end = list(prompt_ids[-_OPENED_IDS:])
        mark = _OPENED.search(self._tokenizer.decode(end, clean_up_tokenization_spaces=False))
        return mark[0] if mark else ""

    def encode_reply(self, text: str, prompt_ids: Sequence[int] = ()) -> tuple[int, ...]:
        """A written reply as ids, including its end of turn; for demonstrations. In a thought that
        its prompt opened it ends that first."""
        if self.opened_thought(prompt_ids):
            thinks = "</think>" in text
            text = text.lstrip().removeprefix("<think>") if thinks else f"</think>\n\n{text}"
        return (*self._encode(text), self.eot_id)

    def start(self, messages: Sequence[Message], tools: Tools = None) -> Transcript:
        """A new conversation that begins with `messages`, ready for the first completion."""
        return Transcript(self, messages, tools)

    def opening_ids(self, messages: Sequence[Message], tools: Tools = None) -> tuple[int, ...]:
        """A whole conversation as ids, ending with the header of the next reply."""
        return tuple(self._encode(self._render(messages, tools)))

    def bridge_ids(
        self, told: Sequence[Message], closed: bool, tools: Tools = None
    ) -> tuple[int, ...]:
        """The ids between a reply and the next one. closed: the reply has its end of turn."""
        ids = self._encode(self._after_reply(told, tools))
        return tuple(ids[1:] if closed else ids)


def _load_tokenizer(model_dir: Path) -> Any:
    """The folder's tokenizer. A generic one is loaded by its class: looking up the class imports
    torch and every model's code, which takes four times as long as the rest, in every phase of a
    night."""
    if read_json(model_dir / "tokenizer_config.json").get("tokenizer_class") == _GENERIC:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(model_dir))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model_dir))


def _without_system(messages: Sequence[Message]) -> Sequence[Message]:
    """The conversation with its system text at the head of the first user message, where Gemma 3's
    template puts it."""
    first, *rest = messages
    if first["role"] != "system":
        return messages
    if not rest or rest[0]["role"] != "user":
        return [{**first, "role": "user"}, *rest]
    return [{**rest[0], "content": f"{first['content']}\n\n{rest[0]['content']}"}, *rest[1:]]


def _special_tokens(tokenizer: Any) -> set[str]:
    """Every special token as it is written: those that transformers knows by a role (bos, eos), and
    those that are only marked as special (Gemma's end of turn)."""
    added = tokenizer.added_tokens_decoder.values()
    return {t.content for t in added if t.special} | set(tokenizer.all_special_tokens)


def _any_of(tokens: set[str]) -> re.Pattern[str]:
    """Matches each of them."""
    longest_first = sorted(tokens, key=lambda t: (-len(t), t))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


class Transcript:
    """One conversation. `prompt_ids` is what the next completion is sampled from.

    Call `add_completion` with the sampled ids, then `add_observation`; in that order, in turn.
    """

    def __init__(self, renderer: ChatRenderer, messages: Sequence[Message], tools: Tools) -> None:
        self._renderer = renderer
        self._tools: Tools = renderer.harmless(tools)
        self._messages: list[Message] = renderer.harmless(list(messages))
        self._preserving: dict[tuple[str, bool], bool] = {} if tools else renderer.preserving
        self._kinds = set[bool]()  # whether replies so far had reasoning
        self._completion: tuple[int, ...] | None = None
        self.prompt_ids: tuple[int, ...] = renderer.opening_ids(self._messages, self._tools)

    def _grows(self, told: Sequence[Message]) -> bool:
        """Whether the conversation may continue with these messages without being rendered
        again."""
        found = self._preserving
        # An earlier reply may be rewritten only now: all kinds so far count.
        now = set(itertools.product((m["role"] for m in told), self._kinds))
        for role, thinks in now - found.keys():
            found[role, thinks] = self._renderer.preserves_prefixes(role, thinks, self._tools)
        return all(found[key] for key in now)

    def add_completion(self, ids: Sequence[int]) -> str:
        """Append the sampled ids, exactly as they came; return their text, behind the mark of a
        thought that the prompt opened: without it what is only thought of would be taken as said.
        """
        if self._completion is not None:
            raise ValueError("a completion must be followed by an observation")
        self._completion = tuple(ids)
        text = self._renderer.opened_thought(self.prompt_ids) + self._renderer.decode(ids)
        reply = self._renderer.harmless(text)
        self._kinds.add(_THINKS.search(reply) is not None)
        self._messages.append({"role": "assistant", "content": reply})
        return text

    def add_observation(self, messages: Sequence[Message]) -> None:
        """Append the world's answer, at least one message, and the header of the next reply."""
        if self._completion is None:
            raise ValueError("an observation must follow a completion")
        told: list[Message] = self._renderer.harmless(list(messages))
        self._messages += told
        if self._grows(told):
            closed = self._completion[-1:] == (self._renderer.eot_id,)
            bridge = self._renderer.bridge_ids(told, closed, self._tools)
            self.prompt_ids = self.prompt_ids + self._completion + bridge
        else:
            self.prompt_ids = self._renderer.opening_ids(self._messages, self._tools)
        self._completion = None
