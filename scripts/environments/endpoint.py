"""A model behind an endpoint plays an environment, to see whether skill earns more than chance.

If a capable model is no better than random calls, the reward is out of reach, the tools are
unclear, or the prompt does not state the goal. The tools are described to the model in text, so any
chat completions server will do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fieldkit.client.chat import ChatClient, ChatError
from fieldkit.errors import Unavailable
from rollout.envs.base import Message
from rollout.envs.tool_calls import TOOL_FORMS
from rollout.envs.tool_world import with_system
from rollout.envs.user_code import place_of
from scripts.environments.contract import Finding
from scripts.environments.earnings import of_model
from scripts.environments.instance import Instance, Played, Row, Trials
from scripts.environments.tryout import earned, many

REPLY_SECONDS = 120.0
"""The time limit of one answer of the model."""
KEY = "OPENAI_API_KEY"
"""The environment variable that holds the endpoint's key, if it needs one."""


def play_model(
    trials: Trials,
    endpoint: str,
    model: str,
    episodes: int,
    by_chance: Mapping[str, Any],
    tell: Callable[..., None],
    progress: Callable[[str, int, int], None],
) -> tuple[list[Finding], dict[str, Any]]:
    """The findings and figures of a model's episodes, with the seeds of the random policy.
    by_chance: the result of `run_trials`. Raises `Broken`, and `Unavailable` if the endpoint does
    not answer.
    """
    instance = Instance(trials, tell)
    with client_of(endpoint, model) as client:

        def play(row: Row, seed: int) -> Played:
            return _episode(trials, instance, client, row, seed, tell)

        played = many(
            trials, episodes, play, lambda n: progress("episodes of the model", n, episodes)
        )
    figures = earned(trials, played)
    chance = by_chance["random"]["mean"]
    return of_model(figures, chance, place_of(trials.kind)), figures


def answer_of(client: ChatClient, talk: Sequence[Message]) -> str:
    """The model's next reply. Raises `Unavailable`."""
    try:
        answer = client.chat(talk)
        return str(answer["choices"][0]["message"]["content"] or "")
    except ChatError as e:
        raise Unavailable(f"{e}; is `--endpoint {client.base_url}` a running server?") from None
    except (KeyError, IndexError, TypeError):
        raise Unavailable(
            f"{client.base_url}: the answer holds no message; is `--endpoint` a server of chat"
            " completions?"
        ) from None


def client_of(endpoint: str, model: str) -> ChatClient:
    """A client of the endpoint, with the key that the environment variable `KEY` holds."""
    key = os.environ.get(KEY, "local")
    return ChatClient(endpoint, model, key, timeout=REPLY_SECONDS, max_retries=1)


def _episode(
    trials: Trials,
    instance: Instance,
    client: ChatClient,
    row: Row,
    seed: int,
    tell: Callable[..., None],
) -> Played:
    form = TOOL_FORMS["text"]
    assert form.tell is not None
    played = instance.begin(row, seed)
    talk = [*with_system(played.prompt, form.tell(instance.schemas, ""))]
    while len(played.calls) < trials.turns and not instance.done:
        tell("an answer of the endpoint", 2 * REPLY_SECONDS + 10)
        text = answer_of(client, talk)
        calls = form.read(text, instance.schemas)
        if not calls:
            break
        before = len(played.said)
        for call in calls[: trials.turns - len(played.calls)]:
            if instance.done:
                break
            instance.call(played, call.name, call.arguments)
        talk += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": "\n".join(played.said[before:])},
        ]
    return instance.end(played, row)
