"""One real vLLM for all tests that need a server, serving a tiny random model.

The server is started by the code under test, with the settings of a run, the first time a test asks
for it. Whatever a test does to it (a swap, a SIGKILL), the next test brings it to the state that it
needs by the same call, so the order of tests does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from rollout.engine.engine_settings import EngineSettings
from rollout.engine.serve import Served, ensure_engine, stop_engine
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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With xdist (--dist loadgroup) keep all tests of the one server on one worker."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if item.get_closest_marker("engine"):
                item.add_marker(pytest.mark.xdist_group("engine"))


@dataclass(frozen=True)
class TinyModel:
    """A model folder and adapters for it, made when first asked for."""

    folder: Path
    scratch: Path

    def adapter(self, seed: int) -> Path:
        """A random adapter; the same seed gives the same folder."""
        path = self.scratch / f"adapter-{seed}"
        return path if path.exists() else make_adapter(path, self.folder, seed=seed)


@dataclass
class SharedEngine:
    """The session's server. `ensure` brings it to serve an adapter of the tiny model."""

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
        """`ensure_engine` on the session's run folder; `changes` alter the settings."""
        settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        say: Callable[[str], None] = self.said.append
        return ensure_engine(
            self.run_dir, self.model.folder, settings, adapter, version, say, keep=keep
        )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The tiny random model with the real tokenizer."""
    return TinyModel(
        make_tiny_model(tmp_path_factory.mktemp("tiny")), tmp_path_factory.mktemp("adapters")
    )


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model that was taught two replies, and an adapter for it; nights only read them."""
    return make_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def engine(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedEngine]:
    """The one real vLLM of this session. Mark tests that use it with `engine`."""
    shared = SharedEngine(tmp_path_factory.mktemp("engine"), tiny)
    yield shared
    stop_engine(shared.run_dir, shared.settings)
