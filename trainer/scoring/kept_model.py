"""A loaded model that serves step after step, each with an adapter from its own files.

Loading takes seconds and a step changes nothing of the base. So the model is loaded once for as
long as its files, dtype and LoRA shape stay the same, and each step puts its adapter's weights into
it: a step depends on its files alone, whether or not another one came before in this process. Torch
is imported with the first model.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.training.adapter import CONFIG_FILE, WEIGHTS_FILE, AdapterInfo
from fieldkit.training.tensors import load_tensors, require_alike
from trainer.scoring.shared_prefix import forget

if TYPE_CHECKING:
    import torch

    from trainer.scoring.policy import Policy


@dataclass(frozen=True)
class _Shape:
    """What a loaded model depends on besides the adapter's weights."""

    model_dir: Path
    files: tuple[tuple[str, int, int], ...]
    """Of the model's folder: name, size, and time of the last change in nanoseconds."""
    lora: bytes
    """adapter_config.json: rank, alpha and layers."""
    dtype: torch.dtype
    checkpointing: bool
    sharded: bool


class KeptModel:
    """At most one model. Call `keep_only`, then `with_adapter`."""

    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._policy: Policy | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether `with_adapter` has only an adapter's weights to read."""
        return self._policy is not None

    def keep_only(
        self,
        model_dir: Path,
        adapter: AdapterInfo,
        dtype: torch.dtype,
        *,
        checkpointing: bool,
        sharded: bool = False,
    ) -> None:
        """Say which model is needed next. A loaded one that is another is dropped, and its memory
        is available when this returns."""
        files = sorted(p for p in model_dir.iterdir() if p.is_file())
        stats = [(p.name, p.stat()) for p in files]
        shape = _Shape(
            model_dir,
            tuple((name, s.st_size, s.st_mtime_ns) for name, s in stats),
            (adapter.path / CONFIG_FILE).read_bytes(),
            dtype,
            checkpointing,
            sharded,
        )
        if shape != self._shape:
            was_loaded, self._shape, self._policy = self.is_loaded, shape, None
            if was_loaded:
                give_back()

    def with_adapter(self, adapter: AdapterInfo) -> Policy:
        """The model with the weights of `adapter`, which has been checked against it.

        The LoRA is float32 and has no gradient. The caller may train it; the base must stay as it
        is. Raises `BadInput` for a tensor that is missing, extra or of another shape.
        """
        from trainer.scoring.policy import load_policy

        assert self._shape is not None
        policy, self._policy = self._policy, None  # an error below must not leave half an adapter
        if policy is None:
            policy = load_policy(
                self._shape.model_dir,
                adapter,
                self._shape.dtype,
                gradient_checkpointing=self._shape.checkpointing,
                sharded=self._shape.sharded,
            )
        else:
            _put(adapter.path / WEIGHTS_FILE, policy)
        self._policy = policy
        return policy


def give_back() -> None:
    """Return to the system what tensors took that nothing holds any more."""
    forget()
    gc.collect()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "MallocExtension_ReleaseFreeMemory"):  # tcmalloc, where it is preloaded
        allocator.MallocExtension_ReleaseFreeMemory()
    elif hasattr(allocator, "malloc_trim"):  # glibc
        allocator.malloc_trim(0)


def held_on_gpu() -> int:
    """Bytes of this process's tensors on GPUs."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))


def _put(file: Path, policy: Policy) -> None:
    lora, tensors = policy.lora(), load_tensors(file)
    require_alike(tensors, lora, str(file))
    for name, parameter in lora.items():
        parameter.data = tensors[name].to(parameter.device).float()
        parameter.grad = None
