"""What a command printed, kept within bounds while it is being read.

A policy needs the beginning and the end of a long output. The middle is counted and dropped as it
arrives, so that a flood costs neither memory nor context. Decoding is incremental, so the
boundaries of the reads do not show in the text.
"""

from __future__ import annotations

import codecs


class BoundedOutput:
    """Accepts bytes, keeps at most `chars` characters of their text and reads `max_bytes` bytes.

    Two thirds of `chars` are kept from the beginning, one third from the end.
    """

    def __init__(self, chars: int, max_bytes: int) -> None:
        self._tail_chars = chars // 3
        self._head_chars = chars - self._tail_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._head = ""
        self._tail = ""
        self._n_chars = 0
        self._bytes_left = max_bytes
        self.flooded = False
        """More than `max_bytes` arrived; the rest was not looked at."""

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; false once the output exceeds `max_bytes`."""
        if len(data) > self._bytes_left:
            data = data[: self._bytes_left]
            self.flooded = True
        self._bytes_left -= len(data)
        self._add(self._decoder.decode(data))
        return not self.flooded

    def text(self) -> str:
        """The text so far, with a note in place of what was cut from its middle."""
        self._add(self._decoder.decode(b"", final=True))
        cut = self._n_chars - len(self._head) - len(self._tail)
        if not cut:
            return self._head + self._tail
        head, tail = self._head.removesuffix("\n"), self._tail.removeprefix("\n")
        return f"{head}\n[{cut} characters cut]\n{tail}"

    def _add(self, text: str) -> None:
        self._n_chars += len(text)
        room = self._head_chars - len(self._head)
        self._head += text[:room]
        rest = text[room:]
        if rest:
            joined = self._tail + rest
            self._tail = joined[len(joined) - min(len(joined), self._tail_chars) :]
