"""The keys of run.toml: what may become of each later, and the page that documents them.

All of it is drawn from the fields of the settings classes, so a new key is one field there.
`python -m scripts.run.keys > docs/settings.md` writes the page anew.
"""

from __future__ import annotations

from fieldkit.settings import Change, Key, keys, settings_lines, tables
from scripts.run.config import RunConfig

_HEAD = """\
# Settings

Every key of `run.toml`, table by table; all of them have a default. This page is written by
`python -m scripts.run.keys > docs/settings.md` from the settings classes: change a key there.

"Later" says whether the key may change after the run's first step. A key that follows another one
has its value; it is best left out."""


def all_keys(config: type = RunConfig) -> tuple[Key, ...]:
    """Every key, in the order of the tables."""
    return tuple(key for cls in tables(config).values() for key in keys(cls))


def dotted_keys(*changes: Change) -> frozenset[str]:
    """The keys, as table.key, of which one of these may become."""
    return frozenset(key.dotted for key in all_keys() if key.change in changes)


def settings_page(config: type = RunConfig) -> str:
    """docs/settings.md: default, values, unit and meaning of every key. Reads the source."""
    return "\n".join(
        [_HEAD, *(line for c in tables(config).values() for line in settings_lines(c))]
    )


if __name__ == "__main__":
    print(settings_page())
