"""A client of any server that speaks OpenAI's chat completions. Public names: `ChatClient`,
`ChatError`, `ChatHTTPError`, `ChatTimeout`, `wait_for_warm`, all in `fieldkit.client.chat`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldkit.client.chat import (
        ChatClient,
        ChatError,
        ChatHTTPError,
        ChatTimeout,
        wait_for_warm,
    )

__all__ = ["ChatClient", "ChatError", "ChatHTTPError", "ChatTimeout", "wait_for_warm"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fieldkit.client import chat

    return getattr(chat, name)
