"""The context of a phase: the run, its settings, the event listener and the stop requests.

Each process makes one. It finds files and reads tasks; the phases use them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fieldkit.errors import BadInput, FieldkitError, Interrupted
from fieldkit.files.journal import Journal
from fieldkit.gate.memory import GIB
from fieldkit.process.ledger import Ledger
from fieldkit.records import Task
from scripts.base.checkout import from_checkout
from scripts.base.events import Tell, alarm, note
from scripts.base.signals import Wish
from scripts.prepare.hub import download_beside, hub_copy, hub_model, is_whole, may_be_hub_id
from scripts.prepare.model import DEFAULT_MODEL, PACKAGED, require_cache
from scripts.run.config import (
    UNPROTECTED,
    DataSettings,
    EvalSettings,
    NightSettings,
    RunConfig,
)
from scripts.run.folder import RunFolder
from scripts.run.manifest import check_environments, check_sandbox, read_manifest
from scripts.run.run_pool import grown_files, pool_tasks
from scripts.run.state import as_told
from scripts.run.timings import LOOP_VARIABLE, Stopwatch

if TYPE_CHECKING:
    from rollout.engine.engine_settings import EngineSettings
    from rollout.settings import EpisodeSettings
    from trainer.settings import TrainerSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Done:
    """A phase's result: one line for the person, and the hashes of the files it wrote, by path."""

    text: str
    wrote: dict[str, str] = field(default_factory=dict)


@dataclass
class Context:
    """The context of one phase. `watch` counts from the start of the process; a phase that times
    its parts separately replaces it. `flags` and `numbers`: the phase's own flags and numbers that
    the command line gave. `runner`: the event loop of all its coroutines, because what an
    environment's module holds (a client, a semaphore) works in no other; None: one for each.
    `environ`: that of the process as it began, whatever an environment's module sets in it."""

    folder: RunFolder
    config: RunConfig
    tell: Tell
    wish: Wish
    watch: Stopwatch
    flags: frozenset[str] = frozenset()
    numbers: Mapping[str, int] = field(default_factory=dict)
    runner: asyncio.Runner | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def journal(self) -> Journal:
        return Journal(self.folder.journal)

    @property
    def scratch(self) -> Path:
        """Folder for the temporary files of environments."""
        return self.folder.path / "scratch"

    @property
    def start_adapter(self) -> Path:
        """The adapter that run.toml names."""
        return from_checkout(self.config.model.adapter)

    def model_dir(self) -> Path:
        """The model's folder. Raises `BadInput` if it does not exist, and as `_download`."""
        return run_model(self.folder, self.config.model.path, self._download)

    def _download(self, hub_id: str) -> Path:
        """Download a model, in sight. Raises `BadInput`, `Shortage` for a full disk, and
        `Interrupted` if the person asked to stop now."""
        ledger, log = Ledger(self.folder.ledger), self.folder.log / "download.log"
        return download_beside(hub_id, ledger, log, self.tell, lambda: self.wish.now)

    def engine(self) -> EngineSettings:
        """[engine], with the memory that the trainer may need at most where run.toml does not set
        it: an episode that fills the context is a micro-batch of its own."""
        engine = self.config.engine
        if engine.trainer_gib is not None:
            return engine
        need = self.trainer_bytes(longest_segment=engine.max_model_len)
        return replace(engine, trainer_gib=need / GIB)

    def trainer_bytes(self, longest_segment: int = 0) -> int:
        """The trainer's forecast memory: `trainer.footprint.step_bytes.forecast`."""
        from fieldkit.training.adapter import read_adapter
        from rollout.engine.vllm_server import preloads
        from trainer.footprint.step_bytes import forecast, item_bytes_of

        start, settings = self.start_adapter, self.trainer()
        adapter = read_adapter(start) if start.is_dir() else None
        return forecast(
            self.model_dir(),
            settings,
            item_bytes_of(settings),
            adapter,
            longest_segment=longest_segment,
            tcmalloc=preloads(self.config.engine.tcmalloc) is not None,
        )

    def trainer(self) -> TrainerSettings:
        """[trainer], with the server's dtype and the micro-batch's tokens where run.toml does not
        set them. A run that has a manifest keeps the tokens that it began with."""
        from rollout.engine.vllm_server import serving_dtype

        trainer = self.config.trainer
        if trainer.tokens_per_microbatch is None:
            began = (read_manifest(self.folder) or {}).get("config", {}).get("trainer", {})
            tokens = began.get("tokens_per_microbatch") or trainer.tokens_on(self.trainer_devices)
            trainer = replace(trainer, tokens_per_microbatch=tokens)
        if trainer.serving_dtype != "auto":
            return trainer
        return replace(trainer, serving_dtype=serving_dtype(self.config.engine, self.model_dir()))

    @property
    def trainer_devices(self) -> int:
        """CUDA devices that the trainer finds: on a cluster not this machine's, but what it asks
        for."""
        from trainer.settings import cuda_devices

        cluster = self.config.cluster
        return ceil(cluster.trainer_needs.get("GPU", 0)) if cluster.used else cuda_devices()

    @property
    def pool_file(self) -> Path:
        return from_checkout(self.config.data.pool)

    @property
    def heldout_file(self) -> Path:
        return from_checkout(self.config.data.heldout)

    @property
    def final_file(self) -> Path | None:
        """The final set; None where the run has none.

        The default one is made from the same generator as the pools beside it, so a run on a pool
        elsewhere goes on without it where the file is missing. Raises `BadInput` for any other
        missing file.
        """
        named, default = self.config.data, DataSettings()
        if not named.final:
            return None
        file = from_checkout(named.final)
        if file.is_file():
            return file
        is_default = named.final == default.final
        if is_default and from_checkout(named.pool).parent != file.parent:
            return None
        remedy = "`grpo synth` writes the default task sets" if is_default else "put it there"
        raise BadInput(
            f"{self.folder.config}: data.final is {file}: no such file; {remedy}, or "
            f"`grpo run {self.folder.typed}{self.config.flags} --set 'data.final=\"\"'` goes on "
            "without a final set"
        )

    def night(self) -> tuple[NightSettings, float | None]:
        """[run] with the limits that the loop of this phase was started with, and its deadline in
        Unix seconds. The limits of an earlier loop are none of a phase that was typed."""
        loop = os.environ.get(LOOP_VARIABLE)
        entries = self.journal.read() if loop else ()
        return as_told(self.config.run, entries, int(loop) if loop else None)

    def about_to_play(self) -> None:
        """Raise `BadInput` if the run was started with another kind of sandbox, or with other code
        of an environment; tell an alarm if there is no sandbox."""
        check_sandbox(self.folder, self.config)
        check_environments(self.folder, self.config)
        if self.config.sandbox.kind == "none":
            alarm(self.tell, UNPROTECTED)

    def pool(self) -> tuple[Task, ...]:
        """The tasks to train on, checked, and those that joined them in this run."""
        tasks, manifest = self._tasks(self.pool_file, "data.pool"), read_manifest(self.folder)
        if not grown_files(self.folder, manifest):
            return tasks
        return pool_tasks(self.folder, self.config, manifest)

    def heldout(self) -> tuple[Task, ...]:
        """The tasks to evaluate on, checked."""
        return self.evaluation.of(self._tasks(self.heldout_file, "data.heldout"))

    @property
    def evaluation(self) -> EvalSettings:
        """[eval], with the number of tasks that the run has settled."""
        return self.config.eval.settled(read_manifest(self.folder))

    @property
    def eval_limits(self) -> EpisodeSettings:
        """[rollout] as an evaluation plays it."""
        return self.config.rollout.at(self.config.eval.temperature)

    def arm_key(self, adapter_sha: str) -> str:
        """The folder below evals/ of this adapter's evaluation."""
        from rollout.arm import eval_key

        return eval_key(adapter_sha, self.heldout(), self.eval_limits, self.config.eval.samples)

    def require_task_files(self) -> None:
        """Raise `BadInput` where the pool's or the held-out set's file is not there."""
        self._there(self.pool_file, "data.pool")
        self._there(self.heldout_file, "data.heldout")

    def _tasks(self, file: Path, key: str) -> tuple[Task, ...]:
        from rollout.tasks import read_tasks

        return read_tasks(self._there(file, key))

    def _there(self, file: Path, key: str) -> Path:
        if not file.is_file():
            what = "a folder and no file" if file.is_dir() else "no such file"
            raise BadInput(
                f"{self.folder.config}: {key} is {file}: {what}; relative paths start at the"
                " checkout, and `grpo synth` writes the default task sets"
            )
        return file

    def say(self, text: str) -> None:
        """Tell one line; raise `Interrupted` if the person asked to stop."""
        note(self.tell, text)
        self.check_stop()

    def check_stop(self) -> None:
        """Raise `Interrupted` if the person asked to stop now."""
        if self.wish.now:
            raise Interrupted("stopped; the same command goes on from here")

    def waiting(self, call: Callable[[], T]) -> T:
        """Call a long function that can be stopped only through `say`."""
        try:
            return call()
        except FieldkitError:
            self.check_stop()  # a requested stop hides the error it caused
            raise

    def run_async(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, or until the person asks to stop now."""

        async def stoppable() -> T:
            task = asyncio.current_task()
            assert task is not None
            loop = asyncio.get_running_loop()

            def cancel() -> None:
                loop.call_soon_threadsafe(task.cancel)

            self.wish.on_now = cancel
            if self.wish.now:  # the request came during set-up
                cancel()
            try:
                return await main
            finally:
                self.wish.on_now = lambda: None

        try:
            return (self.runner.run if self.runner else asyncio.run)(stoppable())
        except asyncio.CancelledError:
            raise Interrupted("stopped; the same command goes on from here") from None


def find_model(path: str, from_hub: Callable[[str], Path] = hub_model) -> Path:
    """The folder of a model, given the name of a packaged one ("smol"), a folder, or a hub id.

    from_hub: finds or downloads a model by its hub id. Raises `BadInput` naming what it tried.
    """
    if path in PACKAGED:
        folder = PACKAGED[path].folder
        if not (folder / "config.json").is_file():
            require_cache()
            command = "grpo model" if path == DEFAULT_MODEL else f"grpo model {path}"
            raise BadInput(f"{folder}: the model {path} is not built yet; `{command}` builds it")
        return folder
    folder = from_checkout(path)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or not may_be_hub_id(path):
        what = "no model folder there (no config.json)" if folder.exists() else "no such folder"
        raise BadInput(
            f"model.path: {folder}: {what}; name a model's folder, a hub id such as "
            f'"Qwen/Qwen2.5-7B-Instruct", or one of {", ".join(PACKAGED)}'
        )
    return from_hub(path)


def run_model(
    folder: RunFolder | None, path: str, download: Callable[[str], Path] = hub_model
) -> Path:
    """`find_model` for a run, if there is one: of a hub's model the copy that the run began with,
    whatever is newer there since; else the one that is here, or `download`'s."""

    def from_hub(hub_id: str) -> Path:
        manifest = (read_manifest(folder) if folder else None) or {}
        if manifest.get("config", {}).get("model", {}).get("path") == hub_id:
            began = Path(manifest["model"]["dir"])
            if is_whole(began):
                return began
        return hub_copy(hub_id) or download(hub_id)

    return find_model(path, from_hub)
