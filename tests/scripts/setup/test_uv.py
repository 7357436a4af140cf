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
    own = ("PIP_", "UV_", "SSL_", "HTTP_", "HTTPS_", "http_", "https_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(own)}
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
    return {key: value for key, _, value in lines if key.startswith(own)}


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


def test_a_proxy_that_pip_was_told_and_its_certificates_are_uvs_too(checkout: Path) -> None:
    proxy, bundle = "http://proxy.example:3128", "/etc/proxy.pem"
    conf = f"[global]\nproxy = {proxy}\ncert = {bundle}\n"
    uv = told(checkout, f"{conf}trusted-host =\n    a.example\n    b.example\n")
    assert (uv["HTTP_PROXY"], uv["HTTPS_PROXY"]) == (proxy, proxy)
    assert uv["SSL_CERT_FILE"] == bundle
    assert uv["UV_INSECURE_HOST"] == "a.example b.example"
    assert told(checkout, conf, HTTPS_PROXY="http://other")["HTTPS_PROXY"] == "http://other"
    assert "HTTPS_PROXY" not in told(checkout)


def test_where_pip_may_ask_no_index_uv_may_not_either(checkout: Path) -> None:
    assert told(checkout, "[install]\nno-index = true\n")["UV_NO_INDEX"] == "1"
    assert told(checkout, PIP_NO_INDEX="1")["UV_NO_INDEX"] == "1"
    assert "UV_NO_INDEX" not in told(checkout, "[install]\nno-index = false\n")
