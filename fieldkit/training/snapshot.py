"""A reference policy that costs no second model: an adapter's tensors, kept on the CPU.

For a KL term the same base is scored under two adapters. Loading the second one next to the first
goes through peft's placement heuristics; here its tensors are copied into the live adapter for the
length of a `with` block, and the live values are put back bit for bit afterwards, whatever happens
inside. Nothing is skipped: a key, shape or value that does not fit is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.errors import AlreadySwapped, BadInput
from fieldkit.files.atomic import read_json
from fieldkit.training.adapter import CONFIG_FILE, WEIGHTS_FILE
from fieldkit.training.live import (
    adapter_parameters,
    adapters_of,
    every_parameter,
    is_sharded,
    local_part,
    trained_parameters,
)
from fieldkit.training.tensors import load_tensors, require_alike

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module, Parameter

_swapped: set[int] = set()
"""Ids of the parameters that hold a snapshot's values now. Their snapshots keep them alive."""


@dataclass(frozen=True)
class _Held:
    """A swapped-out parameter: its own values, and what gives it its version number back."""

    parameter: Parameter
    own: Tensor
    version: Any


class LoraReferenceSnapshot:
    """The values that a model's trained parameters had, and a way to score under them again.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> reference = LoraReferenceSnapshot(model)
    >>> _ = model.weight.data.zero_()             # training moves the weights
    >>> with reference, torch.no_grad():
    ...     under_reference = model(torch.ones(2))
    >>> model.weight.tolist()                     # training continues from here
    [[0.0, 0.0]]

    `with` swaps in and back. Parameters stay the same objects, so an optimizer keeps hold of them,
    and a graph recorded before the block can be backpropagated after it. Score without gradients
    inside: a graph recorded there raises in `backward` afterwards.

    snapshot: values by parameter name, for some of the model's parameters; None takes every
    parameter that requires a gradient, as it is now. Raises `BadInput` for a name that the model
    lacks, another shape, a dtype that loses digits, and values that are not finite.

    On CUDA the values wait in pinned memory and are copied without a stop of the host. On the CPU
    the model's own values wait in room that the first swap takes and later ones use again, so from
    then on the snapshot is two adapters large. Of a parameter that torch shards (DTensor), a rank
    keeps its own part.
    """

    def __init__(self, model: Module, *, snapshot: Mapping[str, Tensor] | None = None) -> None:
        if snapshot is None:
            snapshot = trained_parameters(model)
            if not snapshot:
                raise BadInput("snapshot: no parameter of the model requires a gradient")
        self._take(model, snapshot, "snapshot")

    def _take(self, model: Module, snapshot: Mapping[str, Tensor], source: str) -> None:
        live = every_parameter(model)
        for name in snapshot:
            if name not in live:
                raise BadInput(f"{source}: {name}: the model has no parameter of that name")
        self.source = source
        """The file that the values come from, as messages name it; "snapshot" without one."""
        self._model = model
        self._held: dict[str, _Held] = {}
        self._room: dict[str, Tensor] = {}
        self._values: dict[str, Tensor] = {}
        first: dict[int, str] = {}
        for name, given in snapshot.items():
            values = self._kept(name, given, live[name])
            other = first.setdefault(id(live[name]), name)
            if other == name:
                self._values[name] = values
            elif not values.equal(self._values[other]):
                raise BadInput(f"{source}: {name} differs from {other}, which it is tied to")

    @classmethod
    def from_disk(
        cls,
        model: Module,
        adapter_dir: str | Path,
        *,
        adapter_name: str = "default",
        weights_filename: str = WEIGHTS_FILE,
    ) -> LoraReferenceSnapshot:
        """The values of an adapter folder, for the live adapter `adapter_name` of `model`.

        The file has to hold exactly what is trained: the adapter's own tensors and every other
        parameter that requires a gradient. An adapter_config.json beside it has to scale the
        update as the live adapter does. Raises `BadInput` that names file and key otherwise; where
        there is no file it is a `FileNotFoundError` too.
        """
        file = Path(adapter_dir) / weights_filename
        tensors = load_tensors(file)
        _require_same_scale(model, Path(adapter_dir) / CONFIG_FILE, adapter_name)
        names = adapter_parameters(model, adapter_name, tensors)
        live = every_parameter(model)
        require_alike(tensors, {key: live[name] for key, name in names.items()}, str(file))
        made = cls.__new__(cls)
        made._take(model, {name: tensors[key] for key, name in names.items()}, str(file))
        return made

    def _kept(self, name: str, values: Tensor, live: Parameter) -> Tensor:
        """A CPU copy of `values` in the dtype of `live`, pinned where `live` is on a GPU."""
        import torch

        where = f"{self.source}: {name}"
        if live.is_meta:
            raise BadInput(
                f"{where} has no values here (device meta): the model is offloaded; load it with a "
                "device_map that keeps the adapter in memory"
            )
        with torch.no_grad():
            part, needed = _part(values, live), local_part(live).shape
            if part.shape != needed:
                raise BadInput(f"{where} has shape {list(part.shape)}, {list(needed)} is needed")
            if not bool(torch.isfinite(part).all()):
                raise BadInput(f"{where} holds NaN or infinite values")
            cast = part.to(live.dtype)
            if cast.dtype != part.dtype and not torch.equal(cast.to(part.dtype), part):
                raise BadInput(
                    f"{where} is {part.dtype} and loses digits in the model's {live.dtype}; load "
                    "the adapter in its own dtype, or pass values rounded to the model's"
                )
            pinned = live.device.type == "cuda"
            kept = torch.empty(part.shape, dtype=live.dtype, device="cpu", pin_memory=pinned)
            return kept.copy_(cast)

    def __len__(self) -> int:
        """How many tensors it holds."""
        return len(self._values)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Parameter name -> values on the CPU; not to be written to."""
        return self._values

    def to(self, dtype: torch.dtype) -> LoraReferenceSnapshot:
        """The same values rounded to `dtype`, for a model that was converted to it."""
        rounded = {name: values.to(dtype) for name, values in self._values.items()}
        return type(self)(self._model, snapshot=rounded)

    def __enter__(self) -> LoraReferenceSnapshot:
        """Give the model the snapshot's values. Raises `AlreadySwapped` (a `RuntimeError`) where a
        snapshot is swapped into any of these parameters, and `BadInput` as the constructor does
        where the model has changed since, and where its adapter is merged into the base or is not
        the one that is used."""
        import torch
        from torch.autograd.grad_mode import _unsafe_preserve_version_counter

        for name, module in self._model.named_modules():
            if getattr(module, "merged", False) is True:
                raise BadInput(
                    f"{name}: its adapter is merged into the base, so a swap of the adapter would "
                    "change nothing; call unmerge_adapter() first"
                )
        live = every_parameter(self._model)
        first: dict[int, str] = {}
        for name, values in self._values.items():
            if name not in live:
                raise BadInput(f"{self.source}: {name}: the model has no such parameter any more")
            if (other := first.setdefault(id(live[name]), name)) != name:
                raise BadInput(f"{self.source}: {name} has been tied to {other} since")
            if id(live[name]) in _swapped:
                raise AlreadySwapped(
                    f"{name}: a snapshot is already active in this model; leave its block first"
                )
            if (values.dtype, values.shape) != (live[name].dtype, local_part(live[name]).shape):
                self._values[name] = self._kept(name, values, live[name])
        _require_active(self._model, self._values)
        try:
            with torch.no_grad():
                for name, values in self._values.items():
                    parameter = live[name]
                    own = self._own_values(name, local_part(parameter.detach()))
                    version = _unsafe_preserve_version_counter(parameter)
                    self._held[name] = _Held(parameter, own, version)
                    _swapped.add(id(parameter))
                    _put(parameter, values)
            torch.clear_autocast_cache()  # of weights in another dtype, as they were before
        except BaseException:
            self.restore()
            raise
        return self

    def _own_values(self, name: str, live: Tensor) -> Tensor:
        """A copy of a parameter's values. Fresh memory for each swap would cost as much as the
        copies themselves, on the CPU; torch keeps that of a GPU for the next allocation."""
        import torch

        room = self._room.get(name)
        alike = (live.shape, live.dtype, live.device)
        if room is None or (room.shape, room.dtype, room.device) != alike:
            with torch.inference_mode(False):  # else only another inference mode may write to it
                room = torch.empty_like(live)
            if live.device.type == "cpu":
                self._room[name] = room
        return room.copy_(live)

    def __exit__(self, *exception: object) -> None:
        """Give the model its own values back, bit for bit."""
        self.restore()

    def restore(self) -> None:
        """Put the model's own values back where they are swapped out; else without effect.

        `with` does it. A Ctrl-C while values are copied is raised once all of them are back.
        """
        import torch

        interrupt: KeyboardInterrupt | None = None
        while self._held:
            try:
                with torch.no_grad():
                    for name, held in list(self._held.items()):
                        _put(held.parameter, held.own)
                        held.version.__exit__()
                        _swapped.discard(id(held.parameter))
                        del self._held[name]
            except KeyboardInterrupt as e:
                interrupt = e
        torch.clear_autocast_cache()
        if interrupt is not None:
            raise interrupt


def _require_active(model: Module, names: Iterable[str]) -> None:
    """Raise `BadInput` where the model uses none of the adapters that a snapshot is of."""
    held = {adapter for name in names for adapter in adapters_of(name)}
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "disable_adapters")]
    used = {a for layer in layers if layer.disable_adapters is False for a in layer.active_adapters}
    if held and layers and not held & used:
        raise BadInput(
            f"the snapshot is of adapter {min(held)!r}, and the model uses "
            f"{', '.join(sorted(used)) or 'none'}: a swap of the adapter would change nothing"
        )


def _require_same_scale(model: Module, file: Path, adapter_name: str) -> None:
    """Raise `BadInput` where the adapter of a folder multiplies B·A by another number than the live
    one: its values in the live adapter would be another policy."""
    configs = (getattr(module, "peft_config", None) for module in model.modules())
    live = next((c for c in configs if isinstance(c, dict)), {}).get(adapter_name)
    stored = read_json(file) if live and file.is_file() else {}
    for key, usual in (("lora_alpha", 8), ("use_rslora", False), ("alpha_pattern", {})):
        found: Any = stored.get(key, usual) or usual
        now = getattr(live, key, usual) or usual
        if stored and found != now:
            raise BadInput(
                f"{file}: {key} is {found}, but {now} in the model's adapter {adapter_name!r}: "
                "give the model the adapter's own settings"
            )


def _put(parameter: Parameter, values: Tensor) -> None:
    local_part(parameter).copy_(values, non_blocking=True)


def _part(values: Tensor, live: Parameter) -> Tensor:
    """The part of `values` that belongs to this process's part of `live`."""
    values = values.detach()
    if is_sharded(live) and not is_sharded(values):
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = live
        values = distribute_tensor(values.to(live.device), sharded.device_mesh, sharded.placements)
    return local_part(values)
