"""Public names that are imported when they are first used (PEP 562).

A package lists its names once, by the module that has them; importing the package imports none of
them, so `import fieldkit` is quick and needs no torch. For type checkers the package imports the
same names under `TYPE_CHECKING`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose `modules` (full name -> public names) have
    what it offers. A module without names is offered itself.

    >>> __getattr__, __dir__ = lazily("fieldkit.files", {"fieldkit.files.journal": ["Journal"]})
    >>> __dir__()
    ['Journal']
    """
    homes = {name: module for module, names in modules.items() for name in names}
    rooms = {m.rpartition(".")[-1]: m for m, names in modules.items() if not names}

    def __getattr__(name: str) -> Any:
        if name in rooms:
            return importlib.import_module(rooms[name])
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__, lambda: sorted([*homes, *rooms])
