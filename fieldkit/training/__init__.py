"""What a GRPO, PPO or DPO script needs around its own loop.

A reference policy without a second model (`LoraReferenceSnapshot`), how far an update moved the
weights (`WeightDeltaTracker`), the published objectives, KL estimators and advantages as pure
functions, checks of adapter files, and the messages that a policy saw
(`replay_messages_from_trajectory`). torch is imported when one of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fieldkit.lazy import lazily

if TYPE_CHECKING:
    from fieldkit.training.adapter import AdapterInfo as AdapterInfo
    from fieldkit.training.adapter import adapter_sha as adapter_sha
    from fieldkit.training.adapter import check_adapter as check_adapter
    from fieldkit.training.adapter import read_adapter as read_adapter
    from fieldkit.training.advantages import Scale as Scale
    from fieldkit.training.advantages import group_advantages as group_advantages
    from fieldkit.training.advantages import group_size_warning as group_size_warning
    from fieldkit.training.advantages import leave_one_out as leave_one_out
    from fieldkit.training.averaging import mean_adapter as mean_adapter
    from fieldkit.training.losses import importance_weights as importance_weights
    from fieldkit.training.losses import k1 as k1
    from fieldkit.training.losses import k2 as k2
    from fieldkit.training.losses import k3 as k3
    from fieldkit.training.objectives import Normalisation as Normalisation
    from fieldkit.training.objectives import TokenLosses as TokenLosses
    from fieldkit.training.objectives import cispo as cispo
    from fieldkit.training.objectives import dapo as dapo
    from fieldkit.training.objectives import dr_grpo as dr_grpo
    from fieldkit.training.objectives import grpo as grpo
    from fieldkit.training.objectives import gspo as gspo
    from fieldkit.training.objectives import kl_in_reward as kl_in_reward
    from fieldkit.training.objectives import (
        masked_importance_sampling as masked_importance_sampling,
    )
    from fieldkit.training.objectives import normalised as normalised
    from fieldkit.training.objectives import reinforce as reinforce
    from fieldkit.training.objectives import token_shares as token_shares
    from fieldkit.training.seen_messages import Message as Message
    from fieldkit.training.seen_messages import (
        replay_messages_from_trajectory as replay_messages_from_trajectory,
    )
    from fieldkit.training.snapshot import LoraReferenceSnapshot as LoraReferenceSnapshot
    from fieldkit.training.tensors import load_tensors as load_tensors
    from fieldkit.training.tensors import save_tensors as save_tensors
    from fieldkit.training.weight_delta import WeightDelta as WeightDelta
    from fieldkit.training.weight_delta import WeightDeltaTracker as WeightDeltaTracker
else:
    __getattr__, __dir__ = lazily(__name__)
