"""`grpo serve`: a server on this machine for runs on other ones, which name it in engine.urls.

It is started, checked, proven and cleaned up as a run's own, from a folder in the user's cache that
owns it. So the next `grpo serve` at the same port ends what a killed one left.
"""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.user_cache import cache_dir
from fieldkit.process.owned import wait_ended
from fieldkit.training.adapter import check_adapter
from rollout.engine import vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.guard import ended_afterwards
from rollout.engine.lifecycle import RESTART
from rollout.engine.port import EVERYWHERE, address
from rollout.engine.replica import entries_of
from rollout.engine.serve import ensure_engine, find_engine, stop_engine
from rollout.engine.server import Progress, Server
from rollout.engine.vllm_server import LoraShape
from scripts.base.checkout import from_checkout
from scripts.base.signals import Wish, listening
from scripts.run.config import RunConfig
from scripts.run.lock import run_lock

_LOOK_SECONDS = 0.5  # between two looks at a wish to end


@dataclass(frozen=True)
class Offer:
    """What is served, and to whom. shape: of the adapters. key_from: where the key is, as run.toml
    names it."""

    model_dir: Path
    adapter: Path
    shape: LoraShape
    settings: EngineSettings
    host: str
    port: int
    key: str
    key_from: str

    @classmethod
    def of(
        cls, config: RunConfig, model_dir: Path, *, host: str, port: int, key: str, key_from: str
    ) -> Offer:
        """This model, with the adapter and the [engine] of these settings. Raises `BadInput`."""
        if config.engine.replicas > 1:
            raise BadInput(
                f"engine.replicas: one command serves one server, not {config.engine.replicas};"
                " give each its own --port"
            )
        settings = replace(
            config.engine,
            replicas=1,
            urls=[],
            keys_from=[],
            shared="",
            shared_there="",
            port=port,
            lifecycle=RESTART.name,  # nothing is beside it
            trainer_gib=0.0,
        )
        adapter = from_checkout(config.model.adapter)
        shape = LoraShape.of([check_adapter(adapter, model_dir)])
        assert shape is not None, "every adapter has a rank"
        return cls(model_dir, adapter, shape, settings, host, port, key, key_from)

    @property
    def url(self) -> str:
        """Its address as another machine may know it."""
        name = socket.gethostname() if self.host in EVERYWHERE else self.host
        return address(name, self.port)

    @property
    def folder(self) -> Path:
        """The folder that owns the server: of this machine, since the cache may be on a disk that
        several share."""
        return cache_dir() / "served" / f"{socket.gethostname()}-{self.port}"

    @property
    def told(self) -> str:
        """What it serves, in words."""
        return (
            f"{self.model_dir.name} at {self.url}, for adapters of rank {self.shape.rank} or less"
            f" on {', '.join(self.shape.targets)}"
        )

    @property
    def keys(self) -> str:
        """Lines of [engine] in the run.toml of another machine."""
        dtype = vllm_server.serving_dtype(self.settings, self.model_dir)
        keys = {
            "replicas": 0,
            "urls": [self.url],
            "keys_from": [self.key_from],
            "dtype": dtype,
            "max_model_len": self.settings.max_model_len,
        }
        return "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())


def serve(offer: Offer, on_progress: Progress, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. No server is left, however it ends.

    on_ready: called once the adapter is proven. Raises `BadInput` for an address that is none of
    this machine, `NotOwner` where another `grpo serve` has the port,
    `Shortage` for too little memory, and `Unavailable` where the server does not start, does not
    prove its adapter, or ends by itself.
    """
    folder, settings, name = offer.folder, offer.settings, offer.adapter.name
    make = functools.partial(Server, host=offer.host, key=offer.key)
    folder.mkdir(parents=True, exist_ok=True)
    with run_lock(folder / "lock"):
        stop_engine(folder, settings, on_progress)
        with ended_afterwards(folder, settings, on_progress):
            ensure_engine(
                *(folder, offer.model_dir, settings, offer.adapter, name, on_progress), make=make
            )
            with listening(Wish()) as wish:
                on_ready()
                server = find_engine(folder)
                while not wish.finish:
                    if server is None or wait_ended(server, _LOOK_SECONDS):
                        raise Unavailable(f"the server has ended. {_last_words(folder)}")


def _last_words(folder: Path) -> str:
    """Of the log of the server that has ended."""
    (entry,) = entries_of(folder)
    return f"{vllm_server.last_error(Path(entry.log))}Its log: {entry.log}"
