"""Any score of a text as a reward, and the rewards of a group as advantages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fieldkit.reward.adapter_of_scores import (
        Reward,
        RewardAdapter,
        RewardError,
        Rollout,
        group_advantage,
    )

__all__ = ["Reward", "RewardAdapter", "RewardError", "Rollout", "group_advantage"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.adapter_of_scores"), name)
