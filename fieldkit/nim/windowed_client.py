"""`fieldkit.client.ChatClient` under the names of 0.34.1, with a window that a request has to fit.

An NVIDIA NIM answers a request that is too long with a 400 that does not say so; here it is
refused before it is sent. The request itself, its retries and its errors are `ChatClient`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldkit.client.chat import ChatClient, ChatError, ChatHTTPError, ChatTimeout
from fieldkit.nim.chunks import DEFAULT_CHUNK_TOKENS, chunk_text, estimate_tokens

NIM_CONTEXT_WINDOW = 8192
"""Tokens of prompt and answer together that the NIM of an 8B model takes."""

TOKENS_PER_MESSAGE = 4
"""What a chat template adds to a message: its role and its ends, roughly."""

ChatMessage = dict[str, Any]
"""{"role": …, "content": …} as OpenAI's API has it."""

NIMError = ChatError
"""The base of the others."""

NIMHTTPError = ChatHTTPError
"""As `fieldkit.client.ChatHTTPError`."""

NIMTimeoutError = ChatTimeout
"""As `fieldkit.client.ChatTimeout`."""


class NIMContextOverflowError(ChatError):
    """The request would not fit the window, so it was not sent.

    estimated_tokens: of the prompt and the answer asked for. ceiling: the window.
    """

    exit_code = 2

    def __init__(self, *, estimated_tokens: int, ceiling: int) -> None:
        super().__init__(
            f"the request is estimated at {estimated_tokens} tokens, the window has {ceiling}: "
            "shorten it (fieldkit.nim.chunk_text) or ask for fewer max_tokens"
        )
        self.estimated_tokens = estimated_tokens
        self.ceiling = ceiling


@dataclass
class NIMClient(ChatClient):
    """A `ChatClient` that sends no request that its window does not hold.

    context_window: tokens of prompt and answer together.
    """

    context_window: int = NIM_CONTEXT_WINDOW

    @staticmethod
    def chunk(text: str, *, max_tokens: int = DEFAULT_CHUNK_TOKENS) -> list[str]:
        """As `chunk_text`."""
        return chunk_text(text, max_tokens=max_tokens)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = 512,
        temperature: float | None = 0.0,
        **extra: Any,
    ) -> dict[str, Any]:
        """As `ChatClient.chat`. Raises `NIMContextOverflowError` for more tokens than the window
        has, by `estimate_tokens`."""
        answer = max_tokens or extra.get("max_completion_tokens") or 0
        wanted = answer + sum(_tokens(m) for m in messages if isinstance(m, Mapping))
        if wanted > self.context_window:
            raise NIMContextOverflowError(estimated_tokens=wanted, ceiling=self.context_window)
        return super().chat(messages, max_tokens=max_tokens, temperature=temperature, **extra)


def _tokens(message: Mapping[str, Any]) -> int:
    """Of a message whose content is a text or a list of parts; parts without text count nothing."""
    content = message.get("content") or ""
    texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return TOKENS_PER_MESSAGE + sum(map(estimate_tokens, texts))
