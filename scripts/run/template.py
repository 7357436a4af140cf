"""How a run talks to its model: the chat template that it uses, and the form of tool calls.

Both are settings of [model], and both may be the model folder's own.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, sha256_text
from rollout.envs.tool_calls import TOOL_FORMS
from rollout.envs.tool_templates import form_of, shows_tools
from scripts.base.checkout import from_checkout, in_checkout
from scripts.run.config import ModelSettings

if TYPE_CHECKING:  # its import takes seconds
    from rollout.transcript import ChatRenderer

_OURS = ("messages", "tools", "documents", "add_generation_prompt", "strftime_now")
"""Variables of a chat template that are not a person's to set."""

_IN_TRL = {"hermes": ("qwen2_5", "qwen3_training"), "llama3_json": ("llama3_1",)}
"""Templates of TRL's package that show tools in a form."""


def chat_renderer(model: ModelSettings, model_dir: Path) -> ChatRenderer:
    """The model's tokenizer with the run's chat template. Raises `BadInput` for a template that
    cannot be used or is missing, and for a variable that it does not have."""
    from rollout.transcript import ChatRenderer

    template = _given_template(model)
    text = template or own_template(model_dir)
    if not text and (model_dir / "tokenizer_config.json").is_file():
        beside = bool(own_template(from_checkout(model.adapter)))
        raise BadInput(
            f"{model_dir}: the tokenizer has no chat template, as of many base models; under"
            f' [model] write chat_template = "{model.adapter if beside else "FILE"}"'
            f"{', the one that lies beside the adapter' if beside else ''}"
        )
    for name in model.chat_template_kwargs:
        if name in _OURS or re.search(rf"\b{re.escape(name)}\b", text) is None:
            raise BadInput(
                f"model.chat_template_kwargs: {name} is no variable of"
                f" {model.chat_template or 'the chat template of ' + str(model_dir)} that can be"
                " set; take it out, or look up its name there"
            )
    return ChatRenderer(model_dir, template, model.chat_template_kwargs)


def tool_form(model: ModelSettings, model_dir: Path) -> str:
    """The name of the form in which tools are called.

    Raises `BadInput` for a form that needs a template with tools, where the template has none.
    """
    template = _given_template(model) or own_template(model_dir)
    shown = form_of(template)
    if model.tool_form in ("auto", shown, "text"):
        return shown if model.tool_form == "auto" else model.tool_form
    does = f"shows tools in the form {shown}"
    if shown == "text":
        does = "shows tools in another form" if shows_tools(template) else "ignores tools"
    raise BadInput(
        f"model.tool_form is {model.tool_form!r}, but the chat template"
        f" {model.chat_template or 'of ' + str(model_dir)} {does}. Leave tool_form out, or"
        f" {_remedy(model, model_dir)}"
    )


def untold_tools(model: ModelSettings, model_dir: Path) -> str | None:
    """What a person should know where the chat template shows tools in a form that we do not read,
    so that the text form takes its place; None where it does not."""
    template = _given_template(model) or own_template(model_dir)
    if model.tool_form != "auto" or form_of(template) != "text" or not shows_tools(template):
        return None
    known = ", ".join(name for name, form in TOOL_FORMS.items() if form.tell is None)
    return (
        "the chat template shows tools in a form that is not read here (known:"
        f" {known}); they are told in the text form, which the model was not trained on"
    )


def _remedy(model: ModelSettings, model_dir: Path) -> str:
    """A template with the form that is asked for, as one would type it."""
    from rollout.transcript import ChatRenderer

    found = find_spec("trl")
    folder = Path(found.origin or "").parent / "chat_templates" if found else Path()
    for name in _IN_TRL.get(model.tool_form, ()):
        file = folder / f"{name}.jinja"
        if not file.is_file():
            continue
        try:
            ChatRenderer(model_dir, file.read_text(encoding="utf-8"))
        except BadInput:  # its turns end with a token that this model does not have
            continue
        return (
            f'give the model a template that shows them so: chat_template = "{in_checkout(file)}"'
            f" under [model] (others lie beside it)"
        )
    return "use a model whose own template shows tools so"


def template_hash(model: ModelSettings) -> dict[str, str]:
    """A hash of the template that replaces the model's own, by its file; none without one."""
    template = _given_template(model)
    return {} if template is None else {model.chat_template: sha256_text(template)}


def _given_template(model: ModelSettings) -> str | None:
    if not model.chat_template:
        return None
    path = from_checkout(model.chat_template)
    if path.is_dir() and (found := own_template(path)):
        return found
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        what = "no chat template in it" if path.is_dir() else "no such file"
        raise BadInput(
            f"model.chat_template: {path}: {what}; relative paths start at the checkout"
        ) from None
    except (OSError, UnicodeDecodeError) as e:
        raise BadInput(f"model.chat_template: {path}: cannot be read ({e})") from None


def own_template(folder: Path) -> str:
    """The chat template in a folder with a tokenizer, as of a model, or of an adapter whose trainer
    left it there; empty where there is none."""
    file, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(found, list):  # several by name, of which transformers takes the one for tools
        named = {one["name"]: one["template"] for one in found}
        found = named.get("tool_use", named.get("default"))
    return found or ""
