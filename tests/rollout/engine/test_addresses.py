"""The keys of a person's own servers: where they are read, and how a person sends one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from rollout.engine.addresses import addresses
from rollout.engine.engine_settings import EngineSettings


def keys(monkeypatch: pytest.MonkeyPatch, n: int, sources: Sequence[str]) -> list[str]:
    urls = [f"http://box-{i}" for i in range(n)]
    return [a.key for a in addresses(EngineSettings(urls=urls, keys_from=list(sources)))]


def test_keys_come_from_the_environment_and_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOX_KEY", "of-the-environment\r")  # `$(cat FILE)` keeps it
    file = tmp_path / "key"
    file.write_bytes(b"of-a-file\r\n")
    assert keys(monkeypatch, 2, ["BOX_KEY", str(file)]) == ["of-the-environment", "of-a-file"]
    assert keys(monkeypatch, 2, ["BOX_KEY"]) == ["of-the-environment"] * 2
    assert keys(monkeypatch, 2, ["BOX_KEY", ""]) == ["of-the-environment", ""]
    assert keys(monkeypatch, 2, []) == ["", ""]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("NO_SUCH_KEY", "the environment has no variable NO_SUCH_KEY"),
        ("/no/such/key", "engine.keys_from: /no/such/key: No such file"),
    ],
)
def test_a_key_that_is_nowhere_is_named(
    monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        keys(monkeypatch, 1, [source])


@pytest.mark.parametrize(
    "value", [b"# my key\nsecret", b"two secret", b"\xffsecret", "gehe\u00edm-secret".encode()]
)
def test_what_cannot_be_a_key_is_refused_without_a_word_of_it(
    value: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_bytes(value)
    monkeypatch.setenv("BOX_KEY", os.fsdecode(value))
    for source in ("BOX_KEY", str(file)):
        with pytest.raises(BadInput) as caught:
            keys(monkeypatch, 1, [source])
        assert f"what {source} holds is no key" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_the_command_that_asks_a_server_reads_the_key_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "a key").write_text("secret")
    settings = EngineSettings(urls=["http://box:1/"], keys_from=[str(tmp_path / "a key")])
    (address,) = addresses(settings)
    said = subprocess.run(
        ["sh", "-c", f'curl() {{ echo "$@"; }}; {address.curl.strip("`")}'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "-H Authorization: Bearer secret http://box:1/v1/models\n"
