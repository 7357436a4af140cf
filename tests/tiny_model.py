"""A random two-layer Llama with the real SmolLM2 tokenizer, and random LoRA adapters for it.

It is small enough for every test run to make it and serve it with the real engine. Its replies are
random, so tests assert on identities and arithmetic, never on replies.
"""

from __future__ import annotations

import json
from pathlib import Path

from scripts.prepare.model import build_model

HIDDEN = 128
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32  # the smallest that vLLM's CPU attention has a kernel for
LAYERS = 2
INTERMEDIATE = 192
CONTEXT = 2048
TARGETS = ("q_proj", "v_proj")


def make_tiny_model(folder: Path, *, seed: int = 0, dtype: str = "float32") -> Path:
    """Write the model and the tokenizer into `folder` (made if needed); return it.

    The weights are large enough that the next-token distribution is not flat, so adapters,
    temperatures and prompts make a difference visible in float32.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(str(build_model()))
    tokenizer.save_pretrained(str(folder))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.15,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))  # type: ignore[no-untyped-call]
    model.save_pretrained(str(folder))
    return folder


def make_adapter(
    folder: Path, model: Path, *, seed: int = 1, rank: int = 8, scale: float = 0.3
) -> Path:
    """Write a random LoRA adapter in peft's layout into `folder`; return it.

    scale: standard deviation of both A and B; peft starts B at zero, so its adapter has no effect.
    """
    import numpy as np
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)
    out_features = {"q_proj": HEADS * HEAD_DIM, "v_proj": KV_HEADS * HEAD_DIM}
    tensors = {}
    for layer in range(LAYERS):
        for target in TARGETS:
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            a = rng.normal(0.0, scale, (rank, HIDDEN)).astype(np.float32)
            b = rng.normal(0.0, scale, (out_features[target], rank)).astype(np.float32)
            tensors[f"{name}.lora_A.weight"] = a
            tensors[f"{name}.lora_B.weight"] = b
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "target_modules": list(TARGETS),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2))
    return folder
