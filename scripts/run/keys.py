"""The keys of run.toml: what may become of each later, and the page that documents them.

All of it is drawn from the fields of the settings classes, so a new key is one field there.
`python -m scripts.run.keys > docs/settings.md` writes the page anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from fieldkit.errors import BadInput
from fieldkit.registry import nearest
from fieldkit.settings import Change, Key, keys, meaning_of_keys, settings_lines, tables
from rollout.envs.env_settings import EnvSettings
from scripts.run.config import RunConfig

DEFAULTS = """\
A default is the value of a key that run.toml leaves out. A preset writes other values into it:
`make run` takes the preset smol, whose rollout.group_size is 8 and run.minutes 27."""

_HEAD = f"""\
# Settings

Every key of `run.toml`, table by table; all of them have a default. This page is written by
`python -m scripts.run.keys > docs/settings.md` from the settings classes: change a key there.

{DEFAULTS}

"Later" says whether the key may change after the run's first step. A key that follows another one
has its value; it is best left out."""


def all_keys(config: type = RunConfig) -> tuple[Key, ...]:
    """Every key, in the order of the tables."""
    return tuple(key for cls in (*tables(config).values(), EnvSettings) for key in keys(cls))


def as_listed(key: str) -> str:
    """A dotted key as `all_keys` has it: that of one environment is that of any."""
    return re.sub(r"^envs\.[^.]+\.", "envs.NAME.", key)


def dotted_keys(*changes: Change) -> frozenset[str]:
    """The keys, as table.key, of which one of these may become."""
    return frozenset(key.dotted for key in all_keys() if key.change in changes)


def matching_keys(word: str = "") -> dict[Key, str]:
    """Each key whose name or meaning holds `word`, in any case, with its meaning.

    Raises `BadInput` naming the nearest key where none does.
    """
    documented = {
        key: meaning_of_keys(cls)[key.name]
        for cls in (*tables(RunConfig).values(), EnvSettings)
        for key in keys(cls)
    }
    wanted = word.casefold()
    found = {k: m for k, m in documented.items() if wanted in f"{k.dotted} {m}".casefold()}
    if not found:
        near = nearest(word, [name for k in documented for name in (k.dotted, k.name)])
        hint = f"did you mean {near!r}? " if near else ""
        raise BadInput(f"{word!r}: no setting is called so; {hint}`grpo keys` lists them all")
    return found


def keys_text(found: Mapping[Key, str]) -> str:
    """Keys with default, values, whether they may change later, and meaning."""
    return "\n".join(
        f"{k.dotted} = {'–' if k.default is None else json.dumps(k.default)}\n"
        f"    {k.expected}; may change after the first step: {k.change}\n"
        f"    {m}"
        for k, m in found.items()
    )


def plain_keys(found: Mapping[Key, str]) -> list[dict[str, object]]:
    """The same, JSON-ready."""
    return [
        {
            "key": k.dotted,
            "default": k.default,
            "unit": k.unit,
            "values": k.expected,
            "later": k.change.value,
            "meaning": m,
        }
        for k, m in found.items()
    ]


def settings_page(config: type = RunConfig) -> str:
    """docs/settings.md: default, values, unit and meaning of every key. Reads the source."""
    classes = [*tables(config).values(), EnvSettings]
    return "\n".join([_HEAD, *(line for c in classes for line in settings_lines(c))])


if __name__ == "__main__":
    print(settings_page())
