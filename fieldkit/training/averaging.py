"""The mean of several LoRA adapters of one run, as an adapter of the same shape.

Steps of a constant length go on wandering around the point that they reached. The mean of the last
adapters lies nearer to that point than any of them (Polyak and Juditsky 1992; for networks Izmailov
et al. 2018, arXiv:1803.05407). A file is averaged, so nothing has to be loaded into a model.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.training.adapter import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from fieldkit.training.tensors import load_tensors, require_alike, save_tensors

if TYPE_CHECKING:
    from torch import Tensor


def mean_adapter(adapters: Sequence[str | Path], target: str | Path) -> None:
    """Write the mean of some adapter folders into the folder `target`, with the first one's config.

    Each tensor is the mean of the adapters' equally named ones, summed in float64 and stored in
    their dtype. The update of a layer is then mean(B) mean(A), which differs from the mean of the
    B A by the covariance of the two factors: small for the steps of one run, and without a meaning
    for adapters that began from different initialisations.

    Raises `BadInput` for no adapter, for a `target` that has an adapter already, for a value that
    is not finite, and where two adapters differ in a tensor's name, shape or dtype, or in a setting
    that changes what tensors mean.
    """
    if not adapters:
        raise BadInput("no adapter to take the mean of")
    paths, target = [Path(a) for a in adapters], Path(target)
    if (target / WEIGHTS_FILE).exists():
        raise BadInput(f"{target / WEIGHTS_FILE} exists; choose another folder, or remove it")
    for path in paths:
        _require_same_settings(path, paths[0])
    mean = _mean_tensors(paths)
    target.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(paths[0] / CONFIG_FILE, target / CONFIG_FILE)
    save_tensors(mean, target / WEIGHTS_FILE, metadata={"format": "pt"})


def _require_same_settings(path: Path, first: Path) -> None:
    mine, others = read_adapter(path), read_adapter(first)
    for key in ("rank", "alpha", "target_modules", "use_rslora"):
        if getattr(mine, key) != getattr(others, key):
            raise BadInput(
                f"{path / CONFIG_FILE}: {key} is {getattr(mine, key)}, but {getattr(others, key)} "
                f"in {first}"
            )


def _mean_tensors(paths: Sequence[Path]) -> dict[str, Tensor]:
    """One adapter is in memory at a time, beside the sums."""
    import torch

    first = load_tensors(paths[0] / WEIGHTS_FILE)
    sums = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in first.items()}
    for path in paths:
        file = path / WEIGHTS_FILE
        found = load_tensors(file)
        require_alike(found, first, str(file))
        for name, tensor in found.items():
            if tensor.dtype != first[name].dtype:
                raise BadInput(
                    f"{file}: {name} is {tensor.dtype}, but {first[name].dtype} in {paths[0]}"
                )
            if not bool(tensor.isfinite().all()):
                raise BadInput(f"{file}: {name} holds NaN or infinite values")
            sums[name] += tensor
    return {name: (total / len(paths)).to(first[name].dtype) for name, total in sums.items()}
