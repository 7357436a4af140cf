"""An OpenEnv server as an environment: its action becomes tools, its rewards one part.

`OpenEnv` is what all episodes share: the server, its sessions and its tools. `OpenEnvToolbox` is
one episode's session. Neither reads replies or weighs rewards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.eval.grade import RewardPart
from rollout.envs.base import Message
from rollout.envs.openenv.openenv_client import (
    ActionRefused,
    Answer,
    AtCapacity,
    HungUp,
    Limits,
    Session,
    addresses,
    fetch_schema,
)
from rollout.envs.openenv.openenv_server import Launch, LocalServer
from rollout.envs.openenv.openenv_sessions import Sessions
from rollout.envs.openenv.openenv_tools import (
    ActionTool,
    Schema,
    as_text,
    is_mcp,
    mcp_error,
    mcp_text,
    mcp_tools,
    tools_of,
)
from rollout.envs.reward_functions import RewardFunction
from rollout.envs.tool_calls import ToolCall
from rollout.envs.tool_world import ToolFailure

REWARD = "reward"
"""The name of the part that holds a server's rewards."""

_SEEDS = 2**31  # NumPy's generators take no seed of 2**32 or more


@dataclass(frozen=True)
class Source:
    """A server as [envs.NAME] describes it.

    url: of a server that somebody else runs; with `serve`, its port is the one that ours takes.
    serve, python: the app of a server of ours, and the Python of its virtual environment. sessions:
    the most at once. show: the fields of an observation that the policy sees; () for all. options:
    go to every reset; a column of the row overrides the option of its name. functions: reward
    functions besides the server's own reward, whose weight is `weight`.
    """

    name: str
    url: str = ""
    serve: str = ""
    python: Path | None = None
    sessions: int = 64
    show: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    functions: tuple[RewardFunction, ...] = ()
    weight: float = 1.0

    def check(self, folder: Path) -> None:
        """Raise `BadInput` for settings that name no server."""
        if not self.url and not self.serve:
            raise BadInput(f"envs.{self.name}: name a server: url = … or serve = …")
        if self.serve:
            self.launch(folder)
        else:
            addresses(self.url)

    def launch(self, folder: Path) -> Launch:
        """How our own server is started. Raises `BadInput` for a url that is not this machine's."""
        port = 0
        if self.python is None:
            raise BadInput(
                f"envs.{self.name}: serve = {self.serve} needs python, the one of the virtual"
                ' environment that has what it imports: python = "path/to/venv/bin/python"'
            )
        if self.url:
            host, _, number = addresses(self.url)[0].partition("://")[2].partition(":")
            if host not in ("127.0.0.1", "localhost") or not number.isdecimal():
                raise BadInput(
                    f"envs.{self.name}: url = {self.url}: with serve it says which port of this"
                    " machine to take, like http://127.0.0.1:8000"
                )
            port = int(number)
        return Launch(self.name, self.serve, self.python, folder, port)


class OpenEnv:
    """One server and all its episodes. folder: what `serve` and `python` are relative to. ledger,
    logs: the run's. say: called with lines for a person. Raises `BadInput` for a source that names
    neither a url nor an app."""

    def __init__(
        self,
        source: Source,
        folder: Path,
        ledger: Path,
        logs: Path,
        say: Callable[[str], None],
    ) -> None:
        source.check(folder)
        self.source = source
        self._say = say
        self._server: LocalServer | None = None
        if source.serve:
            self._server = LocalServer(source.launch(folder), ledger, logs, say)
        self._sessions = Sessions(
            source.name, self.address, source.sessions, source.limits, say, self._crowded
        )
        self._asking: asyncio.Task[Schema] | None = None
        self._action: Schema | None = None
        self._tools: tuple[ActionTool, ...] = ()

    async def address(self) -> str:
        """The server's URL; starts a server of ours if needed."""
        return self.source.url if self._server is None else await self._server.address()

    def stop(self) -> None:
        """End the server if it is ours; the next episode starts it again."""
        if self._server is not None:
            self._server.stop()

    async def begin(
        self, options: Mapping[str, Any]
    ) -> tuple[Session, Answer, tuple[ActionTool, ...]]:
        """A session whose environment was just reset, what it showed, and the server's tools. Waits
        if the server has no session free. Raises `Unavailable` and `BadInput`.
        """
        # First, because it fails at once if nothing answers; a session is waited for.
        action = await self._schema()
        try:
            session, first = await self._sessions.begin({**self.source.options, **options})
        except HungUp as e:
            raise await self.explained(e) from e
        try:
            if first.done:
                raise BadInput(
                    f"envs.{self.source.name}: reset says that the episode is over already (done)"
                )
            if not self._tools:
                mcp = is_mcp(action)
                self._tools = mcp_tools(await session.mcp_tools()) if mcp else tools_of(action)
        except BaseException:
            await self.end(session)
            raise
        return session, first, self._tools

    async def capacity(self, row: Mapping[str, Any], seed: int, wanted: int) -> int:
        """How many of `wanted` sessions the server opens at once; they are closed again. Raises
        `Unavailable` if a reset fails for another reason."""
        await self._schema()
        url, options = await self.address(), {**self.source.options, **reset_options(row, seed)}

        async def one() -> Session | None:
            session = await Session.opened(url, self.source.limits)
            try:
                await session.reset(options)
            except AtCapacity:
                await session.close()
                return None
            except BaseException:
                await session.close()
                raise
            return session

        asked = await asyncio.gather(*(one() for _ in range(wanted)), return_exceptions=True)
        opened = [one for one in asked if isinstance(one, Session)]
        await asyncio.gather(*(session.close() for session in opened))
        for failed in asked:
            if isinstance(failed, BaseException):
                raise failed
        return len(opened)

    async def explained(self, failed: HungUp) -> HungUp:
        """The failure with how our own server ended, if it did."""
        ended = "" if self._server is None else await self._server.ending()
        return HungUp(f"{failed}; {ended}" if ended else str(failed))

    async def end(self, session: Session) -> None:
        """Close a session that `begin` gave."""
        await self._sessions.end(session)

    async def _schema(self) -> Schema:
        """The action's schema; fetched once, even if several episodes ask at the same time."""
        if self._action is None:
            loop = asyncio.get_running_loop()
            if self._asking is None or self._asking.done() or self._asking.get_loop() is not loop:
                self._asking = loop.create_task(self._fetch())
            self._action = await asyncio.shield(self._asking)
        return self._action

    async def _fetch(self) -> Schema:
        return await fetch_schema(await self.address(), self.source.limits)

    async def _crowded(self, url: str) -> None:
        if self._server is None:
            raise Unavailable(
                f"envs.{self.source.name}: every session of {url} is taken, and none of them is"
                " ours; end its other clients, or let this run start a server of its own (serve)"
            )
        self._say(
            f"envs.{self.source.name}: its server has no session left although no episode holds"
            " one (steps that hang?); starting it again"
        )
        await self._server.restart(url)


class OpenEnvToolbox:
    """One episode: `reset` opens its session, `close` ends it.

    done: whether the environment has ended the episode. earned: the reward of each step so far,
    None where the environment gave none.
    """

    def __init__(self, of: OpenEnv) -> None:
        self._of = of
        self._session: Session | None = None
        self._tools: tuple[ActionTool, ...] = ()
        self.done = False
        self.earned: list[float | None] = []
        self._told = 0

    async def reset(self, row: Mapping[str, Any], seed: int) -> str | None:
        """Begin with a row of the data; what the environment shows, None for nothing. Raises as
        `OpenEnv.begin`."""
        await self.close()
        self._session, first, self._tools = await self._of.begin(reset_options(row, seed))
        self.done, self.earned, self._told = False, [], 0
        return as_text(first.observation, self._of.source.show) or None

    @property
    def schemas(self) -> Sequence[Schema]:
        return [tool.schema for tool in self._tools]

    async def call(self, call: ToolCall) -> str:
        """Take one step; return what it showed. Raises `ToolFailure` for an action that the server
        refuses or that its environment raises on."""
        tool = next((t for t in self._tools if t.name == call.name), None)
        if tool is None:
            raise ToolFailure(f"Tool {call.name} not found.")
        if self.done:
            raise ToolFailure("The episode is over.")
        if not isinstance(call.arguments, Mapping):
            raise ToolFailure(f"The arguments of {call.name} must be an object.")
        if self._session is None:
            raise Unavailable(f"envs.{self._of.source.name}: {call.name}: the session is closed")
        try:
            answer = await self._session.step(tool.action(call.arguments))
        except ActionRefused as e:
            raise ToolFailure(str(e)) from e
        except HungUp as e:
            raise await self._of.explained(e) from e
        self.earned.append(answer.reward)
        self.done = answer.done
        seen, show = answer.observation, self._of.source.show
        if tool.wrapped is None or show:
            return as_text(seen, show)
        if failure := mcp_error(seen):
            raise ToolFailure(failure)
        return mcp_text(seen)

    async def over(self) -> bool:
        return self.done

    @property
    def reward(self) -> float | None:
        """The sum of the steps' rewards, which is 0 where the policy never came to the end that the
        server pays for; None if the server ended the episode and gave no reward."""
        given = [r for r in self.earned if r is not None]
        return sum(given) if given or not self.done else None

    def newly_earned(self) -> float | None:
        """What the steps since the last call add to the reward; None if they were given none."""
        given = [r for r in self.earned[self._told :] if r is not None]
        self._told = len(self.earned)
        return self._of.source.weight * sum(given) if given else None

    async def rewards(
        self, prompt: Sequence[Message], completion: Sequence[Message], row: Mapping[str, Any]
    ) -> Sequence[RewardPart]:
        """The episode's own reward, and the values of the reward functions, which get None for an
        environment in another process."""
        source = self._of.source
        own = RewardPart(REWARD, self.reward, source.weight)
        where, seconds = f"envs.{source.name}", source.limits.call_seconds
        others = [
            part
            for f in source.functions
            for part in await f.of(prompt, completion, None, row, seconds, where)
        ]
        return [own, *others]

    async def close(self) -> None:
        """Close the session; the server closes its environment. May be called again."""
        session, self._session = self._session, None
        if session is not None:
            await self._of.end(session)


def reset_options(row: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The options that a row gives to reset. A row's own `seed` overrides the task's."""
    return {"seed": seed % _SEEDS, **{k: v for k, v in row.items() if v is not None}}
