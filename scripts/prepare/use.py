"""`grpo use`: prints the lines that use a run's adapter outside this project.

Each can be typed or piped as it stands, because it names this run's model and adapter by their
paths. Nothing is started or written here.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.training.adapter import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterInfo,
    read_adapter,
    tensor_shapes,
)
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.vllm_server import LoraShape, is_cpu_build, serving_dtype
from scripts.base.checkout import from_checkout
from scripts.run.config import ModelSettings
from scripts.run.folder import RunFolder
from scripts.run.template import own_template

CONVERTER = "convert_lora_to_gguf.py"
"""llama.cpp's tool, which is looked for on the PATH and in the folder $LLAMA_CPP."""


@dataclass(frozen=True)
class Use:
    """One way to use an adapter. commands: shell lines; empty if its tool is missing."""

    name: str
    what: str
    commands: tuple[str, ...]


def ways_to_use(
    folder: RunFolder,
    model_dir: Path,
    engine: EngineSettings,
    model: ModelSettings,
    step: int | None = None,
) -> list[Use]:
    """The ways to use the adapter of `step`, or the newest one.

    engine: the run's own: a server gets its context, and on a CPU its cache and dtype. model: the
    run's [model]:
    an adapter is used with the chat template that it was trained with. Raises `BadInput` if the
    run has no such step or this copy does not have its adapter.
    """
    n, path = _step_to_use(folder, step)
    try:
        tensor_shapes(path / WEIGHTS_FILE)  # a truncated copy does not load either
        adapter = read_adapter(path)
    except BadInput as e:
        raise BadInput(f"{e}; {_instead(folder, n)}") from None
    merged = Path.cwd() / "merged" / f"{folder.name}-{n}"
    return [
        Use(
            "serve",
            "an OpenAI-compatible server with vLLM",
            _serve(folder.version(n), adapter, model_dir, engine, model),
        ),
        Use("load", "in Python with peft", (_python(_LOAD, model, model_dir, path),)),
        Use(
            "merge",
            "into a model folder of its own",
            (_python(_MERGE, model, model_dir, path, merged),),
        ),
        Use("convert", "for llama.cpp (--lora FILE)", _convert(model_dir, path, folder.name, n)),
    ]


def _step_to_use(folder: RunFolder, step: int | None) -> tuple[int, Path]:
    """The step, and its adapter with weights and config. Raises `BadInput` that names what is
    missing and the next command."""
    newest = folder.finished_steps() - 1
    if newest < 0:
        raise BadInput(
            f"{folder.path}: there is no adapter, no step is finished yet;"
            f" `grpo run {folder.typed}` begins"
        )
    n = newest if step is None else step
    if not 0 <= n <= newest:
        raise BadInput(
            f"{folder.path}: no adapter of step {n}; there are 0 to {newest}:"
            f" `grpo use {folder.typed} --step {newest}`"
        )
    path = folder.adapter(n)
    for name, what in ((WEIGHTS_FILE, "weights are"), (CONFIG_FILE, "config is")):
        if not (path / name).is_file():
            raise BadInput(
                f"{path / name}: the adapter's {what} not here (a committed run has no weights,"
                f" and `grpo clean` keeps those of some steps); {_instead(folder, n)}"
            )
    return n, path


def _instead(folder: RunFolder, n: int) -> str:
    """The next command if the adapter of step `n` cannot be used."""
    for other in reversed(range(folder.finished_steps())):
        there = all((folder.adapter(other) / f).is_file() for f in (WEIGHTS_FILE, CONFIG_FILE))
        if there and other != n:
            return f"`grpo use {folder.typed} --step {other}` uses another step's"
    return folder.how_to_play_again


def _template(model: ModelSettings) -> str:
    """The file of the run's chat template, or its text where it is part of another file; empty
    where it is the model's own."""
    if not model.chat_template:
        return ""
    path = from_checkout(model.chat_template)
    file = path / "chat_template.jinja" if path.is_dir() else path
    return str(file) if file.is_file() else own_template(path)


def _serve(
    name: str, adapter: AdapterInfo, model_dir: Path, engine: EngineSettings, model: ModelSettings
) -> tuple[str, ...]:
    # Not `vllm serve`: the CPU build's program looks for a distribution named vllm and fails.
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model_dir)]
    shape = LoraShape.of([adapter])
    assert shape is not None, "every adapter has a rank"
    words += ["--enable-lora", "--max-lora-rank", str(shape.rank)]
    words += ["--lora-modules", f"{name}={adapter.path}", "--generation-config", "vllm"]
    if template := _template(model):
        words += ["--chat-template", template]
    if model.chat_template_kwargs:
        words += ["--default-chat-template-kwargs", json.dumps(model.chat_template_kwargs)]
    if is_cpu_build():  # else vLLM wants nearly all of the machine's memory for its cache
        words += ["--dtype", serving_dtype(engine, model_dir)]
        words += ["--kv-cache-memory-bytes", str(engine.kv_cache_bytes)]
    words += ["--max-model-len", str(engine.max_model_len), "--port", "8000"]
    ask = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    url = "http://localhost:8000/v1/chat/completions"
    curl = ["curl", url, "-H", "Content-Type: application/json", "-d", ask]
    return shlex.join(words), shlex.join(curl)


_LOAD = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({0!r}), {1!r})
tokenizer = AutoTokenizer.from_pretrained({0!r}){template}
ids = tokenizer.apply_chat_template([dict(role="user", content="Hello")],
    add_generation_prompt=True, return_dict=True, return_tensors="pt"{switches})
print(tokenizer.decode(model.generate(**ids, max_new_tokens=32)[0]))
"""

_MERGE = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
base = AutoModelForCausalLM.from_pretrained({0!r}, dtype="auto")
PeftModel.from_pretrained(base, {1!r}).merge_and_unload().save_pretrained({2!r})
tokenizer = AutoTokenizer.from_pretrained({0!r}){template}
tokenizer.save_pretrained({2!r})
"""


def _python(program: str, model: ModelSettings, *paths: Path) -> str:
    found, switches = _template(model), model.chat_template_kwargs
    text = f"open({found!r}).read()" if found.startswith("/") else repr(found)
    filled = program.format(
        *map(str, paths),
        template=f"\ntokenizer.chat_template = {text}" if found else "",
        switches=f", **{switches!r}" if switches else "",
    )
    return shlex.join([sys.executable, "-c", filled])


def _convert(model_dir: Path, adapter: Path, name: str, n: int) -> tuple[str, ...]:
    tool = shutil.which(CONVERTER)
    if tool is None and (own := os.environ.get("LLAMA_CPP")):
        tool = str(Path(own) / CONVERTER) if (Path(own) / CONVERTER).is_file() else None
    if tool is None:
        return ()
    out = f"{name}-{n}.gguf"
    words = [sys.executable, tool, "--base", str(model_dir), "--outfile", out, str(adapter)]
    return (shlex.join(words),)


def uses_text(ways: list[Use]) -> str:
    """The ways as shell lines, with a comment above each."""
    parts = []
    for way in ways:
        lines = way.commands or (
            f"# {CONVERTER} is not on the PATH, and LLAMA_CPP names no folder that has it: clone",
            "# https://github.com/ggml-org/llama.cpp and set LLAMA_CPP to the clone",
        )
        parts.append("\n".join([f"# {way.name}: {way.what}", *lines]))
    return "\n\n".join(parts)
