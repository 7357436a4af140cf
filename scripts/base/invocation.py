"""How a person types the commands that messages name.

Messages name a command as `grpo …` in backticks, wherever in the tree they are written. Where a
message leaves for a terminal, `typeable` turns that into what works in this shell and this folder.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

from scripts.base.checkout import ROOT


def called() -> str:
    """The words that start this checkout's `grpo`: "grpo" where the PATH has it, else its path."""
    program = Path(sys.executable).with_name("grpo")
    on_path = shutil.which("grpo")
    if not program.exists() or (on_path is not None and program.samefile(on_path)):
        return "grpo"
    return shlex.quote(_from_here(program))


def typeable(text: str) -> str:
    """`text` with each `grpo …` and `make …` in backticks, and each `… && grpo …`, as it can be
    typed here. Variables may stand before make."""
    if "grpo " in text:
        text = re.sub("(`|&& )grpo ", lambda found: f"{found[1]}{called()} ", text)
    if "make " in text and _here() != ROOT:
        there = f"make -C {shlex.quote(str(ROOT))} "
        text = re.sub(r"(`(?:[A-Z_]+=\S+ )*)make (?!-C )", lambda found: found[1] + there, text)
    return text


def say(text: str) -> None:
    """Print `text` with its commands as they can be typed here."""
    print(typeable(text))


def tell(text: str) -> None:
    """The same on stderr; stdout holds results."""
    print(typeable(text), file=sys.stderr)


def _from_here(path: Path) -> str:
    """A path as short as this folder allows. Symbolic links stay as they are."""
    here = _here()
    return str(path.relative_to(here) if here and path.is_relative_to(here) else path)


def _here() -> Path | None:
    """The current folder; None where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None
