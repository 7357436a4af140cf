"""The addresses in engine.urls and the API key of each: where a key is, and how a person sends it.

Apart from what asks these servers (`rollout.engine.outside`). A key is in no message.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from fieldkit.errors import BadInput
from rollout.engine.engine_settings import EngineSettings


@dataclass(frozen=True)
class Address:
    """One of engine.urls. key: its API key. source: the entry of engine.keys_from that says where
    the key is. Both are "" where there is none."""

    url: str
    key: str = field(repr=False)
    source: str

    @property
    def curl(self) -> str:
        """The command by which a person asks what it serves."""
        if not self.source:
            return f"`curl {self.url}/v1/models`"
        file = shlex.quote(str(Path(self.source).expanduser()))
        held = f"$(cat {file})" if "/" in self.source else f"${self.source}"
        return f'`curl -H "Authorization: Bearer {held}" {self.url}/v1/models`'


def addresses(settings: EngineSettings) -> list[Address]:
    """Those in engine.urls, with their keys.

    Raises `BadInput` naming the variable or the file that is not there or holds no key.
    """
    sources = settings.keys_from or [""]
    if len(sources) == 1:
        sources = sources * len(settings.urls)
    return [
        Address(url.rstrip("/"), read_key(source) if source else "", source)
        for url, source in zip(settings.urls, sources, strict=True)
    ]


def read_key(source: str, named: str = "engine.keys_from") -> str:
    """The API key in the environment variable of this name, or in the file where it has a slash.

    named: what names the source, for messages. Raises `BadInput` as `addresses`.
    """
    key = _written(source, named).strip()  # a line's end comes from a file, and from `$(cat FILE)`
    # Another one is refused here: what sends it as a header repeats it in its error.
    if " " in key or not (key.isascii() and key.isprintable()):
        raise BadInput(
            f"{named}: what {source} holds is no key: a key is one word of printable ASCII"
        )
    return key


def _written(source: str, named: str) -> str:
    if "/" not in source:
        if source not in os.environ:
            raise BadInput(f"{named}: the environment has no variable {source}")
        return os.environ[source]
    try:
        return Path(source).expanduser().read_text(encoding="utf-8", errors="replace")
    except OSError as e:
        raise BadInput(f"{named}: {source}: {e.strerror}") from e
