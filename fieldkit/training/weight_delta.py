"""How far an update moved the weights, and how much of that the server will see.

A training step that reports a small loss may not have moved anything, and an update that moved the
float32 weights may vanish when a server holds them in bfloat16. The tracker answers both from the
tensors themselves. It keeps copies on the CPU and never touches the live ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput

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


class WeightDeltaTracker:
    """Remembers tensors as they are now, to say later how far they have moved."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._before = {
            name: t.detach().to("cpu", copy=True) for name, t in sorted(tensors.items())
        }

    def delta(self, tensors: Mapping[str, Tensor], serving_dtype: torch.dtype) -> WeightDelta:
        """Compare with what was remembered. Sums run in float64, in name order.

        Raises `BadInput` naming a tensor that is missing, extra, of another shape or not finite.
        """
        self._check(tensors)
        squares = served_squares = 0.0
        largest = served_largest = 0.0
        moved = survived = elements = 0
        for name, old in self._before.items():
            new = tensors[name].detach().to("cpu")
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

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        for name, old in self._before.items():
            if name not in tensors:
                raise BadInput(f"weight delta: {name} is missing")
            if tensors[name].shape != old.shape:
                raise BadInput(
                    f"weight delta: {name} was {list(old.shape)}, is {list(tensors[name].shape)}"
                )
        for name in tensors:
            if name not in self._before:
                raise BadInput(f"weight delta: {name} was not there before")
