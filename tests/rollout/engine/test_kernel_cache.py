"""Compiled kernels outlive their server, whole, and never stop another one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from fieldkit.files.atomic import TMP_MARK
from rollout.engine import kernel_cache
from rollout.engine.kernel_cache import fill, forget, keep, kept_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    return kept_folder()


def compiled(folder: Path, **libraries: bytes) -> Path:
    """A server's folder with these libraries and a lock, laid out as inductor lays them out."""
    for name, data in libraries.items():
        file = folder / name[:2] / f"{name}.so"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (folder / "locks").mkdir(exist_ok=True)
    (folder / "locks" / "a.lock").touch()
    return folder


def test_the_next_server_finds_what_the_one_before_compiled(tmp_path: Path) -> None:
    fill(tmp_path / "one")
    keep(compiled(tmp_path / "one", abc=b"whole"))
    fill(tmp_path / "two")
    assert (tmp_path / "two" / "ab" / "abc.so").read_bytes() == b"whole"
    assert not (tmp_path / "two" / "locks").exists()


def test_a_server_that_is_killed_while_it_compiles_leaves_nothing_torn(tmp_path: Path) -> None:
    compiled(tmp_path / "killed", abc=b"to")  # it proves no adapter, so nothing of it is kept
    fill(tmp_path / "next")
    assert list((tmp_path / "next").iterdir()) == []


def test_a_keeper_that_is_killed_leaves_nothing_that_a_server_loads(
    tmp_path: Path, cache: Path
) -> None:
    keep(compiled(tmp_path / "one", abc=b"whole"))
    (cache / "ab" / f"other.so{TMP_MARK}123").write_bytes(b"to")
    fill(tmp_path / "next")
    assert [f.name for f in (tmp_path / "next" / "ab").iterdir()] == ["abc.so"]


def test_servers_that_start_at_once_keep_both_their_kernels(tmp_path: Path, cache: Path) -> None:
    libraries = {f"k{i:02d}": bytes([i]) * 1000 for i in range(40)}
    folders = [compiled(tmp_path / str(n), **libraries, **{f"own{n}": b"x"}) for n in range(4)]
    program = "import sys, pathlib; from rollout.engine.kernel_cache import keep\n"
    program += "keep(pathlib.Path(sys.argv[1]))"
    keepers = [subprocess.Popen([sys.executable, "-c", program, folder]) for folder in folders]
    assert [keeper.wait() for keeper in keepers] == [0] * 4
    fill(tmp_path / "next")
    found = {f.stem: f.read_bytes() for f in (tmp_path / "next").rglob("*.so")}
    assert found == {**libraries, **{f"own{n}": b"x" for n in range(4)}}
    assert not [f for f in cache.rglob("*") if TMP_MARK in f.name]


def test_after_a_failed_start_everything_is_compiled_anew(tmp_path: Path) -> None:
    keep(compiled(tmp_path / "one", abc=b"bad"))
    forget()
    forget()  # nothing is there any more
    fill(tmp_path / "next")
    assert list((tmp_path / "next").iterdir()) == []


def test_another_processor_and_another_torch_have_kernels_of_their_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_cache, "cpu_features", lambda: frozenset({"avx2"}))
    other = kept_folder()
    assert other != cache
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.9")
    assert kept_folder() not in (cache, other)
