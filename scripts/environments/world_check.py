"""`grpo env check` of what is no class: an OpenEnv server, a verifiers package.

Its code runs in a process of its own, so it is known by what it answers: the same worlds as in a
run are played with replies drawn by chance, and with the same replies again. A finding names what
was asked instead of a line. One process of the server plays all of them: it is not started twice,
so what differs between processes, as the order of a set does, is not found.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.records import Task
from rollout.envs.base import Environment, Message, MissingOracle, Opening, Site, World
from rollout.envs.openenv.openenv_client import HungUp, ResetRaised
from rollout.envs.tool_calls import TOOL_FORMS, Schema, ToolCall
from rollout.envs.tool_yardsticks import YARDSTICK_FORM
from scripts.environments import earnings
from scripts.environments.contract import Finding, Level, is_one_step, one_step
from scripts.environments.earnings import short
from scripts.environments.endpoint import answer_of, client_of
from scripts.environments.env_check import Checked
from scripts.environments.instance import Call
from scripts.environments.world_episode import (
    WorldPlayed,
    bare_site,
    begin,
    drawn,
    play,
    step,
    written,
)

_SHOWS_TOOLS = "hermes"
"""A form of tool calls in which an opening has the schemas of its tools."""

_MISSING = re.compile(r"reset\(\) missing \d+ required .*arguments?: (.+)")

_SECOND_SECONDS = 5.0
"""How long a second session may take to open beside a first one."""


@dataclass(frozen=True)
class WorldTrials:
    """The episodes to play. Each random episode plays the next of the tasks."""

    environment: Environment
    tasks: Sequence[Task]
    wants: int = 64
    """How many episodes a run would play at once."""
    episodes: int = 32
    turns: int = 15
    seconds: float = 60.0
    """The time after which no further random episode begins."""
    perfect: Sequence[Call] | None = None
    """The calls that solve the first task; None: those of the environment's oracle, if any."""
    endpoint: str = ""
    model: str = ""
    model_episodes: int = 8


def check_world(
    use: str,
    trials: WorldTrials,
    say: Callable[[str], None],
    progress: Callable[[str, int, int], None],
) -> Checked:
    """Play all trials. use: what was named, for the report. say: called with lines for a person.
    Raises as the first `World.reset` where no episode can begin, as without a server; what the
    environment itself does wrong there, and every later failure, is a finding."""
    findings: list[Finding] = []
    figures: dict[str, Any] = {}
    try:
        with bare_site(say) as site:
            asyncio.run(_play_all(trials, site, findings, figures, progress))
    except (BadInput, Unavailable) as e:
        if not figures and not isinstance(e, ResetRaised | HungUp):
            raise
        text = f"{e}{_column_to_give(str(e), trials.tasks[0].env)}"
        findings.append(Finding(Level.ERROR, "", text))
    return Checked(use, tuple(findings), figures)


def _column_to_give(failed: str, name: str) -> str:
    """What to do where a server's reset has parameters that nothing gives."""
    missing = _MISSING.search(failed)
    if missing is None:
        return ""
    columns = " and ".join(f"`{column}`" for column in re.findall(r"'(\w+)'", missing[1]))
    return (
        f"; give {columns} as a column of every row, with `--rows FILE`, or in `config` of"
        f" [envs.{name}] in run.toml"
    )


async def _play_all(
    trials: WorldTrials,
    site: Site,
    findings: list[Finding],
    figures: dict[str, Any],
    progress: Callable[[str, int, int], None],
) -> None:
    task = trials.tasks[0]
    figures["tools"] = list((await _opening(trials, site, task)).tools or ())
    findings += _of_schemas(figures["tools"])
    world = trials.environment.make(site)
    try:
        once = await play(world, task, drawn(trials.environment, task, 0), trials.turns)
        progress("trials", 1, 4)
        again = await _again(trials.environment.make(site), task, once)
        findings += _difference(once, again, "the same task and replies in another session")
        progress("trials", 2, 4)
        if not _differs(findings):
            again = await _again(world, task, once)
            findings += _difference(once, again, "a second episode after the end of the first")
        progress("trials", 3, 4)
        if not _differs(findings):
            findings += await _apart(trials, site, once)
        progress("trials", 4, 4)
        has = await trials.environment.capacity(site, task, trials.wants)
        if has is not None:
            figures["sessions"] = has
            findings += _of_capacity(has, trials.wants)
        played = await _random(trials, world, findings, figures, progress)
        empty = await play(world, task, written([""]), 1)
        figures["empty"] = _worth(empty)
        findings += earnings.of_nothing(figures["empty"], "")
        if (solved := _solution(trials)) is not None:
            perfect = await play(world, task, written(solved), len(solved))
            figures["perfect"] = _worth(perfect)
            findings += earnings.not_perfect(
                figures["perfect"], figures["empty"], figures["random"], ""
            )
        if trials.endpoint and not any(f.level is Level.ERROR for f in findings):
            figures["model"] = await _model(trials, world, progress)
            findings += earnings.of_model(figures["model"], figures["random"]["mean"], "")
    finally:
        await world.close()  # of an episode that a failure cut short
    played += [once, empty]
    longest = max(played, key=lambda p: len(p.opened))
    figures["longest"] = {
        "prompt": list((await _opening(trials, site, longest.task)).messages),
        "answer": max((said for p in played for said in p.said), key=len, default=""),
    }
    steps = sorted(s for p in played for s in p.step_s)
    figures["reset_ms"] = 1000 * statistics.median(p.reset_s for p in played)
    figures["step_ms"] = 1000 * statistics.median(steps) if steps else None
    figures["slowest_step_ms"] = 1000 * steps[-1] if steps else None


async def _opening(trials: WorldTrials, site: Site, task: Task) -> Opening:
    """What a task begins with, for a template with tools: its messages do not describe them."""
    world = trials.environment.make(replace(site, tool_form=_SHOWS_TOOLS))
    try:
        return await world.reset(task, 0)
    finally:
        await world.close()


def _of_schemas(tools: Sequence[Schema]) -> list[Finding]:
    found = []
    for tool in (t["function"] for t in tools):
        if not str(tool.get("description") or "").strip():
            found.append(f"tool {tool['name']} has no description: a policy reads only its name")
        for name, kind in tool.get("parameters", {}).get("properties", {}).items():
            if not {"type", "enum", "anyOf", "oneOf", "const"} & kind.keys():
                found.append(f"tool {tool['name']}: its argument {name} has no type")
            elif not str(kind.get("description") or "").strip() and "enum" not in kind:
                found.append(f"tool {tool['name']}: its argument {name} has no description")
    if len(tools) == 1 and is_one_step(tools[0]):
        found.append(one_step(tools[0]["function"]["name"]))
    return [Finding(Level.WARNING, "", text) for text in found]


async def _again(world: World, task: Task, once: WorldPlayed) -> WorldPlayed:
    return await play(world, task, written(once.replies), len(once.replies))


def _differs(findings: Sequence[Finding]) -> bool:
    """Whether an episode that was played again was another one; the rest would repeat it."""
    return any("gave something else" in f.text for f in findings)


def _difference(once: WorldPlayed, again: WorldPlayed, what: str) -> list[Finding]:
    """An error where the attempts at a task do not begin alike; a warning where luck comes later,
    which a group's mean takes for skill."""
    what = f"{what} gave something else"
    if once.opening != again.opening:
        pairs = zip(once.opening, again.opening, strict=False)
        first, then = next(((a, b) for a, b in pairs if a != b), ({"content": ""}, {"content": ""}))
        text = f"{what}: reset said {short(first['content'])}, then {short(then['content'])}; the"
        text += " attempts at a task have to begin alike, so draw by the seed that reset gets"
        return [Finding(Level.ERROR, "", text)]
    for number, (one, two) in enumerate(zip(once.said, again.said, strict=False), 1):
        if one != two:
            reply, *said = map(short, (once.replies[number - 1], one, two))
            text = f"{what}: reply {number}, {reply}, was answered {said[0]}, then {said[1]}"
            return [Finding(Level.WARNING, "", text)]
    if len(once.said) != len(again.said) or once.grade.rewards != again.grade.rewards:
        text = f"{what}: the episode had {len(once.said)} replies and was worth {once.worth}, then"
        text += f" {len(again.said)} and {again.worth}"
        return [Finding(Level.WARNING, "", text)]
    return []


async def _apart(trials: WorldTrials, site: Site, once: WorldPlayed) -> list[Finding]:
    """Play two episodes in turn; the second must not change the first. A server with one session
    keeps the second waiting, so that they cannot meet."""
    one, other = trials.environment.make(site), trials.environment.make(site)
    last = trials.tasks[-1]
    try:
        begun = await begin(one, trials.tasks[0])
        waiting = asyncio.ensure_future(begin(other, last))
        await asyncio.wait({waiting}, timeout=_SECOND_SECONDS)
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return []
        disturbing = waiting.result()
        choose = drawn(trials.environment, last, 1)
        for reply in once.replies:
            if disturbing.stop is None:
                await step(other, disturbing, await choose(disturbing.talk) or "")
            await step(one, begun, reply)
        begun.grade = await one.grade()
    finally:
        await one.close()
        await other.close()
    return _difference(once, begun, "two episodes share state: beside another one it")


def _of_capacity(has: int, wants: int) -> list[Finding]:
    if has >= wants:
        return []
    text = (
        f"it has {has} session{'s' if has > 1 else ''}, and a run plays up to {wants} episodes at"
    )
    text += " once: the others wait. `create_app` takes max_concurrent_envs, and the class has to"
    text += " declare SUPPORTS_CONCURRENT_SESSIONS = True"
    return [Finding(Level.WARNING, "", text)]


async def _random(
    trials: WorldTrials,
    world: World,
    findings: list[Finding],
    figures: dict[str, Any],
    progress: Callable[[str, int, int], None],
) -> list[WorldPlayed]:
    stop_at = time.monotonic() + trials.seconds
    played: list[WorldPlayed] = []
    for seed in range(trials.episodes):
        if played and time.monotonic() > stop_at:
            break
        task = trials.tasks[seed % len(trials.tasks)]
        played.append(await play(world, task, drawn(trials.environment, task, seed), trials.turns))
        progress("random episodes", len(played), trials.episodes)
    figures["random"] = _earned(played)
    figures["random"]["raised"] = sum(p.failed for p in played)
    findings += earnings.by_chance(figures["random"], "")
    calls = sum(p.calls for p in played)
    if calls and calls == figures["random"]["raised"]:
        lines = [said for p in played for said in p.said if said]
        text = f"every call of a tool failed: {short(lines[0]) if lines else ''}"
        findings.append(Finding(Level.ERROR, "", text))
    return played


def _solution(trials: WorldTrials) -> list[str] | None:
    """The replies of the perfect episode; None if none is known."""
    if trials.perfect is not None:
        write, known = TOOL_FORMS.named(YARDSTICK_FORM).write, trials.environment.tools
        tools = known(trials.tasks[0])
        return [write(ToolCall(name, arguments), tools) for name, arguments in trials.perfect]
    try:
        return list(oracle(trials.tasks[0])) if (oracle := trials.environment.oracle) else None
    except MissingOracle:
        return None


async def _model(
    trials: WorldTrials, world: World, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Episodes of the model at the endpoint. Raises `Unavailable`."""
    played = []
    with client_of(trials.endpoint, trials.model) as client:

        async def asked(talk: Sequence[Message]) -> str | None:
            return await asyncio.to_thread(answer_of, client, talk)

        for number in range(trials.model_episodes):
            task = trials.tasks[number % len(trials.tasks)]
            played.append(await play(world, task, asked, trials.turns))
            progress("episodes of the model", number + 1, trials.model_episodes)
    return _earned(played)


def _earned(played: Sequence[WorldPlayed]) -> dict[str, Any]:
    passes = [p.grade.passed for p in played]
    return earnings.earned([p.grade.reward for p in played], passes, [p.calls for p in played])


def _worth(played: WorldPlayed) -> dict[str, Any]:
    return earnings.worth(played.grade.reward, played.worth, played.grade.passed)
