"""Shared fixtures (one real vLLM, the models), and the scheduling of tests over workers.

The code under test starts the server, with the settings of a run, when a test first asks for it.
Whatever a test does to the server (a swap, a SIGKILL), the next test restores the state that it
needs by the same call, so the order of tests does not matter. With xdist (`make test`), all tests
of one file, all tests of the real server, and all that import TRL, run on one worker; the first
worker that asks makes a session fixture; and a test marked `alone` runs while the other workers
wait. What takes long begins first, so that no worker has it left when the others are done.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from fieldkit.files.atomic import read_json, write_json
from fieldkit.process.owned import Owned, marked, terminate
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.serve import ensure_engine, stop_engine
from rollout.engine.target import Served
from tests.tiny_model import make_adapter, make_tiny_model
from tests.tiny_policy import make_tiny_policy

ENGINE_SETTINGS = EngineSettings(
    dtype="float32",
    kv_cache_gib=0.25,
    max_num_seqs=32,
    lifecycle="hotswap",
    start_seconds=900,  # 40 s on two idle cores; a machine that runs tests may be busy
    # Other tests run beside the server on the same machine.
    memory_margin_gib=1.5,
)


# Torch threads that wait in a busy loop take the cores from other programs: on two busy cores a
# training of 4 processor seconds took 30.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# As for a person who has put the checkout's programs on the PATH; messages then say `grpo …`.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def pytest_configure() -> None:
    """A test has a limit of time; an example of a property has none: the machine may be busy. And
    Ctrl-C is heard where a shell began the tests in the background, with SIGINT ignored."""
    from hypothesis import settings

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.register_profile("tests", deadline=None)
    settings.load_profile("tests")


# --- scheduling -----------------------------------------------------------------------------------

_GROUPS = "groups.json"
_ORDER = ("engine", "timeout", "trl", "", "alone")
"""Marks, by when their tests begin: of those with a limit of time of their own, which take longest,
the files; "" stands for all others."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests into `_ORDER`; write each test's group.

    xdist's own groups (`--dist loadgroup`) add a suffix to a test's id, which this version of
    pytest rejects; so a worker writes the groups to a file that the controller reads.
    """
    shared = _shared_folder(config)
    if shared is None:
        return
    items.sort(key=lambda item: _ORDER.index(_place(item)))
    write_json(shared / _GROUPS, {item.nodeid: _group(item) for item in items})


def _group(item: pytest.Item) -> str:
    """The tests of one group run on one worker: a file's tests, or all with one of the marks."""
    marked = (name for name in ("alone", "engine", "trl") if item.get_closest_marker(name))
    return next(marked, item.nodeid.partition("::")[0])


def _place(item: pytest.Item) -> str:
    group = _group(item)
    if group in _ORDER:
        return group
    return "timeout" if item.get_closest_marker("timeout") else ""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute the groups one by one, in the order of the tests."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        @cached_property
        def groups(self) -> dict[str, str]:
            groups: dict[str, str] = read_json(_basetemp(config) / _GROUPS)
            return groups

        def _split_scope(self, nodeid: str) -> str:
            return self.groups[nodeid]

    config.option.loadscopereorder = False
    return ByGroup(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With several workers, make the others wait while a test marked `alone` runs."""
    shared = _shared_folder(item.config)
    if shared is None:
        return (yield)
    with contextlib.ExitStack() as held:
        alone = item.get_closest_marker("alone") is not None
        with _locked(shared / "turn.lock"):  # a test that waits to be alone is not overtaken
            held.enter_context(_locked(shared / "tests.lock", shared=not alone))
        return (yield)


def _shared_folder(config: pytest.Config) -> Path | None:
    """The folder that the session's workers share; None if there is only this process."""
    return _basetemp(config).parent if hasattr(config, "workerinput") else None


def _basetemp(config: pytest.Config) -> Path:
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()


@contextmanager
def _locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    with open(path, "a", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once(name, make)`: the folder that `make` filled, shared by all workers of the session.

    Tests read or copy it and never write into it.
    """
    root = _shared_folder(request.config) or tmp_path_factory.getbasetemp()

    def get(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = root / "once" / name, root / "once" / f"{name}.done"
        folder.parent.mkdir(exist_ok=True)
        with _locked(root / "once" / f"{name}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # left by a worker whose `make` failed
                make(folder)
                done.touch()
        return folder

    return get


# --- the models and the server --------------------------------------------------------------------


@dataclass(frozen=True)
class TinyModel:
    """A model folder and adapters for it, made on first use."""

    folder: Path
    scratch: Path

    def adapter(self, seed: int) -> Path:
        """A random adapter; the same seed gives the same folder."""
        path = self.scratch / f"adapter-{seed}"
        return path if path.exists() else make_adapter(path, self.folder, seed=seed)


@dataclass
class SharedEngine:
    """The session's server. `ensure` makes it serve an adapter of the tiny model."""

    run_dir: Path
    model: TinyModel
    settings: EngineSettings = ENGINE_SETTINGS
    said: list[str] = field(default_factory=list)

    def ensure(
        self,
        adapter: Path | None,
        version: str = "",
        keep: Mapping[str, Path] | None = None,
        **changes: object,
    ) -> Served:
        """Call `ensure_engine` on the session's run folder; `changes` override settings."""
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        say: Callable[[str], None] = self.said.append
        (served,) = ensure_engine(
            self.run_dir, self.model.folder, settings, adapter, version, say, keep=keep
        )
        return served


@pytest.fixture(scope="session", autouse=True)
def _left_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """At the end, end what tests that failed have left running: the next night would be refused the
    memory."""
    yield
    here = tmp_path_factory.getbasetemp()
    for run in {process.ledger.parent for process in marked()}:
        if run.is_relative_to(here):
            stop_engine(run)
    for process in marked():
        if process.ledger.is_relative_to(here):
            terminate(Owned("what a test has left", process.marker), grace_seconds=10)


@pytest.fixture(scope="session")
def tiny(once: Once, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The tiny random model with the real tokenizer; tests only read it."""
    return TinyModel(once("tiny", make_tiny_model), tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="session")
def policy(once: Once) -> tuple[Path, Path]:
    """The model trained on two replies, and an adapter for it; nights only read them."""
    folder = once("policy", make_tiny_policy)
    return folder / "model", folder / "adapter"


@pytest.fixture(scope="session")
def engine(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEngine]:
    """The one real vLLM of this session, which finds no C++ compiler, as on many a machine. Mark
    tests that use it with `engine`."""
    shared = SharedEngine(tmp_path_factory.mktemp("engine"), tiny)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", "no-compiler-here")
        yield shared
    stop_engine(shared.run_dir, shared.settings)
