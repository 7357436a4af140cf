"""docs/fieldkit/reference: fieldkit's public names, a page a room, from signatures and docstrings.

`python -m tests.fieldkit.reference` (`make reference`) writes the pages anew. griffe reads the
sources, so nothing is imported and a default value reads as it was written. What a page says is
said in a docstring: change it there.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import griffe

from scripts.base.checkout import ROOT

FOLDER = ROOT / "docs" / "fieldkit" / "reference"
PACKAGE = "fieldkit"
WIDTH = 88

_BEFORE_KEYWORDS = (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
_FOOT = "This page is written by `make reference` from the docstrings: change a text there."


@dataclass(frozen=True)
class Room:
    """A package with public names of its own."""

    module: griffe.Module
    names: dict[str, griffe.Object]
    """Those that it imports `as` themselves (`fieldkit.lazy`), each with where it is made."""


def rooms() -> list[Room]:
    """fieldkit itself, then its rooms by name."""
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    package = loader.load(PACKAGE)
    loader.resolve_aliases()
    assert isinstance(package, griffe.Module)
    modules = [m for m in package.modules.values() if m.is_init_module and m.docstring]
    return [Room(m, dict(_names(m))) for m in (package, *sorted(modules, key=lambda m: m.name))]


def _names(module: griffe.Module) -> Iterator[tuple[str, griffe.Object]]:
    for name, member in sorted(module.members.items(), key=lambda item: item[0].casefold()):
        if isinstance(member, griffe.Alias) and member.target_path.startswith(f"{PACKAGE}."):
            found = member.final_target
            if not found.is_module and found.path != f"{PACKAGE}.lazy.lazily":
                yield name, found


def pages() -> dict[str, str]:
    """File name -> page, one a room."""
    return {f"{room.module.name}.md": _page(room) for room in rooms()}


def _page(room: Room) -> str:
    parts = [f"# {room.module.path}", _text(room.module), _FOOT]
    for name, found in room.names.items():
        parts += _entry(found, f"## {name}", name)
    return "\n\n".join(part for part in parts if part) + "\n"


def _entry(found: griffe.Object, heading: str, name: str) -> Iterator[str]:
    """A name's heading, signature and text; then what a class has of its own."""
    yield heading
    yield f"```python\n{_signature(found, name.rpartition('.')[2])}\n```"
    if isinstance(found, griffe.Class):
        bases = [str(base) for base in found.bases if not str(base).startswith("_")]
        if bases:
            yield f"Bases: {', '.join(f'`{base}`' for base in bases)}."
    yield _text(found)
    if isinstance(found, griffe.Class):
        members = own(found)
        if fields := [line for m in members if not m.is_function for line in _field(m, found)]:
            yield "\n".join(fields)
        for member in members:
            if member.is_function:
                yield from _entry(member, f"### {name}.{member.name}", f"{name}.{member.name}")


def own(found: griffe.Class) -> list[griffe.Object]:
    """A class's public members, those of a private base included, in the order of the source."""
    members: dict[str, griffe.Object] = {}
    for member in found.all_members.values():
        target = member.final_target if isinstance(member, griffe.Alias) else member
        home = target.parent
        assert home is not None
        if home is not found and not home.name.startswith("_"):
            continue  # said where that base stands
        if not target.name.startswith("_") or (target.is_special and target.docstring):
            members[target.name] = target
    return list(members.values())


def _field(member: griffe.Object, home: griffe.Class) -> Iterator[str]:
    """An attribute's line, unless the signature has said all there is to say."""
    assert isinstance(member, griffe.Attribute)
    is_parameter = member.name in {p.name for p in home.parameters}
    if is_parameter and not member.docstring:
        return
    kind = f": {member.annotation}" if member.annotation and not is_parameter else ""
    value = f" = {member.value}" if member.value and not is_parameter else ""
    text = textwrap.indent(_text(member), "  ").strip()
    yield f"- `{member.name}{kind}{value}`" + (f": {text}" if text else "")


def _signature(found: griffe.Object, name: str) -> str:
    if isinstance(found, griffe.Attribute):
        return f"{name}: {found.annotation}" if found.annotation else f"{name} = {found.value}"
    if isinstance(found, griffe.Class):
        shown = list(_parameters(found.parameters))
        return _call(f"class {name}", shown, "") if shown else f"class {name}"
    assert isinstance(found, griffe.Function)
    marks = [str(d.value) for d in found.decorators]
    lines = [f"@{mark}\n" for mark in marks if mark in ("classmethod", "staticmethod")]
    lines += ["@contextmanager\n" for mark in marks if mark.endswith("contextmanager")]
    lines += ["async "] if "async" in found.labels else []
    result = f" -> {found.returns}" if found.returns else ""
    return "".join(lines) + _call(f"def {name}", list(_parameters(found.parameters)), result)


def _call(head: str, shown: list[str], result: str) -> str:
    line = f"{head}({', '.join(shown)}){result}"
    if len(line) <= WIDTH:
        return line
    return f"{head}(\n" + "".join(f"    {each},\n" for each in shown) + f"){result}"


def _parameters(parameters: griffe.Parameters) -> Iterator[str]:
    """Each as it is written, with the marker before the first that goes by keyword only."""
    star = False
    for p in parameters:
        if p.name in ("self", "cls") or p.name.startswith("_"):
            continue
        if p.kind is griffe.ParameterKind.keyword_only and not star:
            yield "*"
        star = star or p.kind in _BEFORE_KEYWORDS
        stars = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(p.kind or griffe.ParameterKind.positional_or_keyword, "")
        value = f" = {p.default}" if p.default is not None and not stars else ""
        yield f"{stars}{p.name}" + (f": {p.annotation}" if p.annotation else "") + value


def _text(found: griffe.Object) -> str:
    """A docstring as Markdown: examples become blocks of code."""
    lines: list[str] = []
    inside = False
    for line in found.docstring.value.splitlines() if found.docstring else ():
        if line.startswith(">>>") and not inside:
            lines += [""] * bool(lines and lines[-1]) + ["```pycon"]
            inside = True
        elif not line.strip() and inside:
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name, text in pages().items():
        Path(FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
