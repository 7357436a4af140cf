"""The trainer that stays between steps (`trainer.persistent`), as the train phase asks it.

It is a session of its own that the run's ledger owns, like the engine beside which it stands and
with which it ends. It is begun before its first step, while a server loads or plays, so that it has
imported its libraries by then; a step that finds none starts one, and one that is gone or was
started from other code is replaced. Where it is killed in a step, the caller takes that step in a
child of its own. It is one process: the ranks that torchrun starts (trainer.launch) end with their
step.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.errors import BadInput, FieldkitError
from fieldkit.files.json_text import parse_json
from fieldkit.gate import memory
from fieldkit.gate.memory import GIB
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from fieldkit.process.owned import (
    KEPT_VARIABLE,
    LEDGER_VARIABLE,
    MARKER_VARIABLE,
    Owned,
    environment,
    is_running,
)
from rollout.engine.leftovers import BESIDE, OUTLIVES, end_with_leftovers, new_scratch
from rollout.engine.preload import FREE_LOOKS, SPINS, WAIT_POLICY, cores_are_free, sleeps_for_now
from rollout.engine.replica import ENGINE
from scripts.base.checkout import ROOT
from scripts.base.children import GRACE_SECONDS, read_lines
from scripts.base.events import detail
from scripts.run.lock import LOCK_FD_VARIABLE
from scripts.run.timings import LOOP_VARIABLE

if TYPE_CHECKING:
    from scripts.phases.context import Context
    from scripts.run.config import RunConfig

TRAINER = "trainer"
"""The name of its entry in the ledger."""

_WAITS, _FOUND_FREE, _ON_GPU, _BEGUN = "waits", "found_free", "on_gpu", "begun"
"""Notes on it: how its threads wait, at how many steps in turn the cores were free since, the
bytes of its tensors on GPUs after its last step, and whether it was asked for no step yet."""

_LIBRARIES_BYTES = GIB // 2
"""What its process holds before it has a model, rounded up (0.4 GiB)."""

_SOURCES = ("trainer", "fieldkit")
"""The packages that its process has imported."""

_STARTERS = (MARKER_VARIABLE, LEDGER_VARIABLE, KEPT_VARIABLE, LOCK_FD_VARIABLE, LOOP_VARIABLE)
"""Variables that say who started a phase."""


@dataclass(frozen=True)
class Answer:
    """The end of a step: the exit code that `python -m trainer` would have, and its error. on_gpu:
    bytes that the process goes on holding there."""

    code: int
    error: str
    on_gpu: int = 0


class KeptTrainer:
    """The kept trainer of one run. env: its whole environment but for the marks. overlaps: the
    engine plays while it works, so that a server which is replaced meanwhile leaves it its step."""

    def __init__(self, run_dir: Path, env: Mapping[str, str], *, overlaps: bool = False) -> None:
        self._run_dir = run_dir
        self._env = env
        self._overlaps = overlaps
        self._ledger = Ledger(run_dir / LEDGER_FILE)

    def begin(self) -> None:
        """Start it, unless one runs. It imports its libraries until it is asked, and outlives a
        server until then."""
        if running(self._ledger) is None:
            self.stop()
            self._start(**{OUTLIVES: True, _BEGUN: True})

    @property
    def is_begun(self) -> bool:
        """Whether there is one that was asked for no step yet, so that it has no model."""
        owned = running(self._ledger)
        return owned is not None and bool(owned.info.get(_BEGUN))

    def ask(
        self, request: str, on_line: Callable[[str], None], stop_asked: Callable[[], bool]
    ) -> Answer | None:
        """Have it take the step of `request` (`trainer.persistent.Request.line`).

        Returns None where it ended before it answered. on_line gets each line of its progress. When
        `stop_asked` turns true its process is ended.
        """
        with contextlib.suppress(ConnectionError), self._connected() as connection:
            self._note(**{OUTLIVES: self._overlaps, _BEGUN: False})
            connection.sendall(request.encode())
            for lines in read_lines(connection.fileno()):
                for line in lines:
                    if (answer := _answer(line)) is not None:
                        # In a container, and under WSL, the driver tells nobody.
                        self._note(**{_ON_GPU: answer.on_gpu})
                        return answer
                    on_line(line)
                if stop_asked():
                    break
        self.stop()
        return None

    def _note(self, **info: Any) -> None:
        """Keep this in the ledger's notes on it."""
        owned = self._ledger.get(TRAINER)
        if owned is not None and any(owned.info.get(k) != v for k, v in info.items()):
            self._ledger.record(replace(owned, info={**owned.info, **info}))

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self._usable() or self._start())
            yield connection

    def _usable(self) -> str | None:
        """The socket of one that runs and that today's code and environment would start. Without
        its socket, which something may have removed from the temporary folder, nobody can ask it
        anything."""
        owned = running(self._ledger)
        if owned is not None and owned.info.get("code") == self._code():
            path = str(owned.info["socket"])
            if Path(path).is_socket():
                return path
        self.stop()
        return None

    def _start(self, **info: Any) -> str:
        scratch = new_scratch()
        path = str(scratch / "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            # Listening before the process begins: a request waits for it, and its end is heard.
            listener.bind(path)
            listener.listen()
            fd = listener.fileno()
            self._ledger.launch(
                TRAINER,
                [sys.executable, "-P", "-m", "trainer.persistent", str(fd)],
                env=self._env,
                cwd=ROOT,
                log=self._run_dir / "log" / f"trainer-{time.strftime('%Y%m%d-%H%M%S')}.log",
                info={
                    BESIDE: ENGINE,
                    OUTLIVES: self._overlaps,
                    **info,
                    _WAITS: {n: self._env[n] for n in (WAIT_POLICY, SPINS) if n in self._env},
                    "scratch": str(scratch),
                    "socket": path,
                    "code": self._code(),
                },
                pass_fds=(fd,),
            )
        return path

    def _code(self) -> str:
        """Identity of the sources that a process started now would import, and of its environment,
        whoever starts it. An upgrade under a night changes the interpreter's file or the folder of
        packages: one that has imported half of the old ones fails at the next import."""
        files = sorted(f for name in _SOURCES for f in (ROOT / name).rglob("*.py"))
        files += [Path(sys.executable), Path(sysconfig.get_path("purelib"))]
        stats = [(str(f), (s := f.stat()).st_mtime_ns, s.st_size) for f in files]
        env = sorted((name, v) for name, v in self._env.items() if name not in _STARTERS)
        said = repr((sys.executable, env, stats))
        return hashlib.sha256(said.encode()).hexdigest()

    def stop(self) -> int:
        """End it, if there is one; returns the number of processes."""
        return stop_trainer(self._run_dir)

    @property
    def held(self) -> int:
        """Bytes that it holds now of the memory for tensors: the GPU's where that has its own, else
        the host's, which also has what a GPU counts. 0 without a trainer."""
        owned = running(self._ledger)
        if owned is None or owned.pid is None:
            return 0
        on_gpu = max(memory.gpu_held_by([owned.pid]), int(owned.info.get(_ON_GPU, 0)))
        return on_gpu if memory.gpu_total() is not None else memory.held_by(owned.pid) + on_gpu


def running(ledger: Ledger) -> Owned | None:
    """The entry of a run's kept trainer, where its process runs."""
    owned = ledger.get(TRAINER)
    return owned if owned is not None and is_running(owned) else None


def may_be_kept(config: RunConfig) -> bool:
    """Whether a run's trainer is one process on this machine, and wanted between steps."""
    elsewhere = config.trainer.launched or config.cluster.used
    return config.engine.keep_trainer and not elsewhere


def begin_trainer(ctx: Context) -> None:
    """Begin the trainer's process, best while the run's engine loads, which leaves cores idle. Not
    where none of its servers runs, or loads and needs the memory, nor with an overlap, where the
    step may be under way. A begin that fails is left to the step."""
    from rollout.engine.forecast import memory_needed
    from rollout.engine.serve import find_servers
    from rollout.engine.vllm_server import computing

    engine = ctx.config.engine
    if ctx.config.run.overlap or not may_be_kept(ctx.config):
        return
    if running(Ledger(ctx.folder.ledger)) is not None:
        return
    servers = find_servers(ctx.folder.path)
    if engine.replicas and not servers:
        return
    is_loading = any("lifecycle" not in owned.info for owned in servers)
    need = memory_needed(ctx.model_dir(), engine) * engine.replicas if is_loading else 0
    if memory.available().host < need + _LIBRARIES_BYTES:
        return
    # The engine has looked whether the cores are free; now they are in use by its own start.
    found = environment(servers[0].pid or 0) if servers else {}
    waits = {name: found[name] for name in (WAIT_POLICY, SPINS) if name in found}
    try:
        KeptTrainer(ctx.folder.path, computing({**ctx.environ, **waits}, engine)).begin()
    except (OSError, FieldkitError) as e:
        detail(ctx.tell, f"the trainer is not begun ahead of its step: {e}")


@contextlib.contextmanager
def begun_for(run_dir: Path) -> Iterator[None]:
    """Where the block fails and no server of the run is left, end a trainer that was asked for no
    step yet: it holds memory that the next try may lack."""
    try:
        yield
    except BaseException:
        from rollout.engine.serve import find_servers

        if KeptTrainer(run_dir, {}).is_begun and not find_servers(run_dir):
            stop_trainer(run_dir)
        raise


def as_it_waits(
    run_dir: Path, environment: Mapping[str, str], free: Callable[[], bool] = cores_are_free
) -> dict[str, str]:
    """`environment`, in which threads wait as those of the kept trainer do where there is one: a
    start costs what many steps gain.

    It says nothing of that where they sleep because the cores were in use, and the cores were free
    at each of the last `FREE_LOOKS` steps, nor where a person says how they wait. free: as
    `cores_are_free`.
    """
    ledger = Ledger(run_dir / LEDGER_FILE)
    owned = running(ledger)
    if owned is None or {WAIT_POLICY, SPINS} & environment.keys():
        return dict(environment)
    waits: dict[str, str] = owned.info.get(_WAITS, {})
    if sleeps_for_now(environment, waits):
        found = owned.info.get(_FOUND_FREE, 0) + 1 if free() else 0
        ledger.record(replace(owned, info={**owned.info, _FOUND_FREE: found}))
        if found >= FREE_LOOKS:
            return dict(environment)
    return {**environment, **waits}


def stop_trainer(run_dir: Path) -> int:
    """End a run's kept trainer and remove its socket; returns the number of processes ended.

    Raises `Unavailable` for a process that survives SIGKILL.
    """
    ledger = Ledger(run_dir / LEDGER_FILE)
    owned = ledger.get(TRAINER)
    return 0 if owned is None else end_with_leftovers(ledger, owned, GRACE_SECONDS)


def _answer(line: str) -> Answer | None:
    """The last line of an answer; None for every other one."""
    try:
        value: Any = parse_json(line, TRAINER)
    except BadInput:
        return None
    if not isinstance(value, dict) or value.get("event") != "end":
        return None
    return Answer(int(value["code"]), str(value["error"]), int(value.get("on_gpu", 0)))


def stands_beside(engine: Owned | None) -> bool:
    """Whether a trainer may stay beside this engine: one that keeps its memory while it trains."""
    from rollout.engine.lifecycle import LIFECYCLES

    name = engine and engine.info.get("lifecycle")
    return bool(name) and LIFECYCLES.named(name).keeps_memory
