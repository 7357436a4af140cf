"""Virtual environments for environments that need packages of their own.

A framework pins versions that would change ours, so each environment gets a virtual environment
below the user's cache. It is made once, pinned in a file next to it, and found again by its
requirements. An incomplete one is made again. Nothing is ever installed into ours.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.atomic import locked, read_json, sha256_file, sha256_text, write_json
from fieldkit.files.user_cache import cache_dir

_UV = Path(__file__).resolve().parents[1] / "setup" / "uv.sh"
_READY = "ready.json"
_SCRIPT = re.compile(r"(?m)^# /// script\s*$\s(?P<lines>(^#(| .*)$\s)+)^# ///\s*$")
"""The block of inline metadata, as PEP 723 defines it."""

_GIT = ("git+", "https://", "http://", "ssh://")

_V1_ALONE = "0.4.0"
"""The version of verifiers from which on an environment with `load_environment` (v0) is none."""


@dataclass(frozen=True)
class ForeignVenv:
    """A virtual environment that is ready."""

    name: str
    use: str
    """The value of `use` in `[envs.NAME]`: the package's name or the file."""
    python: Path
    packages: tuple[str, ...]
    """The installed packages with their versions, sorted by name."""

    @property
    def settings(self) -> str:
        """The lines for run.toml."""
        return (
            f"[envs.{self.name}]\n"
            f'style = "verifiers"\n'
            f'use = "{self.use}"\n'
            f'python = "{self.python}"\n'
            'passes = "REWARD >= 1"  # one of the reward functions, and what counts as passed\n'
        )


@dataclass(frozen=True)
class _Source:
    """The requirements of an environment."""

    name: str
    use: str
    requirements: tuple[str, ...]
    key: str
    """A hash of everything that determines the installed packages."""


def add_environment(
    what: str, also: Sequence[str] = (), say: Callable[[str], None] = lambda line: None
) -> ForeignVenv:
    """Make the virtual environment of a package, a file, a folder or a git address, or find it.

    what: "NAME" or "NAME==VERSION" of a package on the index; a .py file, whose inline metadata
    (PEP 723) names what it needs; a folder with a pyproject.toml; "git+https://…@REVISION". also:
    further requirements. Raises `BadInput` if `what` does not exist, and `Unavailable`, with the
    installer's last lines, if it cannot be installed.
    """
    source = _source(what, tuple(also))
    folder = cache_dir() / "environments" / f"{source.name}-{source.key[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        if not (folder / _READY).is_file():
            _install(folder, source, say)
    packages = read_json(folder / _READY)["packages"]
    return ForeignVenv(source.name, source.use, _python(folder), tuple(packages))


def _python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def _install(folder: Path, source: _Source, say: Callable[[str], None]) -> None:
    python = str(_python(folder))
    say(f"making {folder / 'venv'}")
    _uv(["venv", "-q", "--clear", "--python", sys.executable, str(folder / "venv")])
    say(f"installing {', '.join(source.requirements)}")
    _uv(["pip", "install", "-q", "--python", python, *source.requirements])
    packages = _uv(["pip", "freeze", "-q", "--python", python]).splitlines()
    write_json(folder / _READY, {"requirements": source.requirements, "packages": packages})


def _source(what: str, also: tuple[str, ...]) -> _Source:
    path = Path(what)
    if what.endswith(".py"):
        return _of_file(path, also)
    if path.is_dir():
        return _of_folder(path.resolve(), also)
    if what.endswith(".whl"):
        return _of_wheel(what, also)
    if what.startswith(_GIT):
        name = what.removesuffix("/").rpartition("/")[2].partition("@")[0].partition("#")[0]
        address = what if what.startswith("git+") else f"git+{what}"
        return _named(name.removesuffix(".git"), "", (address, *also))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[^\]]*\])?([=<>!~].*)?", what):
        raise BadInput(
            f"{what}: no such file or folder, and not the name of a package; `grpo env add --help`"
            " shows an example of each"
        )
    name = re.split(r"[\[=<>!~]", what)[0]
    return _named(name, name, (what, *also))


def _of_file(path: Path, also: tuple[str, ...]) -> _Source:
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    metadata = inline_metadata(path)
    wanted = (*metadata.get("dependencies", ()), *also)
    folder = path.parent.resolve()  # `vf-init` puts a pyproject.toml beside the file
    if not metadata and requires_verifiers(folder):
        return _of_folder(folder, also)
    if not wanted:
        raise BadInput(
            f"{path}:1: it has no inline metadata (PEP 723) that names what it needs; begin it"
            ' with\n# /// script\n# dependencies = ["verifiers==0.3.1"]\n# ///'
        )
    needs = metadata.get("requires-python", "")
    if not SpecifierSet(needs).contains(platform.python_version()):
        raise BadInput(
            f"{path}: it requires Python {needs}, and .venv has {platform.python_version()};"
            " make .venv with another Python (`rm -rf .venv && make setup`)"
        )
    bound = _bound(wanted, path)
    return _named(path.stem, str(path.resolve()), (*wanted, *bound))


def _of_folder(folder: Path, also: tuple[str, ...]) -> _Source:
    project = _project(folder)
    try:
        name = project["name"]
    except KeyError as e:
        raise BadInput(f"{folder / 'pyproject.toml'}: it has no project.name") from e
    parts = sorted(p for p in folder.rglob("*.py") if ".venv" not in p.parts)
    files = (folder / "pyproject.toml", *parts)
    stamp = "".join(f"{p.relative_to(folder)} {sha256_file(p)}\n" for p in files)
    bound = _bound(project.get("dependencies", ()), *parts)
    return _named(name, name, (str(folder), *also, *bound), stamp)


def _project(folder: Path) -> dict[str, Any]:
    """The table `project` of a folder's pyproject.toml. Raises `BadInput`."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        raise BadInput(f"{folder}: it has no pyproject.toml")
    try:
        found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except tomllib.TOMLDecodeError as e:
        raise BadInput(f"{file}: it is not valid TOML ({e})") from None
    return found


def _of_wheel(what: str, also: tuple[str, ...]) -> _Source:
    """A wheel, as environments are given away: a file or its address."""
    name, path = what.rpartition("/")[2].partition("-")[0].replace("_", "-"), Path(what)
    if what.startswith(_GIT):
        return _named(name, name, (what, *also))
    if not path.is_file():
        raise BadInput(f"{path}: no such file")
    return _named(name, name, (str(path.resolve()), *also), sha256_file(path))


def requires_verifiers(path: Path) -> bool:
    """Whether a file's inline metadata or a folder's pyproject.toml require the library. Raises
    `BadInput` for metadata that cannot be read."""
    if path.is_dir() and not (path / "pyproject.toml").is_file():
        return False
    wanted = _project(path) if path.is_dir() else inline_metadata(path)
    return any(re.match(r"verifiers\b(?!-)", one) for one in wanted.get("dependencies", ()))


def _bound(requirements: Sequence[str], *files: Path) -> tuple[str, ...]:
    """The further requirement of an environment of v0 that does not exclude a library without v0,
    as most that are published do not."""
    for one in requirements:
        try:
            needs = Requirement(one)
        except InvalidRequirement:
            continue
        if needs.name == "verifiers" and not needs.url and needs.specifier.contains(_V1_ALONE):
            texts = (file.read_text(encoding="utf-8", errors="replace") for file in files)
            v0 = any(re.search(r"^def load_environment\b", text, re.MULTILINE) for text in texts)
            return (f"verifiers<{_V1_ALONE}",) if v0 else ()
    return ()


def _named(name: str, use: str, requirements: tuple[str, ...], stamp: str = "") -> _Source:
    key = sha256_text("\n".join([sys.version, *requirements, stamp]))
    return _Source(name, use or name, requirements, key)


def inline_metadata(path: Path) -> dict[str, Any]:
    """A script's inline metadata (PEP 723); empty if it has none. Raises `BadInput`."""
    found = _SCRIPT.search(path.read_text(encoding="utf-8"))
    if found is None:
        return {}
    lines = found["lines"].splitlines()
    text = "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise BadInput(f"{path}: its inline metadata is not valid TOML ({e})") from None


def _uv(arguments: list[str]) -> str:
    """Run the installer of our own virtual environment; return its output."""
    done = subprocess.run([str(_UV), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise Unavailable(f"uv {arguments[0]} {arguments[1]} ended with {done.returncode}:\n{last}")
    return done.stdout
