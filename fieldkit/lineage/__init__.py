"""What came from what: trials, their parents and their outcomes, in one table that only grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.lineage.edit import RecipeEdit as RecipeEdit
    from fieldkit.lineage.rendering import LineageSnapshot as LineageSnapshot
    from fieldkit.lineage.store import LineageStore as LineageStore
    from fieldkit.lineage.trial import FailureLabel as FailureLabel
    from fieldkit.lineage.trial import Trial as Trial
else:
    __getattr__, __dir__ = lazily(__name__)
