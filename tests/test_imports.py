"""Imports go one way: fieldkit <- reward <- rollout <- scripts; fieldkit <- trainer <- scripts."""

from __future__ import annotations

import ast
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


def _imports(tree: ast.AST) -> set[str]:
    """The top-level packages that any import statement below `tree` names."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can read them"
            found.add((node.module or "").partition(".")[0])
    return found


def _parse(source: str | Path) -> ast.Module:
    return ast.parse(source.read_text() if isinstance(source, Path) else source)


def _modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    assert _modules(package), f"{package} has no modules: this test would see nothing"
    wrong = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _modules(package)
        for name in _imports(_parse(path)) & set(MAY_IMPORT) - MAY_IMPORT[package]
    }
    assert not wrong


def test_fieldkit_imports_nothing_heavy_before_it_is_needed() -> None:
    wrong = set()
    for path in _modules("fieldkit"):
        for node in _parse(path).body:  # module level only: inside a function is lazy
            if isinstance(node, (ast.Import, ast.ImportFrom)) and _imports(node) & HEAVY:
                wrong.add(f"{path.name}:{node.lineno}")
    assert not wrong


def test_the_rule_sees_an_import_inside_a_function() -> None:
    assert _imports(_parse("def f():\n    from rollout.engine import x\n")) == {"rollout"}


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for package in MAY_IMPORT
        for path in _modules(package)
        if path.name != "__init__.py" and not ast.get_docstring(_parse(path))
    ]
    assert not silent
