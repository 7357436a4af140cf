"""scripts/setup/uv.sh with a uv that prints what it was told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.base.checkout import ROOT

MIRROR, OWN = "https://mirror.example/simple", "https://own.example/simple"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose uv prints its environment; its Python has pip."""
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    (binaries / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (binaries / "uv").write_text("#!/bin/sh\nenv\n")
    for program in binaries.iterdir():
        program.chmod(0o755)
    (tmp_path / "scripts/setup").mkdir(parents=True)
    shutil.copy(ROOT / "scripts/setup/uv.sh", tmp_path / "scripts/setup/uv.sh")
    return tmp_path


def told(checkout: Path, pip_conf: str = "", **env: str) -> dict[str, str]:
    """The variables that uv reads, where pip has these settings."""
    settings = checkout / "pip.conf"
    settings.write_text(pip_conf)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    # pip reads these files of the machine's besides, which may name folders of wheels.
    apart = {"PIP_CONFIG_FILE": str(settings), "HOME": str(checkout), "XDG_CONFIG_DIRS": "/nowhere"}
    done = subprocess.run(
        [checkout / "scripts/setup/uv.sh", "pip", "install"],
        env=kept | apart | env,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = (line.partition("=") for line in done.stdout.splitlines())
    return {key: value for key, _, value in lines if key.startswith("UV_")}


def test_an_index_that_pip_was_told_is_uvs_too(checkout: Path) -> None:
    conf = f"[global]\nindex-url = {MIRROR}\nextra-index-url = {OWN}\n"
    assert told(checkout, conf)["UV_DEFAULT_INDEX"] == MIRROR
    assert told(checkout, conf, PIP_INDEX_URL=OWN)["UV_DEFAULT_INDEX"] == OWN
    assert told(checkout, conf, UV_DEFAULT_INDEX=OWN)["UV_DEFAULT_INDEX"] == OWN
    assert "UV_DEFAULT_INDEX" not in told(checkout, PIP_CONFIG_FILE=os.devnull)


def test_folders_of_wheels_that_pip_was_told_are_uvs_too(checkout: Path) -> None:
    conf = "[install]\nfind-links =\n    /opt/wheels\n    /opt/more\n"
    assert told(checkout, conf)["UV_FIND_LINKS"] == "/opt/wheels,/opt/more"
    assert told(checkout, PIP_FIND_LINKS="/a  /b")["UV_FIND_LINKS"] == "/a,/b"
    assert told(checkout, conf, UV_FIND_LINKS="")["UV_FIND_LINKS"] == ""


def test_uv_trusts_what_the_system_trusts(checkout: Path) -> None:
    assert told(checkout)["UV_SYSTEM_CERTS"] == "1"
    assert told(checkout, UV_SYSTEM_CERTS="0")["UV_SYSTEM_CERTS"] == "0"
