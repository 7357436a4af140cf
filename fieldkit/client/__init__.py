"""A client of any server that speaks OpenAI's chat completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.client.chat import AsyncChatClient as AsyncChatClient
    from fieldkit.client.chat import ChatClient as ChatClient
    from fieldkit.client.chat import ChatError as ChatError
    from fieldkit.client.chat import ChatHTTPError as ChatHTTPError
    from fieldkit.client.chat import ChatTimeout as ChatTimeout
    from fieldkit.client.chat import wait_for_warm as wait_for_warm
else:
    __getattr__, __dir__ = lazily(__name__)
