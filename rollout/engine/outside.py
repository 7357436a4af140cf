"""A vLLM server that the run does not own: in a container or on another host, found by its address.

It is given adapters through vLLM's own API and asked to sample; it is never started, restarted or
ended. vLLM reads an adapter from a path and takes none over HTTP (`LoadLoRAAdapterRequest` has a
name and a path), so the adapter has to lie in a folder that both sides see. Its name there holds
the adapter's hash and who loaded it: a server that outlives runs never confuses two adapters, and
nothing is unloaded that another run loaded. Whatever is wrong with the server is `Unavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.atomic import whole_dir, write_text
from fieldkit.gate.patience import Patience
from fieldkit.records import Sampling
from fieldkit.training.adapter import AdapterInfo, adapter_sha, copy_adapter
from rollout.engine.addresses import Address, addresses
from rollout.engine.admin import Admin, Refused
from rollout.engine.client import OUTSIDE_REMEDY, ClientSettings, EngineClient, NoAnswer
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.lifecycle import HOTSWAP
from rollout.engine.proof import Proof, prove
from rollout.engine.server import Progress, silent
from rollout.engine.target import Served, Target

_LOOK_SECONDS = 10.0  # for one list of models
_POLL_SECONDS = 1.0  # between two; a server on another host sends no event when it is back
_PROGRESS_SECONDS = 15.0  # between two lines while it does not answer
_ALONE_SECONDS = ClientSettings().patience_seconds
_BESIDE_OTHERS_SECONDS = 10.0
"""How long an address that does not answer is tried, before others play without it."""

_UNVERIFIED = "CERTIFICATE_VERIFY_FAILED"  # in OpenSSL's error
_UNKNOWN_AUTHORITY = (
    "; where an authority of your own has signed its certificate, the environment variable "
    "SSL_CERT_FILE names that authority's"
)

OWNER_FILE = "engine.owner"
"""In the run folder: a random number, by which this run knows what it gave to a server."""

_SHA_SHOWN, _OWNER_SHOWN = 12, 8

# Sampled at this temperature, the logprobs of the distribution that was sampled from are far from
# those at temperature 1, whatever the model.
_COLD = Sampling(temperature=0.1, max_tokens=16, top_p=1.0, top_k=0, min_p=0.0)
_COLD_PROMPT = tuple(range(1, 17))
_SAME_LOGPROB = 0.05  # rounding in bf16, a token


def outside_servers(
    run_dir: Path,
    settings: EngineSettings,
    target: Target,
    there: Sequence[Address],
    on_progress: Progress,
) -> list[OutsideServer]:
    """Those at these addresses."""
    alone = settings.replicas == 0 and len(settings.urls) == 1
    patience = (
        ClientSettings(_ALONE_SECONDS)
        if alone
        else ClientSettings(_BESIDE_OTHERS_SECONDS, least_failures=1)
    )
    return [
        OutsideServer(address, run_dir, settings, target, on_progress, patience)
        for address in there
    ]


def await_one(servers: Sequence[OutsideServer], on_progress: Progress) -> None:
    """Wait until one of them answers, as long as for one that is alone. Raises `NoAnswer` with the
    reason of each."""

    def say(text: str) -> None:
        on_progress(f"engine: {text}, and no server is left")

    _await_cards([server.address for server in servers], _ALONE_SECONDS, say)


def look_at(settings: EngineSettings) -> list[str]:
    """Ask each server in engine.urls what it serves; a line for each. Changes nothing.

    Raises `BadInput` for a key that is nowhere or a path that is not absolute, and `Unavailable`
    with all that is wrong: servers that do not answer or have too short a context, and a shared
    folder that is not there.
    """
    lines, wrong = [], []
    for address in addresses(settings):
        try:
            cards = _await_cards([address], 0.0, silent)
            lines.append(f"{address.url} serves {_base_name(address.url, cards, settings)}")
        except Unavailable as e:
            wrong.append(str(e))
    if settings.urls and settings.shared:
        _require_absolute(settings)
        try:
            next(_shared(settings).iterdir(), None)
        except OSError as e:
            wrong.append(
                f"engine.shared: {_shared(settings)}: {e.strerror}; it is a folder that this"
                " machine and the servers see"
            )
    if wrong:
        raise Unavailable("; ".join(wrong))
    return lines


def take_back(run_dir: Path, settings: EngineSettings, on_progress: Progress) -> None:
    """Have the servers in engine.urls unload what this run has given them, and remove its copies.
    A server that cannot be asked keeps its adapters, with a line: the next phase asks again."""
    if not settings.urls or not (run_dir / OWNER_FILE).exists():
        return
    owner = _owner(run_dir)
    try:
        there = addresses(settings)
    except BadInput as e:
        on_progress(f"engine: the servers in engine.urls keep the run's adapters: {e}")
        return
    for address in there:
        try:
            for card in _await_cards([address], 0.0, silent):
                if _is_of(str(card["id"]), owner):
                    on_progress(f"engine {address.url}: unloading adapter {card['id']}")
                    with Admin(address.url, address.key, _LOOK_SECONDS) as admin:
                        admin.unload(str(card["id"]))
        except Unavailable as e:
            on_progress(f"engine {address.url}: it keeps the run's adapters: {e}")
    _remove_copies(settings, owner, keep=())


def _is_of(name: str, owner: str) -> bool:
    """Whether the run of this owner gave that name."""
    return name.endswith(f"-{owner}")


def _remove_copies(settings: EngineSettings, owner: str, keep: Collection[str]) -> None:
    if not settings.shared:
        return
    with contextlib.suppress(OSError):  # the next adapter needs the folder, and says so
        # Also what a kill left half written: nobody else writes under this owner's name.
        for copy in _shared(settings).glob(f"*-{owner}*"):
            if copy.name not in keep:
                shutil.rmtree(copy, ignore_errors=True)


def _shared(settings: EngineSettings) -> Path:
    """engine.shared on this machine."""
    return Path(settings.shared).expanduser()


def _require_absolute(settings: EngineSettings) -> None:
    """Raise `BadInput` for a path that another machine, or a server in another folder, would read
    as another one."""
    for key, path in (("shared", _shared(settings)), ("shared_there", settings.shared_there)):
        if str(path) and not Path(path).is_absolute():
            raise BadInput(f"engine.{key}: {path} is no absolute path, as in '/mnt/adapters'")


class OutsideServer:
    """One address. Use it as `rollout.engine.serve.AnyServer`.

    patience: how long it is tried where it does not answer.
    """

    def __init__(
        self,
        address: Address,
        run_dir: Path,
        settings: EngineSettings,
        target: Target,
        on_progress: Progress,
        patience: ClientSettings,
    ) -> None:
        self.address = address
        self.url = address.url
        self._key = address.key
        self._settings = settings
        self._target = target
        self._on_progress = on_progress
        self._patience = patience
        self._owner = _owner(run_dir)
        self._base = ""

    def say(self, text: str) -> None:
        self._on_progress(f"engine {self.url}: {text}")

    # -- making it serve the target --------------------------------------------------------------

    def begin(self) -> None:
        """Put the adapters where the server can read them."""
        if not self._settings.shared:
            return
        shared = _shared(self._settings)
        try:
            shared.stat()  # it may be on another machine, which is gone; then it is not made here
            for name, info in self._adapters().items():
                _publish(info, shared / name)
        except OSError as e:
            raise Unavailable(
                f"engine.shared: {shared}: {e.strerror}; {self.url} gets its adapters from there, "
                "and plays again once it can be used"
            ) from e

    def finish(self) -> None:
        """Wait until the server answers; have it load what is missing of the target."""
        cards = _await_cards([self.address], self._patience.patience_seconds, self.say)
        self._base = _base_name(self.url, cards, self._settings)
        listed, wanted = {str(card["id"]) for card in cards}, self._adapters()
        with Admin(self.url, self._key) as admin:
            missing = [name for name in wanted if name not in listed]
            if missing and not admin.can_swap():
                raise Unavailable(
                    f"{self.url}: it does not load adapters while it runs: start it with "
                    "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True (docs/engines.md)"
                )
            for name in missing:
                self.say(f"loading adapter {name}")
                self._load(admin, name, wanted[name])
            for name in listed - set(wanted):
                if _is_of(name, self._owner):
                    admin.unload(name)
        _remove_copies(self._settings, self._owner, keep=wanted)

    def _adapters(self) -> dict[str, AdapterInfo]:
        """The target's adapters by their names there."""
        return {self._name(n, a): a for n, a in self._target.adapters.items()}

    def _name(self, version: str, info: AdapterInfo) -> str:
        return f"{version}-{info.sha[:_SHA_SHOWN]}-{self._owner}"

    # -- the way of an adapter -------------------------------------------------------------------

    def _load(self, admin: Admin, name: str, info: AdapterInfo) -> None:
        path = info.path
        if self._settings.shared:
            path = Path(self._settings.shared_there or _shared(self._settings)) / name
        try:
            admin.load(name, path)
        except Unavailable as e:
            raise Unavailable(
                f"{e}. The server has to see {path}: engine.shared names a folder that both see, "
                f"and its --max-lora-rank has to be {info.rank} or more"
            ) from e

    # -- what it serves --------------------------------------------------------------------------

    def prove(self) -> Served:
        """Prove every adapter of the target and how the server reports logprobs: somebody may have
        restarted it since the last phase."""
        self._check_logprobs()
        proofs: dict[str, Proof] = {}
        for version, adapter in self._target.adapters.items():
            client = self._client(self._name(version, adapter))
            proofs[version] = prove(client, adapter.path, adapter.sha)
            told = proofs[version].verdict.told
            self.say(f"{version} {told}: {proofs[version].detail}")
        needed, info = self._target.name, self._target.adapter
        return Served(
            base_url=self.url,
            api_key=self._key,
            model_name=self._base if info is None else self._name(needed, info),
            version=needed,
            adapter=info,
            pid=None,
            lifecycle=HOTSWAP.name,
            reason="not a server of this run: it is given adapters, and goes on",
            proof=proofs.get(needed),
            name=f"engine {self.url}",
        )

    def _client(self, name: str) -> EngineClient:
        return EngineClient(
            self.url, self._key, name, remedy=OUTSIDE_REMEDY, settings=self._patience
        )

    def _check_logprobs(self) -> None:
        """Raise `Unavailable` where its logprobs are not those of the distribution that it samples
        from, which the policy gradient is about."""

        async def ask() -> tuple[Sequence[float], Sequence[float]]:
            async with self._client(self._base) as client:
                sampled = await client.sample(_COLD_PROMPT, _COLD, seed=0)
                warm = await client.logprobs((*_COLD_PROMPT, *sampled.ids))
                return sampled.logprobs, warm[-len(sampled.ids) :]

        try:
            cold, warm = asyncio.run(ask())
        except BadInput as e:
            raise Unavailable(f"{e}; is it vLLM, of the version of this checkout?") from e
        if max(abs(c - w) for c, w in zip(cold, warm, strict=True)) < _SAME_LOGPROB:
            raise Unavailable(
                f"{self.url}: it reports logprobs before temperature: start it with "
                "--logprobs-mode processed_logprobs --generation-config vllm (docs/engines.md)"
            )


def _owner(run_dir: Path) -> str:
    """What the names that this run gives end in.

    A container has another hostname after each start, and two machines may have one, so a run has a
    number of its own. The path tells it from a copy of its folder.
    """
    file = run_dir / OWNER_FILE
    if not file.exists():
        write_text(file, f"{secrets.token_hex(16)}\n")
    whose = f"{file.read_text(encoding='utf-8').strip()}:{run_dir.resolve()}"
    return hashlib.sha256(whose.encode()).hexdigest()[:_OWNER_SHOWN]


def _publish(info: AdapterInfo, copy: Path) -> None:
    """Have `copy` be the adapter, whole and of its hash."""
    with contextlib.suppress(BadInput):  # one of its files is not there
        if copy.is_dir() and adapter_sha(copy) == info.sha:
            return
    with whole_dir(copy) as folder:
        copy_adapter(info.path, folder)
        if (found := adapter_sha(folder)) != info.sha:
            raise Unavailable(
                f"{copy}: its copy of {info.path} has hash {found[:_SHA_SHOWN]}, not "
                f"{info.sha[:_SHA_SHOWN]}: the file system of engine.shared loses data"
            )


def _await_cards(there: Sequence[Address], seconds: float, say: Progress) -> list[dict[str, Any]]:
    """What the first of these that answers tells of each name that it serves. Raises `NoAnswer`
    with the reason of each, `Unavailable` for an answer that waiting does not change, and what
    `say` raises, which it calls now and then."""
    patience, said = Patience(seconds, len(there) * _LOOK_SECONDS + _POLL_SECONDS), 0.0
    while True:
        try:
            return _cards_now(there)
        except NoAnswer:
            if patience.over():
                raise
        if patience.spent - said >= _PROGRESS_SECONDS:
            said = patience.spent
            say(f"waiting for an answer, {said:.0f} s")
        time.sleep(_POLL_SECONDS)


def _cards_now(there: Sequence[Address]) -> list[dict[str, Any]]:
    """As `_await_cards`, without waiting."""
    reasons = []
    for address in there:
        try:
            with Admin(address.url, address.key, _LOOK_SECONDS) as admin:
                cards = admin.cards()
        except Refused as e:
            raise Refused(
                f"{e}; engine.keys_from says where its key is: {address.source or 'nowhere'};"
                f" {address.curl} asks it"
            ) from e
        except Unavailable as e:
            unknown = _UNKNOWN_AUTHORITY if _UNVERIFIED in str(e) else ""
            reasons.append(f"{e}; {address.curl} asks it{unknown}")
            continue
        if not all(isinstance(card, dict) and "id" in card for card in cards):
            raise Unavailable(
                f"{address.url}/v1/models: {cards!s:.80} is no list of models, so it is no vLLM;"
                " engine.urls has its address"
            )
        return cards
    raise NoAnswer("; ".join(reasons))


def _base_name(url: str, cards: Sequence[dict[str, Any]], settings: EngineSettings) -> str:
    """The name of its model without an adapter. Raises `Unavailable` for too short a context."""
    base = next((card for card in cards if not card.get("parent")), None)
    if base is None:
        raise Unavailable(f"{url}/v1/models: it lists no base model, so it is no vLLM")
    context, wanted = base.get("max_model_len"), settings.max_model_len
    if isinstance(context, int) and context < wanted:
        raise Unavailable(
            f"{url}: its context is {context} tokens and engine.max_model_len is {wanted}: start it"
            f" with --max-model-len {wanted}"
        )
    return str(base["id"])
