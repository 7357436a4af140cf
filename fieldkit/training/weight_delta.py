"""How far an update moved the weights, and how much of that a server will see.

A training step that reports a small loss may not have moved anything, and an update that moved the
float32 weights may vanish when a server holds them in bfloat16. Both are answered from the tensors
themselves, which are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.training.live import local_part, trained_parameters
from fieldkit.training.tensors import require_alike

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module


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
    """A copy of a model's trained parameters on the CPU, and how far they have moved since.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> tracker = WeightDeltaTracker(model)
    >>> _ = model.weight.data.add_(torch.tensor([[3.0, -4.0]]))
    >>> l2, max_abs = tracker.delta()
    >>> round(l2, 4), round(max_abs, 4)
    (5.0, 4.0)

    It follows the parameters that required a gradient when it was made; without any it holds
    nothing and every delta is 0. All methods raise `BadInput` that names a parameter that has gone,
    has another shape or is not finite, and one that has begun to be trained since.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        self._before: dict[str, Tensor] = {}
        self.rebase()

    def __len__(self) -> int:
        """How many tensors it follows."""
        return len(self._before)

    @property
    def before(self) -> Mapping[str, Tensor]:
        """Parameter name -> values that deltas are measured from; not to be written to."""
        return self._before

    def rebase(self) -> None:
        """Measure from the present values on, of the parameters that are trained now."""
        self._before = {
            name: local_part(parameter.detach()).to("cpu", copy=True)
            for name, parameter in sorted(trained_parameters(self._model).items())
        }

    def delta(self) -> tuple[float, float]:
        """(L2 norm, largest |difference|) over all tensors together; sums run in float64.

        Of sharded parameters (FSDP2) it is this rank's part, here and below: √Σ L2² and the largest
        maximum over the ranks are the whole.
        """
        figures = [(square, largest) for _, square, largest in self._moved()]
        return math.sqrt(sum(s for s, _ in figures)), max((m for _, m in figures), default=0.0)

    def per_layer(self) -> dict[str, tuple[float, float]]:
        """The same for each tensor, by parameter name."""
        return {name: (math.sqrt(square), largest) for name, square, largest in self._moved()}

    def served(self, serving_dtype: torch.dtype) -> WeightDelta:
        """The delta, and what is left of it for a server that holds the weights in this dtype."""
        return weight_delta(self._before, self._now(), serving_dtype)

    def _moved(self) -> Iterator[tuple[str, float, float]]:
        now = self._now()
        for name, old in self._before.items():
            yield name, *_moved(name, old, now[name].to("cpu"))

    def _now(self) -> dict[str, Tensor]:
        live = dict(self._model.named_parameters())
        for name in trained_parameters(self._model):
            if name not in self._before:
                raise BadInput(f"weight delta: {name} is trained since; call rebase() first")
        kept = [name for name in self._before if name in live]
        now = {name: local_part(live[name].detach()) for name in kept}
        require_alike(now, self._before, "weight delta")
        return now


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
        square, most = _size(name, step)
        served_square, served_most = _size(name, served)
        squares, served_squares = squares + square, served_squares + served_square
        largest, served_largest = max(largest, most), max(served_largest, served_most)
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


_BLOCK = 1 << 16
"""Elements that are in float64 at once: half a megabyte, which stays in a core's cache."""


def _moved(name: str, old: Tensor, new: Tensor) -> tuple[float, float]:
    """Sum of squares and maximum of |new - old|, block by block."""
    import torch

    square = largest = 0.0
    blocks = (torch.split(tensor.reshape(-1), _BLOCK) for tensor in (old, new))
    for before, after in zip(*blocks, strict=True) if old.numel() else ():
        step = after.to(torch.float64, copy=True).sub_(before)
        square += torch.dot(step, step).item()
        low, high = torch.aminmax(step)
        largest = max(largest, -low.item(), high.item())
    if not math.isfinite(square):
        raise BadInput(f"weight delta: {name} holds NaN or infinite values")
    return square, largest


def _size(name: str, step: Tensor) -> tuple[float, float]:
    """Sum of squares and maximum of a float64 tensor that is not negative anywhere."""
    if not math.isfinite(step.sum().item()):
        raise BadInput(f"weight delta: {name} holds NaN or infinite values")
    return step.square().sum().item(), step.max().item() if step.numel() else 0.0
