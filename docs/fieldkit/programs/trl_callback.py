"""A TRL `GRPOTrainer` that says of each step how far the weights moved and what a server will see.

    python trl_callback.py MODEL_FOLDER OUT [STEPS]

The callback takes a snapshot where training begins. At the end it scores a sentence under the
trained adapter and, swapped in for a moment, under the one at the start.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import TrainerCallback

from fieldkit.training import LoraReferenceSnapshot, WeightDeltaTracker


class Evidence(TrainerCallback):
    """Reports the weight delta of every step, and how the policy changed in the end."""

    def __init__(self, probe: torch.Tensor) -> None:
        self.probe = probe
        self.steps: list[Any] = []
        self.moved = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        self.tracker = WeightDeltaTracker(model)
        self.start = LoraReferenceSnapshot(model)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        delta = self.tracker.served(torch.bfloat16)
        self.tracker.rebase()
        self.steps.append(delta)
        print(
            f"step {state.global_step}: L2 {delta.l2:.6f}, max|Δ| {delta.max_abs:.6f}; a bfloat16 "
            f"server sees {delta.served_changed:.0%} of it"
        )

    @torch.no_grad()
    def on_train_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        trained = model(self.probe).logits.float().log_softmax(-1)
        with self.start:
            begun = model(self.probe).logits.float().log_softmax(-1)
        self.moved = (trained - begun).abs().mean().item()
        print(f"mean |Δ logprob| since the start: {self.moved:.6f}")


def main(folder: str, out: str, steps: int = 2) -> Evidence:
    """Train for so many steps; return the callback with what it saw."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    evidence = Evidence(torch.tensor([tokenizer.encode("The weights have moved.")]))
    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=lambda completions, **_: [float(len(set(c))) for c in completions],
        args=GRPOConfig(
            output_dir=out,
            max_steps=steps,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            learning_rate=1e-2,
            report_to=[],
            save_strategy="no",
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Dataset.from_dict({"prompt": ["Say something.", "Say another thing."]}),
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False),
        callbacks=[evidence],
    )
    trainer.train()
    return evidence


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
