"""What came from what: trials, their parents and their outcomes, in one table that only grows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldkit.lineage.edit import RecipeEdit
    from fieldkit.lineage.rendering import LineageSnapshot
    from fieldkit.lineage.store import LineageStore
    from fieldkit.lineage.trial import FailureLabel, Trial

__all__ = ["FailureLabel", "LineageSnapshot", "LineageStore", "RecipeEdit", "Trial"]

_HOMES = {
    "FailureLabel": "trial",
    "LineageSnapshot": "rendering",
    "LineageStore": "store",
    "RecipeEdit": "edit",
    "Trial": "trial",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
