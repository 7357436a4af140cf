"""An order to play an environment: its class or functions, its settings, its rows.

It has the values of `[envs.NAME]`, all of them optional, because a class is checked before its
condition for passing is declared.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.grade import RewardPart
from fieldkit.files.atomic import read_objects
from rollout.envs.configured import is_task
from rollout.envs.env_settings import graded
from rollout.envs.in_thread import PinnedThread
from rollout.envs.reward_functions import (
    OWN,
    OWN_PART,
    RewardFunction,
    checked,
    own_part,
    reward_functions,
)
from rollout.envs.tool_world import judged
from rollout.envs.tool_yardsticks import solved
from rollout.envs.user_code import load, place_of
from scripts.environments.instance import Blamed, Call, Played, Trials


@dataclass(frozen=True)
class Order:
    """What is checked, and how many episodes are played."""

    use: str
    """`module:Class` or `path/to/file.py:Class`."""
    root: str
    """The folder of relative paths."""
    rows: list[dict[str, Any]] = field(default_factory=lambda: [{"prompt": "", "seed": 0}])
    config: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    passes: str = ""
    ends: str = ""
    call_seconds: float = 10.0
    episodes: int = 32
    turns: int = 15
    seconds: float = 60.0
    """The time for random episodes, and again for the model's."""
    perfect: list[Call] | None = None
    oracle: str = ""
    """The function of a row's columns whose calls are perfect, where none are given."""
    endpoint: str = ""
    model: str = ""
    model_episodes: int = 8

    def text(self) -> str:
        """The order as text for the checking process."""
        return json.dumps(asdict(self))


def class_of(order: Order) -> type:
    """The class; for functions, a class without state whose tools they are. Raises `BadInput` that
    names the missing part of its name."""
    found = load(order.use, Path(order.root), order.use)
    if inspect.isclass(found):
        return found
    tools = list(found) if isinstance(found, list | tuple) else [found]
    if not tools or not all(inspect.isfunction(tool) for tool in tools):
        raise BadInput(
            f"{order.use}: no class, no function and no list of functions; name a class with"
            " reset() and tools, or functions that are tools"
        )
    methods = {tool.__name__: staticmethod(tool) for tool in tools}
    return type(order.use.rpartition(":")[2], (), {"reset": _no_reset, **methods})


def _no_reset(self: object, **row: Any) -> None:
    """Functions have no state, so an episode begins with its row's prompt alone."""


def trials_of(order: Order, kind: type) -> Trials:
    """The trials of an order. Raises `BadInput` for a reward function that does not exist, and for
    functions without a prompt."""
    if kind.__dict__.get("reset") is _no_reset and not order.rows[0].get("prompt"):
        raise BadInput(
            f"{order.use}: functions have no reset() that gives a prompt, so name rows that have"
            ' the column `prompt`: `--rows FILE`, with lines like {"prompt": "What is 2 + 3?"}'
        )
    oracle = order.oracle if order.perfect is None else ""
    own = own_part(kind)
    functions = reward_functions(order.rewards, Path(order.root), order.use, own=own)
    return Trials(
        kind,
        functools.partial(_judge, functions=functions, order=order),
        order.rows,
        pays=bool(functions or own),
        config=order.config,
        ends=order.ends,
        passed=functools.partial(_passed, order=order) if order.passes else None,
        episodes=order.episodes,
        turns=order.turns,
        seconds=order.seconds,
        perfect=_solution(order) if oracle else order.perfect,
        oracle=oracle,
        oracle_place=place_of(_oracle(order)) if oracle else "",
    )


def _oracle(order: Order) -> Any:
    return load(order.oracle, Path(order.root), f"{order.use}: oracle")


def _solution(order: Order) -> Sequence[Call]:
    """The oracle's calls for the first row at seed 0. Raises `BadInput`."""
    return solved(order.oracle, Path(order.root), f"{order.use}: oracle", 0, order.rows[0])


def only_class(file: Path) -> str:
    """The name of the only class in a Python file with a `reset`. Raises `BadInput`."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError as e:
        raise BadInput(f"{file}:{e.lineno}: {e.msg}") from None
    except FileNotFoundError:
        raise BadInput(f"{file}: no such file; `grpo env new NAME` makes an environment") from None
    found = _classes(tree.body)
    if len(found) == 1:
        return found[0]
    if found:
        todo = f"say which: {', '.join(f'{file}:{n}' for n in found)}"
    elif inner := _classes(ast.walk(tree)):
        todo = f"{inner[0]} is inside a function, as in TRL's examples: move it out of there"
    else:
        todo = "add one"
    raise BadInput(f"{file}: {len(found)} classes have a method reset; {todo}")


def _classes(nodes: Iterable[ast.AST]) -> list[str]:
    """The names of the classes with a `reset`."""
    return [
        node.name
        for node in nodes
        if isinstance(node, ast.ClassDef)
        and any(getattr(inner, "name", "") == "reset" for inner in node.body)
    ]


def read_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file: rows of a dataset as they are, and of tasks the arguments of
    `reset`. Raises `BadInput` with file and line.
    """
    rows = []
    for where, row in _objects(file):
        try:
            json.dumps(row, allow_nan=False)
        except ValueError:
            raise BadInput(
                f"{where}: a number is NaN or infinite, which no task can hold"
            ) from None
        if is_task(row):
            if not isinstance(row["info"], dict):
                raise BadInput(f"{where}: info is not an object")
            row = {"prompt": row.get("prompt", ""), **row["info"]}
        rows.append(row)
    if not rows:
        raise BadInput(f"{file}: there is no row in it")
    return rows


def read_calls(file: Path) -> list[Call]:
    """Calls of tools, one {"name": …, "arguments": {…}} a line. Raises `BadInput`."""
    calls: list[Call] = []
    for where, line in _objects(file):
        match line:
            case {"name": str(name), "arguments": dict(arguments)}:
                calls.append((name, arguments))
            case _:
                raise BadInput(f'{where}: expected a call, {{"name": "guess", "arguments": {{…}}}}')
    return calls


def _objects(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not file.is_file():
        raise BadInput(f"{file}: no such file; give a file with one JSON object a line")
    return read_objects(file)


class _Here(PinnedThread):
    """The calling thread, which made the environment: some objects work in no other, and the
    watching process names the line at which it hangs."""

    async def call(self, function: Callable[[], Any], seconds: float) -> Any:
        return function()


async def _judge(
    env: Any,
    played: Played,
    row: Mapping[str, Any],
    *,
    functions: Sequence[RewardFunction],
    order: Order,
) -> Sequence[RewardPart]:
    """The parts of the reward, as a run has them."""
    seconds, here, said = order.call_seconds, _Here(order.use), judged(played.completion)
    parts: list[RewardPart] = []
    for f in functions:
        with Blamed("the reward", f.call):
            parts += await f.of(played.prompt, said, env, row, seconds, order.use, here)
    if pay := getattr(env, OWN, None):
        value = pay()
        value = await value if inspect.isawaitable(value) else value
        value = checked(value, f"{type(env).__name__}.{OWN}")
        parts.append(RewardPart(OWN_PART, value, order.rewards.get(OWN, 1.0)))
    return parts


def _passed(parts: Sequence[RewardPart], *, order: Order) -> bool:
    return graded(parts, order.passes, order.use).passed
