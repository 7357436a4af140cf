"""Public names that are imported when they are first used (PEP 562).

A package imports its names `as` themselves under `TYPE_CHECKING`, where type checkers and readers
look; the same lines say here what to import at run time. So `import fieldkit` is quick and needs no
torch, and no name is listed twice.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazily(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` for a package, from the `import … as …` lines of its source.

    Written as `__getattr__, __dir__ = lazily(__name__)` in an `else` of `TYPE_CHECKING`:
    a type checker that sees a `__getattr__` takes any name for one that is there.
    """
    loader: Any = sys.modules[package].__spec__.loader  # type: ignore[union-attr]
    tree = ast.parse(loader.get_source(package))  # from a zip too
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    homes = {a.asname: node.module or "" for node in imports for a in node.names if a.asname}

    def __getattr__(name: str) -> Any:
        if name == "__all__":  # for `from package import *`
            return sorted(homes)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(homes[name]), name)

    return __getattr__, lambda: sorted(homes)
