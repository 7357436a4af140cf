"""What a server must serve: a model, some adapters by name, and which of them is asked for.

Made from paths by checking them, so that a bad folder is found before any server is touched, and
compared with what a running server was started for. Nothing here talks to a server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.training.adapter import AdapterInfo, check_adapter
from rollout.engine import vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.vllm_server import BASE_NAME, LoraShape


@dataclass(frozen=True)
class Target:
    """adapters: name -> checked adapter; name: the one that is asked for, or "base"."""

    model_dir: Path
    settings: EngineSettings
    adapters: dict[str, AdapterInfo]
    name: str

    @property
    def paths(self) -> dict[str, Path]:
        """Name -> folder of every adapter."""
        return {name: info.path for name, info in self.adapters.items()}

    @property
    def shape(self) -> LoraShape | None:
        """What a server started for these adapters must be able to hold."""
        return LoraShape.of(list(self.adapters.values()))

    def fingerprint(self) -> str:
        """Identity of everything that is fixed when a server starts, adapters apart."""
        words = vllm_server.command(self.model_dir, self.settings, None, {}, port=0)
        return hashlib.sha256("\0".join(words).encode()).hexdigest()


def check_target(
    model_dir: Path,
    settings: EngineSettings,
    adapter: Path | None,
    version: str,
    keep: Mapping[str, Path],
) -> Target:
    """Check the model folder and every adapter. Raises `BadInput` naming file and tensor or key."""
    model_dir = model_dir.resolve()
    if not (model_dir / "config.json").is_file():
        raise BadInput(f"{model_dir}: no model there; `grpo model` builds the default one")
    paths = dict(keep)
    if adapter is not None:
        paths[version] = adapter
    if BASE_NAME in paths:
        raise BadInput(f"an adapter cannot be served as {BASE_NAME!r}: that is the model itself")
    if len(paths) > settings.max_adapters:
        raise BadInput(f"{len(paths)} adapters, but engine.max_adapters is {settings.max_adapters}")
    adapters = {name: check_adapter(path.resolve(), model_dir) for name, path in paths.items()}
    return Target(model_dir, settings, adapters, BASE_NAME if adapter is None else version)
