"""A LoRA adapter folder in peft's layout: what it is, its identity, and whether it fits a model.

Servers accept adapters with missing layers, halved shapes or NaNs and answer 200, and one such
adapter spoils the requests of every other. So a folder is checked here, key by key, before anything
loads it. Nothing in this module imports torch or changes an adapter.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, sha256_file

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
CANARY_FILE = "canary.json"
"""Beside the two, where the trainer or `grpo prove` wrote it: no part of the adapter's identity."""

# Settings under which the trained tensors are not just one A and one B of one rank for every target
# layer. Neither this trainer nor vLLM's LoRA kernels know them, so their presence is an error.
_REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "whole modules saved beside the LoRA (modules_to_save)",
    "lora_bias": "a LoRA bias (lora_bias)",
    "rank_pattern": "a rank per layer (rank_pattern)",
    "alpha_pattern": "an alpha per layer (alpha_pattern)",
    "layers_to_transform": "only some layers (layers_to_transform)",
    "exclude_modules": "excluded modules (exclude_modules)",
    "layer_replication": "replicated layers (layer_replication)",
    "target_parameters": "LoRA on bare parameters (target_parameters)",
    "trainable_token_indices": "trained token embeddings (trainable_token_indices)",
    "use_qalora": "QALoRA",
    "use_bdlora": "BD-LoRA",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
}

# safetensors dtype -> (numpy type of the raw bits, mask of the exponent bits). A float is inf or
# NaN exactly when its exponent bits are all ones (IEEE 754; bfloat16 is the upper half of float32).
_FLOATS = {
    "F32": ("<u4", 0x7F80_0000),
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format's own reader


@dataclass(frozen=True)
class AdapterInfo:
    """What `adapter_config.json` says, and the identity of the two files together.

    rank: r of every LoRA pair. alpha: lora_alpha (the update is alpha / r * B @ A).
    sha: see `adapter_sha`.
    """

    path: Path
    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    base_model: str
    sha: str


@dataclass(frozen=True)
class TensorHeader:
    """One tensor as a safetensors file declares it; `begin` and `end` are byte offsets in it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def copy_adapter(source: Path, target: Path) -> None:
    """Copy an adapter's own files (weights, config, canary) byte for byte into an empty folder."""
    for name in (WEIGHTS_FILE, CONFIG_FILE, CANARY_FILE):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def adapter_sha(path: Path) -> str:
    """Identity of an adapter folder: hex SHA-256 over its weights and its config.

    Other files in the folder (canary.json, a README) do not change it.
    """
    digest = hashlib.sha256()
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        digest.update(f"{name} {sha256_file(_existing(path, name))}\n".encode())
    return digest.hexdigest()


def read_adapter(path: Path) -> AdapterInfo:
    """Read and check `adapter_config.json`.

    Raises `BadInput` for a missing file and for every kind of adapter that is not plain LoRA of one
    rank on named layers (DoRA, bias, modules_to_save and the like).
    """
    _existing(path, WEIGHTS_FILE)
    file = _existing(path, CONFIG_FILE)
    config = read_json(file)
    if not isinstance(config, dict):
        raise BadInput(f"{file}: expected an object, found {type(config).__name__}")
    if config.get("peft_type") != "LORA":
        raise BadInput(f"{file}: peft_type is {config.get('peft_type')!r}, only LORA is supported")
    if config.get("bias", "none") != "none":
        raise BadInput(f"{file}: bias is {config['bias']!r}; train the adapter with bias='none'")
    for key, meaning in _REFUSED.items():
        if config.get(key):
            raise BadInput(
                f"{file}: {key}: the adapter uses {meaning}, which cannot be served and trained "
                "the same way; train a plain LoRA without it"
            )
    return AdapterInfo(
        path=path,
        rank=_positive_int(config, "r", file),
        alpha=_positive_number(config, "lora_alpha", file),
        target_modules=_targets(config, file),
        base_model=str(config.get("base_model_name_or_path") or ""),
        sha=adapter_sha(path),
    )


def base_name(model: str) -> str:
    """What a model is called, from its folder or hub id: the last part, also of a hub cache's path
    (`…/models--ORG--NAME/snapshots/REVISION`)."""
    path = Path(model)
    cached = (part for part in path.parts if part.startswith("models--"))
    return next((part.rpartition("--")[-1] for part in cached), path.name)


def other_base(info: AdapterInfo, model: str) -> str | None:
    """What the adapter says that it was trained on, where that is not called like `model` (a folder
    or a hub id); None where the names agree or the adapter has none.

    Names are no proof: a folder may be called anything, and two bases of one shape may share
    adapters on purpose. So this is for a person to judge, and `check_adapter` does not ask it.
    """
    named = base_name(info.base_model)
    return named if named and named.casefold() != base_name(model).casefold() else None


def check_adapter(path: Path, model_dir: Path) -> AdapterInfo:
    """Check an adapter's tensors against the model folder it is for.

    Every weight of the model whose layer is a target must have its A (rank, in) and its B
    (out, rank), in float, all finite; there must be no other tensor. Raises `BadInput` that names
    the file and the tensor.
    """
    info = read_adapter(path)
    file = path / WEIGHTS_FILE
    expected = expected_shapes(info, model_dir)
    found = read_header(file)
    for name in expected:
        if name not in found:
            raise BadInput(
                f"{file}: {name} is missing ({len(found)} tensors there, {len(expected)} needed "
                f"for {', '.join(info.target_modules)} of {model_dir})"
            )
    for name, header in found.items():
        if name not in expected:
            raise BadInput(f"{file}: {name} belongs to no target layer of {model_dir}")
        if header.shape != expected[name]:
            raise BadInput(
                f"{file}: {name} has shape {list(header.shape)}, but the model in {model_dir} "
                f"and rank {info.rank} need {list(expected[name])}: the adapter is for another base"
            )
    _check_finite(file, found)
    return info


def expected_shapes(info: AdapterInfo, model_dir: Path) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape that an adapter of `info`'s rank and targets has on this model.

    Read from the headers of the model's own weight files, so no architecture is special.
    Raises `BadInput` where a target names no layer of the model.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    unused = set(info.target_modules)
    for name, shape in sorted(linear_shapes(model_dir).items()):
        layer = name.rsplit(".", 1)[-1]
        if layer in info.target_modules:
            unused.discard(layer)
            out_features, in_features = shape
            shapes[f"base_model.model.{name}.lora_A.weight"] = (info.rank, in_features)
            shapes[f"base_model.model.{name}.lora_B.weight"] = (out_features, info.rank)
    if unused:
        raise BadInput(
            f"{info.path / CONFIG_FILE}: target_modules: {', '.join(sorted(unused))}: no such "
            f"layer in {model_dir}: the adapter is for another base"
        )
    return shapes


def linear_shapes(model_dir: Path) -> dict[str, tuple[int, int]]:
    """Module name -> (out, in) of every two-dimensional weight of a model folder."""
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise BadInput(f"{model_dir}: no *.safetensors there, so this is no model folder")
    shapes = {}
    for file in files:
        for name, header in read_header(file).items():
            if name.endswith(".weight") and len(header.shape) == 2:
                shapes[name.removesuffix(".weight")] = (header.shape[0], header.shape[1])
    return shapes


def read_header(file: Path) -> dict[str, TensorHeader]:
    """The tensors that a safetensors file declares, in name order, without reading their data.

    Format: 8 bytes little-endian header length, JSON header, data. Raises `BadInput` for a file
    that is cut short or is something else.
    """
    size = file.stat().st_size
    with open(file, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, size - 8):
            raise BadInput(f"{file}: not a whole safetensors file ({size} bytes)")
        raw = f.read(length)
    try:
        entries = json.loads(raw)
        headers = {
            name: TensorHeader(
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                begin=8 + length + entry["data_offsets"][0],
                end=8 + length + entry["data_offsets"][1],
            )
            for name, entry in sorted(entries.items())
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise BadInput(f"{file}: not a safetensors header ({e!r})") from None
    if any(h.end > size for h in headers.values()):
        raise BadInput(f"{file}: the file is cut short at {size} bytes")
    return headers


def _check_finite(file: Path, headers: dict[str, TensorHeader]) -> None:
    for name, n_bad, n in _non_finite(file, headers):
        if n_bad:
            raise BadInput(f"{file}: {name} holds {n_bad} NaN or infinite values of {n}")


def _non_finite(file: Path, headers: dict[str, TensorHeader]) -> Iterator[tuple[str, int, int]]:
    import numpy as np

    with open(file, "rb") as f:
        for name, header in headers.items():
            if header.dtype not in _FLOATS:
                raise BadInput(
                    f"{file}: {name} is {header.dtype}; one of {', '.join(_FLOATS)} is needed"
                )
            kind, mask = _FLOATS[header.dtype]
            n = math.prod(header.shape)
            if n * np.dtype(kind).itemsize != header.end - header.begin:
                raise BadInput(f"{file}: {name}: its shape and its bytes do not agree")
            f.seek(header.begin)
            bits = np.frombuffer(f.read(header.end - header.begin), dtype=kind)
            yield name, int(np.count_nonzero((bits & mask) == mask)), n


def _existing(path: Path, name: str) -> Path:
    file = path / name
    if not file.is_file():
        raise BadInput(
            f"{file}: no such file; an adapter folder holds {WEIGHTS_FILE} and {CONFIG_FILE}"
        )
    return file


def _positive_int(config: dict[str, Any], key: str, file: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInput(f"{file}: {key} is {value!r}, a whole number of at least 1 is needed")
    return value


def _positive_number(config: dict[str, Any], key: str, file: Path) -> float:
    value = config.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise BadInput(f"{file}: {key} is {value!r}, a number above 0 is needed")
    return float(value)


def _targets(config: dict[str, Any], file: Path) -> tuple[str, ...]:
    value = config.get("target_modules")
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise BadInput(f"{file}: target_modules is {value!r}, a list of layer names is needed")
    if dotted := [v for v in value if "." in v]:
        raise BadInput(f"{file}: target_modules: {dotted[0]!r}: give layer names, not paths")
    return tuple(sorted(value))
