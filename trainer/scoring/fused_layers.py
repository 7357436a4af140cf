"""Layers for a GPU, where tensors between the products are read and written as slowly as products
are computed.

peft multiplies LoRA in the adapter's float32: without tensor cores, and with float32 copies of each
layer's input and output. Here LoRA has the base's dtype, as it has in the server, and adds into the
results of the layer's own products; sums over tokens are float32. Norms and SiLU of the gate are
liger-kernel's where it is installed, one kernel for each pass. All of it gives what `lean_layers`
gives but for rounding, of the same models.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from trainer.scoring import lean_layers


def fuse(model: nn.Module, adapter: str = "default", *, only_lora: bool = False) -> None:
    """Give a peft model's LoRA layers these forward passes, and its norms and gated MLPs liger's
    unless `only_lora`.

    The base has 16-bit weights that are not trained; the LoRA is float32 and has no dropout.
    """
    lean_layers.change_lora(model, adapter, _with_lora)
    if only_lora:
        return
    if find_spec("liger_kernel") is None:
        lean_layers.change_layers(model, lean_layers.gated, lean_layers.normed)
        return
    from liger_kernel.ops import LigerRMSNormFunction, LigerSiLUMulFunction

    def norm(of: Any, x: Tensor) -> Tensor:
        return LigerRMSNormFunction.apply(x, of.weight, of.variance_epsilon)  # type: ignore[no-any-return]

    lean_layers.change_layers(model, LigerSiLUMulFunction.apply, norm)


def _with_lora(base: Any, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    if type(base) is not nn.Linear:
        return lean_layers.with_lora(base, x, a, b, scale)
    apply: Any = _LinearWithLora.apply
    return apply(x, base.weight, base.bias, a, b, scale)  # type: ignore[no-any-return]


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
        out = linear(x, w, bias)
        out.view(-1, out.shape[-1]).addmm_(middle, (b * scale).to(x.dtype).T)
        return out  # no view, which some models could not clamp in place

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
