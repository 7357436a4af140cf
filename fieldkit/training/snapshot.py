"""A reference policy that costs no second model: an adapter's LoRA tensors, kept on the CPU.

For a KL term the same base has to be scored under two adapters. Loading the second one beside the
first goes through peft's placement heuristics; here its tensors are copied into the live adapter
for the length of a `with` block, and the live values are put back bit for bit afterwards, whatever
happens inside. Nothing is skipped: a key, shape or value that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.training.adapter import WEIGHTS_FILE
from fieldkit.training.tensors import load_tensors, require_alike

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter

_LIVE_NAME = "default"  # the name peft gives an adapter that is loaded without one


def live_lora(model: Module, adapter_name: str = _LIVE_NAME) -> dict[str, Parameter]:
    """The LoRA parameters of a peft model, under the names they have in an adapter file.

    peft puts the adapter's name before the last part (`lora_A.default.weight`); files do not.
    Sorted by name.
    """
    marks = tuple(f".lora_{side}.{adapter_name}.weight" for side in "AB")
    return {
        name.replace(f".{adapter_name}.weight", ".weight"): parameter
        for name, parameter in sorted(model.named_parameters())
        if name.endswith(marks)
    }


class LoraReferenceSnapshot:
    """LoRA tensors by file name, float as stored, on the CPU.

    `source` is what messages call them (a path, "step 3").
    """

    def __init__(self, tensors: Mapping[str, Tensor], source: str) -> None:
        import torch

        self.source = source
        self._tensors = {
            name: t.detach().to("cpu", copy=True) for name, t in sorted(tensors.items())
        }
        for name, tensor in self._tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise BadInput(f"{source}: {name} holds NaN or infinite values")

    @classmethod
    def from_folder(cls, adapter: Path) -> LoraReferenceSnapshot:
        """Read an adapter folder's weights. Raises `BadInput` for a missing or broken file."""
        file = adapter / WEIGHTS_FILE
        return cls(load_tensors(file), str(file))

    @classmethod
    def from_model(cls, model: Module, source: str = "the live adapter") -> LoraReferenceSnapshot:
        """Copy the live adapter's present values."""
        return cls(live_lora(model), source)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Name -> tensor on the CPU; not to be written to."""
        return self._tensors

    @contextmanager
    def swapped_in(self, model: Module) -> Iterator[None]:
        """Give the live adapter this snapshot's values inside the block, and its own back after.

        The live parameters stay the same objects (an optimizer keeps hold of them) and get their
        values back bit for bit. For scoring without gradients: a graph that was recorded before
        the swap cannot be backpropagated after it (torch notices and raises).
        """
        live = live_lora(model)
        require_alike(self._tensors, live, self.source)
        own = {name: parameter.detach().to("cpu", copy=True) for name, parameter in live.items()}
        try:
            copy_into(live, self._tensors)
            yield
        finally:
            copy_into(live, own)


def copy_into(live: Mapping[str, Parameter], values: Mapping[str, Tensor]) -> None:
    """Overwrite parameters in place, in their own dtype and on their own device."""
    import torch

    with torch.no_grad():
        for name, parameter in live.items():
            parameter.copy_(values[name])
