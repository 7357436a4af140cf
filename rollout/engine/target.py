"""What a server must serve (a model, adapters by name, the one that a phase needs), and one that
serves it.

The folders of a target are checked when it is made, before any server is touched. `fingerprint` is
compared with the one that a running server was started with. Nothing here talks to a server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.training.adapter import AdapterInfo, check_adapter
from rollout.engine import vllm_server
from rollout.engine.client import ClientSettings
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.proof import Proof
from rollout.engine.replica import ENGINE
from rollout.engine.vllm_server import BASE_NAME, LoraShape


@dataclass(frozen=True)
class Target:
    """adapters: name -> checked adapter; name: the one that is needed, or "base"."""

    model_dir: Path
    settings: EngineSettings
    adapters: dict[str, AdapterInfo]
    name: str

    @property
    def paths(self) -> dict[str, Path]:
        """Name -> folder of every adapter."""
        return {name: info.path for name, info in self.adapters.items()}

    @property
    def adapter(self) -> AdapterInfo | None:
        """The one that is needed; None for the base model."""
        return self.adapters.get(self.name)

    @property
    def shape(self) -> LoraShape | None:
        """What a server must be started for to hold these adapters."""
        return LoraShape.of(list(self.adapters.values()))

    def fingerprint(self) -> str:
        """Identity of everything but the adapters that is fixed when a server starts."""
        words = vllm_server.words(self.model_dir, self.settings, None, {}, port=0)
        s = self.settings
        # What the words without adapters do not say, and what the environment does.
        words += map(str, (s.max_adapters, s.cpu_patches, s.tcmalloc, s.threads_bind))
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


@dataclass(frozen=True)
class Served:
    """A server that serves the target.

    model_name: the name to request ("base" for ours without an adapter). version: the target's name
    for it, under which the policy is recorded. pid: the API server's; None for a server that the
    run does not own. lifecycle and reason: how the next adapter will reach it (by name), and why.
    adapter: the checked one; None for the base. proof: of the adapter, if this call made it; None
    for the base and where it was proven before. seconds: duration of this call. name: the server in
    words. connections: requests that it gets at once. start_time: of the process, as in `Owned`; a
    later one may have its pid.
    """

    base_url: str
    api_key: str
    model_name: str
    version: str
    adapter: AdapterInfo | None
    pid: int | None
    lifecycle: str
    reason: str
    proof: Proof | None
    seconds: float = 0.0
    name: str = ENGINE
    connections: int = ClientSettings.connections
    start_time: int | None = None

    @property
    def adapter_sha(self) -> str | None:
        return None if self.adapter is None else self.adapter.sha
