"""User code that run.toml names: how it is found, loaded and hashed.

It is imported into this process and trusted like a library; a policy reaches it only through its
tools. A file's folder is searched for the modules that it imports.

The phases of a run are separate processes, so the code has to be in a file. `keep` writes one for
what a notebook's cell defines, by value, with all that it uses from other cells. Reading that file
runs it, as an import does, and needs the Python version that wrote it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.files.atomic import sha256_file, sha256_text, write_bytes
from fieldkit.registry import nearest

KEPT = ".pkl"
"""The suffix of files that `keep` writes."""


def load(use: str, root: Path, where: str) -> Any:
    """The object that `module:NAME`, `path/to/file.py:NAME` or a result of `keep` names; paths are
    relative to `root`.

    Raises `BadInput` that begins with `where` and names the missing part.
    """
    home, colon, name = use.rpartition(":")
    if not colon or not home or not name.isidentifier():
        raise BadInput(
            f"{where}: {use!r} is no module:NAME and no path/to/file.py:NAME; write for example"
            ' "envs/counter.py:Counter"'
        )
    if home.endswith(KEPT):
        return _kept(root / home, name, where)
    module = _home(home, root, where)
    if not hasattr(module, name):
        near = nearest(name, [n for n in vars(module) if not n.startswith("_")])
        hint = f"; did you mean {near!r}?" if near else ""
        raise BadInput(f"{where}: {home} has no {name!r}{hint}")
    return getattr(module, name)


def _home(home: str, root: Path, where: str) -> ModuleType:
    return _file_module(root / home, where) if home.endswith(".py") else _module(home, where)


def identity(use: str, root: Path, where: str) -> str:
    """Hex SHA-256 of the code behind `use`: the file and the modules of its folder that it imports,
    or the module's package and its version. Raises as `load`.

    Imports are read from the source, because the modules that this process has imported depend on
    the command that it runs.
    """
    found = load(use, root, where)
    home = use.rpartition(":")[0]
    if home.endswith(KEPT):
        return sha256_file(root / home)
    if isinstance(found, list | tuple):  # functions, perhaps of several modules
        things = [_home(home, root, where), *(sys.modules[one.__module__] for one in found)]
        modules = list(dict.fromkeys(things))
    else:
        modules = [sys.modules[found.__module__]]
    return sha256_text("\n".join(line for module in modules for line in _lines_of(module)))


def _lines_of(module: ModuleType) -> list[str]:
    """The package behind a module with its version, and its files with their hashes."""
    top = module.__name__.partition(".")[0]
    of = packages_distributions().get(top, [])
    file = Path(str(module.__file__)).resolve()
    lines = [f"{f.relative_to(file.parent)} {sha256_file(f)}" for f in imported_files(file)]
    return [f"{d} {version(d)}" for d in of] + lines


def keep(thing: type | Callable[..., Any] | Sequence[Callable[..., Any]], path: Path | str) -> str:
    """Make a class, a function or a list of functions usable in run.toml; return a value for `use`.

    Code in a module's file stays there, and nothing is written. Code of a notebook is written to
    `path`, which ends in `KEPT`; a list is named after the file. Code that is kept again counts as
    changed, and a run that has begun reports it. Raises `BadInput` for another suffix, and if
    something that the code uses cannot be written, such as an open connection.
    """
    import cloudpickle

    path = Path(path).absolute()
    name = getattr(thing, "__name__", path.stem)
    home = getattr(thing, "__module__", "__main__")
    if home != "__main__":
        return f"{sys.modules[home].__file__}:{name}"
    if path.suffix != KEPT or not name.isidentifier():
        raise BadInput(f"{path}: {name} has to be kept in a file such as {name}{KEPT}")
    try:
        data = cloudpickle.dumps(thing)
    except Exception as e:
        raise BadInput(
            f"{name}: uses something that cannot be written: {type(e).__name__}: {e}; make it in"
            " reset() or in the constructor"
        ) from e
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, data)
    return f"{path}:{name}"


def imported_files(program: Path) -> list[Path]:
    """A program and the modules and packages of its folder that it imports, directly or not;
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
    """The names that a source imports; for a.b.c every part, because any of a, b and c may be in
    the program's folder. Empty if the source is not Python."""
    if file.suffix != ".py":
        return set()
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return set()  # importing it reports the error
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
    """The packages in the virtual environment of this Python, with their versions."""
    found = python.parents[1].glob("lib/python*/site-packages/*.dist-info")
    return sorted(path.name for path in found)


def place_of(thing: Any) -> str:
    """file:line where a function or class is defined; empty if it is not in a file."""
    try:
        thing = inspect.unwrap(thing)
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (OSError, TypeError):
        return ""


def _lacks(where: str, what: object, package: str | None) -> BadInput:
    more = "; the Python that has it serves an OpenEnv app: `--python PYTHON`, or `python` and"
    more += f" `serve` in [{where}]"
    text = f"{where}: {what} needs the package {package!r}, which .venv lacks"
    return BadInput(text + more if package == "openenv" else text)


def _module(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        missing = e.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise BadInput(
                f"{where}: there is no module {missing!r}; install it into .venv, or give a file"
            ) from None
        raise _lacks(where, name, missing) from e
    except (Exception, SystemExit) as e:  # its code would become the phase's
        raise BadInput(f"{where}: {name} cannot be imported: {type(e).__name__}: {e}") from e


def _kept(path: Path, name: str, where: str) -> Any:
    """Load what `keep` wrote. Raises `BadInput` that begins with `where`."""
    import cloudpickle

    if not path.is_file():
        raise BadInput(f"{where}: {path}: no such file; `rollout.envs.user_code.keep` writes it")
    try:
        found = cloudpickle.loads(path.read_bytes())
    except ModuleNotFoundError as e:
        raise _lacks(where, path, e.name) from e
    except Exception as e:
        raise BadInput(
            f"{where}: {path} cannot be read ({type(e).__name__}: {e}); keep {name} again with"
            f" this Python, {sys.version.split()[0]}"
        ) from e
    own = getattr(found, "__name__", path.stem)
    if own != name:
        raise BadInput(f"{where}: {path} has no {name!r}; did you mean {own!r}?")
    return found


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
        raise _lacks(where, path, e.name) from e
    except (Exception, SystemExit) as e:
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
