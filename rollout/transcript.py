"""The one owner of the text that the policy sees.

A transcript is a list of token ids that only ever grows: what the engine sampled is kept as the
ids it sampled, and only the new text between two completions (end of turn, the observation, the
next header) is tokenised. So training sees exactly what sampling saw. Where a chat template does
not let a conversation grow that way, the conversation is rendered anew and the trajectory gets a
new segment; that is decided once, by looking at the template, and never in silence.

Text from outside (a task's prompt, what a command printed) may spell the model's control tokens.
They are broken up before it is tokenised, so that no file can end its turn and speak for another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json

_GENERIC = "TokenizersBackend"  # what transformers calls a tokenizer that is all in tokenizer.json

# Stand-ins that a template passes through unchanged; their text appears in no template.
_USER, _REPLY, _NEXT = "\x02user\x03", "\x02reply\x03", "\x02next\x03"


class ChatRenderer:
    """A model folder's tokenizer and chat template, reduced to what a transcript needs.

    `prefix_preserving` tells whether a finished turn stays as it was when the conversation goes on.
    """

    def __init__(self, model_dir: Path) -> None:
        if not (model_dir / "tokenizer_config.json").is_file():
            raise BadInput(f"{model_dir}: no tokenizer there; `grpo model` builds the default one")
        self._tokenizer: Any = _load_tokenizer(model_dir)
        if self._tokenizer.chat_template is None:
            raise BadInput(f"{model_dir}: the tokenizer has no chat template")
        self._control = _control_tokens(self._tokenizer)
        self.prefix_preserving, self.eot_id, self._bridge = self._read_template()

    def _read_template(self) -> tuple[bool, int, tuple[str, str]]:
        """Find what the template puts between a reply and the next one."""
        first = [{"role": "system", "content": "s"}, {"role": "user", "content": _USER}]
        longer = [
            *first,
            {"role": "assistant", "content": _REPLY},
            {"role": "user", "content": _NEXT},
        ]
        before, found, after = self._render(longer).partition(_REPLY)[2].partition(_NEXT)
        preserving = bool(found)
        # Some templates cut the reasoning out of earlier replies: probe with and without.
        for reply in (_REPLY, f"<think>\nx\n</think>\n\n{_REPLY}"):
            longer[2] = {"role": "assistant", "content": reply}
            preserving = preserving and self._render(longer).startswith(self._render(first) + reply)
        return preserving, self._end_of_turn(before), (before, after)

    def _end_of_turn(self, after_reply: str) -> int:
        ids = self._encode(after_reply)
        if not ids or ids[0] not in self._tokenizer.all_special_ids:
            raise BadInput(
                f"{self._tokenizer.name_or_path}: the chat template closes a reply with "
                f"{after_reply[:20]!r}, which is no special token, so an end of turn cannot be "
                "recognised; use a model whose template has one (ChatML, Llama 3, Qwen)"
            )
        return ids[0]

    def _render(self, messages: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except TemplateError as e:
            raise BadInput(
                f"{self._tokenizer.name_or_path}: the chat template refuses a conversation of "
                f"{', '.join(m['role'] for m in messages)} ({e}); use a model whose template takes "
                "it (ChatML, Llama 3, Qwen)"
            ) from None
        return text

    def harmless(self, text: str) -> str:
        """Text from outside with a blank in every control token, which makes it ordinary text."""
        return self._control.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def encode_reply(self, text: str) -> tuple[int, ...]:
        """A written (not sampled) reply as ids, its end of turn included: for demonstrations."""
        return (*self._encode(text), self.eot_id)

    def start(self, system: str, prompt: str) -> Transcript:
        """A new conversation: `system` and the task's prompt, ready for the first completion."""
        return Transcript(self, system, prompt)

    def opening_ids(self, messages: list[dict[str, str]]) -> tuple[int, ...]:
        """A whole conversation as ids, ending with the header of the next reply."""
        return tuple(self._encode(self._render(messages)))

    def bridge_ids(self, observation: str, closed: bool) -> tuple[int, ...]:
        """The ids between a reply and the next one. `closed`: the reply ended its own turn."""
        before, after = self._bridge
        ids = self._encode(before + observation + after)
        return tuple(ids[1:] if closed else ids)


def _load_tokenizer(model_dir: Path) -> Any:
    """The folder's tokenizer. A generic one is loaded as such: finding the class of another one
    imports torch and every model's code, which takes four times as long as all the rest of it, in
    every phase of a night."""
    if read_json(model_dir / "tokenizer_config.json").get("tokenizer_class") == _GENERIC:
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(str(model_dir))
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(model_dir))


def _control_tokens(tokenizer: Any) -> re.Pattern[str]:
    """Matches every special token as it is written."""
    added = tokenizer.added_tokens_decoder.values()
    special = {t.content for t in added if t.special} | set(tokenizer.all_special_tokens)
    longest_first = sorted(special, key=lambda t: (-len(t), t))
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


class Transcript:
    """One conversation. `prompt_ids` is what the next completion is sampled from.

    Call `add_completion` with the sampled ids, then `add_observation`; in that order, in turn.
    """

    def __init__(self, renderer: ChatRenderer, system: str, prompt: str) -> None:
        self._renderer = renderer
        self._messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": renderer.harmless(prompt)},
        ]
        self._completion: tuple[int, ...] | None = None
        self.prompt_ids: tuple[int, ...] = renderer.opening_ids(self._messages)

    def add_completion(self, ids: Sequence[int]) -> None:
        """Append the sampled ids, exactly as they came."""
        if self._completion is not None:
            raise ValueError("a completion must be followed by an observation")
        self._completion = tuple(ids)
        reply = self._renderer.harmless(self._renderer.decode(ids))
        self._messages.append({"role": "assistant", "content": reply})

    def add_observation(self, text: str) -> None:
        """Append the environment's answer and the header of the next reply."""
        if self._completion is None:
            raise ValueError("an observation must follow a completion")
        text = self._renderer.harmless(text)
        self._messages.append({"role": "user", "content": text})
        if self._renderer.prefix_preserving:
            closed = self._completion[-1:] == (self._renderer.eot_id,)
            bridge = self._renderer.bridge_ids(text, closed)
            self.prompt_ids = self.prompt_ids + self._completion + bridge
        else:
            self.prompt_ids = self._renderer.opening_ids(self._messages)
        self._completion = None
