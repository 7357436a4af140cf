"""A LoRA adapter folder in peft's layout: its settings, its identity, and whether it fits a model.

Servers accept adapters with missing layers, halved shapes or NaNs and answer 200, and one such
adapter spoils the requests of every other one. So a folder is checked here, key by key, before
anything loads it. Nothing in this module imports torch or changes an adapter.
"""

from __future__ import annotations

import hashlib
import math
import re
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Len
from pydantic import ConfigDict, PositiveFloat, PositiveInt, Strict
from safetensors import SafetensorError, deserialize, safe_open

from fieldkit.codec import from_plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, sha256_file

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
CANARY_FILE = "canary.json"
"""A further file, from the trainer or `grpo prove`; no part of the adapter's identity."""

# Settings under which the trained tensors are more than one A and one B of one rank for every
# target layer. This trainer and vLLM's LoRA kernels do not support them, so they are errors.
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
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
    "arrow_config": "Arrow",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
}

_INITS = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the base alone. Under any other ("pissa", "olora", …) peft
changes the base's weights when it loads the adapter, and a server does not."""

_FEWER_BITS = re.compile(
    r"(-(unsloth|bnb|[48]bit|int[48]|w[48]a16|awq|gptq|fp8|nf4))+$", re.IGNORECASE
)
"""How the names of quantised models end."""

# safetensors dtype -> (numpy type of the raw bits, mask of the exponent bits). A float is inf or
# NaN exactly when its exponent bits are all ones (IEEE 754; bfloat16 is the upper half of float32).
_FLOATS = {
    "F32": ("<u4", 0x7F80_0000),
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
}


@dataclass(frozen=True)
class AdapterInfo:
    """The settings in `adapter_config.json`, and the identity of the two files together.

    rank: r of every LoRA pair. alpha: lora_alpha (the update is alpha / r * B @ A).
    sha: see `adapter_sha`. use_rslora: the update is alpha / sqrt(r) * B @ A. pattern: the regular
    expression for whole module names that the file has as its target_modules, as unsloth writes
    them; target_modules are then the layers that have tensors. "" where it has names.
    """

    path: Path
    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    base_model: str
    sha: str
    use_rslora: bool = False
    pattern: str = ""


@dataclass(frozen=True)
class _LoraConfig:
    """The keys of adapter_config.json that are used, under their own names."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    r: Annotated[PositiveInt, Strict()]
    lora_alpha: Annotated[PositiveFloat, Strict()]
    target_modules: Annotated[list[str], Len(1)] | str
    base_model_name_or_path: str | None = None
    use_rslora: bool = False


def copy_adapter(source: Path, target: Path) -> None:
    """Copy an adapter's own files (weights, config, canary) byte for byte into an empty folder."""
    for name in (WEIGHTS_FILE, CONFIG_FILE, CANARY_FILE):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def adapter_sha(path: str | Path) -> str:
    """Identity of an adapter folder: hex SHA-256 over its weights and its config.

    Other files in the folder (canary.json, a README) do not change it.
    """
    return files_sha([_existing(Path(path), name) for name in (WEIGHTS_FILE, CONFIG_FILE)])


def files_sha(files: Iterable[Path]) -> str:
    """Hex SHA-256 over the names and contents of some files, in their order."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name} {sha256_file(file)}\n".encode())
    return digest.hexdigest()


def read_adapter(path: str | Path) -> AdapterInfo:
    """Read and check `adapter_config.json`.

    Raises `BadInput` for a missing file and for every kind of adapter that is not plain LoRA of one
    rank on named layers (DoRA, bias, modules_to_save and the like).
    """
    path = Path(path)
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
        if (said := config.get(key)) or type(said) is int:  # layers_to_transform: 0 is a layer
            raise BadInput(
                f"{file}: {key}: the adapter uses {meaning}, which cannot be served and trained "
                "the same way; train a plain LoRA without it"
            )
    if (init := config.get("init_lora_weights")) not in _INITS:
        raise BadInput(
            f"{file}: init_lora_weights: {init!r} changes the base's weights, which a server does "
            "not do; train a plain LoRA with init_lora_weights = true"
        )
    lora = from_plain(_LoraConfig, config, str(file))
    if isinstance(lora.target_modules, str):
        targets = _adapted(path / WEIGHTS_FILE)
        pattern = _compilable(lora.target_modules, file)
    else:
        targets, pattern = lora.target_modules, ""
    if dotted := [name for name in targets if "." in name]:
        raise BadInput(f"{file}: target_modules: {dotted[0]!r}: give layer names, not paths")
    return AdapterInfo(
        path=path,
        rank=lora.r,
        alpha=lora.lora_alpha,
        target_modules=tuple(sorted(targets)),
        base_model=lora.base_model_name_or_path or "",
        sha=adapter_sha(path),
        use_rslora=lora.use_rslora,
        pattern=pattern,
    )


def _adapted(weights: Path) -> list[str]:
    """The names of the layers that have a LoRA in a file of weights."""
    return sorted({t.partition(".lora_")[0].rpartition(".")[-1] for t in tensor_shapes(weights)})


def _compilable(pattern: str, file: Path) -> str:
    try:
        re.compile(pattern)
    except re.error as e:
        raise BadInput(f"{file}: target_modules: {pattern!r}: no regular expression ({e})") from e
    return pattern


def base_name(model: str) -> str:
    """A model's name, from its folder or hub id: the last part, also of a hub cache's path
    (`…/models--ORG--NAME/snapshots/REVISION`)."""
    path = Path(model)
    cached = (part for part in path.parts if part.startswith("models--"))
    return next((part.rpartition("--")[-1] for part in cached), path.name)


def other_base(info: AdapterInfo, model: str) -> str | None:
    """The name of the base that the adapter was trained on, where `model` (a folder or a hub id)
    has another one; None where the names agree or the adapter gives none.

    Names prove nothing: a folder may have any name, and two bases of one shape may share adapters
    on purpose. So a person judges this, and `check_adapter` does not look at it.
    """
    named = base_name(info.base_model)
    return named if named and named.casefold() != base_name(model).casefold() else None


def is_quantised(named: str, model: str) -> bool:
    """Whether the name is that of `model` (a folder or a hub id) with fewer bits, as in
    "Qwen2.5-7B-Instruct-bnb-4bit". A LoRA that was trained on such weights (QLoRA) fits both."""
    return _FEWER_BITS.sub("", named).casefold() == base_name(model).casefold()


def check_adapter(path: str | Path, model_dir: str | Path) -> AdapterInfo:
    """Check an adapter's tensors against the model folder it is for.

    Every weight of the model whose layer is a target must have its A (rank, in) and its B
    (out, rank), in float, all finite; no other tensor is allowed. Raises `BadInput` that names the
    file and the tensor.
    """
    info, model_dir = read_adapter(path), Path(model_dir)
    file = info.path / WEIGHTS_FILE
    expected = expected_shapes(info, model_dir)
    found = tensor_shapes(file)
    for name in expected:
        if name not in found:
            raise BadInput(
                f"{file}: {name} is missing ({len(found)} tensors there, {len(expected)} needed "
                f"for {', '.join(info.target_modules)} of {model_dir})"
            )
    for name, shape in found.items():
        if name not in expected:
            raise BadInput(f"{file}: {name} belongs to no target layer of {model_dir}")
        if shape != expected[name]:
            raise BadInput(
                f"{file}: {name} has shape {list(shape)}, but the model in {model_dir} "
                f"and rank {info.rank} need {list(expected[name])}: the adapter is for another base"
            )
    _check_finite(file)
    return info


def expected_shapes(info: AdapterInfo, model_dir: Path) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape that an adapter of `info`'s rank and targets has on this model.

    Read from the headers of the model's own weight files, so it works for any architecture.
    Raises `BadInput` where a target names no layer of the model or an expert's, and where a pattern
    chooses other modules than all of its layers.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    unused = set(info.target_modules)
    modules = linear_shapes(model_dir)
    if info.pattern:
        _check_pattern(info, modules, model_dir)
    for name, (out_features, in_features) in sorted(modules.items()):
        layer = name.rpartition(".")[-1]
        if layer in info.target_modules:
            unused.discard(layer)
            if ".experts." in name:
                raise BadInput(
                    f"{info.path / CONFIG_FILE}: target_modules: {layer}: {name} is an expert's, "
                    "whose LoRA peft trains in another form; train an adapter of attention's "
                    "layers, such as q_proj and v_proj"
                )
            shapes[f"base_model.model.{name}.lora_A.weight"] = (info.rank, in_features)
            shapes[f"base_model.model.{name}.lora_B.weight"] = (out_features, info.rank)
    if unused:
        raise BadInput(
            f"{info.path / CONFIG_FILE}: target_modules: {', '.join(sorted(unused))}: no such "
            f"layer in {model_dir}: the adapter is for another base"
        )
    return shapes


def _check_pattern(info: AdapterInfo, modules: Collection[str], model_dir: Path) -> None:
    """Raise `BadInput` unless the pattern, by which peft builds the layers, chooses what a server
    is told: every module of the layers that have tensors, and at least one."""
    chosen = {name for name in modules if re.fullmatch(info.pattern, name)}
    told = {name for name in modules if name.rpartition(".")[-1] in info.target_modules}
    if chosen and chosen == told:
        return
    odd = min(chosen ^ told, default="no module")
    does = "leaves out" if odd in told else "chooses"
    raise BadInput(
        f"{info.path / CONFIG_FILE}: target_modules: {info.pattern!r} {does} {odd} of {model_dir}, "
        f"and the adapter has tensors for {', '.join(info.target_modules) or 'none'}; train a plain"
        " LoRA on whole layers, such as q_proj and v_proj"
    )


def linear_shapes(model_dir: Path) -> dict[str, tuple[int, int]]:
    """Module name -> (out, in) of every two-dimensional weight of a model folder.

    Raises `BadInput` for another folder, and for quantised weights, whose shapes are not those of
    the layers.
    """
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise BadInput(f"{model_dir}: no *.safetensors there, so this is no model folder")
    config = model_dir / "config.json"
    if config.is_file() and read_json(config).get("quantization_config"):
        raise BadInput(f"{config}: the weights are quantised; give the unquantised model's folder")
    return {
        name.removesuffix(".weight"): (shape[0], shape[1])
        for file in files
        for name, shape in tensor_shapes(file).items()
        if name.endswith(".weight") and len(shape) == 2
    }


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The tensors that a safetensors file declares, in name order, without reading their data.

    Raises `BadInput` for a file that is cut short or is something else.
    """
    try:
        with safe_open(file, framework="numpy") as f:
            return {name: tuple(f.get_slice(name).get_shape()) for name in sorted(f.keys())}
    except SafetensorError as e:
        raise BadInput(f"{file}: not a whole safetensors file ({e})") from None


def weight_bytes(folder: Path, item_bytes: int) -> int:
    """Bytes of a model's or an adapter's weights once loaded, at `item_bytes` a number.

    Counted from the shapes in its *.safetensors; no data is read. Raises as `tensor_shapes`, and
    `BadInput` for a file that the index names and that is not there.
    """
    files = _weight_files(folder)
    return item_bytes * sum(math.prod(s) for file in files for s in tensor_shapes(file).values())


def _weight_files(folder: Path) -> list[Path]:
    """The files that are loaded: a folder may hold the same weights again in another form
    (consolidated.safetensors)."""
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        named = sorted({folder / name for name in read_json(index)["weight_map"].values()})
        for file in named:
            if not file.is_file():
                raise BadInput(f"{file}: no such file, but {index.name} names it; download it")
        return named
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def _check_finite(file: Path) -> None:
    import numpy as np

    for name, tensor in sorted(deserialize(file.read_bytes())):  # type: ignore[no-untyped-call]
        if tensor["dtype"] not in _FLOATS:
            raise BadInput(
                f"{file}: {name} is {tensor['dtype']}; one of {', '.join(_FLOATS)} is needed"
            )
        kind, mask = _FLOATS[tensor["dtype"]]
        bits = np.frombuffer(tensor["data"], dtype=kind)
        if n_bad := int(np.count_nonzero((bits & mask) == mask)):
            raise BadInput(f"{file}: {name} holds {n_bad} NaN or infinite values of {bits.size}")


def _existing(path: Path, name: str) -> Path:
    file = path / name
    if not file.is_file():
        raise BadInput(
            f"{file}: no such file; an adapter folder holds {WEIGHTS_FILE} and {CONFIG_FILE}"
        )
    return file
