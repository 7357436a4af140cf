"""How a reply calls tools, and how a policy learns which there are.

A model is trained on one form of tool calls, which its chat template shows. If the template has no
tools, the text form describes them in the system message. A form only reads text; the world decides
whether a tool exists and what it does.

The forms of chat templates are read as TRL reads them, by the same parser of transformers, so that
what is a call there is a call here, except for numbers that are not finite, which are no JSON.
Where vLLM's parsers differ is listed in tests/rollout/envs/test_tool_calls.py.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fieldkit.errors import BadInput
from fieldkit.files.json_text import parse_json, whole_text
from fieldkit.registry import Registry
from rollout.envs.thoughts import after_thoughts, thoughts_apart

Schema = Mapping[str, Any]
"""A tool as chat templates take it: {"type": "function", "function": {"name", "description",
"parameters"}}."""


@dataclass(frozen=True)
class ToolCall:
    """One call that a reply asks for."""

    name: str
    arguments: Any
    """A mapping; if the policy wrote something else, the call fails as in TRL."""


class ReadCalls(Protocol):
    """Reads the calls of a reply, in order."""

    def __call__(
        self, text: str, tools: Sequence[Schema], whole: bool = True
    ) -> tuple[ToolCall, ...]:
        """whole: False if the reply was cut off at a limit."""


class WriteCall(Protocol):
    """Writes a call as a policy does."""

    def __call__(self, call: ToolCall, tools: Sequence[Schema] = ()) -> str:
        """tools: those that the reader will know; without them no short form is written that
        needs a tool's schema to be read back."""


@dataclass(frozen=True)
class ToolForm:
    """One way to write tool calls."""

    meaning: str
    """Its description in one line."""
    read: ReadCalls
    write: WriteCall
    tell: Callable[[Sequence[Schema], str], str] | None = None
    """The tools, and the one that takes replies without a call (empty: none does), as text for the
    system message; None where the chat template shows them."""
    apart: Callable[[str, Sequence[Schema], bool], Mapping[str, str]] = lambda text, *_: {
        "content": text
    }
    """A reply's `content`, and its `reasoning_content` if any, as TRL gives them to reward
    functions: without the calls where a chat template writes these, and without the thoughts."""


TOOL_FORMS: Registry[ToolForm] = Registry("tool form")
"""By the names that `model.tool_form` may have."""


def name_of(schema: Schema) -> str:
    """The tool's name."""
    return str(schema["function"]["name"])


def _parameters(schema: Schema) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema["function"].get("parameters", {}).get("properties", {})
    return found


def _optional(schema: Schema) -> Collection[str]:
    """The parameters that may be left out. A schema that lists none as required has no list."""
    needed = schema["function"].get("parameters", {}).get("required", ())
    return _parameters(schema).keys() - set(needed)


def _types(schema: object) -> tuple[str, ...]:
    """The JSON types that a value may have, in the schema's order; none where it leaves them open.
    pydantic and MCP write an optional text as a choice of schemas or as a list of types, and
    transformers as `nullable`; JSON Schema has `true` for any value."""
    if not isinstance(schema, Mapping):
        return ()
    kinds = schema.get("type") or ()
    found = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if isinstance(kind, str)]
    for choice in ("anyOf", "oneOf"):
        found += [kind for one in schema.get(choice) or () for kind in _types(one)]
    if schema.get("nullable"):
        found.append("null")
    return tuple(dict.fromkeys(found))


# --- the forms of chat templates ------------------------------------------------------------------

_OVER = "<|over|>"
"""Stands for the end-of-turn token, which a reply's text leaves out. It is not JSON, so a call that
the policy left unclosed is malformed."""


@functools.cache
def _response_template(calls: str) -> Any:
    """How transformers finds the calls; `calls` is a key of `_FIELDS`."""
    from transformers.utils.chat_parsing.response_templates import load_response_template

    fields = {**_FIELDS[calls], "content": {"close": _OVER, "content": "text"}}
    return load_response_template({"start_anchor": "\x02", "fields": fields})


_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "hermes": {
        # A call inside the reasoning is not a call.
        "reasoning_content": {
            "open": "<think>",
            "close_pattern": r"</think>\s*",
            "content": "text",
        },
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"function": "{content}"},
        },
    },
    "llama3_json": {
        "tool_calls": {
            "open_pattern": r'\{"name":\s*"(?P<name>[^"]+)",\s*"parameters":\s*',
            "close_pattern": rf"\}}(?:{re.escape(_OVER)}|<\|eot_id\|>)\s*",
            "repeats": True,
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
    },
}


def _read_parsed(
    text: str, tools: Sequence[Schema], whole: bool = True, *, form: str
) -> tuple[ToolCall, ...]:
    """The calls that transformers' parser finds, with texts cast to the types of the tool's schema.
    If one is malformed the whole reply is plain text. A call without arguments gets an empty
    mapping."""
    return _calls_in(_parsed(text, tools, whole, form)) or ()


def _apart_parsed(
    text: str, tools: Sequence[Schema], whole: bool, *, form: str
) -> Mapping[str, str]:
    message = _parsed(text, tools, whole, form)
    if _calls_in(message) is None:
        return {"content": text}
    thought = message.get("reasoning_content")
    return {
        "content": message.get("content") or "",
        **({} if thought is None else {"reasoning_content": thought}),
    }


def _parsed(text: str, tools: Sequence[Schema], whole: bool, form: str) -> Mapping[str, Any]:
    """A reply as a message; plain text where the parser refuses it."""
    from transformers.utils.chat_parsing import parse_response

    said = text + _OVER * whole
    known: list[Any] = [dict(tool) for tool in tools]
    try:
        message: Mapping[str, Any] = parse_response(
            said, _response_template(form), prefix="", tools=known
        )
    except (ValueError, RecursionError):  # what json raises
        return {"content": text}
    return message


def _calls_in(message: Mapping[str, Any]) -> tuple[ToolCall, ...] | None:
    """The calls of a message; None if one of them is malformed."""
    calls = []
    for found in (call["function"] for call in message.get("tool_calls", ())):
        if not isinstance(found, dict) or not isinstance(found.get("name"), str):
            return None
        arguments = found.get("arguments")
        try:
            name, kept = _storable([found["name"], {} if arguments is None else arguments])
        except BadInput:
            return None
        calls.append(ToolCall(name, kept))
    return tuple(calls)


def _storable(value: Any) -> Any:
    """What JSON can hold of a value that was read from it: "?" for half of a surrogate pair, which
    the readers take. Raises `BadInput` for a number that is not finite, which they take too."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as e:
        raise BadInput(f"no JSON: {e}") from None
    whole = whole_text(text)
    return value if whole == text else parse_json(whole, "")


def _write_hermes(call: ToolCall, tools: Sequence[Schema] = ()) -> str:
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def _write_llama3_json(call: ToolCall, tools: Sequence[Schema] = ()) -> str:
    return json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False)


def taken_as(tool: Schema, text: str, whole: bool = True) -> ToolCall | None:
    """A reply without a call, taken as a call of a tool with one text argument: what follows the
    thoughts, without the fence of a code block. None for an empty reply, and for one that was cut
    off (whole: False) unless its block is closed: half an argument can do something else than the
    whole."""
    (key,) = _parameters(tool)
    text = after_thoughts(text)
    block = _FENCED.search(text)
    if not whole and (block is None or not block[2]):
        return None
    said = (block[1] if block else text).strip()
    return ToolCall(name_of(tool), {key: said}) if said else None


_FENCED = re.compile(r"```\w*\n(.*?)(```|\Z)", re.DOTALL)


# --- text -----------------------------------------------------------------------------------------


_PYTHON = {"True": ("boolean", True), "False": ("boolean", False), "None": ("null", None)}
"""What a model writes that learned Python, with the JSON type it is of."""

_CALL_LINE = re.compile(r"\s*([^\s:{]+)\s*(:|(?=\{))\s*(.*?)\s*$")
"""A name, which may have hyphens and dots as MCP's do, and the argument or arguments."""


def _read_text(text: str, tools: Sequence[Schema], whole: bool = True) -> tuple[ToolCall, ...]:
    """Every line that begins with a tool's name and holds its arguments is a call, but in thoughts.
    The last line of a reply that was cut off counts only if its JSON is complete."""
    by_name = {name_of(tool): tool for tool in tools}
    found = []
    # Not splitlines, which splits at U+2028 and more too.
    for line in re.findall(r".+\n?", after_thoughts(text)):
        start = _CALL_LINE.match(line)
        tool = by_name.get(start[1]) if start else None
        as_text = start is not None and start[2] == ":" and (whole or line.endswith("\n"))
        call = _of_line(tool, as_text, start[3]) if start and tool else None
        if call is not None:
            found.append(call)
    return tuple(found)


def _of_line(tool: Schema, as_text: bool, rest: str) -> ToolCall | None:
    if rest.startswith("{"):
        try:
            read = _storable(parse_json(rest, ""))
        except BadInput:
            read = None
        if isinstance(read, dict):
            return ToolCall(name_of(tool), read)
    if not as_text:
        return None
    parameters = _parameters(tool)
    if not parameters:
        return ToolCall(name_of(tool), {})
    key, schema = next(iter(parameters.items()))
    if not rest and key in _optional(tool) and "string" not in _types(schema):
        return ToolCall(name_of(tool), {})
    return ToolCall(name_of(tool), {key: _value(rest, schema)})


def _value(text: str, schema: object) -> Any:
    """An argument in its schema's type, as a text where it may be one; if it does not fit, the
    text too, so that the tool's own error reaches the policy."""
    kinds, choices = _types(schema), _choices(schema)
    try:
        read = _storable(parse_json(text, ""))
    except BadInput:
        read = text
    if text not in choices and read in choices:  # as they are told: "left" in quotes
        return read
    if "string" in kinds:
        return text
    if text in _PYTHON and _PYTHON[text][0] in kinds:
        return _PYTHON[text][1]
    return read


def _apart_text(text: str, tools: Sequence[Schema], whole: bool) -> Mapping[str, str]:
    said, thought = thoughts_apart(text)
    return {"content": said, **({} if thought is None else {"reasoning_content": thought})}


def _write_text(call: ToolCall, tools: Sequence[Schema] = ()) -> str:
    """`NAME: argument` for one text that is read back as this argument, else JSON."""
    values = list(call.arguments.values())
    if len(values) == 1 and isinstance(values[0], str):
        short = f"{call.name}: {values[0]}"
        if _read_text(short, tools) == (call,):
            return short
    return f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}"


def _told(schema: object) -> str:
    """An argument's values: its choices, else its types."""
    choices = (json.dumps(one, ensure_ascii=False) for one in _choices(schema))
    return " or ".join(choices) or " or ".join(_types(schema)) or "any"


def _choices(schema: object) -> Sequence[Any]:
    return (schema.get("enum") or ()) if isinstance(schema, Mapping) else ()


def _tell_text(tools: Sequence[Schema], fallback: str) -> str:
    lines = ["You have tools. To use one, write a line with its name and its arguments:"]
    for tool in tools:
        optional = _optional(tool)
        shown = ", ".join(
            f'"{key}": {_told(one)}{" (optional)" if key in optional else ""}'
            for key, one in _parameters(tool).items()
        )
        described = " ".join(str(tool["function"].get("description", "")).split())
        lines.append(f"{name_of(tool)} {{{shown}}}: {described}")
    ends = f"is given to {fallback}, as it is" if fallback else "ends the task"
    lines.append(f"A reply without such a line {ends}.")
    return "\n".join(lines)


TOOL_FORMS.register(
    "text",
    ToolForm(
        "a line `NAME {json}` or `NAME: argument`; the system message describes the tools",
        _read_text,
        _write_text,
        _tell_text,
        _apart_text,
    ),
)
TOOL_FORMS.register(
    "hermes",
    ToolForm(
        "<tool_call>{json}</tool_call>, as Qwen 2.5, Qwen 3 and Hermes write it",
        functools.partial(_read_parsed, form="hermes"),
        _write_hermes,
        apart=functools.partial(_apart_parsed, form="hermes"),
    ),
)
TOOL_FORMS.register(
    "llama3_json",
    ToolForm(
        '`{"name": …, "parameters": {…}}`, one call a reply, as Llama 3.1 and 3.2 write it',
        functools.partial(_read_parsed, form="llama3_json"),
        _write_llama3_json,
        apart=functools.partial(_apart_parsed, form="llama3_json"),
    ),
)
