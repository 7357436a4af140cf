"""Tensors in files: safetensors, with errors that name the file.

Imports torch on use.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput, MissingFile
from fieldkit.files.atomic import write_bytes

if TYPE_CHECKING:
    from torch import Tensor


def load_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises `BadInput` for a missing or broken
    one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device="cpu")
    except FileNotFoundError:
        raise MissingFile(f"{path}: no such file") from None
    except SafetensorError as e:
        raise BadInput(f"{path}: not a whole safetensors file ({e})") from None


def require_alike(found: Mapping[str, Tensor], needed: Mapping[str, Tensor], source: str) -> None:
    """Raise `BadInput` that begins with `source` unless names and shapes are those of `needed`."""
    for name, tensor in needed.items():
        if name not in found:
            raise BadInput(f"{source}: {name} is missing")
        if found[name].shape != tensor.shape:
            raise BadInput(
                f"{source}: {name} has shape {list(found[name].shape)}, {list(tensor.shape)} is "
                "needed"
            )
    for name in found:
        if name not in needed:
            raise BadInput(f"{source}: {name} does not belong there")


def save_tensors(
    tensors: Mapping[str, Tensor], path: str | Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write CPU tensors to a safetensors file, whole or not at all; takes as much memory again as
    the file has bytes.

    A write that fails raises its `OSError` and leaves what was there before: safetensors' own
    writer reports a full disk as an error of its format.
    """
    from safetensors.torch import save

    write_bytes(path, save(dict(tensors), metadata=dict(metadata) if metadata else None))
