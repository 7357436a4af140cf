"""Float32 products of oneDNN in place of MKL's, which are slow on an AMD processor.

torch multiplies float32 through MKL on a CPU, unless it may round to bfloat16. Told that it may, it
asks oneDNN, which rounds only where it has AMX: on an EPYC its products differ from MKL's by 4e-7
and take a quarter to two thirds of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fieldkit.gate.processor import cpu_features


def is_exact() -> bool:
    """Whether oneDNN's products of float32 are float32's here, and asking for them pays."""
    return "avx512_bf16" in (features := cpu_features()) and "amx_bf16" not in features


@contextmanager
def by_onednn() -> Iterator[None]:
    """Have oneDNN multiply float32 inside the block, in all threads. `is_exact` says whether it may
    round the inputs to bfloat16."""
    products: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before
