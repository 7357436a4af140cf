"""What engine and trainer preload."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys

import pytest

from rollout.engine import preload, vllm_server
from rollout.engine.preload import (
    VARIABLE,
    WAIT_POLICY,
    preloaded,
    tcmalloc,
    waiting_asleep,
)


def test_tcmalloc_goes_before_what_is_preloaded_already_and_is_there_once() -> None:
    first = preloaded({"A": "1", VARIABLE: "other.so"}, "tc.so")
    assert first == {"A": "1", VARIABLE: "tc.so other.so"}
    assert preloaded(first, "tc.so") == first


def test_a_system_without_it_preloads_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert tcmalloc() is None
    assert preloaded({VARIABLE: "other.so"}, tcmalloc()) == {VARIABLE: "other.so"}
    assert preloaded({}, None) == {}


def test_it_is_preloaded_on_a_cpu_and_only_if_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "tcmalloc", lambda: "tc.so")
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: True)
    assert vllm_server.preloads(True) == "tc.so"
    assert vllm_server.preloads(False) is None
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    assert vllm_server.preloads(True) is None


def test_threads_wait_asleep_unless_a_person_says_otherwise() -> None:
    assert waiting_asleep({"A": "1"}) == {"A": "1", WAIT_POLICY: "passive"}
    assert waiting_asleep({WAIT_POLICY: "active"}) == {WAIT_POLICY: "active"}


@pytest.mark.skipif(tcmalloc() is None, reason="`make system` installs tcmalloc")
def test_a_program_that_is_started_with_it_uses_it() -> None:
    words = [sys.executable, "-c", "print('tcmalloc' in open('/proc/self/maps').read())"]
    for library, used in ((tcmalloc(), "True"), (None, "False")):
        done = subprocess.run(words, env=preloaded({}, library), capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr) == (used, "")
