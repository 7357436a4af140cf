"""Every objective equals TRL's own loss on the same tensors, in value and gradient.

TRL's trainer is built with a tiny model and asked for its loss, its own code throughout. The
model's place in a call is taken by the tensors themselves, so that the gradient is with respect to
logprobs. The importance ratios of sampler and trainer come from TRL's generation code.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fieldkit.training.losses import importance_weights, k3
from fieldkit.training.objectives import normalised, token_shares
from tests.tiny_trl import make_trainer
from trainer.objective import OBJECTIVES, Band, Tokens
from trainer.settings import TrainerSettings

pytestmark = pytest.mark.trl

BETA = 0.07
LONGEST = 9  # a reply's most tokens
LENGTHS = ((5, 2), (1, 6))  # of two groups' rows
TIS_CAP = 2.0

AS_TRL_CALLS_IT: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "epsilon": 0.2, "epsilon_high": 0.2},
    "dr_grpo": {"loss_type": "dr_grpo", "epsilon": 0.2, "epsilon_high": 0.2},
    "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 0.03,
        "epsilon_high": 0.04,
    },
}
"""Ratios drawn here are far wider than those of one optimizer step, so GSPO's band is too."""


def trl_trainer(folder: Path, **config: Any) -> Any:
    """TRL's trainer at the moment when it asks for a loss."""
    made = make_trainer(
        "GRPO",
        folder,
        reward_funcs=lambda completions, **row: [0.0] * len(completions),
        max_completion_length=LONGEST,
        num_generations=2,
        use_bias_correction_kl=False,  # by default TRL weighs the KL by the ratio; GRPO does not
        **config,
    )
    made.beta = BETA
    made.current_gradient_accumulation_steps = 1  # which the training loop sets
    return made


class Drawn:
    """Random logprobs of `LENGTHS`, padded as TRL wants them and flat as ours are."""

    def __init__(self) -> None:
        drawn = torch.Generator().manual_seed(5)
        lengths = [n for rows in LENGTHS for n in rows]
        self.lengths_r = torch.tensor(lengths)
        self.mask_BT = (torch.arange(max(lengths)) < self.lengths_r[:, None]).int()
        shape = self.mask_BT.shape
        self.logprobs_BT = -2 * torch.rand(shape, generator=drawn)
        self.old_BT = self.logprobs_BT + 0.4 * torch.randn(shape, generator=drawn)
        self.sampler_BT = self.old_BT + 0.6 * torch.randn(shape, generator=drawn)
        self.reference_BT = self.logprobs_BT + 0.3 * torch.randn(shape, generator=drawn)
        self.advantages_B = torch.tensor([1.3, -0.7, 0.4, -1.1])

    def flat(self, padded_BT: Tensor) -> Tensor:
        return padded_BT[self.mask_BT.bool()]


def theirs(trainer: Any, drawn: Drawn, importance_BT: Tensor | None) -> tuple[float, Tensor]:
    """TRL's loss and its gradient with respect to the logprobs, flat."""
    leaf_BT = drawn.logprobs_BT.clone().requires_grad_()
    n, width = leaf_BT.shape
    inputs = {
        "prompt_ids": torch.ones(n, 2, dtype=torch.long),
        "prompt_mask": torch.ones(n, 2, dtype=torch.long),
        "completion_ids": torch.ones(n, width, dtype=torch.long),
        "completion_mask": drawn.mask_BT,
        "advantages": drawn.advantages_B,
        "old_per_token_logps": drawn.old_BT,
        "ref_per_token_logps": drawn.reference_BT,
        "num_items_in_batch": drawn.mask_BT.sum(),
    }
    trainer.use_vllm = importance_BT is not None
    if importance_BT is not None:
        inputs["importance_sampling_ratio"] = importance_BT

    def scored(**given: Tensor) -> SimpleNamespace:
        return SimpleNamespace(log_probs=leaf_BT, entropy=torch.zeros_like(leaf_BT))

    loss = trainer.compute_loss(scored, inputs)
    (gradient_BT,) = torch.autograd.grad(loss, leaf_BT)
    assert not gradient_BT[drawn.mask_BT == 0].any()
    return loss.item(), drawn.flat(gradient_BT)


def ours(name: str, drawn: Drawn, sampler_BT: Tensor, band: Band) -> tuple[float, Tensor]:
    """The same with our objective, its own normalisation, and the KL."""
    kind = OBJECTIVES[name]
    leaf_n = drawn.flat(drawn.logprobs_BT).clone().requires_grad_()
    advantages_n = drawn.advantages_B.repeat_interleave(drawn.lengths_r)
    old_n, sampler_n = drawn.flat(drawn.old_BT), drawn.flat(sampler_BT)
    tokens = Tokens(leaf_n, old_n, sampler_n, advantages_n, drawn.lengths_r, TIS_CAP)
    losses_n = kind.losses(tokens, band).losses_n
    losses_n = losses_n + BETA * k3(leaf_n, drawn.flat(drawn.reference_BT))
    shares, total = token_shares(LENGTHS, kind.normalisation, LONGEST)
    shares_n = torch.tensor([s for rows in shares for s in rows]).repeat_interleave(drawn.lengths_r)
    loss = normalised(losses_n, shares_n, total)
    (gradient_n,) = torch.autograd.grad(loss, leaf_n)
    return loss.item(), gradient_n


@pytest.mark.parametrize("corrected", [False, True], ids=["one engine", "sampler corrected"])
@pytest.mark.parametrize("name", AS_TRL_CALLS_IT)
def test_value_and_gradient_equal_trls(name: str, corrected: bool, tmp_path: Path) -> None:
    drawn = Drawn()
    sampler_BT = drawn.sampler_BT if corrected else drawn.old_BT
    weights_BT, _ = importance_weights(drawn.old_BT, sampler_BT, TIS_CAP)
    trainer = trl_trainer(tmp_path, **AS_TRL_CALLS_IT[name])
    their_loss, their_gradient = theirs(trainer, drawn, weights_BT if corrected else None)

    band = Band(0.03, 0.04) if name == "gspo" else TrainerSettings(objective=name).band
    our_loss, our_gradient = ours(name, drawn, sampler_BT, band)
    assert our_loss == pytest.approx(their_loss, rel=1e-5)
    assert torch.allclose(our_gradient, their_gradient, rtol=1e-5, atol=1e-7)
    assert our_gradient.abs().max() > 1e-2


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask"])
def test_the_correction_of_the_sampler_equals_trls(mode: str, tmp_path: Path) -> None:
    """TRL samples (here: what is handed to it), scores with its model and computes its ratio;
    "reinforce" and "masked" have the loss that TRL has with that ratio on fresh samples."""
    trainer = trl_trainer(
        tmp_path,
        loss_type="cispo",
        epsilon_high=1e9,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=0.5 if mode == "token_mask" else None,
        vllm_importance_sampling_clip_max=5.0 if mode == "token_mask" else TIS_CAP,
    )
    drawn = Drawn()
    noise = iter(torch.randn(100, generator=torch.Generator().manual_seed(8)).tolist())

    def sampled(prompts: list[str], trainer: Any) -> dict[str, Any]:
        ids = [[2 + (i + j) % 6 for j in range(n)] for i, n in enumerate(drawn.lengths_r.tolist())]
        return {
            "prompt_ids": [[2, 3]] * len(prompts),
            "completion_ids": ids,
            "logprobs": [[-2.0 + next(noise) for _ in row] for row in ids],
        }

    trainer.rollout_func = sampled
    trainer.use_vllm, trainer.vllm_importance_sampling_correction = True, True
    trainer._last_loaded_step = trainer.state.global_step  # there is no server to bring weights to
    trainer.beta = 0.0
    out = trainer._generate_and_score_completions([{"prompt": "a b"} for _ in range(4)])
    trainer.beta = BETA

    drawn.logprobs_BT = drawn.old_BT = out["old_per_token_logps"]
    sampler_BT = out["sampling_per_token_logps"]
    assert torch.equal(out["completion_mask"], drawn.mask_BT)
    importance_BT = out["importance_sampling_ratio"]
    their_loss, their_gradient = theirs(trainer, drawn, importance_BT)
    name = "masked" if mode == "token_mask" else "reinforce"
    our_loss, our_gradient = ours(name, drawn, sampler_BT, TrainerSettings(objective=name).band)
    assert our_loss == pytest.approx(their_loss, rel=1e-5)
    assert torch.allclose(our_gradient, their_gradient, rtol=1e-5, atol=1e-7)
    bound = 0.0 if mode == "token_mask" else TIS_CAP
    assert (drawn.flat(importance_BT) == bound).any()  # some token was dropped, or cut
