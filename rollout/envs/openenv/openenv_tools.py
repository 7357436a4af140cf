"""The tools of an OpenEnv server, from the JSON schema of its action, and an observation as text.

One action model is one tool: named like the model without "Action" (`GuessNumberAction` is
`guess_number`, a plain `Action` is `step`), described by the model's docstring, its fields the
parameters. A root that is a choice of models (`oneOf`, `anyOf`) is one tool for each. A field with
only one possible value, such as a discriminator, is filled in here; `metadata`, which every action
has, is left out. If the action is an MCP call, the environment's MCP tools are the tools. This
module sends nothing to a server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = Mapping[str, Any]

_BASE_FIELD = "metadata"  # of every Action and Observation
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_NOTES = ("title", "examples", "discriminator")  # keys of a schema that are for programs


@dataclass(frozen=True)
class ActionTool:
    """One tool: its description for the policy, and how its arguments become an action.

    fixed: the fields that have one value. wrapped: the field that takes the arguments as one
    object, None where they are the action's own fields.
    """

    name: str
    description: str
    parameters: Schema
    fixed: Mapping[str, Any] = field(default_factory=dict)
    wrapped: str | None = None

    @property
    def schema(self) -> Schema:
        """As `transformers.utils.get_json_schema` writes a function."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}

    def action(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The action that a call with these arguments is."""
        given = dict(arguments) if self.wrapped is None else {self.wrapped: dict(arguments)}
        return {**given, **self.fixed}


def is_mcp(action: Schema) -> bool:
    """Whether the action is a call of an MCP tool; the server lists those tools."""
    properties = action.get("properties", {})
    kind = properties.get("type", {}) if isinstance(properties, dict) else {}
    return _only_value(kind) == ("call_tool",)


def tools_of(action: Schema) -> tuple[ActionTool, ...]:
    """The tools of an action's schema, in alphabetical order."""
    definitions = action.get("$defs", {})
    models = action.get("oneOf") or action.get("anyOf") or [action]
    tools = [_tool(_inlined(model, definitions, ())) for model in models]
    return tuple(sorted(tools, key=lambda t: t.name))


def mcp_tools(listed: Iterable[Schema]) -> tuple[ActionTool, ...]:
    """The tools of an MCP environment, from its answer to tools/list, in alphabetical order."""
    tools = (
        ActionTool(
            name=tool["name"],
            description=tool.get("description") or "",
            parameters=_plain(tool.get("inputSchema") or tool.get("input_schema") or {}),
            fixed={"type": "call_tool", "tool_name": tool["name"]},
            wrapped="arguments",
        )
        for tool in listed
    )
    return tuple(sorted(tools, key=lambda t: t.name))


def _tool(model: Schema) -> ActionTool:
    fields = {k: v for k, v in model.get("properties", {}).items() if k != _BASE_FIELD}
    fixed = {k: only[0] for k, v in fields.items() if (only := _only_value(v))}
    parameters = {
        "type": "object",
        "properties": {k: _plain(v) for k, v in fields.items() if k not in fixed},
        "required": [k for k in model.get("required", ()) if k in fields and k not in fixed],
    }
    title = str(model.get("title", "")).removesuffix("Action")
    name = "_".join(w.lower() for w in _WORD.split(title) if w) or "step"
    told = str(model.get("description", "")).strip() or "Take one step in the environment."
    return ActionTool(name, told, parameters, fixed)


def _only_value(schema: Any) -> tuple[Any, ...]:
    """The only value that a field can have, as a tuple of one; () if there are several."""
    if not isinstance(schema, dict):
        return ()
    if "const" in schema:
        return (schema["const"],)
    values = schema.get("enum", ())
    return tuple(values) if len(values) == 1 else ()


def _inlined(schema: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """The schema with every `$ref` to a definition replaced by it; one that holds itself stays."""
    if isinstance(schema, list):
        return [_inlined(s, definitions, inside) for s in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and name not in inside:
        rest = {k: v for k, v in schema.items() if k != "$ref"}
        return {**_inlined(definitions[name], definitions, (*inside, name)), **rest}
    return {k: _inlined(v, definitions, inside) for k, v in schema.items() if k != "$defs"}


def _plain(schema: Any) -> Any:
    """The schema without keys for programs, because a policy reads every token of it."""
    if isinstance(schema, list):
        return [_plain(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    named = schema.get("properties")
    plain = {k: _plain(v) for k, v in schema.items() if k not in (*_NOTES, "properties")}
    if isinstance(named, dict):  # a field may have the name of such a key
        plain["properties"] = {k: _plain(v) for k, v in named.items()}
    return plain


def as_text(observation: Mapping[str, Any], show: Iterable[str] = ()) -> str:
    """An observation as the policy reads it.

    show: the fields to show, in that order; () for all but `metadata` and the empty ones, in the
    server's order. One field is shown by its value alone, several as `name: value` a line; a value
    that is no text is JSON.
    """
    names = tuple(show) or tuple(k for k in observation if k != _BASE_FIELD)
    fields = {k: observation.get(k) for k in names}
    shown = {k: v for k, v in fields.items() if v not in (None, "", [], {})}
    if len(fields) == 1:
        return "".join(map(_value, shown.values()))
    return "\n".join(f"{k}: {_value(v)}" for k, v in shown.items())


def mcp_error(observation: Mapping[str, Any]) -> str:
    """An MCP tool's error text; empty if it succeeded."""
    error = observation.get("error")
    if not isinstance(error, dict):
        return ""
    told = str(error.get("message", "")) or str(error.get("error_type", "the tool failed"))
    return "\n".join(line for line in told.splitlines() if "errors.pydantic.dev" not in line)


def mcp_text(observation: Mapping[str, Any]) -> str:
    """An MCP tool's result as the policy reads it: its texts, or else the whole observation."""
    result = observation.get("result")
    content = result.get("content") if isinstance(result, dict) else None
    texts = [c.get("text") for c in content or () if isinstance(c, dict)]
    whole = bool(texts) and all(isinstance(t, str) for t in texts)
    return "\n".join(map(str, texts)) if whole else as_text(observation)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
