"""TRL's chat templates, and tokenizers of the default model that speak them."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scripts.prepare.model import default_model_dir

LLAMA_TOKENS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"]


def templates() -> dict[str, str]:
    """Every template that ships with TRL, by its name there."""
    found = find_spec("trl")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "chat_templates"
    return {file.stem: file.read_text("utf-8") for file in sorted(folder.glob("*.jinja"))}


def tokenizer(name: str) -> Any:
    """The default model's tokenizer with a template, and with the control tokens of Llama where
    that is one of Llama's."""
    from transformers import AutoTokenizer

    found: Any = AutoTokenizer.from_pretrained(default_model_dir())
    if name.startswith("llama"):
        found.add_special_tokens({"eos_token": "<|eot_id|>", "extra_special_tokens": LLAMA_TOKENS})
    found.chat_template = templates()[name]
    return found


def model_dir(name: str, folder: Path) -> Path:
    """Such a tokenizer as a model folder."""
    tokenizer(name).save_pretrained(folder)
    return folder
