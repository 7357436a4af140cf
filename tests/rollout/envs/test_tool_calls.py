"""Replies are read as TRL reads them; where vLLM's parsers read otherwise is listed here."""

import json
from functools import cache
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import get_json_schema

from rollout.envs.tool_calls import TOOL_FORMS, ToolCall, taken_as
from tests.rollout.envs.trl_templates import tokenizer

pytestmark = pytest.mark.trl


class Family(NamedTuple):
    """Models that are taught one form, and what reads their calls elsewhere."""

    form: str
    """Ours."""
    template: str
    """TRL's."""
    parser: str
    """vLLM's registered tool parser."""


FAMILIES = {
    "Hermes and Qwen 2.5": Family("hermes", "qwen2_5", "hermes"),
    "Qwen 3": Family("hermes", "qwen3", "qwen3_json"),
    "Llama 3.1": Family("llama3_json", "llama3_1", "llama3_json"),
    "Llama 3.2": Family("llama3_json", "llama3_2", "llama3_json"),
}
FIRST = {family.form: family for family in reversed(FAMILIES.values())}
"""The first family of each form."""

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"To {name}.",
            "parameters": {"type": "object", "properties": properties, "required": []},
        },
    }
    for name, properties in {
        "add": {"amount": {"type": "integer", "description": "How much."}},
        "say": {"text": {"type": "string"}, "loud": {"type": "boolean"}},
        "stop": {},
    }.items()
]


@cache
def speaker(template: str) -> Any:
    """The tokenizer with which TRL parses what a model with this template writes."""
    from trl.chat_template_utils import add_response_schema

    return add_response_schema(tokenizer(template))


def ours(form: str, reply: str, whole: bool = True) -> list[tuple[str, str]]:
    return [(c.name, json.dumps(c.arguments)) for c in TOOL_FORMS[form].read(reply, TOOLS, whole)]


def message_in_trl(family: Family, reply: str, whole: bool = True) -> dict[str, Any]:
    """What TRL makes of the reply's ids, which end with the end of turn where it is whole."""
    from trl.chat_template_utils import parse_response

    tok = speaker(family.template)
    prefix = tok.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, return_dict=False
    )
    ids = tok.encode(reply, add_special_tokens=False) + [tok.eos_token_id] * whole
    return parse_response(tok, ids, prefix=prefix, tools=TOOLS) if ids else {"content": ""}


def trl(family: Family, reply: str, whole: bool = True) -> list[tuple[str, str]]:
    """The calls of that message."""
    return [
        (c["function"]["name"], json.dumps(c["function"]["arguments"]))
        for c in message_in_trl(family, reply, whole).get("tool_calls", ())
    ]


def vllm(family: Family, reply: str) -> list[tuple[str, str]]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    parser = ToolParserManager.get_tool_parser(family.parser)(speaker(family.template))
    request = ChatCompletionRequest(messages=[], model="m", seed=0)
    found = parser.extract_tool_calls(reply, request).tool_calls
    return [(c.function.name, json.dumps(json.loads(c.function.arguments))) for c in found]


def hermes(body: str, close: str = "</tool_call>") -> str:
    return f"<tool_call>\n{body}\n{close}"


ADD = '{"name": "add", "arguments": {"amount": 1}}'
SAY = '{"name": "say", "arguments": {"text": "a {b} </x>"}}'
L_ADD = '{"name": "add", "parameters": {"amount": 1}}'

SAME_AS_VLLM = {
    "hermes": {
        "one call": hermes(ADD),
        "text before it": f"I add.\n{hermes(ADD)}",
        "text after it": f"{hermes(ADD)}\nThat is all.",
        "two calls": f"{hermes(ADD)}\n{hermes(SAY)}",
        "a thought before it": f"<think>I add.</think>\n\n{hermes(ADD)}",
        "no line breaks": f"<tool_call>{ADD}</tool_call>",
        "an unknown tool": hermes('{"name": "fly", "arguments": {}}'),
        "an unknown argument": hermes('{"name": "add", "arguments": {"size": [1, {"a": null}]}}'),
        "more keys": hermes('{"id": 3, "name": "stop", "arguments": {}}'),
        "no call": "I cannot.",
        "malformed JSON": hermes("{name: add}"),
        "one of two malformed": f"{hermes(ADD)}\n{hermes('{')}",
        "an empty call": "<tool_call></tool_call>",
        "no name": hermes('{"arguments": {}}'),
        "a name that is no text": hermes('{"name": 3, "arguments": {}}'),
        "a list": hermes(f"[{ADD}]"),
        "a number": hermes("3"),
        "a call in a call": hermes(hermes(ADD)),
        "only the end": f"{ADD}\n</tool_call>",
        "nothing": "",
    },
    "llama3_json": {
        "one call": L_ADD,
        "text before it": f"I add. {L_ADD}",
        "no arguments": '{"name": "stop", "parameters": {}}',
        "an argument with braces": '{"name": "say", "parameters": {"text": "{\\"a\\"}"}}',
        "an unknown tool": '{"name": "fly", "parameters": {}}',
        "no call": "I cannot.",
        "malformed JSON": '{"name": "add", "parameters": {amount: 1}}',
        "no parameters": '{"name": "add"}',
        "nothing": "",
    },
}


@pytest.mark.parametrize(
    ("name", "case"), [(n, c) for n, f in FAMILIES.items() for c in SAME_AS_VLLM[f.form]]
)
def test_a_reply_is_read_as_trl_and_vllm_read_it(name: str, case: str) -> None:
    family = FAMILIES[name]
    reply = SAME_AS_VLLM[family.form][case]
    assert ours(family.form, reply) == trl(family, reply) == vllm(family, reply)


@pytest.mark.parametrize(
    ("name", "case"), [(n, c) for n, f in FAMILIES.items() for c in SAME_AS_VLLM[f.form]]
)
def test_reward_functions_get_a_replys_text_as_in_trl(name: str, case: str) -> None:
    family = FAMILIES[name]
    reply = SAME_AS_VLLM[family.form][case]
    theirs = message_in_trl(family, reply)
    texts = {key: theirs[key] for key in ("content", "reasoning_content") if key in theirs}
    assert TOOL_FORMS[family.form].apart(reply, TOOLS, True) == texts


# Where TRL and vLLM differ we read as TRL does: (reply, ours, vLLM's).
ADDED, SAID = ("add", '{"amount": 1}'), ("say", '{"text": "a {b} </x>"}')
OTHER_IN_VLLM = {
    "hermes": {
        "a call that is only thought of": (f"<think>{hermes(ADD)}</think>no", [], [ADDED]),
        "an unclosed call": (hermes(ADD, ""), [], [ADDED]),
        "the second unclosed": (f"{hermes(ADD)}{hermes(SAY, '')}", [], [ADDED, SAID]),
        "no arguments": (hermes('{"name": "stop"}'), [("stop", "{}")], []),
        "null arguments": (
            hermes('{"name": "stop", "arguments": null}'),
            [("stop", "{}")],
            [("stop", "null")],
        ),
        "an integer as a text": (
            hermes('{"name": "add", "arguments": {"amount": "1"}}'),
            [ADDED],
            [("add", '{"amount": "1"}')],
        ),
        "a boolean as a text": (
            hermes('{"name": "say", "arguments": {"loud": "true"}}'),
            [("say", '{"loud": true}')],
            [("say", '{"loud": "true"}')],
        ),
    },
    "llama3_json": {
        "two calls": (f"{L_ADD}; {L_ADD}", [], [ADDED, ADDED]),
        "text after the call": (f"{L_ADD} That is all.", [], [ADDED]),
        "other spaces": ('{ "name": "add", "parameters": {"amount": 1} }', [], [ADDED]),
        "another order": ('{"parameters": {"amount": 1}, "name": "add"}', [], [ADDED]),
        "arguments for parameters": (ADD, [], [ADDED]),
        "an integer as a text": (
            '{"name": "add", "parameters": {"amount": "1"}}',
            [ADDED],
            [("add", '{"amount": "1"}')],
        ),
    },
}


@pytest.mark.parametrize(
    ("name", "case"), [(n, c) for n, f in FAMILIES.items() for c in OTHER_IN_VLLM[f.form]]
)
def test_where_vllm_reads_otherwise_ours_is_what_trl_reads(name: str, case: str) -> None:
    family = FAMILIES[name]
    reply, wanted, theirs = OTHER_IN_VLLM[family.form][case]
    assert ours(family.form, reply) == trl(family, reply) == wanted
    assert vllm(family, reply) == theirs


CUT = {
    "hermes": {
        "unclosed, its JSON complete": (hermes(ADD, ""), [ADDED]),
        "unclosed, the end tag begun": (hermes(ADD, "</tool"), []),
        "unclosed, its JSON begun": ('<tool_call>\n{"name": "add", "argu', []),
        "closed": (hermes(ADD), [ADDED]),
    },
    "llama3_json": {
        "whole": (L_ADD, []),  # its end is the end of turn
        "a brace left out": (L_ADD[:-1], [ADDED]),
    },
}


@pytest.mark.parametrize(("form", "case"), [(f, c) for f in CUT for c in CUT[f]])
def test_a_reply_that_was_cut_off_is_read_as_trl_reads_it(form: str, case: str) -> None:
    reply, wanted = CUT[form][case]
    assert ours(form, reply, whole=False) == trl(FIRST[form], reply, whole=False) == wanted


_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab{}"\\<>/é\n', max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["amount", "text", "loud"]), inner, max_size=2)
    ),
    max_leaves=4,
)
_BODY = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["add", "say", "stop", "fly", 1, None]),
        "arguments": _VALUE,
        "parameters": _VALUE,
    },
).map(json.dumps)
_PIECE = (
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "\n",
            " ",
            "{",
            "}",
            "; ",
            "Yes.",
            ADD,
        ]
    )
    | _BODY
    | _BODY.map(hermes)
    | st.text(max_size=6)
)


@given(st.lists(_PIECE, max_size=5).map("".join), st.booleans())
@pytest.mark.parametrize("form", ["hermes", "llama3_json"])
def test_whatever_a_policy_writes_is_read_as_trl_reads_it(
    form: str, reply: str, whole: bool
) -> None:
    assert ours(form, reply, whole) == trl(FIRST[form], reply, whole)


@given(
    st.sampled_from(["add", "say", "fly", "é", "get-weather", "files.read"]),
    st.dictionaries(st.sampled_from(["amount", "of", "é"]), st.integers() | st.booleans()),
)
@pytest.mark.parametrize("form", sorted(TOOL_FORMS))
def test_what_a_form_writes_it_reads_back(form: str, name: str, arguments: dict[str, Any]) -> None:
    call = ToolCall(name, arguments)
    known = [{"type": "function", "function": {"name": name}}]
    assert TOOL_FORMS[form].read(TOOL_FORMS[form].write(call), known) == (call,)


STRING: Any = {"type": "string"}
OPTIONAL_TEXTS: list[Any] = [
    {"anyOf": [STRING, {"type": "null"}]},  # pydantic's, and with it MCP's
    {"oneOf": [{"type": "null"}, STRING]},
    {"type": ["string", "null"]},
]


def tool(name: str, **properties: Any) -> Any:
    return {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"properties": properties, "required": list(properties)},
        },
    }


@given(
    st.lists(
        st.sampled_from([STRING, {"type": "integer"}, {}, True, *OPTIONAL_TEXTS]),
        min_size=1,
        max_size=3,
    ),
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["42", "x", "null", '{"a": 1}', "a\nb", "", " b", "no</think>", "é: {b}"])
        | st.integers(),
        max_size=2,
    ),
    st.booleans(),
)
def test_what_the_text_form_writes_it_reads_back_whichever_parameters_a_tool_has(
    schemas: list[Any], arguments: dict[str, Any], told: bool
) -> None:
    known = [tool("search", **dict(zip("abc", schemas, strict=False))), tool("add", amount=STRING)]
    call, form = ToolCall("search", arguments), TOOL_FORMS["text"]
    assert form.read(form.write(call, known if told else ()), known) == (call,)


def test_one_text_is_written_briefly_where_it_is_the_first_parameter_and_else_as_json() -> None:
    limited = tool("search", limit={"type": "integer"}, query=STRING)
    write = TOOL_FORMS["text"].write
    assert write(ToolCall("say", {"text": "42"}), TOOLS) == "say: 42"
    for known in ([limited], [], TOOLS):
        call = ToolCall("search", {"query": "42"})
        assert write(call, known) == 'search {"query": "42"}'


def test_nesting_without_end_is_plain_text() -> None:
    deep = "[" * 100_000
    assert TOOL_FORMS["hermes"].read(f"<tool_call>{deep}", (), whole=False) == ()


def test_arguments_that_are_no_object_are_left_to_the_tool() -> None:
    [call] = TOOL_FORMS["hermes"].read(hermes('{"name": "add", "arguments": [1]}'), TOOLS)
    assert call == ToolCall("add", [1])


def test_a_number_that_is_not_finite_is_no_json_and_makes_the_reply_plain_text() -> None:
    for number in ("NaN", "-Infinity", "1e999"):
        call = f'{{"name": "add", "arguments": {{"amount": {number}}}}}'
        assert TOOL_FORMS["hermes"].read(hermes(call), TOOLS) == ()
        assert ours("text", f'add {{"amount": {number}}}') == []
        # As text, so that the tool's own error reaches the policy.
        assert ours("text", f"add: {number}") == [("add", f'{{"amount": "{number}"}}')]


def test_half_of_a_surrogate_pair_becomes_what_a_file_can_hold() -> None:
    call = '{"name": "say", "arguments": {"text": "\\ud800!"}}'
    assert TOOL_FORMS["hermes"].read(hermes(call), TOOLS) == (ToolCall("say", {"text": "?!"}),)
    assert ours("text", 'say {"text": "\\ud800!"}') == [("say", '{"text": "?!"}')]


# --- the text form --------------------------------------------------------------------------------


def test_a_line_with_a_name_is_a_call_and_any_other_line_is_text() -> None:
    reply = 'I think:\nadd: 2\nsay {"text": "a", "loud": true}\nfly: 3\nadd\nstop:'
    assert ours("text", reply) == [
        ("add", '{"amount": 2}'),
        ("say", '{"text": "a", "loud": true}'),
        ("stop", "{}"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "a\u2028b",
        "a\u2028b\nc",
        "a\rb",
        "a\x0cb",
        " indented",
        "ends\r\n",
        '{"a": 1}',
        "",
        "é: {b}",
    ],
)
def test_a_text_that_a_short_call_would_change_is_written_as_json(text: str) -> None:
    call = ToolCall("say", {"text": text})
    written = TOOL_FORMS["text"].write(call, TOOLS)
    assert TOOL_FORMS["text"].read(written, TOOLS) == (call,)


THOUGHT = "<think>\nPerhaps\nadd: 1\n</think>\nsay: no"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (THOUGHT, "say: no"),
        (THOUGHT.removeprefix("<think>\n"), "say: no"),  # the prompt began the thought
        (THOUGHT.replace("\n", "\r\n"), "say: no"),
        ("<think>\nadd: 1\n", ""),
        ("say: no", "say: no"),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_only_thought_of_is_no_call_also_where_the_thought_was_cut(
    reply: str, said: str, whole: bool
) -> None:
    calls = [("say", '{"text": "no"}')] if said else []
    assert ours("text", reply + "\n", whole) == calls
    assert TOOL_FORMS["text"].apart(reply, TOOLS, whole)["content"] == said


def test_reward_functions_get_a_thought_apart_from_the_content_in_the_text_form_too() -> None:
    for form, reply in (("text", "I see.\nadd: 1"), ("hermes", "I see.")):
        apart = TOOL_FORMS[form].apart
        assert apart(f"<think>\nI add.\n</think>\n\n{reply}", TOOLS, True) == {
            "content": reply,
            "reasoning_content": "I add.",
        }
        assert apart(f"{reply}\n", TOOLS, True)["content"].strip() == reply


@pytest.mark.parametrize("schema", OPTIONAL_TEXTS)
def test_a_text_that_may_be_left_out_stays_a_text_though_it_looks_like_a_number(
    schema: Any,
) -> None:
    for text in ("42", "true", "null", "[1]"):
        read = TOOL_FORMS["text"].read(f"guess: {text}", [tool("guess", word=schema)])
        assert read == (ToolCall("guess", {"word": text}),)
    number = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    read = TOOL_FORMS["text"].read("guess: 42", [tool("guess", number=number)])
    assert read == (ToolCall("guess", {"number": 42}),)


def test_a_parameter_of_any_value_is_told_and_read_as_one() -> None:
    anything = [tool("put", value=True, of={}, key=OPTIONAL_TEXTS[0], at={"type": ["integer"]})]
    form = TOOL_FORMS["text"]
    assert form.read("put: 42", anything) == (ToolCall("put", {"value": 42}),)
    assert form.tell is not None
    assert 'put {"value": any, "of": any, "key": string or null, "at": integer}' in form.tell(
        anything, ""
    )


def move(way: Literal["left", "right"] = "left", steps: int = 1, quiet: bool = True) -> None:
    """Move.

    Args:
        way: Where.
        steps: How far.
        quiet: Whether nobody hears it.
    """


def light(on: bool = True) -> None:
    """Light.

    Args:
        on: Whether it is on.
    """


MOVE, LIGHT = get_json_schema(move), get_json_schema(light)


def test_choices_and_what_is_optional_are_told() -> None:
    form, needed = TOOL_FORMS["text"], tool("guess", number={"type": "integer"})
    assert form.tell is not None
    said = form.tell([MOVE, needed], "")
    assert (
        'move {"way": "left" or "right" (optional), "steps": integer (optional), "quiet": boolean'
        " (optional)}: Move."
    ) in said
    assert 'guess {"number": integer}' in said


@pytest.mark.parametrize("said", ["left", '"left"', '{"way": "left"}'])
def test_a_choice_is_read_as_it_was_told_or_bare(said: str) -> None:
    read = TOOL_FORMS["text"].read(f"move: {said}", [MOVE])
    assert read == (ToolCall("move", {"way": "left"}),)


@pytest.mark.parametrize(
    ("said", "arguments"),
    [("False", {"on": False}), ("True", {"on": True}), ("false", {"on": False}), ("", {})],
)
def test_a_word_of_python_is_the_value_that_it_means(said: str, arguments: dict[str, Any]) -> None:
    """As a text "False" would be true to the tool."""
    read = TOOL_FORMS["text"].read(f"light: {said}", [LIGHT])
    assert read == (ToolCall("light", arguments),)


def test_none_is_null_where_null_may_be_given() -> None:
    asked = tool("guess", number={"anyOf": [{"type": "integer"}, {"type": "null"}]})
    read = TOOL_FORMS["text"].read("guess: None", [asked])
    assert read == (ToolCall("guess", {"number": None}),)


# --- replies without a call -----------------------------------------------------------------------

QUERY = tool("query", sql=STRING)


@pytest.mark.parametrize(
    ("reply", "whole", "cut"),
    [
        ("SELECT 1", "SELECT 1", None),
        ("Look:\n```sql\nSELECT 1\n```\nI ho", "SELECT 1", "SELECT 1"),
        ("```sql\nSELECT 1\n```", "SELECT 1", "SELECT 1"),
        ("```sql\nSELECT 1\n``", "SELECT 1\n``", None),
        ("```sql\nDELETE FROM a", "DELETE FROM a", None),
        ("```sql\nSELECT 1\n```\n```sql\nSELECT", "SELECT 1", "SELECT 1"),
        ("<think>\n```sql\nSELECT 2\n```\n", None, None),
        ("<think>\n```sql\nSELECT 2\n```\n</think>\nSELECT 1", "SELECT 1", None),
        (" \n", None, None),
    ],
)
def test_a_reply_is_taken_without_its_thoughts_and_a_cut_one_only_if_its_block_is_closed(
    reply: str, whole: str | None, cut: str | None
) -> None:
    for is_whole, wanted in ((True, whole), (False, cut)):
        call = taken_as(QUERY, reply, is_whole)
        assert (call and call.arguments["sql"]) == wanted


def test_of_a_reply_that_was_cut_off_half_an_argument_is_not_run() -> None:
    assert ours("text", "say: one\nsay: tw", whole=False) == [("say", '{"text": "one"}')]
    assert ours("text", "say: one\n", whole=False) == [("say", '{"text": "one"}')]
    assert ours("text", 'add {"amount": 1}', whole=False) == [ADDED]
    assert ours("text", 'add {"amount": 1', whole=False) == []


def test_an_optional_number_as_transformers_writes_it_may_be_none() -> None:
    def limit(n: int | None) -> str:
        """Keep the first n.

        Args:
            n: How many; None for all.
        """
        return str(n)

    tools = [get_json_schema(limit)]
    for said, expected in (("limit: None", None), ("limit: 3", 3)):
        (call,) = TOOL_FORMS["text"].read(said, tools)
        assert call.arguments == {"n": expected}
