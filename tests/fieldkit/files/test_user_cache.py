from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.files.user_cache import cache_dir


def test_the_cache_is_where_the_user_or_the_desktop_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_CACHE", "/big/disk")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/big/disk")
    monkeypatch.delenv("GRPO_CACHE")
    assert cache_dir() == Path("/xdg/grpo-loop")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "grpo-loop"


def test_an_empty_setting_of_the_desktop_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_dir() == Path.home() / ".cache" / "grpo-loop"
