"""Tensors in files: safetensors, with errors that name the file.

The library reports a full disk as an error of its own format; here it is what the disk says.
Imports torch on use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.files.atomic import naming

if TYPE_CHECKING:
    from torch import Tensor

# More than the header of a safetensors file takes: for each tensor its name and this (its dtype,
# shape and place), and once this for all else.
_HEADER_BYTES = 256


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU. Raises `BadInput` for a missing or broken
    one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device="cpu")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
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
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write CPU tensors to a safetensors file.

    A disk that has no room for it (a quota counts, too) is the `OSError` that the disk gives, and
    names `path`; nothing is left there.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata=dict(metadata) if metadata else None)
    except SafetensorError:
        path.unlink(missing_ok=True)
        _require_room(path, _size(tensors, metadata or {}))
        raise


def _size(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """An upper bound of the file's bytes, close enough for a disk."""
    header = sum(len(name.encode()) + _HEADER_BYTES for name in tensors)
    header += sum(len((key + value).encode()) for key, value in metadata.items()) + _HEADER_BYTES
    return header + sum(t.numel() * t.element_size() for t in tensors.values())


def _require_room(path: Path, size: int) -> None:
    """Raise what the disk says to a file of that size; leave none."""
    try:
        with naming(path), open(path, "wb") as f:
            os.posix_fallocate(f.fileno(), 0, size)
    finally:
        path.unlink(missing_ok=True)
