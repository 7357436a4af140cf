"""Layers that give what peft's and transformers' give, and keep less for the backward pass.

peft casts the input of every target layer to the adapter's float32, transformers that of every
norm, and autograd keeps each cast. Here the input itself is kept, which the layers that read it
share, and is cast again in the backward pass. Of a gated MLP the gate and the other product are
kept, and SiLU of the gate is computed again. Outputs have the same bits, and so have gradients but
for a few last ones of the norms'. LoRA is what the trainer takes, plain and without dropout, in any
model; norms and MLPs are those of `shared_prefix.has_lean_layers`, which are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

Lora = Callable[[Any, Tensor, Tensor, Tensor, float], Tensor]
"""(base layer, x, A, B, scale) → W·x + bias + scale · B·A·x."""


def keep_less(model: nn.Module, adapter: str = "default", *, only_lora: bool = False) -> None:
    """Give a peft model's LoRA layers these forward passes, and its gated MLPs and norms unless
    `only_lora`."""
    change_lora(model, adapter, with_lora)
    if not only_lora:
        change_layers(model, gated, normed)


def change_lora(model: nn.Module, adapter: str, lora: Lora) -> None:
    """Give a peft model's LoRA layers another forward pass."""
    from peft.tuners.lora import Linear

    for module in model.modules():
        if isinstance(module, Linear):
            forward = partial(_where_trained, module, adapter, lora, module.forward)
            module.forward = forward  # type: ignore[method-assign]


def change_layers(
    model: nn.Module,
    gate: Callable[[Tensor, Tensor], Tensor],
    norm: Callable[[Any, Tensor], Tensor],
) -> None:
    """Give a model's gated MLPs and norms other forward passes.

    gate: (gate, up) → SiLU(gate) · up. norm: (RMS norm, x) → x normed.
    """
    modules: Iterable[Any] = model.modules()
    for module in modules:
        if _is_gated(module):
            module.forward = partial(_mlp, module, gate)
        elif type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(norm, module)


def _is_gated(module: Any) -> bool:
    """Whether it is down(silu(gate(x)) · up(x))."""
    parts = ("gate_proj", "up_proj", "down_proj")
    config = getattr(module, "config", None)
    return all(hasattr(module, p) for p in parts) and getattr(config, "hidden_act", "") == "silu"


def _where_trained(layer: Any, adapter: str, lora: Lora, as_peft_does: Any, x: Tensor) -> Tensor:
    a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    if layer.disable_adapters or layer.merged or x.dtype == a.dtype:
        return as_peft_does(x)  # type: ignore[no-any-return]
    return lora(layer.base_layer, x, a, b, layer.scaling[adapter])


def _mlp(mlp: Any, gate: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    return mlp.down_proj(gate(mlp.gate_proj(x), mlp.up_proj(x)))  # type: ignore[no-any-return]


def with_lora(base: nn.Module, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """`Lora` that keeps x as it is."""
    apply: Any = _Lora.apply
    return apply(base(x), x, a, b, scale)  # type: ignore[no-any-return]


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU(gate) · up, which keeps these two."""
    apply: Any = _Gated.apply
    return apply(gate, up)  # type: ignore[no-any-return]


def normed(norm: Any, x: Tensor) -> Tensor:
    """x by its root mean square and the norm's weights, which keeps x."""
    if x.dtype == torch.float32:  # of which no cast is kept
        return type(norm).forward(norm, x)  # type: ignore[no-any-return]
    apply: Any = _Normed.apply
    return apply(x, norm.weight, norm.variance_epsilon)  # type: ignore[no-any-return]


class _Lora(torch.autograd.Function):
    """base + scale · B·A·x, rounded to the base's dtype."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        middle = linear(x.to(a.dtype), a)
        ctx.save_for_backward(x, middle, a, b)
        ctx.scale = scale
        return linear(middle, b).mul_(scale).add_(base).to(base.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, middle, a, b = ctx.saved_tensors
        upstream = gradients[0].flatten(0, -2).to(b.dtype).mul_(ctx.scale)
        to_middle = upstream @ b
        to_b = (middle.flatten(0, -2).T @ upstream).T
        to_a = (x.flatten(0, -2).to(a.dtype).T @ to_middle).T
        to_x = (to_middle @ a).to(x.dtype).view_as(x)
        return gradients[0], to_x, to_a, to_b, None


class _Gated(torch.autograd.Function):
    """SiLU(gate) · up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        to_up = silu(gate).mul_(gradients[0])
        to_gate = torch.ops.aten.silu_backward(gradients[0] * up, gate)
        return to_gate, to_up


class _Normed(torch.autograd.Function):
    """w · x·r rounded to x's dtype, where r = (mean(x²) + ε)^-½ of each row; w is frozen.

    With g = w · dy: dx = r·g − x · r³ · mean(g·x), as autograd has it but for a few last bits: in a
    third of the passes over the numbers.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, eps: float) -> Tensor:
        exact = x.float()
        r = exact.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, r, w)
        return w * exact.mul_(r).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, r, w = ctx.saved_tensors
        exact, g = x.float(), (gradients[0] * w).float()
        along = torch.linalg.vecdot(g, exact)[..., None].mul_(r.pow(3)).div_(x.shape[-1])
        return g.mul_(r).addcmul_(exact, along, value=-1).to(x.dtype), None, None
