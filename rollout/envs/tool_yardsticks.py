"""Yardsticks of worlds with tools: the calls that solve a row, and random calls.

Their replies are in the text form, `YARDSTICK_FORM`. Random arguments are drawn from the text that
the policy was shown (numbers and words of prompt and observations) and from the tool's schema,
never from the environment's state. The reward of such a policy is the floor that a trained one has
to exceed. An environment may provide a random policy of its own.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.records import Task
from rollout.envs.in_thread import line_of
from rollout.envs.tool_calls import TOOL_FORMS, Schema, ToolCall
from rollout.envs.tool_world import row_of
from rollout.envs.user_code import load
from rollout.generators import drawing_from
from rollout.seeds import world_seed

YARDSTICK_FORM = "text"
"""The form in which yardsticks write tool calls, whatever form the run's template uses."""

_INTEGER = re.compile(r"(?<![\w.])-?\d{1,9}(?![\w.])")
_WORD = re.compile(r"[A-Za-z_][\w'-]*")
_SMALL = range(-1, 11)
_FEW = 3
"""The longest list that is drawn."""


def random_call(
    schemas: Sequence[Schema], shown: str, rng: random.Random
) -> tuple[str, dict[str, Any]]:
    """A tool's name and its arguments. shown: all text that the policy has read so far."""
    tool = rng.choice(schemas)["function"]
    wanted = tool.get("parameters", {})
    required = wanted.get("required", ())
    arguments = {
        name: _value(schema, shown, rng)
        for name, schema in wanted.get("properties", {}).items()
        if name in required or rng.random() < 0.5
    }
    return tool["name"], arguments


def _value(schema: Schema | bool, shown: str, rng: random.Random) -> Any:
    if isinstance(schema, bool):  # JSON Schema's for any value
        return _words(shown, rng)
    if "enum" in schema:
        return rng.choice(list(schema["enum"]))
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _value(rng.choice(list(choices)), shown, rng)
    kind = schema.get("type", "string")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    match kind:
        case "integer":
            return _integer(schema, shown, rng)
        case "number":
            return float(_integer(schema, shown, rng)) + round(rng.random(), 2)
        case "boolean":
            return rng.random() < 0.5
        case "array":
            item = schema.get("items", {})
            return [_value(item, shown, rng) for _ in range(rng.randint(0, _FEW))]
        case "object":
            inner = schema.get("properties", {})
            return {name: _value(one, shown, rng) for name, one in inner.items()}
        case "null":
            return None
    return _words(shown, rng)


def _words(shown: str, rng: random.Random) -> str:
    words = _WORD.findall(shown) or ["x"]
    return " ".join(rng.choice(words) for _ in range(rng.choice((1, 1, 1, 2, 3))))


def _integer(schema: Schema, shown: str, rng: random.Random) -> int:
    if "minimum" in schema and "maximum" in schema:
        return rng.randint(int(schema["minimum"]), int(schema["maximum"]))
    seen = [int(n) for n in _INTEGER.findall(shown)]
    if seen and rng.random() < 0.5:
        return rng.randint(min(seen), max(seen))
    near: list[int] = [*_SMALL, *seen]
    return rng.choice(near)


# --- as replies -----------------------------------------------------------------------------------


Tools = Callable[[Task], Sequence[Schema]]
"""Those of a task, as far as they are known (`Environment.tools`)."""


def _written(call: Any, what: str, tools: Sequence[Schema] = ()) -> str:
    """A call as a reply. Raises `BadInput` that begins with `what` for a malformed call."""
    match call:
        case (str(name), Mapping() as arguments):
            try:
                return TOOL_FORMS.named(YARDSTICK_FORM).write(ToolCall(name, arguments), tools)
            except TypeError as e:
                raise BadInput(f"{what}: the arguments of {name} are not JSON: {e}") from None
    raise BadInput(f"{what}: gave {call!r:.80}; a call is (name of a tool, {{its arguments}})")


def _asked(use: str, root: Path, what: str, *given: Any, **columns: Any) -> Any:
    function = load(use, root, what)
    try:
        return function(*given, **columns)
    except Exception as e:
        line = line_of(e, function)
        raise BadInput(f"{what}: {use}: {type(e).__name__}: {e} ({line})") from e


def solved(
    use: str, root: Path, what: str, seed: int, row: Mapping[str, Any]
) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """The calls that solve a row, from the function `use`. Python's and NumPy's generators are
    seeded as before `reset`, so the function may reset an instance of its own to see what is drawn.
    Raises `BadInput` that begins with `what` for a function that gives no list of calls."""
    with drawing_from(seed):
        calls = _asked(use, root, what, **row)
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise BadInput(f"{what}: {use} gave {calls!r:.80}, expected a list of calls")
    for call in calls:
        _written(call, what)
    return calls


def oracle_replies(
    use: str, root: Path, where: str, last: str, tools: Tools
) -> Callable[[Task], Sequence[str]]:
    """The replies that solve a task's row, from the function `use`: one reply for each call, and a
    last one without a call. Raises `BadInput` that begins with `where` and the task, as `solved`
    does."""

    def replies(task: Task) -> Sequence[str]:
        what = f"{where}: task {task.task_id}"
        calls = solved(use, root, what, world_seed(task.task_id), row_of(task))
        known = tools(task)
        return [*(_written(call, what, known) for call in calls), last]

    return replies


def drawn_replies(
    use: str, root: Path, where: str, tools: Tools
) -> Callable[[Task, str, random.Random], str]:
    """A random reply, whose call the function `use` draws. Raises as `oracle_replies`."""

    def reply(task: Task, shown: str, rng: random.Random) -> str:
        what = f"{where}: task {task.task_id}"
        return _written(_asked(use, root, what, rng, shown, **row_of(task)), what, tools(task))

    return reply


def random_replies(schemas: Sequence[Schema]) -> Callable[[Task, str, random.Random], str]:
    """A random reply: one of these tools, with random arguments."""
    return lambda task, shown, rng: _written(random_call(schemas, shown, rng), "", schemas)


class ToolsAsShown:
    """Draws calls in a style whose tools are known when an episode has begun, and not before."""

    def __init__(self) -> None:
        self._tools: dict[str, Sequence[Schema]] = {}

    def note(self, task_id: str, tools: Sequence[Schema]) -> None:
        """An episode of this task has begun with these tools."""
        self._tools[task_id] = tools

    def known(self, task: Task) -> Sequence[Schema]:
        """The tools with which an episode of this task has begun; none before one has."""
        return self._tools.get(task.task_id, ())

    def reply(self, task: Task, shown: str, rng: random.Random) -> str:
        """A call of one of the tools, or a few words of the text if there are none. Raises
        `BadInput` for a task of which no episode has begun."""
        if task.task_id not in self._tools:
            raise BadInput(
                f"task {task.task_id}: its environment shows its tools when an episode begins, so"
                " no call can be drawn before"
            )
        tools = self._tools[task.task_id]
        return _written(random_call(tools, shown, rng), "", tools) if tools else _words(shown, rng)
