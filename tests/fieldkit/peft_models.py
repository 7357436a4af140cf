"""Small real peft models, two layers each, of the architectures that people train."""

from __future__ import annotations

from typing import Any

import peft
import torch
import transformers

VOCABULARY = 64
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
_CONFIGS: dict[str, Any] = {
    "llama": transformers.LlamaConfig(**_SIZES, tie_word_embeddings=True),
    "qwen2": transformers.Qwen2Config(**_SIZES),
    "qwen3": transformers.Qwen3Config(**_SIZES),
    "mistral": transformers.MistralConfig(**_SIZES, sliding_window=6),
    "gemma3": transformers.Gemma3TextConfig(
        **_SIZES,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=4,  # another one than the width of a head
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    ),
    "moe": transformers.Qwen3MoeConfig(
        **_SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8
    ),
}
ARCHITECTURES = tuple(_CONFIGS)
_TARGETS = {"gpt2": {"target_modules": ["c_attn"], "fan_in_fan_out": True}}
_ATTENTION = {"target_modules": ["q_proj", "v_proj"]}
IDS = torch.arange(12).reshape(2, 6)


def base_model(architecture: str) -> Any:
    torch.manual_seed(0)
    make: Any = transformers.AutoModelForCausalLM.from_config
    return make(_CONFIGS[architecture])


def peft_model(architecture: str = "llama", base: Any = None, **settings: Any) -> Any:
    """A random base under a LoRA adapter whose B is not zero; `settings`: of its `LoraConfig`."""
    targets: dict[str, Any] = _TARGETS.get(architecture, _ATTENTION)
    config = peft.LoraConfig(**{"r": 2, "task_type": "CAUSAL_LM", **targets, **settings})
    model = peft.get_peft_model(base or base_model(architecture), config)
    move(model, 0.1, seed=1)
    return model


def move(model: Any, size: float = 0.1, *, seed: int = 2) -> None:
    """Change every trained parameter, as an optimizer does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def values(model: Any) -> dict[str, torch.Tensor]:
    """A copy of every parameter."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found
