"""Imports go one way: fieldkit <- reward <- rollout <- scripts; fieldkit <- trainer <- scripts.

Held between packages, between the folders of a package, and between files. An import counts
wherever it stands: inside a function and under TYPE_CHECKING too, because a reader follows those
as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MAY_IMPORT = {
    "fieldkit": {"fieldkit"},
    "reward": {"fieldkit", "reward"},
    "rollout": {"fieldkit", "reward", "rollout"},
    "trainer": {"fieldkit", "trainer"},
    "scripts": {"fieldkit", "reward", "rollout", "trainer", "scripts"},
}
HEAVY = {"torch", "scipy", "transformers", "peft"}

MOST_ROOMS = 20
"""Files and folders directly in a folder: more than a person holds in their head at once."""
MOST_ARROWS, LONGEST_CHAIN = 60, 8
"""Between the folders of scripts/."""

Graph = Mapping[str, set[str]]
"""Who imports whom."""


def _parse(source: str | Path) -> ast.Module:
    return ast.parse(source.read_text() if isinstance(source, Path) else source)


def _files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for package in MAY_IMPORT for path in _files(package)}


def _named(tree: ast.AST) -> Iterator[str]:
    """Everything that an import below `tree` could mean: `from a import b` names a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can read them"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _imports(tree: ast.AST) -> set[str]:
    """The modules of this project that an import below `tree` brings in, packages left out."""
    found = {name for name in _named(tree) if name in MODULES}
    return {name for name in found if not any(n.startswith(f"{name}.") for n in found)}


def _graph() -> dict[str, set[str]]:
    return {name: _imports(_parse(path)) - {name} for name, path in MODULES.items()}


def _rooms(graph: Graph, folder: str) -> dict[str, set[str]]:
    """The same between the files and folders directly in `folder`."""

    def room(module: str) -> str | None:
        inside = module.removeprefix(f"{folder}.")
        return inside.partition(".")[0] if inside != module else None

    rooms: dict[str, set[str]] = {}
    for module, imported in graph.items():
        if (here := room(module)) is not None:
            there = {r for m in imported if (r := room(m)) is not None}
            rooms.setdefault(here, set()).update(there - {here})
    return rooms


def _circle(graph: Graph) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        circle: list[str] = e.args[1]
        return circle
    return None


def _longest_chain(graph: Graph) -> int:
    longest: dict[str, int] = {}
    for node in TopologicalSorter(graph).static_order():
        longest[node] = 1 + max((longest[n] for n in graph.get(node, ())), default=0)
    return max(longest.values(), default=0)


FOLDERS = sorted({_name(path.parent) for path in MODULES.values()})


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    assert _files(package), f"{package} has no modules: this test would see nothing"
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _files(package)
        for name in {n.partition(".")[0] for n in _named(_parse(path))}
        & set(MAY_IMPORT) - MAY_IMPORT[package]
    }
    assert not wrong


def test_no_file_imports_one_that_imports_it() -> None:
    assert _circle(_graph()) is None


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_folder_imports_one_that_imports_it(folder: str) -> None:
    assert _circle(_rooms(_graph(), folder)) is None


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_has_no_more_rooms_than_a_person_can_remember(folder: str) -> None:
    path = ROOT / folder.replace(".", "/")
    rooms = [p for p in path.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()]
    assert len([p for p in rooms if p.name != "__init__.py"]) <= MOST_ROOMS


def test_the_folders_of_scripts_stand_in_a_clear_order() -> None:
    rooms = _rooms(_graph(), "scripts")
    assert sum(map(len, rooms.values())) <= MOST_ARROWS
    assert _longest_chain(rooms) <= LONGEST_CHAIN


def test_the_rule_sees_imports_in_functions_and_under_type_checking_and_of_modules() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from fieldkit.records import Task
def f():
    from scripts.run import plan
    import trainer.step
"""
    assert _imports(_parse(source)) == {"fieldkit.records", "scripts.run.plan", "trainer.step"}


def test_the_rule_sees_a_circle_and_the_longest_chain() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) is not None
    assert _circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
    assert _longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == 3
    assert _rooms({"p.x.one": {"p.y"}, "p.y": set(), "q": {"p.y"}}, "p") == {"x": {"y"}, "y": set()}


def test_the_packages_of_rollout_are_empty_because_a_server_imports_one_of_its_modules() -> None:
    written = [p for p in _files("rollout") if p.name == "__init__.py" and p.read_text().strip()]
    assert not written


def test_fieldkit_imports_nothing_heavy_before_it_is_needed() -> None:
    wrong = set()
    for path in _files("fieldkit"):
        for node in _parse(path).body:  # module level only: inside a function is lazy
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {name.partition(".")[0] for name in _named(node)}
                wrong |= {f"{path.name}:{node.lineno}"} if names & HEAVY else set()
    assert not wrong


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in chain.from_iterable(map(_files, MAY_IMPORT))
        if path.name != "__init__.py" and not ast.get_docstring(_parse(path))
    ]
    assert not silent
