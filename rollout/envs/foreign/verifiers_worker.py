"""Plays the episodes of a verifiers (v0) environment, in the virtual environment that it needs.

The environment's own loop plays. When it asks its client for a reply, the request goes out over the
socket and the reply comes back, so our engine samples without a change to the environment.
`foreign_worker` has the requests and their answers.
"""

import asyncio
import contextvars
import functools
import inspect
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers as vf
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, ToolCall
from verifiers.utils.message_utils import maybe_normalize_messages

sys.path.append(str(Path(__file__).parent))  # which -I leaves out
import foreign_worker as foreign
from foreign_worker import Failed, Refused, plain

POLICY_STOPS = ("no_tools_called",)
"""Stop conditions that mean that the policy said that it is done."""


# --- one episode ----------------------------------------------------------------------------------

SCORES: contextvars.ContextVar[list[tuple[str, float, float]]] = contextvars.ContextVar("SCORES")
"""The value of each reward function for the episode being scored: (name, value, weight)."""


class Episode(foreign.Episode):  # type: ignore[misc]  # loaded by path
    """The environment's rollout of one row; it pauses whenever it waits for a reply."""

    def __init__(self, env: Any, row: dict[str, Any], seed: int) -> None:
        super().__init__(type(env).__name__)
        self.env = env
        self.task = asyncio.create_task(self._play(row, seed))

    async def _play(self, row: dict[str, Any], seed: int) -> dict[str, Any]:
        # Before the rollout's first await, so that a setup without awaits uses this seed.
        foreign.seed_generators(seed)
        scores: list[tuple[str, float, float]] = []
        SCORES.set(scores)
        state = await self.env.rollout(row, LoopClient(self), "policy", {})
        error = state.get("error")
        if error is not None and not isinstance(error, vf.ToolError):
            raise error.__cause__ or error
        await self.env.rubric.score_rollout(state)
        await self.env.rubric.cleanup(state)
        stop = state.get("stop_condition") or "error"
        return {
            "stop": stop,
            "by_policy": stop in POLICY_STOPS,
            "told": [plain(m) for m in messages(state.get("final_env_response") or [])],
            "rewards": parts(scores, state["reward"]),
        }

    async def answer(self, prompt: Any, tools: Any) -> Any:
        """Called by the environment's loop: hand over what is new, and wait for the reply."""
        talk = [plain(m) for m in prompt]
        reply = await self.ask(talk, tools)
        if reply is None:  # a limit of the run: the loop ends as at a full context
            raise vf.OverlongPromptError("a limit of the run was reached")
        message = ResponseMessage(
            content=reply["text"],
            tool_calls=[
                ToolCall(id=f"call-{i}", name=c["name"], arguments=json.dumps(c["arguments"]))
                for i, c in enumerate(reply["calls"], len(self.known))
            ]
            or None,
            finish_reason="length"
            if reply["finish_reason"] == "length"
            else ("tool_calls" if reply["calls"] else "stop"),
            is_truncated=reply["finish_reason"] == "length",
        )
        self.known: list[dict[str, Any]] = [*talk, plain(message)]
        return Response(id="reply", created=int(time.time()), model="policy", message=message)


class LoopClient(Client):  # type: ignore[misc]  # its package is not installed here
    """The environment's client: it passes each request to the episode that makes it."""

    def __init__(self, episode: Episode) -> None:
        super().__init__(None)
        self._episode = episode

    def setup_client(self, config: Any) -> None:
        return None

    async def to_native_tool(self, tool: Any) -> dict[str, Any]:
        return schema(tool)

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any
    ) -> Any:
        return await self._episode.answer(prompt, tools)

    async def raise_from_native_response(self, response: Any) -> None:
        return None

    async def from_native_response(self, response: Any) -> Any:
        return response

    async def close(self) -> None:
        return None


def schema(tool: Any) -> dict[str, Any]:
    """A tool as chat templates take it."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def messages(given: Any) -> Any:
    """An environment's output (a text, or messages of any form) as messages."""
    return maybe_normalize_messages(given, field_name="env_response")


# --- scoring --------------------------------------------------------------------------------------


def members(env: Any) -> Iterator[Any]:
    """The environments of a group, or the environment itself."""
    if isinstance(env, vf.EnvGroup):
        for one in env.envs:
            yield from members(one)
    else:
        yield env


def rubrics(rubric: Any) -> Iterator[Any]:
    """A rubric and all rubrics in it."""
    yield rubric
    for part in getattr(rubric, "rubrics", ()):
        yield from rubrics(part)


def group_functions(rubric: Any) -> list[Any]:
    """The functions of one rubric, not of the rubrics in it, that score a whole group at once."""
    return [f for f in rubric.funcs if rubric._is_group_func(f)]


def make_strict(rubric: Any) -> None:
    """Make a rubric record the value of each function, and raise if one fails.

    verifiers logs a reward function that raises and takes 0 as its value, which would be trained
    on.
    """
    call = rubric._call_individual_reward_func

    async def strict(func: Any, state: Any) -> float:
        failure: list[Exception] = []
        name = getattr(func, "__name__", repr(func))

        async def checked(value: Any) -> float:
            try:
                return float(await value if inspect.isawaitable(value) else value)
            except Exception as e:
                failure.append(e)
                raise

        @functools.wraps(func)
        async def watched(*args: Any, **kwargs: Any) -> float:
            try:
                value = func(*args, **kwargs)
            except Exception as e:
                failure.append(e)
                raise
            return await checked(value)

        value: float = await call(watched, state)
        if failure:
            where = foreign.line_in(func, failure[0])
            raise Failed(f"reward function {name}: {failure[0]!r}", where) from failure[0]
        SCORES.get().append((name, value, rubric.weights[rubric.funcs.index(func)]))
        return value

    rubric._call_individual_reward_func = strict


def parts(scores: list[tuple[str, float, float]], reward: float) -> list[list[Any]]:
    """[name, value, weight] of each reward function; names that occur twice are numbered. If a
    rubric's reward is not the weighted sum of its functions, that reward is the only part with a
    weight and the functions have weight 0.
    """
    seen: dict[str, int] = {}
    named: list[list[Any]] = []
    for name, value, weight in scores:
        seen[name] = seen.get(name, 0) + 1
        named.append([name if seen[name] == 1 else f"{name}_{seen[name]}", value, float(weight)])
    if abs(sum(v * w for _, v, w in named) - reward) <= 1e-6 * max(1.0, abs(reward)):
        return named
    return [["reward", float(reward), 1.0], *([n, v, 0.0] for n, v, _ in named if n != "reward")]


# --- the worker -----------------------------------------------------------------------------------


class Worker(foreign.Worker):  # type: ignore[misc]
    """Answers requests about one environment."""

    async def load(self, use: str, config: dict[str, Any]) -> None:
        """Load the environment: a package by its name, or a file with `load_environment`."""
        if use.endswith(".py"):
            module = foreign.load_file(use)
            if not hasattr(module, "load_environment"):
                raise Refused(f"{use}: it has no load_environment")
            self.env = module.load_environment(**config)
        else:
            self.env = vf.load_environment(use, **config)
        if not isinstance(self.env, vf.Environment):
            raise Refused(f"{use}: load_environment gives {type(self.env).__name__}")
        envs = [*members(self.env)]
        known = {id(r): r for env in envs for r in rubrics(env.rubric)}.values()
        if grouped := [f.__name__ for r in known for f in group_functions(r)]:
            raise Refused(
                f"{use}: a reward function scores a whole group at once ({', '.join(grouped)});"
                " here each episode is scored alone, so give the rubric functions of one"
                " completion, and name a function that compares conversations in group_rewards"
            )
        for env in envs:
            if not isinstance(env, vf.MultiTurnEnv):
                raise Refused(f"{use}: {type(env).__name__} is not a MultiTurnEnv")
        for rubric in known:
            make_strict(rubric)

    async def rows(self, split: str, n: int, seed: int | None) -> list[Any]:
        """`n` rows of the "train" or "eval" dataset, shuffled by `seed` unless it is None."""
        if split == "train" and self.env.build_dataset() is None:
            raise Refused(
                "it has an eval_dataset and no dataset, so no rows to train on; give it one in"
                " load_environment, or evaluate it alone with `grpo env eval`"
            )
        take = self.env.get_dataset if split == "train" else self.env.get_eval_dataset
        return [foreign.plain_row(row) for row in take(n, seed)]

    def episode(self, row: dict[str, Any], seed: int, number: int) -> Episode:
        return Episode(self.env, row, seed)


if __name__ == "__main__":
    foreign.run(Worker())
