"""The model under training: a frozen base with one live LoRA adapter, scored at chosen tokens.

It owns how a model is loaded (dtype, device, every dropout at 0, train mode) and nothing about
losses or files of a step. Works for causal language models whose logits are a plain linear layer
over the last hidden state; others are refused by name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json
from fieldkit.gate.processor import cpu_features
from fieldkit.training.adapter import AdapterInfo
from fieldkit.training.live import is_sharded, live_lora, local_part
from trainer.scoring.fused_layers import fuse
from trainer.scoring.lean_layers import keep_less
from trainer.scoring.logprobs import token_logprobs
from trainer.scoring.micro_batch import MicroBatch
from trainer.scoring.onednn import by_onednn, is_exact
from trainer.scoring.parallel import at_once
from trainer.scoring.sharded_base import shard_base
from trainer.scoring.shared_prefix import (
    ATTENTION,
    can_share,
    has_lean_layers,
    is_written_out,
    register,
)
from trainer.scoring.trainable import FOLLOW_LENGTH, check_dtype, check_logits

# On a CPU oneDNN writes machine code for each shape of a product (0.4 MB; with AMX 0.8, in 4 ms).
# It keeps that of 1,024 shapes, and torch what it makes of as many. Micro-batches have hardly a
# shape in common, and a pass of one has about 70. Both are read when the first product is made.
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "256" if "amx_bf16" in cpu_features() else "128")

_SDPA = "sdpa"

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

# The matmul that dtype "auto" times: about one MLP layer of a small model over 512 tokens.
_PROBE_SHAPE = (512, 1024, 2048)
_PROBE_REPEATS = 8


class Policy:
    """A loaded base + adapter on one device. shares_rows: it takes micro-batches of one shared
    row (`trainer.scoring.shared_prefix`). is_sharded: this rank has a part of the base's layers, so
    all ranks score at the same time (`trainer.scoring.sharded_base`). at_once: micro-batches that
    are computed in parallel (`trainer.scoring.parallel`)."""

    def __init__(
        self,
        peft_model: Any,
        device: torch.device,
        *,
        shares_rows: bool = False,
        is_sharded: bool = False,
    ) -> None:
        self.model: nn.Module = peft_model
        self.device = device
        self.shares_rows = shares_rows
        self.is_sharded = is_sharded
        # Layers of models that share rows are known to change nothing of their own in a pass.
        alone = is_sharded or not shares_rows or _changes_positions(peft_model)
        self.at_once = 1 if alone else at_once(on_gpu=device.type == "cuda")
        self._kernel = ATTENTION if shares_rows else _SDPA
        self._causal = peft_model.get_base_model()
        self._backbone = getattr(self._causal, self._causal.base_model_prefix)
        self._output = self._causal.get_output_embeddings()
        _require_plain_logits(self._causal, self._output)

    @property
    def dtype(self) -> torch.dtype:
        """Of the base's weights; the LoRA's are float32 while training."""
        return self._output.weight.dtype  # type: ignore[no-any-return]

    @property
    def is_checkpointing(self) -> bool:
        """Whether the backward pass computes activations again."""
        return bool(self._causal.is_gradient_checkpointing)

    @property
    def vocabulary(self) -> int:
        """Rows of the input embedding: every id must be below it."""
        return int(self._causal.get_input_embeddings().weight.shape[0])

    def lora(self) -> dict[str, Parameter]:
        """The trained parameters by their name in an adapter file, sorted."""
        return live_lora(self.model)

    def count_parameters(self) -> tuple[int, int]:
        """(trainable, all)."""
        sizes = [(p.numel(), p.requires_grad) for p in self.model.parameters()]
        return sum(n for n, trains in sizes if trains), sum(n for n, _ in sizes)

    def count_kept(self) -> int:
        """Parameters whose values this process keeps: of sharded ones its part."""
        return sum(local_part(p).numel() for p in self.model.parameters())

    def logprobs(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """Logprob at T of each trained token, and the entropy there: two float32 of length n."""
        shared = {} if batch.row is None else {"row": batch.row}
        hidden_BSH = self._backbone(
            input_ids=batch.ids_BS, position_ids=batch.positions_BS, use_cache=False, **shared
        ).last_hidden_state
        hidden_nh = hidden_BSH[batch.rows_n, batch.columns_n]
        return token_logprobs(hidden_nh, self._output.weight, batch.targets_n, temperature)

    @contextmanager
    def in_passes(self) -> Iterator[None]:
        """Passes over micro-batches are made inside the block, perhaps in several threads. Where
        attention is written out oneDNN multiplies float32: attention's came from bfloat16, and the
        server rounds LoRA's too."""
        on_gpu = self.device.type == "cuda"
        written = self.shares_rows and is_written_out(self.dtype.itemsize, on_gpu=on_gpu)
        with by_onednn() if written else nullcontext():
            yield

    def without_adapter(self) -> AbstractContextManager[None]:
        """Score the bare base inside the block."""
        return self.model.disable_adapter()  # type: ignore[operator, no-any-return]

    @contextmanager
    def converted(self, dtype: torch.dtype) -> Iterator[None]:
        """Every weight, base and adapter, in `dtype` inside the block, and as before after it.

        Holds both copies of what has another dtype. Buffers stay as they were loaded: rotary
        frequencies are float32 in a server of any dtype, and `nn.Module.to` rounds them. A sharded
        base has to have that dtype already."""
        assert dtype == self.dtype or not self.is_sharded
        with _in_dtype((p for p in self.model.parameters() if not is_sharded(p)), dtype):
            yield

    @contextmanager
    def in_float32(self) -> Iterator[None]:
        """Score in float32 inside the block, without gradients, with the values that the weights
        have: those of a layer are float32 while it computes, others meanwhile (`float32_bytes`)."""
        assert not self.is_sharded
        layers = self._layers()
        hooks = [hook for layer in layers for hook in _float32_hooks(layer)]
        try:
            products = by_onednn() if is_exact() else nullcontext()
            with products, _in_dtype(self._outside(layers), torch.float32):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    @property
    def float32_bytes(self) -> int:
        """What `in_float32` holds at most besides the weights."""
        layers = self._layers()
        inside = [sum(p.numel() for p in layer.parameters()) for layer in layers]
        outside = sum(p.numel() for p in self._outside(layers))
        return torch.float32.itemsize * (outside + max(inside, default=0))

    def _layers(self) -> list[nn.Module]:
        """The backbone's layers, none where transformers does not say which modules they are."""
        named = set(self._causal._no_split_modules or ())
        return [m for m in self._backbone.modules() if type(m).__name__ in named]

    def _outside(self, layers: Sequence[nn.Module]) -> list[Parameter]:
        inside = {id(p) for layer in layers for p in layer.parameters()}
        return [p for p in self.model.parameters() if id(p) not in inside]

    @contextmanager
    def attention(self, kernel: str) -> Iterator[None]:
        """Another attention implementation ("sdpa" or "eager") inside the block."""
        self._causal.set_attn_implementation(kernel)
        try:
            yield
        finally:
            self._causal.set_attn_implementation(self._kernel)


def _changes_positions(model: nn.Module) -> bool:
    """Whether its rotary frequencies follow the length of what is scored, in transformers' module
    that all passes share."""
    found = (getattr(module, "rope_type", None) for module in model.modules())
    kinds = {
        kind for each in found for kind in (each.values() if isinstance(each, dict) else [each])
    }
    return not kinds.isdisjoint(FOLLOW_LENGTH)


@contextmanager
def _in_dtype(parameters: Iterable[Parameter], dtype: torch.dtype) -> Iterator[None]:
    """Their values in `dtype` inside the block, and as before after it."""
    before = [(parameter, parameter.data) for parameter in parameters]
    try:
        for parameter, values in before:
            parameter.data = values.to(dtype)
        yield
    finally:
        for parameter, values in before:
            parameter.data = values


def _float32_hooks(layer: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
    """Have a layer compute with its weights in float32."""
    during = ExitStack()

    def before(*_: object) -> None:
        during.enter_context(_in_dtype(layer.parameters(), torch.float32))

    def after(*_: object) -> None:
        during.close()

    return (
        layer.register_forward_pre_hook(before),
        layer.register_forward_hook(after, always_call=True),
    )


def load_policy(
    model_dir: Path,
    adapter: AdapterInfo,
    dtype: torch.dtype,
    *,
    gradient_checkpointing: bool,
    sharded: bool = False,
) -> Policy:
    """Load a model folder with a trainable adapter, ready for gradients.

    Base in `dtype`, LoRA in float32, on the GPU where there is one. Dropout is 0 everywhere and the
    model is in train mode: in eval mode gradient checkpointing is off without a word, and dropout
    would make the ratio to the sampler a random number. sharded: over the ranks, which are
    connected; each loads the whole base into the host's memory first.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    device, shares = pick_device(), can_share(model_dir)
    if shares:
        register()
    base = AutoModelForCausalLM.from_pretrained(
        model_dir,
        dtype=dtype,
        attn_implementation=ATTENTION if shares else _SDPA,
        local_files_only=True,
        device_map=str(device) if device.type == "cuda" and not sharded else None,
    )
    base.config.use_cache = False
    model = PeftModel.from_pretrained(base, str(adapter.path), is_trainable=True)
    _remove_dropout(model)
    for parameter in live_lora(model).values():
        parameter.data = parameter.data.float()
    layers_for(device, dtype)(model, only_lora=not has_lean_layers(model_dir))
    if gradient_checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    if sharded:
        shard_base(getattr(base, base.base_model_prefix), set(base._no_split_modules or ()))
        model.to(device)
    return Policy(model, device, shares_rows=shares, is_sharded=sharded)


def layers_for(device: torch.device, dtype: torch.dtype) -> Callable[..., None]:
    """What changes the layers of a model whose base has this dtype."""
    return fuse if device.type == "cuda" and dtype != torch.float32 else keep_less


def pick_device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def training_dtype(setting: str, served: torch.dtype, *, sharded: bool = False) -> torch.dtype:
    """The base's dtype for a setting of bf16, fp32 or auto, when the server computes in `served`.

    auto: bf16 where that is what is served, on a GPU. On a CPU both are timed on one matmul then:
    without bf16 instructions bf16 is several times slower, with them several times faster, so it is
    measured and not assumed. A sharded base is kept in `served`. Raises as `check_dtype`.
    """
    check_dtype(setting, dtype_name(served), sharded=sharded)
    if setting == "auto":
        return served if sharded else _fastest(served)
    return _DTYPES[setting]


def _fastest(served: torch.dtype) -> torch.dtype:
    if served != torch.bfloat16:
        return torch.float32
    if pick_device().type == "cuda":
        return torch.bfloat16
    faster = _matmul_seconds(torch.bfloat16) < _matmul_seconds(torch.float32)
    return torch.bfloat16 if faster else torch.float32


def serving_dtype(setting: str, model_dir: Path) -> torch.dtype:
    """What the server computes in; auto follows vLLM: the folder's dtype, float32 made bfloat16."""
    name = setting
    if setting == "auto":
        config = read_json(model_dir / "config.json")
        own = config.get("dtype") or config.get("torch_dtype")
        name = "float16" if own == "float16" else "bfloat16"
    return getattr(torch, name)  # type: ignore[no-any-return]


def dtype_name(dtype: torch.dtype) -> str:
    """ "bfloat16" for torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def _matmul_seconds(dtype: torch.dtype) -> float:
    rows, inner, columns = _PROBE_SHAPE
    left = torch.ones(rows, inner, dtype=dtype)
    right = torch.ones(inner, columns, dtype=dtype)
    seconds = []
    for _ in range(_PROBE_REPEATS):
        began = time.perf_counter()
        left @ right
        seconds.append(time.perf_counter() - began)
    return min(seconds)  # the others were disturbed, and the first one warms up


def _remove_dropout(model: nn.Module) -> None:
    """Models have dropout as modules, as numbers of their modules, and as numbers of a config that
    is read in each forward pass."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for holder in (module, getattr(module, "config", None)):
            for name, value in list(getattr(holder, "__dict__", {}).items()):
                if "drop" in name and isinstance(value, float):
                    setattr(holder, name, 0.0)


def _require_plain_logits(causal: Any, output: Any) -> None:
    name = type(causal).__name__
    if not isinstance(output, nn.Linear) or output.bias is not None or output.weight.requires_grad:
        raise BadInput(f"{name}: its output layer is no plain frozen linear layer; not supported")
    check_logits(name, lambda key: getattr(causal.config, key, None))
