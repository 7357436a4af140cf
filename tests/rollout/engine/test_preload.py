"""What engine and trainer preload."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys

import psutil
import pytest

from rollout.engine import preload, vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.preload import (
    SPINS,
    VARIABLE,
    WAIT_POLICY,
    cores_are_free,
    preloaded,
    sleeps_for_now,
    tcmalloc,
    waiting,
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


def test_the_cpu_build_computes_on_the_cpu_whatever_torch_could_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0", WAIT_POLICY: "passive"}
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: True)
    assert vllm_server.computing(environment, EngineSettings())["CUDA_VISIBLE_DEVICES"] == ""


def test_a_trainer_on_a_gpu_looks_at_no_core_and_gets_what_it_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: False)
    monkeypatch.setattr(psutil, "cpu_percent", lambda *a, **k: pytest.fail("it waited"))
    assert vllm_server.computing({"A": "1"}, EngineSettings()) == {"A": "1"}


def test_threads_spin_a_little_on_free_cores_and_sleep_at_once_on_others() -> None:
    asleep = {"A": "1", WAIT_POLICY: "passive"}
    assert waiting({"A": "1"}, lambda: False) == asleep
    assert waiting({"A": "1"}, lambda: True) == {**asleep, SPINS: "5000"}


@pytest.mark.parametrize("said", [{WAIT_POLICY: "active"}, {SPINS: "7"}])
def test_how_threads_wait_stays_as_a_person_says(said: dict[str, str]) -> None:
    assert waiting(said, lambda: pytest.fail("the cores were looked at")) == said


def test_threads_that_sleep_only_because_cores_were_in_use_are_told_from_others() -> None:
    assert sleeps_for_now({}, waiting({}, lambda: False))
    assert not sleeps_for_now({}, waiting({}, lambda: True))
    assert not sleeps_for_now({}, {})  # on a GPU nothing is said
    said = {WAIT_POLICY: "passive"}
    assert not sleeps_for_now(said, waiting(said, lambda: False))


def test_a_core_in_use_is_not_free_and_one_that_this_process_may_not_use_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = [2.0, 97.0, 10.0]
    monkeypatch.setattr(psutil, "cpu_percent", lambda seconds, percpu: used)
    for mine, free in (({0, 2}, True), ({0, 1}, False), ({0, 9}, True), ({9}, False)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, mine=mine: mine)
        assert cores_are_free() is free


def test_a_program_that_works_makes_its_core_unfree() -> None:
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        try:
            assert not cores_are_free()
        finally:
            busy.kill()


@pytest.mark.skipif(tcmalloc() is None, reason="`make system` installs tcmalloc")
def test_a_program_that_is_started_with_it_uses_it() -> None:
    words = [sys.executable, "-c", "print('tcmalloc' in open('/proc/self/maps').read())"]
    for library, used in ((tcmalloc(), "True"), (None, "False")):
        done = subprocess.run(words, env=preloaded({}, library), capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr) == (used, "")
