"""User code that run.toml names: how it is found, loaded and hashed.

It is imported into this process and trusted like a library; a policy reaches it only through its
tools. The modules that a file imports are looked for in its folder and beside its package.

The phases of a run are separate processes, so the code has to be in a file. `keep` writes one for
what a notebook's cell defines, by value, with all that it uses from other cells. Reading that file
runs it, as an import does, and needs the Python version that wrote it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
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
    or the module's package and its version; and the same of the module that the code comes from.
    Raises as `load`.

    Imports are read from the source, because the modules that this process has imported depend on
    the command that it runs.
    """
    found, home = load(use, root, where), use.rpartition(":")[0]
    if home.endswith(KEPT):
        return sha256_file(root / home)
    things = found if isinstance(found, list | tuple) else [found]
    # What is named may come from another module, and be changed by the one that is named.
    modules = [_home(home, root, where), *(sys.modules[thing.__module__] for thing in things)]
    lines = [line for module in dict.fromkeys(modules) for line in _lines_of(module)]
    return sha256_text("\n".join(lines))


def _lines_of(module: ModuleType) -> list[str]:
    """The package behind a module with its version, and its files with their hashes."""
    top = module.__name__.partition(".")[0]
    of = packages_distributions().get(top, [])
    file = Path(str(module.__file__)).resolve()
    lines = [f"{name} {sha256_file(path)}" for name, path in imported_files(file).items()]
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


def package_of(file: Path) -> tuple[Path, list[str]]:
    """The folder that holds a file's package, and the parts of the file's name as a module there;
    its own folder and its own name if it is in no package."""
    top, names = file.absolute().parent, [file.stem]
    while (top / "__init__.py").is_file():
        names.insert(0, top.name)
        top = top.parent
    return top, names


def imported_files(program: Path, *folders: Path) -> dict[str, Path]:
    """A program, and the modules and packages that it imports, directly or not: those of its
    folder, of its own package, and of further folders. By the path from the program's folder,
    sorted."""
    program = program.absolute()
    top, names = package_of(program)
    found, left = {program}, [program]
    while left:
        file = left.pop()
        fresh: set[Path] = set()
        for level, parts in _imports(file):
            for path in _slices(program.parent, parts):
                fresh.add(path.with_suffix(".py"))
                if (path / "__init__.py").is_file():
                    fresh.update(_python_files(path))
            places = [top] if parts[0] == names[0] else []
            places = [*file.parents[level - 1 : level]] if level else [*folders, *places]
            for n in range(len(parts)):
                fresh.update(p.joinpath(*parts[: n + 1]).with_suffix(".py") for p in places)
        fresh = {path for path in fresh if path.is_file()} - found
        left += fresh
        found |= fresh
    return {os.path.relpath(path, program.parent): path for path in sorted(found)}


def _slices(folder: Path, parts: Sequence[str]) -> list[Path]:
    """The paths in a folder that a.b.c may mean: any of a, b and c may be there."""
    n = len(parts)
    return [folder.joinpath(*parts[i:j]) for i in range(n) for j in range(i + 1, n + 1)]


def _python_files(folder: Path) -> Iterator[Path]:
    """The Python files below a folder, but those of a virtual environment there."""
    for here, below, files in os.walk(folder):
        below[:] = [name for name in below if not (Path(here, name) / "pyvenv.cfg").is_file()]
        yield from (Path(here, name) for name in files if name.endswith(".py"))


def _imports(file: Path) -> list[tuple[int, list[str]]]:
    """What a source imports: how many dots lead, and the parts of the name behind them. Empty if
    the source is not Python."""
    if file.suffix != ".py":
        return []
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return []  # importing it reports the error
    found: list[tuple[int, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            within = node.module.split(".") if node.module else []
            found += [(node.level, [*within, alias.name]) for alias in node.names]
    return found


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
    if package == "openenv":
        more = "the Python that has it serves an OpenEnv app: `--python PYTHON`, or `python` and"
        more += f" `serve` in [{where}]"
    else:
        uv = shlex.quote(str(Path(sys.executable).with_name("uv")))
        wanted = str(package).partition(".")[0]
        more = f"`{uv} pip install --python {shlex.quote(sys.executable)} {wanted}` installs it, if"
        more += " that is its name on the index"
    return BadInput(f"{where}: {what} needs the package {package!r}, which .venv lacks; {more}")


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
    top, names = package_of(path)
    for folder in (str(path.parent), str(top)):
        if folder not in sys.path:
            sys.path.append(folder)
    if names[1:] and any(level for level, _ in _imports(path)):
        return _in_package(path, ".".join(names), where)
    name = f"{path.stem}_{sha256_text(str(path))[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadInput(f"{where}: {path} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise _broken(e, path, where) from e
    _require_own_neighbours(path, where)
    return module


def _require_own_neighbours(path: Path, where: str) -> None:
    """Raise `BadInput` where a name that the file imports was loaded from elsewhere, although a
    file of that name lies beside it: two environments may each have a board.py."""
    for level, (top, *_) in _imports(path):
        beside, loaded = path.with_name(f"{top}.py"), sys.modules.get(top)
        if level or loaded is None or beside == path or not beside.is_file():
            continue
        elsewhere = getattr(loaded, "__file__", None)
        if elsewhere is None or Path(elsewhere).read_bytes() != beside.read_bytes():
            raise BadInput(
                f"{where}: {path} imports {top}, and {beside} was not taken: another {top}"
                f" ({elsewhere or 'of Python'}) is loaded already; rename the file"
            )


def _in_package(path: Path, name: str, where: str) -> ModuleType:
    """A file that imports what lies beside it (`from .board import …`), as a module of its
    package."""
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as e:
        raise _broken(e, path, where) from e
    if Path(str(module.__file__)).resolve() != path:
        raise BadInput(
            f"{where}: {path}: its package is called {name.partition('.')[0]}, as is another one"
            f" ({module.__file__}), which is imported instead; rename its folder"
        )
    return module


def _broken(e: Exception | SystemExit, path: Path, where: str) -> BadInput:
    """What loading a file raises, whose exit code would become the phase's."""
    if isinstance(e, ModuleNotFoundError):
        return _lacks(where, path, e.name)
    if isinstance(e, SyntaxError) and e.lineno and Path(e.filename or "").is_file():
        # Perhaps of a file that it imports.
        return BadInput(f"{where}: {e.filename}:{e.lineno}: {type(e).__name__}: {e.msg}")
    return BadInput(f"{where}: {path}:{_line_of(e, path)}: {type(e).__name__}: {e}")


def _line_of(e: BaseException, path: Path) -> int:
    """The line of `path` that an exception passed through last."""
    found, trace = 0, e.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            found = trace.tb_lineno
        trace = trace.tb_next
    return found
