"""Plays the episodes of a verifiers (v1, 0.4) taskset, in the virtual environment that it needs.

There an agent's harness is a program of its own that talks to an endpoint on this machine, which
serves one episode. That endpoint asks a client for each reply; ours passes the request on, so our
engine samples without a change to taskset, harness or endpoint. `foreign_worker` has the requests
and their answers.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from verifiers.v1.clients import Client, ModelContext, TrainClientConfig
from verifiers.v1.clients.train import serialize_completion, tool_to_wire
from verifiers.v1.errors import ProviderError
from verifiers.v1.interception import server as interception
from verifiers.v1.runtimes import SubprocessConfig
from verifiers.v1.types import AssistantMessage, Response, ToolCall, Usage
from verifiers.v1.utils.loaders import load_environment, resolve_env_config

sys.path.append(str(Path(__file__).parent))  # which -I leaves out
import foreign_worker as foreign
from foreign_worker import Failed, Refused, plain

POLICY_STOPS = ("agent_completed",)
"""Stop conditions that mean that the policy said that it is done."""

AGENT = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
"""Where the configuration names none: a chat without commands, as a process of this machine."""

_LINE = re.compile(r'File "(.+)", line (\d+)')


# --- one episode ----------------------------------------------------------------------------------


class LoopConfig(TrainClientConfig):  # type: ignore[misc]  # its package is not installed here
    """Names the episode whose client is wanted. A client for training gives whole replies, which
    the endpoint then streams to the harness."""

    episode: int = 0


class LoopClient(Client):  # type: ignore[misc]
    """The endpoint's client for one episode: it passes each request on."""

    def __init__(self, config: LoopConfig) -> None:
        self._number = config.episode  # the endpoint keeps clients longer than episodes last

    async def get_response(
        self, dialect: Any, body: dict[str, Any], sampling: Any, *args: Any, **more: Any
    ) -> Any:
        request = dialect.parse_request(body)
        tools = [tool_to_wire(tool) for tool in request.tools or ()]
        return await WORKER.episodes[self._number].answer(request.messages, tools)


class Episode(foreign.Episode):  # type: ignore[misc]  # loaded by path
    """The taskset's episode of one row; it pauses whenever it waits for a reply."""

    def __init__(self, env: Any, row: dict[str, Any], seed: int, number: int) -> None:
        super().__init__(type(env.taskset).__name__)
        self.limited = False
        self.refused: Exception | None = None
        self.task = asyncio.create_task(self._play(env, row, seed, number))

    async def _play(self, env: Any, row: dict[str, Any], seed: int, number: int) -> dict[str, Any]:
        foreign.seed_generators(seed)
        kind = type(env.taskset).task_type()
        fields = kind.data_type().model_fields
        data = kind.data_type().model_validate({k: v for k, v in row.items() if k in fields})
        task = kind(data, env.config.taskset.task)
        (slot,) = env.slots(task)
        context = ModelContext(model="policy", client=LoopConfig(episode=number))
        episode = await env.run_slot(slot, context)
        if self.refused is not None:
            raise self.refused
        trace = episode.traces[0] if episode.traces else None
        if self.limited and trace is not None:
            await task.score(trace)  # their rollout has ended unscored, as at an error
        elif not episode.ok or trace is None:
            raise failure([*episode.errors, *(trace.errors if trace is not None else ())])
        stop = "limit" if self.limited else trace.stop_condition or "error"
        return {
            "stop": stop,
            "by_policy": stop in POLICY_STOPS,
            "told": [],
            "rewards": parts(trace),
        }

    async def answer(self, messages: Any, tools: list[dict[str, Any]]) -> Any:
        """Called for the harness: hand over what is new, and wait for the reply."""
        try:
            talk = [plain(m) for m in messages]
            reply = await self.ask(talk, tools)
        except Refused as e:
            self.refused = e
            raise
        if reply is None:
            self.limited = True
            # 400: a status that the harness does not try again after.
            raise ProviderError("a limit of the run was reached", status_code=400)
        calls = [
            ToolCall(id=f"call-{i}", name=c["name"], arguments=json.dumps(c["arguments"]))
            for i, c in enumerate(reply["calls"], len(self.known))
        ]
        message = AssistantMessage(content=reply["text"], tool_calls=calls or None)
        cut = reply["finish_reason"] == "length"
        response = Response(
            id="reply",
            created=int(time.time()),
            model="policy",
            message=message,
            finish_reason="length" if cut else "tool_calls" if calls else "stop",
            usage=Usage(prompt_tokens=0, completion_tokens=0),
        )
        response.raw = serialize_completion(response, "policy")
        self.known: list[dict[str, Any]] = [*talk, plain(message)]
        return response


def parts(trace: Any) -> list[list[Any]]:
    """[name, value, weight] of each reward, None where it was not scored; metrics have weight 0."""
    rewards = [
        [name, None, 1.0] if r is None else [name, float(r.score), float(r.weight)]
        for name, r in trace.rewards.items()
    ]
    metrics = [[name, value, 0.0] for name, value in trace.metrics.items() if value is not None]
    return [*rewards, *([n, float(v), w] for n, v, w in metrics if n not in trace.rewards)]


def failure(errors: list[Any]) -> Any:
    """What a failed episode raises here: the last error that was recorded, with its line."""
    if not errors:
        return Failed("the episode failed and recorded no error")
    last = errors[-1]
    return Failed(last.message, foreign.last_line(_LINE.findall(last.traceback or "")))


# --- the worker -----------------------------------------------------------------------------------


def configured(use: str, config: dict[str, Any]) -> Any:
    """The configuration of a package or a file, which is imported."""
    name = use
    if use.endswith(".py"):
        name = Path(use).stem
        foreign.load_file(use, name.replace("-", "_").lower())
    return resolve_env_config(
        {
            **config,
            "taskset": {**config.get("taskset", {}), "id": name},
            "agent": {**AGENT, **config.get("agent", {})},
        }
    )


def is_v0(use: str) -> bool:
    """Whether a file or a package says `load_environment`, which is the door to v0."""
    file: str | None = use
    if not use.endswith(".py"):
        spec = importlib.util.find_spec(use.rpartition("/")[2].replace("-", "_"))
        file = spec.origin if spec is not None else None
    return file is not None and "load_environment" in Path(file).read_text(encoding="utf-8")


class Worker(foreign.Worker):  # type: ignore[misc]
    """Answers requests about one taskset."""

    def __init__(self) -> None:
        super().__init__()
        self.serving = contextlib.AsyncExitStack()

    async def load(self, use: str, config: dict[str, Any]) -> None:
        """Load the taskset: a package by its name, or a file. config: as `[env]` of its own
        configuration."""
        try:
            self.env = load_environment(configured(use, config))
        except Exception as e:
            if is_v0(use):
                raise Refused(
                    f"{use}: it has load_environment, as environments of v0 have, and the verifiers"
                    f" of this virtual environment has v1 alone; `grpo env add {use} --with"
                    " 'verifiers<0.4'` makes another one and prints its lines"
                ) from e
            raise
        specs = self.env._agent_specs
        if len(specs) != 1:
            raise Refused(f"{use}: it has {len(specs)} agents; one policy can be played")
        (spec,), (harness,) = specs.values(), self.env._harnesses.values()
        if harness.EXECUTES_CODE and isinstance(spec.runtime, SubprocessConfig):
            raise Refused(
                f"{use}: its harness {harness.config.id!r} would run the policy's commands on this"
                " machine, unprotected; set agent.harness.id or agent.runtime.type in config"
            )
        interception.resolve_client = LoopClient
        await self.serving.enter_async_context(self.env.serving())

    async def rows(self, split: str, n: int, seed: int | None) -> list[Any]:
        """`n` rows; a taskset has one dataset for both splits."""
        tasks = self.env.taskset if seed is None else self.env.taskset.shuffle(seed)
        chosen = tasks if n < 0 else tasks.take(n)
        return [foreign.plain_row(task.data.model_dump(mode="json")) for task in chosen]

    def episode(self, row: dict[str, Any], seed: int, number: int) -> Episode:
        return Episode(self.env, row, seed, number)


WORKER = Worker()

if __name__ == "__main__":
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    foreign.run(WORKER)
