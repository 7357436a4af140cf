"""The chat template that a run gives its model, and the form of tool calls that follows from it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from scripts.base.checkout import ROOT
from scripts.prepare.model import build_model
from scripts.run.config import ModelSettings
from scripts.run.template import chat_renderer, template_hash, tool_form, untold_tools
from tests.rollout.envs.trl_templates import model_dir as folder_of
from tests.rollout.envs.trl_templates import templates

ASKED = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def smol() -> Path:
    """The default model, whose template ignores tools."""
    return build_model()


def given(name: str, folder: Path, **values: Any) -> ModelSettings:
    """[model] with one of TRL's templates as a file."""
    file = folder / f"{name}.jinja"
    file.write_text(templates()[name])
    return ModelSettings(chat_template=str(file), **values)


def test_a_template_that_ignores_tools_has_the_text_form(smol: Path) -> None:
    assert tool_form(ModelSettings(), smol) == "text"
    assert untold_tools(ModelSettings(), smol) is None


@pytest.mark.parametrize(
    ("name", "form"), [("qwen2_5", "hermes"), ("qwen3", "hermes"), ("llama3_1", "llama3_json")]
)
def test_the_form_follows_the_template_that_the_run_gives(
    name: str, form: str, smol: Path, tmp_path: Path
) -> None:
    assert tool_form(given(name, tmp_path), smol) == form
    assert tool_form(given(name, tmp_path, tool_form=form), smol) == form
    assert tool_form(given(name, tmp_path, tool_form="text"), smol) == "text"


def test_the_models_own_template_is_read_wherever_it_lies(smol: Path, tmp_path: Path) -> None:
    assert tool_form(ModelSettings(), folder_of("qwen2_5", tmp_path)) == "hermes"
    named = [
        {"name": n, "template": templates()[t]}
        for n, t in (("default", "phi3"), ("tool_use", "qwen3"))
    ]
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert tool_form(ModelSettings(), tmp_path) == "hermes"
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert tool_form(ModelSettings(), tmp_path) == "text"


def test_a_form_that_the_template_does_not_show_is_refused_with_one_that_does(smol: Path) -> None:
    with pytest.raises(BadInput) as error:
        tool_form(ModelSettings(tool_form="hermes"), smol)
    said = str(error.value)
    assert f"the chat template of {smol} ignores tools. Leave tool_form out, or" in said
    typed = said.partition('chat_template = "')[2].partition('"')[0]
    assert tool_form(ModelSettings(tool_form="hermes", chat_template=typed), smol) == "hermes"
    chat_renderer(ModelSettings(chat_template=typed), smol)


def test_where_no_template_of_the_form_fits_the_model_the_error_says_so(
    smol: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"form hermes\..*use a model whose own template shows"):
        tool_form(given("qwen2_5", tmp_path, tool_form="llama3_json"), smol)
    llama = folder_of("llama3_1", tmp_path / "llama")
    with pytest.raises(BadInput, match=r"ignores tools\..*llama3_1\.jinja"):
        tool_form(given("llama3", tmp_path, tool_form="llama3_json"), llama)


def test_tools_in_a_form_that_is_not_read_are_told_as_text_and_a_person_is_told(
    smol: Path, tmp_path: Path
) -> None:
    model = given("gemma4", tmp_path)
    assert tool_form(model, smol) == "text"
    said = untold_tools(model, smol)
    assert said is not None
    assert "known: hermes, llama3_json" in said
    with pytest.raises(BadInput, match=r"gemma4\.jinja shows tools in another form"):
        tool_form(given("gemma4", tmp_path, tool_form="hermes"), smol)
    assert untold_tools(given("gemma4", tmp_path, tool_form="text"), smol) is None


def test_what_the_policy_is_shown_follows_file_and_variables(smol: Path, tmp_path: Path) -> None:
    off = given("qwen3", tmp_path, chat_template_kwargs={"enable_thinking": False})
    renderer = chat_renderer(off, smol)
    assert renderer.decode(renderer.opening_ids(ASKED)).endswith("<think>\n\n</think>\n\n")
    on = chat_renderer(given("qwen3", tmp_path), smol)
    assert on.decode(on.opening_ids(ASKED)).endswith("assistant\n")


@pytest.mark.parametrize("name", ["enable_thinkin", "messages", "strftime_now"])
def test_a_variable_that_the_template_does_not_have_is_refused(
    name: str, smol: Path, tmp_path: Path
) -> None:
    model = given("qwen3", tmp_path, chat_template_kwargs={name: True})
    with pytest.raises(BadInput, match=rf"chat_template_kwargs: {name} is no variable of .*qwen3"):
        chat_renderer(model, smol)


def test_a_value_that_is_no_variable_is_refused() -> None:
    with pytest.raises(BadInput, match=r"kwargs.enable_thinking: expected true .*, found \[1\]"):
        ModelSettings(chat_template_kwargs={"enable_thinking": [1]})  # type: ignore[dict-item]


def test_a_file_that_is_not_there_or_is_no_text_is_named(smol: Path, tmp_path: Path) -> None:
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe")
    for file, why in (("missing.jinja", "no such file"), ("binary.jinja", "cannot be read")):
        model = ModelSettings(chat_template=str(tmp_path / file))
        for read in (chat_renderer, tool_form):
            with pytest.raises(BadInput, match=f"model.chat_template: .*{file}: {why}"):
                read(model, smol)


def test_a_model_without_a_template_is_given_the_one_beside_the_adapter(
    smol: Path, tmp_path: Path
) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(smol / name, base / name)
    config = json.loads((base / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    model = ModelSettings(adapter=str(adapter))
    with pytest.raises(BadInput, match=r'no chat template.*write chat_template = "FILE"$'):
        chat_renderer(model, base)
    with pytest.raises(BadInput, match=f"model.chat_template: {adapter}: no chat template in it"):
        chat_renderer(ModelSettings(chat_template=str(adapter)), base)
    own = (smol / "chat_template.jinja").read_text()
    (adapter / "tokenizer_config.json").write_text(json.dumps({"chat_template": own}))
    with pytest.raises(BadInput, match=f'chat_template = "{adapter}", the one that lies beside'):
        chat_renderer(model, base)
    given_it = ModelSettings(adapter=str(adapter), chat_template=str(adapter))
    ids = chat_renderer(given_it, base).opening_ids(ASKED)
    assert ids == chat_renderer(ModelSettings(), smol).opening_ids(ASKED)


def test_a_file_that_is_no_template_is_refused(smol: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jinja").write_text("{% for m in messages %}")
    with pytest.raises(BadInput, match="the chat template refuses a conversation"):
        chat_renderer(ModelSettings(chat_template=str(tmp_path / "broken.jinja")), smol)


def test_a_relative_path_starts_at_the_checkout(tmp_path: Path) -> None:
    file = given("qwen3", tmp_path).chat_template
    inside = ROOT / "runs" / "of-a-test.jinja"
    shutil.copy(file, inside)
    try:
        [absolute] = template_hash(ModelSettings(chat_template=file)).values()
        assert template_hash(ModelSettings(chat_template="runs/of-a-test.jinja")) == {
            "runs/of-a-test.jinja": absolute
        }
    finally:
        inside.unlink()
    assert template_hash(ModelSettings()) == {}
