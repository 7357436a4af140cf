"""The memory of the largest micro-batch, estimated before a model is loaded.

Linux grants memory that it does not have and ends a process later, perhaps another program's; so
the need is estimated from the model's config and compared with what is available. It must not load
or allocate anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.errors import BadInput, Shortage
from fieldkit.files.atomic import read_json
from fieldkit.gate.memory import GIB, available
from fieldkit.training.adapter import tensor_shapes
from trainer.settings import CHUNK_ELEMENTS, TrainerSettings

if TYPE_CHECKING:
    from trainer.batch import Segment

# Bytes that one token keeps in one layer for the backward pass, per unit of hidden and of MLP
# width, with a 2-byte base. Fitted to the peak of a 135 M Llama with LoRA on q and v in bf16
# (3,206 tokens: 4.9 GB in all, 40 KB a token and layer); norms and LoRA inputs are in float32.
_BYTES_PER_HIDDEN = 44
_BYTES_PER_MLP = 10
_FITTED_ITEM_BYTES = 2

_FIXED_BYTES = GIB  # interpreter, libraries, optimizer, canary
_LOGIT_BUFFERS = 4 * 4 * CHUNK_ELEMENTS  # float32 scores, probabilities and two temporaries


def require_memory(
    model_dir: Path,
    batches: Sequence[Sequence[Segment]],
    settings: TrainerSettings,
    item_bytes: int,
    *,
    on_gpu: bool,
) -> None:
    """Raise `Shortage` unless weights and the largest micro-batch fit, naming a budget that does.

    item_bytes: of one weight of the base as it will be loaded (2 or 4).
    """
    now = available()
    room = now.gpu if on_gpu and now.gpu is not None else now.host
    fixed, per_token = _needs(model_dir, settings, item_bytes)
    rows, width = _largest(batches)
    needed = fixed + rows * width * per_token
    if needed <= room:
        return
    fits = max(0, (room - fixed) // per_token)
    longest = max(s.n_inputs for b in batches for s in b)
    remedy = (
        f"set tokens_per_microbatch to {fits}"
        if fits >= longest
        else f"the longest segment alone has {longest} tokens and {fits} fit: set "
        "gradient_checkpointing, or roll out with fewer turns"
    )
    raise Shortage(
        f"a micro-batch of {rows} x {width} tokens needs about {needed / GIB:.1f} GiB, "
        f"{room / GIB:.1f} GiB are available; {remedy}"
    )


@dataclass(frozen=True)
class Budget:
    """Token budgets for a trainer that was killed for memory. Padding included."""

    largest: int
    """The largest micro-batch of the bundle under the present settings."""
    longest: int
    """The longest segment: no micro-batch that holds it can be smaller."""
    fits: int
    """What fits into the memory that is available now, by the estimate."""

    @property
    def smaller(self) -> int | None:
        """A tokens_per_microbatch that makes the largest micro-batch smaller; None where none does.

        What was killed did not fit, whatever the estimate says, so half of it at most.
        """
        tokens = min(self.fits, max(self.longest, self.largest // 2))
        return tokens if self.longest <= tokens < self.largest else None


def smaller_budget(
    model_dir: Path,
    batches: Sequence[Sequence[Segment]],
    settings: TrainerSettings,
    item_bytes: int,
) -> Budget:
    """The budgets after a kill, from the host's memory (the kernel kills for no other)."""
    fixed, per_token = _needs(model_dir, settings, item_bytes)
    return Budget(
        largest=math.prod(_largest(batches)),
        longest=max(s.n_inputs for b in batches for s in b),
        fits=max(0, (available().host - fixed) // per_token),
    )


def _largest(batches: Sequence[Sequence[Segment]]) -> tuple[int, int]:
    """Rows and width of the micro-batch with the most tokens."""
    shapes = ((len(b), max(s.n_inputs for s in b)) for b in batches)
    return max(shapes, key=math.prod)


def forecast(
    model_dir: Path, settings: TrainerSettings, item_bytes: int, longest_segment: int
) -> int:
    """Bytes that a step needs with the largest micro-batch that any bundle can have."""
    fixed, per_token = _needs(model_dir, settings, item_bytes)
    return fixed + max(settings.microbatch_tokens, longest_segment) * per_token


def _needs(model_dir: Path, settings: TrainerSettings, item_bytes: int) -> tuple[int, int]:
    """Bytes of a step without a micro-batch, and bytes for each of a micro-batch's tokens."""
    fixed = weight_bytes(model_dir, item_bytes) + _FIXED_BYTES + _LOGIT_BUFFERS
    return fixed, activation_bytes(model_dir, item_bytes, settings.gradient_checkpointing)


def weight_bytes(model_dir: Path, item_bytes: int) -> int:
    """Size of a model's or an adapter's weights once loaded, at `item_bytes` a number."""
    files = sorted(model_dir.glob("*.safetensors"))
    return item_bytes * sum(math.prod(s) for file in files for s in tensor_shapes(file).values())


def activation_bytes(model_dir: Path, item_bytes: int, checkpointing: bool) -> int:
    """What one token of a micro-batch keeps until its backward pass."""
    config = read_json(model_dir / "config.json")
    hidden, mlp, layers = (
        _width(config, key, model_dir)
        for key in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    layer = _BYTES_PER_HIDDEN * hidden + _BYTES_PER_MLP * mlp
    layer = layer * item_bytes // _FITTED_ITEM_BYTES
    return layer + layers * hidden * item_bytes if checkpointing else layers * layer


def _width(config: dict[str, Any], key: str, model_dir: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int):
        raise BadInput(f"{model_dir / 'config.json'}: {key} is {value!r}, a whole number is needed")
    return value
