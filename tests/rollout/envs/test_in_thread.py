"""Which line of a user's code an error names."""

from __future__ import annotations

import inspect
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import Unavailable
from rollout.envs import in_thread
from rollout.envs.in_thread import asked
from rollout.envs.user_code import load


async def failed(call: Any, **arguments: Any) -> str:
    """What is said of a call that raises."""
    with pytest.raises(Unavailable) as raised:
        await asked(call, arguments, 5.0, "envs.a: pays")
    return str(raised.value)


async def test_wrong_arguments_are_placed_at_the_function_and_not_at_its_caller() -> None:
    def pays() -> None: ...

    line = inspect.getsourcelines(pays)[1]
    assert (await failed(pays, seed=1)).endswith(f"'seed' ({__file__}:{line})")


async def test_a_call_that_a_library_refuses_is_placed_in_the_user_s_code(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import json\n\ndef pays():\n    return json.loads('')\n")
    pays = load(f"{file}:pays", tmp_path, "envs.a")
    assert (await failed(pays)).endswith(f"({file}:4)")


async def test_an_installed_environment_is_placed_in_its_own_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_thread, "LIBRARIES", (*in_thread.LIBRARIES, str(tmp_path)))
    (tmp_path / "client.py").write_text("def ask():\n    raise OSError('no network')\n")
    home = tmp_path / "theirs"
    home.mkdir()
    (home / "env.py").write_text("import client\n\ndef pays():\n    return client.ask()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pays = load(f"{home}/env.py:pays", tmp_path, "envs.a")
    assert (await failed(pays)).endswith(f"OSError: no network ({home}/env.py:4)")


async def test_what_is_in_no_file_has_no_line_of_a_library() -> None:
    assert (await failed(sys.intern, text="x")).endswith("(?)")
    assert sysconfig.get_path("stdlib") not in await failed(int, x=1)
