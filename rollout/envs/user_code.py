"""A person's own code, found by what run.toml says, and what it is made of.

It is imported into this process and trusted as a library is: what a policy does reaches it through
its tools only. A file's folder is searched for the modules beside it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file, sha256_text
from fieldkit.registry import nearest


def load(use: str, root: Path, where: str) -> Any:
    """The object that `module:NAME` or `path/to/file.py:NAME` means; paths start at `root`.

    Raises `BadInput` that begins with `where` and says which part of it is missing.
    """
    home, colon, name = use.rpartition(":")
    if not colon or not home or not name.isidentifier():
        raise BadInput(
            f"{where}: {use!r} is no module:NAME and no path/to/file.py:NAME; write for example"
            ' "envs/counter.py:Counter"'
        )
    module = _file_module(root / home, where) if home.endswith(".py") else _module(home, where)
    if not hasattr(module, name):
        near = nearest(name, [n for n in vars(module) if not n.startswith("_")])
        hint = f"; did you mean {near!r}?" if near else ""
        raise BadInput(f"{where}: {home} has no {name!r}{hint}")
    return getattr(module, name)


def identity(use: str, root: Path, where: str) -> str:
    """Hex SHA-256 of the code behind `use`: the file and what it imports from beside it, or the
    module's package and its version. Raises as `load`.

    Imports are read in the source, because what this process happens to have imported so far
    depends on which command it runs.
    """
    found = load(use, root, where)
    module = sys.modules[found.__module__]
    top = module.__name__.partition(".")[0]
    of = packages_distributions().get(top, [])
    file = Path(str(module.__file__)).resolve()
    lines = [f"{f.relative_to(file.parent)} {sha256_file(f)}" for f in imported_files(file)]
    return sha256_text("\n".join([f"{d} {version(d)}" for d in of] + lines))


def imported_files(program: Path) -> list[Path]:
    """A program, the modules and packages beside it that it imports, and those that they do;
    sorted."""
    found, left = {program}, [program]
    while left:
        for name in _imported_names(left.pop()):
            path = program.parent / name.replace(".", "/")
            fresh = {file for file in [path.with_suffix(".py")] if file.is_file()}
            if (path / "__init__.py").is_file():
                fresh |= set(path.rglob("*.py"))
            left += fresh - found
            found |= fresh
    return sorted(found)


def _imported_names(file: Path) -> set[str]:
    """What a source imports: for a.b.c every part of it, because a, b and c may each be what lies
    beside the program. Nothing where it is no Python."""
    if file.suffix != ".py":
        return set()
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return set()  # whoever imports it says so
    names: list[list[str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [[*(node.module or "").split("."), alias.name] for alias in node.names]
    slices = {
        ".".join(n[i:j]) for n in names for i in range(len(n)) for j in range(i + 1, len(n) + 1)
    }
    return {name.strip(".") for name in slices} - {""}


def installed_packages(python: Path) -> list[str]:
    """What is installed in the virtual environment of this Python, each with its version."""
    found = python.parents[1].glob("lib/python*/site-packages/*.dist-info")
    return sorted(path.name for path in found)


def place_of(thing: Any) -> str:
    """file:line where a function or class is defined; empty where no file holds it."""
    try:
        thing = inspect.unwrap(thing)
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (OSError, TypeError):
        return ""


def _module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        missing = e.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise BadInput(
                f"{where}: there is no module {missing!r}; install it into .venv, or give a file"
            ) from None
        raise BadInput(f"{where}: {name} needs the package {missing!r}, which .venv lacks") from e
    except Exception as e:
        raise BadInput(f"{where}: {name} cannot be imported: {type(e).__name__}: {e}") from e


def _file_module(path: Path, where: str) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise BadInput(f"{where}: {path}: no such file")
    name = f"{path.stem}_{sha256_text(str(path))[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{where}: {path} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as e:
        del sys.modules[name]
        raise BadInput(f"{where}: {path} needs the package {e.name!r}, which .venv lacks") from e
    except Exception as e:
        del sys.modules[name]
        line = e.lineno if isinstance(e, SyntaxError) else _line_of(e, path)
        raise BadInput(f"{where}: {path}:{line}: {type(e).__name__}: {e}") from e
    return module


def _line_of(e: BaseException, path: Path) -> int:
    """The line of `path` that an exception passed through last."""
    found, trace = 0, e.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
