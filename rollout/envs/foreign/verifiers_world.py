"""Environments of the verifiers library, played by their own loop with their own packages.

Their loop asks a client for each reply. A worker passes these requests on, `verifiers_worker` for
v0 and `verifiers_v1_worker` for 0.4, so a world here is the other end of one rollout there: a
request brings the observation, and our reply is its answer. Ids and logprobs come from our engine.
The rubric's functions are the parts of the reward, by name and with their weights. One program
serves all worlds of an environment, and is started again if it died. Nothing here imports
verifiers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.files.atomic import sha256_file, sha256_text
from fieldkit.records import Action, ActionKind, StopReason, Task
from rollout.envs.base import Environment, Late, Message, Opening, Reply, Site, Step
from rollout.envs.env_settings import EnvSettings, graded, ungraded
from rollout.envs.foreign.foreign_process import ForeignProcess
from rollout.envs.reward_functions import checked
from rollout.envs.tool_calls import TOOL_FORMS, Schema, ToolCall
from rollout.envs.tool_world import as_shown, as_user, late_step, opening, row_of
from rollout.envs.tool_yardsticks import ToolsAsShown
from rollout.envs.user_code import imported_files, installed_packages
from rollout.seeds import world_seed

_HERE = Path(__file__).parent
_V1_SINCE = (0, 4)
"""The version of verifiers from which on it has v1 only."""

_LOAD_SECONDS = 300.0
"""Time for the framework's import and the environment's dataset."""


def _worker(python: Path) -> Path:
    """The program for the version of verifiers in this virtual environment."""
    named = [p.split("-") for p in installed_packages(python) if p.startswith("verifiers-")]
    versions = [tuple(map(int, v.split(".")[:2])) for _, v in (n[:2] for n in named)]
    v1 = bool(versions) and versions[0] >= _V1_SINCE
    return _HERE / ("verifiers_v1_worker.py" if v1 else "verifiers_worker.py")


class VerifiersProgram:
    """The program that plays one environment; all its worlds share it.

    Raises `BadInput` for settings that do not apply to verifiers environments.
    """

    def __init__(self, name: str, settings: EnvSettings, root: Path) -> None:
        self.where = f"envs.{name}"
        if settings.rewards:
            raise BadInput(f"{self.where}.rewards: the environment's rubric has its own")
        if settings.ends:
            raise BadInput(f"{self.where}.ends: a verifiers environment says itself when it ends")
        if not settings.python:
            raise BadInput(
                f"{self.where}.python: missing; `grpo env add {settings.use}` makes a virtual"
                " environment and prints the lines"
            )
        self._python = root / Path(settings.python).expanduser()
        if not self._python.is_file():
            raise BadInput(
                f"{self.where}.python: {self._python}: no such file; `grpo env add"
                f" {settings.use}` makes it"
            )
        is_file = settings.use.endswith(".py")
        self._use = str(root / Path(settings.use).expanduser()) if is_file else settings.use
        self.settings = settings
        self._process: ForeignProcess | None = None
        self._loading: asyncio.Task[None] | None = None
        self._loaded = False
        self._episodes = itertools.count(1)

    @property
    def alive(self) -> bool:
        """Whether the program runs."""
        return self._process is not None and self._process.alive

    def new_episode(self) -> int:
        """A number for an episode."""
        return next(self._episodes)

    async def _ready(self, scratch: Path) -> ForeignProcess:
        """The program, with the environment loaded."""
        if self._process is None or not self._process.alive:
            scratch.mkdir(parents=True, exist_ok=True)
            log = scratch / f"{self.where}.log"
            self._process = ForeignProcess(self._python, _worker(self._python), log)
            self._loaded, self._loading = False, None
        if not self._loaded:
            if self._loading is None or self._loading.done():  # a failed load is tried again
                self._loading = asyncio.ensure_future(self._load(self._process))
            # Shielded, because other episodes wait for it too.
            await asyncio.shield(self._loading)
        return self._process

    async def _load(self, process: ForeignProcess) -> None:
        await process.ask("load", _LOAD_SECONDS, use=self._use, config=self.settings.config)
        self._loaded = True

    async def ask(self, do: str, scratch: Path, **arguments: Any) -> Any:
        """One request to the program, which is started and loads the environment if needed. Raises
        as `ForeignProcess.ask`."""
        try:
            process = await self._ready(scratch)
            return await process.ask(do, self.settings.call_seconds, **arguments)
        except Late as e:
            raise Late(f"{self.where}: {e}") from e
        except Unavailable as e:
            raise Unavailable(f"{self.where}: {e}") from e
        except BadInput as e:
            raise BadInput(f"{self.where}: {e}") from e

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.close()


def _end(by_policy: bool, cut: bool) -> StopReason:
    """Why their rollout is over. cut: the last reply was, before it had called anything."""
    if cut:  # their own loop takes any reply without a call for an end by the policy
        return StopReason.REPLY_CUT
    return StopReason.TASK_COMPLETE if by_policy else StopReason.ENV_DONE


class VerifiersWorld:
    """One episode: one rollout of their loop."""

    def __init__(
        self,
        site: Site,
        program: VerifiersProgram,
        on_tools: Callable[[str, Sequence[Schema]], None] = lambda task_id, tools: None,
    ) -> None:
        self._on_tools = on_tools
        self._site = site
        self._form = TOOL_FORMS.named(site.tool_form)
        self._program = program
        self._episode: int | None = None
        self._replied = self._late = False
        self._over: Mapping[str, Any] | None = None
        self._tools: tuple[Schema, ...] = ()
        self._where = ""

    async def reset(self, task: Task, seed: int) -> Opening:
        """Begin a rollout of the row. The seeds of Python's and NumPy's generators there depend
        only on the task, so all attempts at a task are equal."""
        await self.close()
        self._where = f"task {task.task_id}"
        self._episode, self._over = self._program.new_episode(), None
        self._replied = self._late = False
        row = {"example_id": 0, **row_of(task)}
        answer = await self._ask("begin", row=row, seed=world_seed(task.task_id))
        if "ask" not in answer:
            raise BadInput(f"{self._where}: its rollout ends before anything is asked")
        asked = answer["ask"]
        self._tools = tuple(asked["tools"] or ())
        self._on_tools(task.task_id, self._tools)
        return opening(self._form, self._told(asked["messages"]), self._tools)

    async def step(self, reply: Reply) -> Step:
        whole = reply.finish_reason != "length"
        calls = self._form.read(reply.text, self._tools, whole) if self._tools else ()
        written = "\n".join(self._form.write(call, self._tools) for call in calls)
        try:
            answer = await self._reply(reply.text, calls, reply.finish_reason)
        except Late as e:
            self._late = True
            return late_step(Action(ActionKind.RUN, written or reply.text), len(calls), e)
        stop = None
        if "over" in answer:
            self._over = answer["over"]
            stop = _end(self._over["by_policy"], cut=not (whole or calls))
            told = self._told(self._over["told"])
        else:
            told = self._answers(answer["ask"]["messages"], calls)
        done = stop is StopReason.TASK_COMPLETE
        command = written or ("" if done else reply.text)
        return Step(
            Action(ActionKind.DONE if done else ActionKind.RUN, command),
            told,
            calls=len(calls),
            stop=stop,
        )

    async def grade(self) -> Grade:
        """Their rubric's scores. A rollout that one of our limits ended is scored as it is. Without
        any reply it is one of an empty reply, because most rubrics read the last message."""
        if self._late:
            return ungraded(self._program.settings.passes, self._where)
        if not self._replied:
            self._over = (await self._reply("", (), "stop")).get("over")
        if self._over is None:
            self._over = (await self._ask("end"))["over"]
        parts = [
            RewardPart(name, checked(value, f"{self._where}: {name}"), weight)
            for name, value, weight in self._over["rewards"]
        ]
        return graded(parts, self._program.settings.passes, self._where)

    async def close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None and self._program.alive:  # a new program has no such episode
            with contextlib.suppress(Unavailable):
                await self._program.ask("close", self._site.scratch, episode=episode)

    async def _reply(self, text: str, calls: Sequence[ToolCall], finish_reason: str) -> Any:
        self._replied = True
        said = [{"name": c.name, "arguments": c.arguments} for c in calls]
        return await self._ask("reply", text=text, calls=said, finish_reason=finish_reason)

    async def _ask(self, do: str, **arguments: Any) -> Any:
        return await self._program.ask(do, self._site.scratch, episode=self._episode, **arguments)

    def _told(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Messages as the chat template takes them; calls of earlier replies are written out."""
        return tuple({"role": m["role"], "content": as_shown(self._written(m))} for m in messages)

    def _written(self, message: Message) -> str:
        asked = [_call(c) for c in message.get("tool_calls", ())]
        if not asked or message["role"] != "assistant":
            return str(message["content"])
        calls = (self._form.write(call, self._tools) for call in asked)
        return "\n".join(filter(None, [message["content"], *calls]))

    def _answers(
        self, messages: Sequence[Message], calls: Sequence[ToolCall]
    ) -> tuple[Message, ...]:
        """The messages after a reply; the answers of tools get the names of their calls."""
        told: list[Message] = list(self._told(messages))
        of_tools = [i for i, m in enumerate(told) if m["role"] == "tool"]
        for i, call in zip(of_tools, calls, strict=False):
            told[i] = {**told[i], "name": call.name}
        if self._form.tell is None or not of_tools:
            return tuple(told)
        rest = [m for m in told if m["role"] != "tool"]
        return (as_user([told[i] for i in of_tools]), *rest)


def _call(asked: Mapping[str, str]) -> ToolCall:
    from fieldkit.files.json_text import parse_json

    return ToolCall(asked["name"], parse_json(asked["arguments"], "a tool call of a row"))


def dataset_rows(
    name: str, settings: EnvSettings, root: Path, split: str, n: int, seed: int, scratch: Path
) -> list[dict[str, Any]]:
    """`n` rows of the environment's "train" or "eval" dataset, shuffled by `seed`.

    Raises as `VerifiersProgram` and `ForeignProcess.ask`.
    """
    program = VerifiersProgram(name, settings, root)
    try:
        rows: list[dict[str, Any]] = asyncio.run(
            program.ask("rows", scratch, split=split, n=n, seed=seed)
        )
    finally:
        program.close()
    return rows


def verifiers_environment(name: str, settings: EnvSettings, root: Path) -> Environment:
    """The environment that `[envs.NAME]` of style "verifiers" describes."""
    program = VerifiersProgram(name, settings, root)
    chance = ToolsAsShown()
    return Environment(
        make=lambda site: VerifiersWorld(site, program, chance.note),
        tools=chance.known,
        random_reply=chance.reply,
    )


def verifiers_identity(name: str, settings: EnvSettings, root: Path) -> str:
    """A hash of the file and of those of its folder that it imports, if it is a file, and of the
    packages in the virtual environment. Raises `BadInput` if one of them is not there."""
    program = VerifiersProgram(name, settings, root)  # checks the virtual environment
    code = root / Path(settings.use).expanduser()
    python = root / Path(settings.python).expanduser()
    if settings.use.endswith(".py") and not code.is_file():
        raise BadInput(f"{program.where}.use: {code}: no such file")
    lines = [program.where, sha256_file(code) if code.is_file() else settings.use]
    beside = imported_files(code) if code.is_file() else {}
    lines += [f"{name} {sha256_file(path)}" for name, path in beside.items() if name != code.name]
    return sha256_text("\n".join([*lines, *installed_packages(python)]))
