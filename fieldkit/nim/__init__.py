"""The client of the index's fieldkit 0.34.1: `fieldkit.client` by its names, with a check of the
context window, and texts cut into chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.client.chat import wait_for_warm as wait_for_warm
    from fieldkit.nim.chunks import DEFAULT_CHUNK_TOKENS as DEFAULT_CHUNK_TOKENS
    from fieldkit.nim.chunks import chunk_text as chunk_text
    from fieldkit.nim.chunks import estimate_tokens as estimate_tokens
    from fieldkit.nim.windowed_client import NIM_CONTEXT_WINDOW as NIM_CONTEXT_WINDOW
    from fieldkit.nim.windowed_client import ChatMessage as ChatMessage
    from fieldkit.nim.windowed_client import NIMClient as NIMClient
    from fieldkit.nim.windowed_client import NIMContextOverflowError as NIMContextOverflowError
    from fieldkit.nim.windowed_client import NIMError as NIMError
    from fieldkit.nim.windowed_client import NIMHTTPError as NIMHTTPError
    from fieldkit.nim.windowed_client import NIMTimeoutError as NIMTimeoutError
else:
    __getattr__, __dir__ = lazily(__name__)
