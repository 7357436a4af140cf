"""Writing tensors: safetensors, with the errors of a disk as what they are.

The library reports a full disk as an error of its own format. Imports torch on use.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write CPU tensors to a safetensors file. A full disk is `OSError` (ENOSPC) naming `path`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata=dict(metadata) if metadata else None)
    except SafetensorError as e:
        needed = sum(t.numel() * t.element_size() for t in tensors.values())
        path.unlink(missing_ok=True)
        if shutil.disk_usage(path.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from e
        raise
