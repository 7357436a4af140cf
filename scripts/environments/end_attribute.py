"""Finds the attribute of an environment that looks like the end of its episodes, where none is set.

Without `ends` an episode goes on after the task is done, until a reply calls no tool or a limit is
reached, and those turns are trained on. Only the author knows what an attribute means, so this is a
suggestion and never an error.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any

from scripts.environments.contract import Finding, Level, line_of

END_WORDS = frozenset(
    ("done", "over", "ended", "end", "finished", "terminated", "complete", "completed", "closed")
)
"""Words in the names that authors give to such an attribute."""


def flags_of(env: Any) -> dict[str, bool]:
    """The attributes and properties of an environment whose value is a bool, by name."""
    of_class = (
        name
        for name, value in inspect.getmembers_static(type(env))
        if isinstance(value, bool | property | MemberDescriptorType)
    )
    found: dict[str, bool] = {}
    for name in dict.fromkeys(itertools.chain(getattr(env, "__dict__", ()), of_class)):
        with suppress(Exception):  # a property may not be ready, as before the first reset
            value = getattr(env, name)
            if isinstance(value, bool) and not name.startswith("__"):
                found[name] = value
    return found


def unset_end(kind: type, episodes: Sequence[Sequence[Mapping[str, bool]]]) -> list[Finding]:
    """A suggestion where attributes turn true in an episode. episodes: of each, the flags after
    `reset` and after every call."""
    turned = {
        name: n
        for name in dict.fromkeys(name for flags in episodes for name in flags[-1])
        if (n := _turns_true(name, episodes))
    }
    named = {name: n for name, n in turned.items() if END_WORDS & set(name.split("_"))}
    found = named or {name: n for name, n in turned.items() if _may_be_an_end(name, episodes)}
    if not found:
        return []
    names = sorted(found, key=lambda name: -found[name])
    first = names[0]
    often = f"turns true in {found[first]} of {len(episodes)} episodes"
    others = f" (also {', '.join(names[1:])})" if names[1:] else ""
    text = (
        f"{first} {often}{others}: if the episode is over then, set `--ends {first}`, or ends ="
        f' "{first}" in [envs.NAME]; without it an episode goes on until a reply calls no tool'
    )
    return [Finding(Level.WARNING, line_of(kind, first), text)]


def _turns_true(name: str, episodes: Sequence[Sequence[Mapping[str, bool]]]) -> int:
    """In how many episodes it turns true; 0 where it is true after a reset."""
    if any(flags[0].get(name, False) for flags in episodes):
        return 0
    return sum(any(_values(name, flags)) for flags in episodes)


def _may_be_an_end(name: str, episodes: Sequence[Sequence[Mapping[str, bool]]]) -> bool:
    """Whether it stays true, and is not what the first call always makes true, like `started`."""
    values = [_values(name, flags)[1:] for flags in episodes]
    stays = all(a <= b for one in values for a, b in itertools.pairwise(one))
    return stays and not all(one[0] for one in values if one)


def _values(name: str, flags: Sequence[Mapping[str, bool]]) -> list[bool]:
    return [after.get(name, False) for after in flags]
