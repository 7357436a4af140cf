"""Named things of one sort, to which anybody can add: environments, rewards, credit rules, …

Each sort has one registry, in the file that defines the sort, and a new one is a function or a
class and one line, `REGISTRY.register(name, entry)`, from wherever it lives. A registry decides
nothing: it holds entries by name, in the order of registration.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from fieldkit.errors import BadInput

Entry = TypeVar("Entry")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one most probably means; None where none is like it."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)), None)


class Registry(Mapping[str, Entry]):
    """The entries of one sort by name. `sort` is what messages call them."""

    def __init__(self, sort: str) -> None:
        self.sort = sort
        self._entries: dict[str, Entry] = {}
        self._homes: dict[str, str] = {}

    def register(self, name: str, entry: Entry) -> Entry:
        """Add `entry` under `name` and return it. Raises `ValueError`, naming the modules of both
        registrations, for a name that is taken."""
        home = sys._getframe(1).f_globals["__name__"]
        if name in self._entries:
            raise ValueError(
                f"{self.sort} {name!r} is registered twice: by {self._homes[name]} and by {home}"
            )
        self._entries[name], self._homes[name] = entry, home
        return entry

    def remove(self, name: str) -> None:
        """Remove an entry, as a test does with its own."""
        del self._entries[name], self._homes[name]

    def named(self, name: object, where: str = "") -> Entry:
        """The entry of that name. Raises `BadInput` that names the known and the nearest one, and
        begins with `where` (a settings key, a file and line) instead of the sort."""
        if isinstance(name, str) and name in self._entries:
            return self._entries[name]
        near = nearest(str(name), self)
        hint = f"; did you mean {near!r}?" if near else ""
        known = ", ".join(self._entries)
        prefix = f"{where}:" if where else self.sort
        raise BadInput(f"{prefix} {name!r} is unknown; known: {known}{hint}")

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
