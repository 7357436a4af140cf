"""`--set table.key=value`: settings that a command writes into run.toml.

run.toml stays the one home of what a person chose, so an assignment is written there, the comments
of other lines kept, before anything runs. Nothing is written unless the whole file is sound
afterwards and a run that has begun may change these keys.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import write_text
from fieldkit.registry import nearest
from fieldkit.settings import Change
from scripts.run.config import config_of
from scripts.run.folder import RunFolder
from scripts.run.keys import all_keys, as_listed
from scripts.run.lock import run_lock
from scripts.run.manifest import read_manifest, refuse_change
from scripts.run.verify import require_ours

_SECTION = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?")
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^#"'])*?"""


def parse(assignments: Sequence[str]) -> dict[str, Any]:
    """Values by dotted key. A value is TOML; what is no TOML is a text (`run.steps=auto`).

    Raises `BadInput` for a word that is no assignment, and for an unknown key.
    """
    known = {key.dotted: key for key in all_keys()}
    found = {}
    for word in assignments:
        name, equals, text = word.partition("=")
        name = name.strip()
        if not equals:
            raise BadInput(f"--set {word}: write table.key=value, as in rollout.temperature=0.8")
        of = as_listed(name)
        if of not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}? " if near else ""
            raise BadInput(f"--set {word}: unknown key {name!r}; {hint}`grpo keys` lists them all")
        if known[of].change is Change.TYPED:
            raise BadInput(f"--set {word}: no file may hold it; type `--sandbox none` each time")
        found[name] = _value(text.strip())
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def assigned(text: str, values: Mapping[str, Any], where: str) -> str:
    """The text of a run.toml with these values in it. A line whose value changes loses its comment,
    which was about the other value. Raises `BadInput` for an unsound value.
    """
    lines = text.splitlines()
    wanted = tomllib.loads(text)
    for dotted, value in values.items():
        table, _, key = dotted.rpartition(".")
        inside = wanted
        for part in table.split("."):
            inside = inside.setdefault(part, {})
            if not isinstance(inside, dict):
                raise BadInput(f"{where}: {table} must be a table, written [{table}]")
        stays = inside.get(key) == value
        inside[key] = value
        if not stays:
            _put(lines, table, key, toml_value(value))
    _check(wanted, tomllib.loads(text), f"--set {', '.join(values)}", where)
    changed = "\n".join(lines) + "\n"
    try:
        as_wanted = tomllib.loads(changed) == wanted
    except tomllib.TOMLDecodeError:
        as_wanted = False
    if not as_wanted:
        raise BadInput(f"{where}: its form is too free for --set; write {', '.join(values)} there")
    return changed


def _check(
    wanted: Mapping[str, Any], before: Mapping[str, Any], assignment: str, where: str
) -> None:
    """Raise `BadInput` for unsound settings. It names the assignment, or the file where that has
    the same fault without it."""
    try:
        config_of(wanted, assignment)
    except BadInput as fault:
        try:
            config_of(before, assignment)
        except BadInput as own:
            if str(own) == str(fault):
                raise BadInput(where + str(own).removeprefix(assignment)) from None
        raise


def toml_value(value: Any) -> str:
    """A value as TOML; a table in one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{json.dumps(k)} = {toml_value(v)}' for k, v in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, date | time):  # no key takes one, which its own check says
        return value.isoformat()
    return json.dumps(value, ensure_ascii=False)


def _put(lines: list[str], table: str, key: str, value: str) -> None:
    """Replace the line of a key, or add one at the end of its table."""
    inside, end = False, None
    for i, line in enumerate(lines):
        if section := _SECTION.fullmatch(line):
            inside = section[1].strip() == table
        if inside and line.strip():
            end = i + 1
        if inside and re.fullmatch(rf"\s*{key}\s*={_VALUE}(\s*#.*)?", line):
            lines[i] = f"{key} = {value}"
            return
    if end is None:
        lines += ["", f"[{table}]"]
        end = len(lines)
    lines.insert(end, f"{key} = {value}")


def assign(folder: RunFolder, assignments: Sequence[str]) -> None:
    """Write these into the run's run.toml. Raises `NotOwner` while a loop works on the run, and
    `BadInput` for a key that a run with finished steps cannot change."""
    if not assignments:
        return
    values = parse(assignments)
    with run_lock(folder.lock):
        text = folder.config.read_text(encoding="utf-8")
        try:
            changed = assigned(text, values, str(folder.config))
        except tomllib.TOMLDecodeError as e:
            raise BadInput(f"{folder.config}: not valid TOML ({e})") from None
        require_ours(folder)
        manifest = read_manifest(folder)
        if manifest is not None and folder.finished_steps() > 1:
            config = config_of(tomllib.loads(changed), str(folder.config))
            refuse_change(folder, manifest, config)
        write_text(folder.config, changed)
