"""Which form of tool calls a chat template shows.

A template is asked by what it makes of a tool, a call and an answer. It says so only by rendering
them, and the forms of `tool_calls` read what it has rendered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.envs.tool_calls import TOOL_FORMS, Schema, ToolCall

_CALL = ToolCall("a_tool_of_ours", {"an_argument": "its value"})
_TOOL: Schema = {
    "type": "function",
    "function": {
        "name": _CALL.name,
        "description": "What it does.",
        "parameters": {
            "type": "object",
            "properties": {"an_argument": {"type": "string", "description": "Which."}},
            "required": ["an_argument"],
        },
    },
}
_ASKED, _ANSWER = "what the user asked", "what the tool answered"


def form_of(template: str) -> str:
    """The form of calls that a chat template uses.

    The template renders a tool, a call and an answer; the result is the form that reads the call
    back from the rendered turn. It is "text" if the template leaves out one of the three, refuses
    them, or writes calls in a form that is not in `TOOL_FORMS`.
    """
    asked = {"type": "function", "function": {"name": _CALL.name, "arguments": _CALL.arguments}}
    shown = _rendered(
        template,
        {"role": "user", "content": _ASKED},
        {"role": "assistant", "content": "", "tool_calls": [asked]},
        {"role": "tool", "name": _CALL.name, "content": _ANSWER},
    )
    # Some templates put their instructions, with an example of a call, before the user's text.
    told, _, turn = shown.partition(_ASKED)
    if _CALL.name not in told or _ANSWER not in turn:
        return "text"
    for name, form in TOOL_FORMS.items():
        if form.tell is None and form.read(turn, ()) == (_CALL,):
            return name
    return "text"


def shows_tools(template: str) -> bool:
    """Whether a chat template shows the policy its tools, in any form."""
    return _CALL.name in _rendered(template, {"role": "user", "content": _ASKED})


def _rendered(template: str, *messages: Mapping[str, Any]) -> str:
    """A conversation with `_TOOL`; "" where the template refuses it."""
    from jinja2 import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        rendered: Any = render_jinja_template(
            [[dict(m) for m in messages]],
            tools=[dict(_TOOL)],
            chat_template=template,
            bos_token="",
            eos_token="",
        )
    except (TemplateError, TypeError, ValueError):  # the last two of a template's own expressions
        return ""
    [text], _ = rendered
    return str(text)
