"""The parameters of a live model, by their names in the model and in an adapter file.

peft puts the adapter's name into the names of its parameters (`lora_A.default.weight`) and leaves
it out in files (`lora_A.weight`). This module translates between the two; it imports no peft, and
changes no parameter.
"""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from fieldkit.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter

_WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod)\.)+")  # of DistributedDataParallel, torch.compile

# The containers that hold one entry for each adapter, and the entry's name after them.
_OF_ADAPTER = re.compile(
    r"\.(?P<container>lora_\w+|modules_to_save|token_adapter\.\w+)\.(?P<adapter>[^.]+)(?=\.|$)"
)


def every_parameter(model: Module) -> dict[str, Parameter]:
    """Name -> parameter, a tied one under each of its names."""
    return dict(model.named_parameters(remove_duplicate=False))


def trained_parameters(model: Module) -> dict[str, Parameter]:
    """Name -> parameter of those that require a gradient, a tied one once. Raises `BadInput` for
    one whose values DeepSpeed keeps elsewhere."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in found.items():
        if getattr(parameter, "ds_numel", parameter.numel()) != parameter.numel():
            raise BadInput(
                f"{name} has no values here: DeepSpeed (ZeRO stage 3) keeps a part of it in each "
                "process. Train the adapter with stage 2, or with FSDP2"
            )
    return found


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which each process holds a part."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds: of a sharded one its shard."""
    part: Any = tensor
    return part.to_local() if is_sharded(tensor) else tensor


def live_lora(model: Module, adapter_name: str = "default") -> dict[str, Parameter]:
    """The LoRA matrices of a peft model's adapter, by their names in a file, sorted."""
    marks = tuple(f".lora_{side}.{adapter_name}.weight" for side in "AB")
    return {
        file_name(name): parameter
        for name, parameter in sorted(model.named_parameters())
        if name.endswith(marks)
    }


def file_name(name: str) -> str:
    """A live parameter's name in an adapter file."""
    found = _OF_ADAPTER.search(name)
    if found is None:
        return name
    container, rest = found["container"], name[found.end() :]
    if container == "modules_to_save":
        return name[: found.start()] + rest
    if container == "lora_magnitude_vector":
        rest = rest.removesuffix(".weight")
    return f"{name[: found.start()]}.{container}{rest}"


def adapter_parameters(
    model: Module, adapter_name: str, there: Container[str] = ()
) -> dict[str, str]:
    """Name in a file -> live name, of everything that a file of this adapter has to hold.

    That is the adapter's own tensors, frozen or not, and every other parameter that requires a
    gradient, but for those of other adapters. A tied parameter needs one of its names, if possible
    one that is `there`. Raises `BadInput` where the model has adapters and none of that name.
    """
    adapters = {adapter for name in every_parameter(model) for adapter in adapters_of(name)}
    if adapters and adapter_name not in adapters:
        raise BadInput(
            f"adapter_name: the model has no adapter {adapter_name!r}; it has "
            f"{', '.join(sorted(adapters))}"
        )
    names: dict[int, list[str]] = {}
    for name, parameter in every_parameter(model).items():
        owners = adapters_of(name)
        if adapter_name in owners or (parameter.requires_grad and not owners):
            names.setdefault(id(parameter), []).append(name)
    found: dict[str, str] = {}
    for aliases in names.values():
        keys = {key: name for name in aliases for key in _keys(name)}
        present = {key: name for key, name in keys.items() if key in there}
        found |= present or dict([next(iter(keys.items()))])
    return found


def adapters_of(name: str) -> list[str]:
    """The adapters that a live parameter's name gives."""
    return [found["adapter"] for found in _OF_ADAPTER.finditer(name)]


def _keys(name: str) -> list[str]:
    """What a file may call a live parameter, the most usual first."""
    bare = _WRAPPERS.sub("", name)
    return [file_name(bare), bare]
