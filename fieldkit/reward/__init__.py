"""Any score of a text as a reward, and the rewards of a group as advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.reward.adapter_of_scores import Reward as Reward
    from fieldkit.reward.adapter_of_scores import RewardAdapter as RewardAdapter
    from fieldkit.reward.adapter_of_scores import RewardError as RewardError
    from fieldkit.reward.adapter_of_scores import Rollout as Rollout
    from fieldkit.reward.adapter_of_scores import group_advantage as group_advantage
else:
    __getattr__, __dir__ = lazily(__name__)
