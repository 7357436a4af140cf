"""A world in which the policy acts by calling tools; it plays every environment but the shell.

A reply is read in the form of tool calls that the model was trained on, the calls run in order, and
their results go through the chat template. A reply that calls no tool ends the episode. A toolbox
(a TRL class, a server) runs the tools and computes the rewards.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fieldkit.errors import BadInput
from fieldkit.eval.grade import Grade, RewardPart
from fieldkit.files.json_text import whole_text
from fieldkit.records import Action, ActionKind, StopReason, Task
from rollout.envs.base import Late, Message, Opening, Reply, Site, Step
from rollout.envs.env_settings import graded, ungraded
from rollout.envs.tool_calls import TOOL_FORMS, Schema, ToolCall, ToolForm, name_of, taken_as
from rollout.seeds import world_seed

_T = TypeVar("_T")

MOST_CHARACTERS = 65_536
"""Of one tool's answer; the rest is left out, because it would not fit into a context."""


class ToolFailure(Exception):
    """A tool call failed; the policy is told why."""


class Toolbox(Protocol):
    """One episode's environment."""

    @property
    def schemas(self) -> Sequence[Schema]:
        """The tools, in the order in which the policy sees them."""

    async def reset(self, row: Mapping[str, Any], seed: int) -> str | None:
        """Set up a row; return the text that follows its prompt. Raises `Unavailable`."""

    async def call(self, call: ToolCall) -> str:
        """Run a tool; return its answer. Raises `ToolFailure` and `Unavailable`, and `Late` where
        the answer takes too long; the toolbox is then only closed."""

    async def over(self) -> bool:
        """Whether the environment has ended the episode. Raises `BadInput` and `Unavailable`."""

    def newly_earned(self) -> float | None:
        """What was added to the episode's reward since the last call; None where none was, and for
        an environment that gives no reward with a step."""

    async def rewards(
        self, prompt: Sequence[Message], completion: Sequence[Message], row: Mapping[str, Any]
    ) -> Sequence[RewardPart]:
        """The attempt's rewards. Raises `BadInput` for a value that is not a reward."""

    async def close(self) -> None:
        """Release all resources. May be called again, and before `reset`."""


def row_of(task: Task) -> dict[str, Any]:
    """The dataset's row: what `info` holds, and the prompt. Each has values of its own: an
    environment may play on a list of its row."""
    return copy.deepcopy({"prompt": task.prompt, **task.info})


class ToolWorld:
    """One episode with a toolbox.

    passes: the condition on the reward that means passed. together: tools whose calls of one turn
    run concurrently after the others, as coroutines do in TRL. fallback: the name of a tool with
    one text argument that takes replies without a call; empty: such a reply ends the episode.
    on_tools: gets the task's id and the tools when an episode has begun.
    """

    def __init__(
        self,
        site: Site,
        toolbox: Toolbox,
        passes: str,
        together: Container[str] = (),
        fallback: str = "",
        on_tools: Callable[[str, Sequence[Schema]], None] = lambda task_id, tools: None,
    ) -> None:
        self._on_tools = on_tools
        self._together = together
        self._fallback = fallback
        self._form = TOOL_FORMS.named(site.tool_form)
        self._toolbox = toolbox
        self._passes = passes
        self._where = ""
        self._late = False
        self._row: dict[str, Any] = {}
        self._prompt: list[Message] = []
        self._completion: list[Message] = []

    async def reset(self, task: Task, seed: int) -> Opening:
        """The row's prompt, and what the environment adds to it.

        The environment's seed depends only on the task, so all attempts at a task are equal.
        """
        self._where = f"task {task.task_id}"
        self._row = row_of(task)
        self._completion, self._late = [], False
        said = await self._toolbox.reset(self._row, world_seed(task.task_id))
        self._prompt = with_text(messages_of(self._row["prompt"], self._where), said)
        if not any(m["content"].strip() for m in self._prompt):
            raise BadInput(f"{self._where}: neither the row nor reset() gives a prompt")
        self._on_tools(task.task_id, self._toolbox.schemas)
        return opening(self._form, self._prompt, self._toolbox.schemas, self._fallback)

    async def step(self, reply: Reply) -> Step:
        """Run the reply's calls, in order, until one of them ends the episode; those that run
        concurrently come last, and all of them run."""
        whole = reply.finish_reason != "length"
        tools = self._toolbox.schemas
        said = self._form.apart(reply.text, tools, whole)
        calls = self._form.read(reply.text, tools, whole) or self._instead(said["content"], whole)
        self._completion.append(assistant(said, calls))
        if not calls:
            if not whole:  # the policy did not say that it is done
                return Step(Action(ActionKind.NONE, ""), stop=StopReason.REPLY_CUT)
            return Step(Action(ActionKind.DONE, ""), stop=StopReason.TASK_COMPLETE)
        action = Action(ActionKind.RUN, "\n".join(self._form.write(call, tools) for call in calls))
        try:
            answered, over = await self._run(calls)
        except Late as e:
            self._late = True
            return late_step(action, len(calls), e)
        answers = [message for message, _ in answered]
        self._completion += answers
        return Step(
            action,
            tuple(answers) if self._form.tell is None else (as_user(answers),),
            calls=len(answered),
            failed_calls=sum(failed for _, failed in answered),
            reward=self._toolbox.newly_earned(),
            stop=StopReason.ENV_DONE if over else None,
        )

    async def _run(self, calls: Sequence[ToolCall]) -> tuple[list[tuple[Message, bool]], bool]:
        """The answers, as `_answer` gives them, and whether the episode is over. Raises as
        `Toolbox`."""
        answered: list[tuple[Message, bool]] = []
        over = False
        one_by_one = [[c] for c in calls if c.name not in self._together]
        for batch in (*one_by_one, [c for c in calls if c.name in self._together]):
            if batch and not over:
                answered += await _all_or_none([self._answer(call) for call in batch])
                over = await self._toolbox.over()
        return answered, over

    def _instead(self, content: str, whole: bool) -> tuple[ToolCall, ...]:
        """The call that a reply without one is taken for."""
        taken = (
            taken_as(tool, content, whole)
            for tool in self._toolbox.schemas
            if name_of(tool) == self._fallback
        )
        return tuple(call for call in taken if call is not None)

    async def _answer(self, call: ToolCall) -> tuple[Message, bool]:
        """A call's result as the policy sees it, and whether the call failed."""
        try:
            answer, failed = await self._toolbox.call(call), False
        except ToolFailure as e:
            # As in TRL, so that a policy trained there sees the same here.
            answer, failed = str({"error": str(e)}), True
        return {"role": "tool", "name": call.name, "content": as_shown(answer)}, failed

    async def grade(self) -> Grade:
        if self._late:
            return ungraded(self._passes, self._where)
        parts = await self._toolbox.rewards(self._prompt, judged(self._completion), self._row)
        return graded(parts, self._passes, self._where)

    async def close(self) -> None:
        await self._toolbox.close()


async def _all_or_none(calls: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """The results of all calls, which run concurrently. The first failure ends the others, which
    would go on in an environment that is given up, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def late_step(action: Action, calls: int, late: Late) -> Step:
    """The step of a reply of which a call had no answer in time."""
    said = {"role": "tool", "content": str(late)}
    return Step(action, (said,), calls, failed_calls=1, stop=StopReason.TIME_LIMIT, late=str(late))


def judged(completion: Sequence[Message]) -> Sequence[Message]:
    """What reward functions get of an attempt: its messages, or an empty reply where there is none,
    as of the arm that does nothing. Most functions read the last message."""
    return completion or [assistant({"content": ""}, ())]


def messages_of(prompt: Any, where: str) -> list[Message]:
    """A row's prompt, a text or a list of messages, as messages. Raises `BadInput`."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    match prompt:
        case [*messages] if messages and all(_is_message(m) for m in messages):
            return [dict(m) for m in messages]
    raise BadInput(f"{where}: prompt: expected a text or a list of messages, found {prompt!r:.80}")


def _is_message(value: Any) -> bool:
    match value:
        case {"role": str(), "content": str()}:
            return True
    return False


def with_text(messages: Sequence[Message], text: str | None) -> list[Message]:
    """The messages, with a text added to the last user message, as TRL adds the result of reset.
    The text becomes a `whole_text`."""
    if not text:
        return list(messages)
    text = whole_text(text)
    if not messages or messages[-1]["role"] != "user":
        return [*messages, {"role": "user", "content": text}]
    last = messages[-1]
    return [*messages[:-1], {**last, "content": last["content"] + text}]


def opening(
    form: ToolForm, messages: Sequence[Message], tools: Sequence[Schema], fallback: str = ""
) -> Opening:
    """The messages, with the tools given to the chat template or described in the system message,
    depending on the form. fallback: as in `ToolWorld`."""
    if form.tell is None:
        return Opening(tuple(messages), tuple(tools) or None)
    return Opening(with_system(messages, form.tell(tools, fallback) if tools else ""))


def with_system(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The messages, with a text at the end of the system message."""
    if not text:
        return tuple(messages)
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return ({**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:])
    return ({"role": "system", "content": text}, *messages)


def assistant(said: Mapping[str, str], calls: Sequence[ToolCall]) -> Message:
    """A reply in the form that reward functions get. said: as `ToolForm.apart` gives it."""
    asked = [
        {"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
    ]
    return {"role": "assistant", **said, **({"tool_calls": asked} if asked else {})}


def as_user(answers: Sequence[Message]) -> Message:
    """The answers of tools as one user message, for templates without tools."""
    if len(answers) == 1:
        return {"role": "user", "content": answers[0]["content"]}
    return {"role": "user", "content": "\n".join(f"{a['name']}: {a['content']}" for a in answers)}


def as_shown(text: str) -> str:
    """An answer as a policy may see it: cut to `MOST_CHARACTERS`, and a `whole_text`."""
    text = whole_text(text)
    left_out = len(text) - MOST_CHARACTERS
    return text if left_out <= 0 else f"{text[:MOST_CHARACTERS]}\n[{left_out} characters left out]"
