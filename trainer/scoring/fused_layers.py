"""Layers for a GPU, where tensors between the products are read and written as slowly as products
are computed.

peft multiplies LoRA in the adapter's float32: without tensor cores, and with float32 copies of each
layer's input and output. Here LoRA has the base's dtype, as it has in the server, and adds into the
results of the layer's own products; sums over tokens are float32. Norms and SiLU of the gate are
liger-kernel's where it is installed, one kernel for each pass; such norms keep no float32. All of
it gives what `lean_layers` gives but for rounding. For the same models.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from trainer.scoring import lean_layers


def fuse(model: nn.Module, adapter: str = "default") -> None:
    """Give a peft model's LoRA layers these forward passes, and its norms and gated MLPs liger's.

    The base has 16-bit weights that are not trained; the LoRA is float32 and has no dropout.
    """
    from peft.tuners.lora import Linear

    with_liger = find_spec("liger_kernel") is not None
    gated = _gated if with_liger else lean_layers.gated
    modules: Iterable[Any] = model.modules()
    for module in modules:
        forward = None
        if isinstance(module, Linear) and type(module.base_layer) is nn.Linear:
            forward = partial(_with_lora, module, adapter, module.forward)
        elif lean_layers.is_gated(module):
            forward = partial(gated, module)
        elif with_liger and type(module).__name__.endswith("RMSNorm"):
            forward = partial(_norm, module)
        if forward is not None:
            module.forward = forward


def _with_lora(layer: Any, adapter: str, as_peft_does: Any, x: Tensor) -> Tensor:
    a, b = layer.lora_A[adapter].weight, layer.lora_B[adapter].weight
    if layer.disable_adapters or layer.merged or x.dtype == a.dtype:
        return as_peft_does(x)  # type: ignore[no-any-return]
    base, apply = layer.base_layer, _LinearWithLora.apply
    return apply(x, base.weight, base.bias, a, b, layer.scaling[adapter])  # type: ignore[no-any-return, no-untyped-call]


def _gated(mlp: Any, x: Tensor) -> Tensor:
    from liger_kernel.ops import LigerSiLUMulFunction

    return mlp.down_proj(LigerSiLUMulFunction.apply(mlp.gate_proj(x), mlp.up_proj(x)))  # type: ignore[no-any-return]


def _norm(norm: Any, x: Tensor) -> Tensor:
    from liger_kernel.ops import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, norm.weight, norm.variance_epsilon)  # type: ignore[no-any-return]


class _LinearWithLora(torch.autograd.Function):
    """W·x + bias + B·A·x · scale, x and W in 16 bits, A and B float32 and rounded to these."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        rows = x.flatten(0, -2)
        middle = rows @ a.to(x.dtype).T
        ctx.save_for_backward(x, middle, w, a, b)
        ctx.scale = scale
        out = linear(rows, w, bias).addmm_(middle, (b * scale).to(x.dtype).T)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, middle, w, a, b = ctx.saved_tensors
        upstream, rows = gradients[0].flatten(0, -2), x.flatten(0, -2)
        to_middle = upstream @ (b * ctx.scale).to(x.dtype)
        to_b = _product_float32(upstream.T, middle) * ctx.scale
        to_a = _product_float32(to_middle.T, rows)
        to_x = None
        if ctx.needs_input_grad[0]:
            to_x = (upstream @ w).addmm_(to_middle, a.to(x.dtype)).view_as(x)
        return to_x, None, None, to_a, to_b, None


def _product_float32(left: Tensor, right: Tensor) -> Tensor:
    """A product of 16-bit matrices whose sums are not rounded to 16 bits."""
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
