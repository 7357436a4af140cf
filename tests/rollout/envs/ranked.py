"""Reward functions as TRL's trainers take them, which compare the attempts that they are given."""

from typing import Any

Messages = list[dict[str, str]]


def shortest(completions: list[Messages], **columns: object) -> list[float]:
    """1 for the attempts with the fewest replies, 0 for the others."""
    replies = [sum(m["role"] == "assistant" for m in c) for c in completions]
    return [float(n == min(replies)) for n in replies]


async def new_words(
    prompts: list[Any], completions: list[Messages], target: list[int], **columns: object
) -> list[float | None]:
    """Replies that no other attempt wrote; it does not apply to targets over 100."""
    assert len(prompts) == len(completions) == len(target)
    said = [{m["content"] for m in c if m["role"] == "assistant"} for c in completions]
    others = [set[str]().union(*said[:i], *said[i + 1 :]) for i in range(len(said))]
    return [
        None if t > 100 else float(len(own - other))
        for own, other, t in zip(said, others, target, strict=True)
    ]


def looks_inside(environments: list[Any], **columns: object) -> list[float]:
    return [float(e.value) for e in environments]


def too_few(completions: list[Messages], **columns: object) -> list[float]:
    return [1.0]


def broken(**columns: object) -> list[float]:
    raise RuntimeError("no judge is there")
