"""`grpo env play`: a person plays an environment with the same tools and reward as a policy.

The quickest way to see whether a prompt is clear and whether the observations help. Calls are typed
in the text form; the end of the input ends the episode.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO

from rollout.envs.tool_calls import TOOL_FORMS
from scripts.environments.instance import Instance, Trials


def play_by_hand(trials: Trials, seed: int, typed: Iterable[str], out: IO[str]) -> None:
    """One episode of the first row. `typed`: lines as they come. Raises `Broken`."""
    form = TOOL_FORMS["text"]
    assert form.tell is not None

    def say(text: str) -> None:
        print(text, file=out, flush=True)

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
            say("(the environment ended the episode)")
            break
    instance.end(played, row)
    for part in played.parts:
        value = "does not apply" if part.value is None else f"{part.value:g}"
        weight = "" if part.weight == 1 else f" (weight {part.weight:g})"
        say(f"{part.name}: {value}{weight}")
    if trials.passed is not None:
        say("passed" if trials.passed(played.parts) else "not passed")
