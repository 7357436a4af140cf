"""How far an update moved the weights, and how much of that the server will see.

A training step that reports a small loss may not have moved anything, and an update that moved the
float32 weights may vanish when a server holds them in bfloat16. Both are answered from the tensors
themselves, which are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.training.tensors import require_alike

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class WeightDelta:
    """The difference between two sets of equally named tensors.

    l2: Euclidean norm over all elements. max_abs: largest |difference|.
    served_l2, served_max_abs: the same after both sides are rounded to the serving dtype.
    served_changed: share in [0, 1] of the moved elements whose rounded value differs; 0 where
    nothing moved.
    """

    l2: float
    max_abs: float
    served_l2: float
    served_max_abs: float
    served_changed: float
    n_elements: int


def weight_delta(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], serving_dtype: torch.dtype
) -> WeightDelta:
    """How far `after` is from `before`. Sums run in float64, in name order.

    Raises `BadInput` naming a tensor that is missing, extra, of another shape or not finite.
    """
    require_alike(after, before, "weight delta")
    squares = served_squares = 0.0
    largest = served_largest = 0.0
    moved = survived = elements = 0
    for name, old in sorted(before.items()):
        new = after[name].detach().to("cpu")
        step = (new.double() - old.double()).abs()
        served = (new.to(serving_dtype).double() - old.to(serving_dtype).double()).abs()
        if not math.isfinite(step.sum().item()):
            raise BadInput(f"weight delta: {name} holds NaN or infinite values")
        squares += step.square().sum().item()
        served_squares += served.square().sum().item()
        largest = max(largest, step.max().item())
        served_largest = max(served_largest, served.max().item())
        moved += int(step.count_nonzero())
        survived += int(served.count_nonzero())
        elements += step.numel()
    return WeightDelta(
        l2=math.sqrt(squares),
        max_abs=largest,
        served_l2=math.sqrt(served_squares),
        served_max_abs=served_largest,
        served_changed=survived / moved if moved else 0.0,
        n_elements=elements,
    )
