"""The policies that answer a world's messages: a served model, a chat endpoint, written replies.

A policy knows messages, ids and its limits. It does not know what a reply means, how an episode is
recorded or how it is rewarded; `rollout.player` plays every policy by the same loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.json_text import whole_text
from fieldkit.records import Sampling, StopReason, Task
from rollout.envs.base import Message, Opening, Reply
from rollout.settings import EpisodeSettings
from rollout.transcript import ChatRenderer, Transcript

if TYPE_CHECKING:  # `grpo next` imports the yardsticks, and needs no engine client
    from fieldkit.client import AsyncChatClient, ChatHTTPError
    from rollout.engine.client import Completion, Sampler


@dataclass(frozen=True)
class Said:
    """A policy's reply, with its sampled ids and their logprobs; both are empty if the policy is
    not a model."""

    reply: Reply
    completion_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


class Policy(Protocol):
    """One policy in one episode."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The ids that the next reply is sampled from; empty if the policy is not a model."""

    def begin(self, task: Task, opening: Opening) -> None:
        """Take the opening messages. Raises `NoRoom` if they leave no room for a reply."""

    async def reply(self, seed: int) -> Said | StopReason | None:
        """The next reply; None if the policy has no more; a stop reason if the request showed that
        a limit was reached. Raises `Unavailable`."""

    def hear(
        self, observation: Sequence[Message], n_turns: int, world_seconds: float
    ) -> StopReason | None:
        """Take the world's answer to turn number `n_turns`; return the limit that ends the episode,
        if any. world_seconds: the time that the world took for all turns so far."""


PolicyOf = Callable[[Task, EpisodeSettings], Policy]
"""Makes the policy of one episode of a task under the limits."""


class NoRoom(BadInput):
    """An opening that is too long for the context."""


class SampledPolicy:
    """A model: replies are sampled from the transcript's ids, under the limits of `settings`."""

    def __init__(self, sampler: Sampler, renderer: ChatRenderer, settings: EpisodeSettings) -> None:
        self._sampler = sampler
        self._renderer = renderer
        self._settings = settings
        self._transcript: Transcript | None = None

    @property
    def _talk(self) -> Transcript:
        if self._transcript is None:
            raise RuntimeError("a policy has to begin before it is asked")
        return self._transcript

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self._talk.prompt_ids

    def begin(self, task: Task, opening: Opening) -> None:
        self._transcript = self._renderer.start(opening.messages, opening.tools)
        if not self._fits():  # no policy could play this task
            limits = self._settings
            raise NoRoom(
                f"task {task.task_id}: its opening prompt has {len(self.prompt_ids)} tokens; with"
                f" max_new_tokens = {limits.max_new_tokens} it does not fit max_model_len ="
                f" {limits.max_model_len}; raise max_model_len or shorten the task"
            )

    async def reply(self, seed: int) -> Said | None:
        completion = await self._sampler.sample(self.prompt_ids, self._settings.sampling, seed)
        text = self._talk.add_completion(completion.ids)
        return Said(Reply(text, completion.finish_reason), completion.ids, completion.logprobs)

    def hear(
        self, observation: Sequence[Message], n_turns: int, world_seconds: float
    ) -> StopReason | None:
        """The time limit is checked between turns, so an episode may exceed it by one turn."""
        if n_turns == self._settings.max_turns:
            return StopReason.MAX_TURNS
        self._talk.add_observation(observation)
        if not self._fits():
            return StopReason.CONTEXT_FULL
        if world_seconds >= self._settings.episode_seconds:
            return StopReason.TIME_LIMIT
        return None

    def _fits(self) -> bool:
        needed = len(self.prompt_ids) + self._settings.max_new_tokens
        return needed <= self._settings.max_model_len


def sampled(sampler: Sampler, renderer: ChatRenderer) -> PolicyOf:
    """The model behind `sampler` is the policy of every episode."""
    return sampled_for(lambda task_id: sampler, renderer)


def sampled_for(sampler_of: Callable[[str], Sampler], renderer: ChatRenderer) -> PolicyOf:
    """The same, where the sampler of an episode depends on the task's id: several servers share the
    episodes."""
    return lambda task, settings: SampledPolicy(sampler_of(task.task_id), renderer, settings)


class ChatPolicy:
    """A model behind a chat completions endpoint. It gives no ids, so its episodes are never
    trained on.

    The limits are those of `SampledPolicy`. Only the endpoint knows a prompt's length and reports
    it with the reply, so a reply that did not fit is dropped. The endpoint may have sampling
    defaults (top-k, min-p), which chat completions cannot turn off.
    """

    prompt_ids: tuple[int, ...] = ()

    def __init__(self, client: AsyncChatClient, task: Task, settings: EpisodeSettings) -> None:
        self._client = client
        self._task = task
        self._settings = settings
        self._messages: list[Message] = []
        self._begins = True

    def begin(self, task: Task, opening: Opening) -> None:
        """Raises `BadInput` for a world that gives tools to the chat template."""
        if opening.tools is not None:
            raise BadInput(
                f"task {task.task_id}: its world gives its tools to the chat template, and the"
                " template of an endpoint is unknown; play it with --adapter"
            )
        self._messages = list(opening.messages)

    async def reply(self, seed: int) -> Said | StopReason:
        """The endpoint's reply, or CONTEXT_FULL. Raises `Unavailable` if it does not answer, and
        `BadInput` if it refuses the request or has no room for the opening."""
        from fieldkit.client import ChatError, ChatHTTPError

        limits = self._settings
        try:
            answer = await self._client.chat(
                self._messages,
                max_tokens=limits.max_new_tokens,
                temperature=limits.temperature,
                top_p=limits.sampling.top_p,
                seed=seed,
            )
        except ChatHTTPError as e:
            if not _is_too_long(e):
                raise refused(e, self._client.model) from None
            return self._full(str(e))
        except ChatError as e:
            raise Unavailable(str(e)) from None
        text, finish_reason, prompt_tokens = _read_chat(answer, self._client.base_url)
        needed = prompt_tokens + limits.max_new_tokens
        if needed > limits.max_model_len:
            return self._full(
                f"its prompt has {prompt_tokens} tokens; with max_new_tokens ="
                f" {limits.max_new_tokens} it does not fit max_model_len = {limits.max_model_len}"
            )
        self._begins = False
        self._messages.append({"role": "assistant", "content": text})
        return Said(Reply(text, finish_reason))

    def _full(self, why: str) -> StopReason:
        if self._begins:
            raise NoRoom(
                f"task {self._task.task_id}: its opening leaves no room for a reply: {why}; shorten"
                " the task, or raise engine.max_model_len where the endpoint holds more"
            )
        return StopReason.CONTEXT_FULL

    def hear(
        self, observation: Sequence[Message], n_turns: int, world_seconds: float
    ) -> StopReason | None:
        """As `SampledPolicy.hear`, without the context."""
        if n_turns == self._settings.max_turns:
            return StopReason.MAX_TURNS
        self._messages += observation
        if world_seconds >= self._settings.episode_seconds:
            return StopReason.TIME_LIMIT
        return None


def chatting(client: AsyncChatClient) -> PolicyOf:
    """The model behind `client` is the policy of every episode."""
    return lambda task, settings: ChatPolicy(client, task, settings)


def refused(error: ChatHTTPError, model: str) -> BadInput | Unavailable:
    """The endpoint's refusal as an error with its likely cause. `Unavailable` where it may be
    another answer later, as at a rate limit."""
    from fieldkit.client.chat import BUSY

    if error.status_code in (401, 403):
        return BadInput(
            f"{error}: the endpoint does not accept the key; --key-from names the variable that"
            " holds it"
        )
    if error.status_code == 404:
        return BadInput(f"{error}: no model {model!r} there, or the URL lacks its /v1")
    if 400 <= error.status_code < 500 and error.status_code not in BUSY:
        return BadInput(f"{error}: the endpoint refuses such a request")
    return Unavailable(str(error))


def _is_too_long(error: ChatHTTPError) -> bool:
    """Whether the prompt was too long. OpenAI has an error code for this; vLLM has only a
    message."""
    said = error.body or ""
    return error.status_code == 400 and (
        "context_length_exceeded" in said or "context length" in said
    )


def _read_chat(answer: Mapping[str, Any], where: str) -> tuple[str, str, int]:
    """(text, finish reason, tokens of the prompt or 0 if unknown). Raises `Unavailable` for an
    answer without a message."""
    try:
        choice = answer["choices"][0]
        text = choice["message"]["content"] or ""
        finish_reason = "length" if choice.get("finish_reason") == "length" else "stop"
        tokens = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
        if not isinstance(text, str):
            raise TypeError(f"content is {type(text).__name__}")
        text = whole_text(text)  # a gateway may have cut a pair of surrogates
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
        raise Unavailable(f"{where}: the answer is no chat completion ({e!r})") from None
    return text, finish_reason, tokens


class WrittenSampler:
    """A sampler in place of an engine: from a seed and a prompt it gives the ids of a written
    reply. A written id has logprob 0."""

    def __init__(self, write: Callable[[int, Sequence[int]], str], renderer: ChatRenderer) -> None:
        self._write = write
        self._renderer = renderer

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> Completion:
        """The next reply, cut at the token limit of a turn as by an engine."""
        from rollout.engine.client import Completion

        # In a thread, because an environment's author may have written the code behind it.
        text = await asyncio.to_thread(self._write, seed, prompt_ids)
        whole = self._renderer.encode_reply(text, prompt_ids)
        ids = whole[: sampling.max_tokens]
        return Completion(ids, (0.0,) * len(ids), "stop" if ids == whole else "length")


class _Recited(SampledPolicy):
    """Written replies in order, as ids; the episode ends with the last one."""

    def __init__(
        self, replies: Iterable[str], renderer: ChatRenderer, limits: EpisodeSettings
    ) -> None:
        super().__init__(WrittenSampler(lambda *_: self._next, renderer), renderer, limits)
        self._left, self._next = iter(replies), ""

    async def reply(self, seed: int) -> Said | None:
        text = await _next_of(self._left)
        if text is None:
            return None
        self._next = text
        return await super().reply(seed)


async def _next_of(replies: Iterator[str]) -> str | None:
    """The next reply, None after the last. In a thread, as in `WrittenSampler`."""
    return await asyncio.to_thread(next, replies, None)


def reciting(replies: Iterable[str], renderer: ChatRenderer, limits: EpisodeSettings) -> Policy:
    """Gives the replies in order, with the ids that a model would have read and sampled."""
    return _Recited(replies, renderer, limits)


class RecitedPolicy:
    """Gives the replies in order, whatever the observations. It has no limits, and no ids to train
    on."""

    prompt_ids: tuple[int, ...] = ()

    def __init__(self, replies: Iterable[str]) -> None:
        self._left = iter(replies)

    def begin(self, task: Task, opening: Opening) -> None:
        """The opening has no effect."""

    async def reply(self, seed: int) -> Said | None:
        text = await _next_of(self._left)
        return None if text is None else Said(Reply(text))

    def hear(self, observation: Sequence[Message], n_turns: int, world_seconds: float) -> None:
        """An answer has no effect."""
