"""`grpo env play`: a person plays an environment with the same tools and reward as a policy.

The quickest way to see whether a prompt is clear and whether the observations help. Calls are typed
in the text form; the end of the input ends the episode.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from fieldkit.eval.grade import RewardPart
from fieldkit.records import Task
from rollout.envs.base import Environment, Reply
from rollout.envs.tool_calls import TOOL_FORMS
from scripts.environments.instance import Instance, Trials
from scripts.environments.world_episode import bare_site


def play_by_hand(trials: Trials, seed: int, typed: Iterable[str], out: IO[str]) -> None:
    """One episode of the first row. `typed`: lines as they come. Raises `Broken`."""
    form = TOOL_FORMS["text"]
    assert form.tell is not None
    say = _sayer(out)
    instance = Instance(trials, lambda what: None)
    row = trials.rows[0]
    played = instance.begin(row, seed)
    say(f"{form.tell(instance.schemas, '')}\n\n{played.opening}\n")
    names = ", ".join(schema["function"]["name"] for schema in instance.schemas)
    for line in typed:
        calls = form.read(line, instance.schemas)
        if not calls and line.strip():
            say(
                f"(no call: begin the line with one of {names}, then a colon or {{json}};"
                " Ctrl-D ends the episode)"
            )
        for name, arguments in ((c.name, c.arguments) for c in calls):
            instance.call(played, name, arguments)
            say(played.said[-1])
            if instance.done:
                break
        if instance.done:
            say("(the environment ended the episode)")
            break
    instance.end(played, row)
    _say_parts(played.parts, say)
    if trials.passed is not None:
        say("passed" if trials.passed(played.parts) else "not passed")


def play_world_by_hand(
    environment: Environment,
    task: Task,
    typed: Iterable[str],
    out: IO[str],
    tell: Callable[[str], None],
) -> None:
    """One episode of an environment of any style; each line is a reply. tell: called with what its
    program says. Raises as `World`."""
    say = _sayer(out)
    with bare_site(tell) as site, _running_loop() as wait_for:
        world = environment.make(site)
        try:
            for message in wait_for(world.reset(task, 0)).messages:
                say(f"{message['content']}\n")
            for line in typed:
                step = wait_for(world.step(Reply(line)))
                if step.said is not None:
                    say(step.said)
                if step.stop is not None:
                    say(f"(the episode ended: {step.stop})")
                    break
            grade = wait_for(world.grade())
        finally:
            wait_for(world.close())
    _say_parts(grade.rewards, say)
    say("passed" if grade.passed else "not passed")


@contextmanager
def _running_loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """What waits for coroutines of an event loop that also runs while a person thinks, so that no
    connection times out and Ctrl-C ends the wait for a line."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _sayer(out: IO[str]) -> Callable[[str], None]:
    return lambda text: print(text, file=out, flush=True)


def _say_parts(parts: Sequence[RewardPart], say: Callable[[str], None]) -> None:
    for part in parts:
        value = "does not apply" if part.value is None else f"{part.value:g}"
        weight = "" if part.weight == 1 else f" (weight {part.weight:g})"
        say(f"{part.name}: {value}{weight}")
