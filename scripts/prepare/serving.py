"""`grpo serve`: a server on this machine for runs on other ones, which name it in engine.urls.

It is started, checked, proven and cleaned up as a run's own, from a folder under runs/ that owns
it. So the next `grpo serve` at the same port ends what a killed one left.
"""

from __future__ import annotations

import functools
import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path

from fieldkit.errors import BadInput, Unavailable
from fieldkit.process.owned import Owned, wait_ended
from fieldkit.training.adapter import check_adapter
from rollout.engine import vllm_server
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.guard import ended_afterwards
from rollout.engine.lifecycle import RESTART
from rollout.engine.port import EVERYWHERE, address
from rollout.engine.serve import ensure_engine, find_engine, stop_engine
from rollout.engine.server import Progress, Server
from rollout.engine.vllm_server import LoraShape
from scripts.base.checkout import ROOT, from_checkout
from scripts.base.signals import Wish, listening
from scripts.run.config import RunConfig
from scripts.run.lock import only_here

OFFERED = "offered"
"""The name under which the adapter is served that it is started for."""

SETTLED = (
    "port",
    "replicas",
    "urls",
    "keys_from",
    "shared",
    "shared_there",
    "lifecycle",
    "trainer_gib",
)
"""The keys of [engine] that the command settles: nothing is beside its one server."""

_LOOK_SECONDS = 0.5  # between two looks at a wish to end


@dataclass(frozen=True)
class Offer:
    """What is served, and to whom.

    model: as run.toml names it. shape: of the adapters. settings: with the port, and in keys_from
    where the key is. host: an IP address.
    """

    model: str
    model_dir: Path
    adapter: Path
    shape: LoraShape
    settings: EngineSettings
    host: str
    key: str = field(repr=False)

    @classmethod
    def of(
        cls, config: RunConfig, model_dir: Path, *, host: str, port: int, key: str, key_from: str
    ) -> Offer:
        """This model, with the adapter and the [engine] of these settings. Raises `BadInput`."""
        try:
            ip_address(host)
        except ValueError:
            raise BadInput(
                f"--host {host}: no IP address; `hostname -I` lists this machine's, 0.0.0.0 is all"
            ) from None
        settings = replace(
            config.engine,
            port=port,
            replicas=1,
            urls=[],
            keys_from=[key_from],  # is kept from vLLM's environment
            shared="",
            shared_there="",
            lifecycle=RESTART.name,
            trainer_gib=0.0,
        )
        adapter = from_checkout(config.model.adapter).resolve()
        shape = LoraShape.of([check_adapter(adapter, model_dir)])
        assert shape is not None, "every adapter has a rank"
        return cls(config.model.path, model_dir, adapter, shape, settings, host, key)

    @property
    def url(self) -> str:
        """Its address as another machine may know it."""
        name = socket.gethostname() if self.host in EVERYWHERE else self.host
        return address(name, self.settings.port)

    @property
    def _key_from_there(self) -> str:
        """A file in this user's home as the other machine's user has it: the shell has written it
        out."""
        (source,) = self.settings.keys_from
        file, home = Path(source), Path.home()
        return f"~/{file.relative_to(home)}" if file.is_relative_to(home) else source

    @property
    def folder(self) -> Path:
        """The folder that owns the server: of this machine, since several may share the disk."""
        return ROOT / "runs" / f"served-{socket.gethostname()}-{self.settings.port}"

    @property
    def told(self) -> str:
        """What it serves, in words."""
        return (
            f"{self.model} at {self.url}, for adapters of rank {self.shape.rank} or less"
            f" on {', '.join(self.shape.targets)}"
        )

    @property
    def lines(self) -> str:
        """What [engine] has to say in the run.toml of another machine."""
        dtype = vllm_server.serving_dtype(self.settings, self.model_dir)
        keys = {
            "replicas": 0,
            "urls": [self.url],
            "keys_from": [self._key_from_there],
            "dtype": dtype,
            "max_model_len": self.settings.max_model_len,
        }
        return "\n".join(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in keys.items())


def serve(offer: Offer, on_progress: Progress, on_ready: Callable[[], None]) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP. No server is left, however it ends.

    on_ready: called once the adapter is proven. Raises `BadInput` for an address that is none of
    this machine, `NotOwner` where another `grpo serve` has the port, `Shortage` for too little
    memory, and `Unavailable` where the server does not start, does not prove its adapter, or ends
    by itself.
    """
    folder, settings = offer.folder, offer.settings
    make = functools.partial(Server, host=offer.host, key=offer.key)
    folder.mkdir(parents=True, exist_ok=True)
    with only_here(folder / "lock", f"another `grpo serve` has port {settings.port}"):
        stop_engine(folder, settings, on_progress)
        with ended_afterwards(folder, settings, on_progress):
            ensure_engine(
                *(folder, offer.model_dir, settings, offer.adapter, OFFERED, on_progress), make=make
            )
            with listening(Wish()) as wish:
                server = find_engine(folder)  # first: its log is named even where it ends now
                on_ready()
                while not wish.finish:
                    if server is None or wait_ended(server, _LOOK_SECONDS):
                        raise Unavailable(f"the server has ended. {_last_words(server)}")
        shutil.rmtree(folder)  # what failed leaves its log


def _last_words(server: Owned | None) -> str:
    """Of the log of a server that has ended."""
    if server is None:
        return ""
    return f"{vllm_server.last_error(Path(server.log))}Its log: {server.log}"
