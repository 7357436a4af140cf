"""GRPO in a plain script: teach a LoRA adapter to answer with even token ids.

    python plain_script.py MODEL_FOLDER ADAPTER_OUT [STEPS]

The reference policy of the KL term is the adapter as it was at the start. No second model is
loaded for it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from fieldkit.training import (
    LoraReferenceSnapshot,
    WeightDeltaTracker,
    group_advantages,
    k3,
    reinforce,
)

GROUP, PROMPT, REPLY = 8, [1, 2, 3, 4], 6
BETA = 0.02


def logprobs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Natural logprobs of every reply token: (group, reply)."""
    all_logprobs = model(ids).logits[:, len(PROMPT) - 1 : -1].float().log_softmax(-1)
    return all_logprobs.gather(-1, ids[:, len(PROMPT) :, None])[..., 0]


def train(model: Any, steps: int) -> list[dict[str, float]]:
    """Train the model's adapter in place; return what each step did."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.0)
    reference = LoraReferenceSnapshot(model)
    tracker = WeightDeltaTracker(model)
    history = []
    for step in range(steps):
        ids = torch.tensor([PROMPT] * GROUP)
        for _ in range(REPLY):
            with torch.no_grad():
                chances = model(ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(chances, 1)], dim=1)
        rewards = (ids[:, len(PROMPT) :] % 2 == 0).float().mean(1).tolist()
        advantages = torch.tensor(group_advantages(rewards))[:, None].expand(-1, REPLY)

        with reference, torch.no_grad():
            under_reference = logprobs(model, ids).flatten()
        now = logprobs(model, ids).flatten()
        on_policy = torch.ones_like(now)  # importance weights: the sampler is the policy
        loss = reinforce(now, on_policy, advantages.flatten()).mean()
        loss = loss + BETA * k3(now, under_reference).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        l2, max_abs = tracker.delta()
        tracker.rebase()
        kl = k3(now.detach(), under_reference).mean().item()
        history.append({"reward": sum(rewards) / GROUP, "kl": kl, "l2": l2, "max_abs": max_abs})
        print(f"step {step}: " + ", ".join(f"{k} {v:.4f}" for k, v in history[-1].items()))
    return history


if __name__ == "__main__":
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder, out, steps = [*sys.argv[1:], "20"][:3]
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(folder)
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj", "v_proj"]))
    train(model, int(steps))
    model.save_pretrained(out)
