"""The form of tool calls that a chat template shows, of every template that TRL ships."""

from __future__ import annotations

import pytest

from rollout.envs.tool_templates import form_of, shows_tools
from tests.rollout.envs.trl_templates import templates

READ = {
    "hermes": {
        "qwen2_5",
        "qwen2_5_training",
        "qwen3",
        "qwen3_training",
        "qwen3_instruct_2507",
        "qwen3_instruct_2507_training",
        "qwen3_vl",
        "qwen3_vl_training",
    },
    "llama3_json": {"llama3_1", "llama3_2"},
}
FAMILIES_WITH_OTHER_FORMS = {
    "diffusion_gemma",
    "gemma4",
    "glm4moe",
    "gptoss",
    "lfm2",
    "muse_glimmer",
    "nemotron_3",
    "qwen3_5",
    "qwen3_6",
    "qwen3_8",
}


@pytest.mark.parametrize("name", templates())
def test_the_form_of_every_template_of_trl(name: str) -> None:
    template = templates()[name]
    wanted = next((form for form, names in READ.items() if name in names), "text")
    assert form_of(template) == wanted
    in_another_form = any(name.startswith(family) for family in FAMILIES_WITH_OTHER_FORMS)
    assert shows_tools(template) == (wanted != "text" or in_another_form)


def test_a_template_that_is_no_template_has_the_text_form() -> None:
    assert form_of("{% for %}") == form_of("") == "text"
