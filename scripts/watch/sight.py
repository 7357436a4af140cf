"""The present state of a run, read only from its files and /proc.

Watching must not disturb the run: no request to the loop, no lock, no write. A file is read again
only if it has changed. Unreadable parts are named, and the rest is shown.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fieldkit.codec import decode_trajectory, last_group
from fieldkit.errors import FieldkitError, Interrupted
from fieldkit.files.atomic import read_lines
from fieldkit.files.journal import Entry, Journal
from fieldkit.files.sharded import stored
from fieldkit.records import StepSummary, Trajectory
from rollout.arm import PARTIAL, SUMMARY, EvalSummary, read_eval
from scripts.evidence.played import arm_names, finished, reading_order
from scripts.run.config import NightSettings, RunConfig, read_config
from scripts.run.folder import RunFolder
from scripts.run.lock import LOOP, holder
from scripts.run.manifest import other_host, read_manifest, typed_to_play
from scripts.run.next_phase import Phase, RunFiles
from scripts.run.plan import planned_steps
from scripts.run.programs import Memory, Program, Programs, read_memory
from scripts.run.reader import read_step
from scripts.run.state import as_told, outlook, read_measured
from scripts.run.timings import read_timings
from scripts.watch.activity import Activity, State, activity, lives

T = TypeVar("T")
Otherwise = TypeVar("Otherwise")

_Night = tuple[NightSettings, float | None]
"""The limits of a night, and the Unix time of `--until`."""

_TAIL_BYTES = 4096  # enough for a log's last lines
_TIMED = re.compile(r"\d\d:\d\d:\d\d ")


@dataclass(frozen=True)
class Progress:
    """The progress of a phase: `done` of `total` `unit`. In seconds, `total` is the last time's."""

    done: float
    total: float
    unit: str


@dataclass(frozen=True)
class Episode:
    """The last finished episode. of: its step, or the arm that played it."""

    trajectory: Trajectory
    of: str


@dataclass(frozen=True)
class Sight:
    """One look at a run.

    typed: RUN as a person types it. to_play: RUN in a command that plays episodes.
    steps: every finished step, step-000 first. planned: steps in all. left: seconds to the end
    of the night. said: the loop's last line. host: the run's host; empty if it is this one.
    """

    name: str
    typed: str
    to_play: str
    at: float
    activity: Activity
    progress: Progress | None
    steps: tuple[StepSummary, ...]
    planned: int | None
    left: float | None
    evals: tuple[EvalSummary, ...]
    said: str
    programs: tuple[Program, ...]
    memory: Memory
    episode: Episode | None
    host: str
    troubles: tuple[str, ...]

    @property
    def played(self) -> tuple[StepSummary, ...]:
        """The steps that have rollouts: all except step-000."""
        return tuple(s for s in self.steps if s.n_trajectories)

    @property
    def step(self) -> int:
        """The step in progress, or else the newest."""
        doing = self.activity
        trained = doing.phase == Phase.TRAIN and doing.state in (State.BETWEEN, State.IDLE)
        in_step = doing.phase in (Phase.ROLLOUT, Phase.TRAIN) and not trained
        return max(0, len(self.steps) - (0 if in_step and not self.is_over else 1))

    @property
    def is_over(self) -> bool:
        return self.activity.state in (State.DONE, State.CONVERGED, State.RECORD)


class _Files:
    """Reads a file again only if it has changed."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def of(self, path: Path, read: Callable[[Path], T], otherwise: Otherwise) -> T | Otherwise:
        """Return `read(path)`, cached; `otherwise` if there is no file."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return otherwise
        now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._known.get(path, (None, None))[0] != now:
            self._known[path] = (now, read(path))
        value: T = self._known[path][1]
        return value


@dataclass(frozen=True)
class _Partial:
    """The finished trajectories of an unfinished phase: their number, and the last."""

    n: int = 0
    last: Trajectory | None = None


class Watcher:
    """Looks at one run repeatedly."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._read = _Files().of
        self._programs = Programs(folder)
        self._troubles: list[str] = []
        self._config = RunConfig()
        """The last readable run.toml: a person may be editing it."""
        self._plan: tuple[Any, tuple[int | None, float | None, float]] | None = None

    def look(self) -> Sight:
        """Read the present state. Unreadable parts are named in the sight's `troubles`."""
        self._troubles = []
        now = time.time()
        config = self._config = self._try(self._read_config, self._config)
        entries = self._try(self._journal, ())
        steps = self._try(self._steps, ())
        evals = self._try(self._evals, ())
        host = other_host(self._try(self._manifest, None))
        loop = holder(self.folder.lock)
        doing = activity(entries, loop, lambda e: bool(host) or lives(e, loop))
        if doing.state is State.FRESH and steps:
            doing = Activity(State.RECORD)
        # The limits of the loop that holds the lock, else those of run.toml.
        night = as_told(config.run, entries if loop is not None else (), loop)
        planned, left = self._try(lambda: self._left(night, steps, evals, doing, now), (None, None))
        eval_partial = self._try(self._eval_partial, None)
        return Sight(
            name=self.folder.name,
            typed=self.folder.typed,
            to_play=typed_to_play(self.folder.typed, self._try(self._manifest, None)),
            at=now,
            activity=doing,
            progress=self._try(lambda: self._progress(config, doing, steps, eval_partial), None),
            steps=steps,
            planned=planned,
            left=left,
            evals=evals,
            said=self._try(self._said, ""),
            programs=self._running(host, loop, doing),
            memory=read_memory(),
            episode=self._try(lambda: self._episode(doing, steps, eval_partial), None),
            host=host,
            troubles=tuple(dict.fromkeys(self._troubles)),
        )

    def _try(self, call: Callable[[], T], otherwise: Otherwise) -> T | Otherwise:
        try:
            return call()
        except Interrupted:
            raise
        except FileNotFoundError:
            return otherwise  # it is being replaced; the next look finds it
        except (FieldkitError, OSError) as e:
            self._troubles.append(str(e))
            return otherwise

    def _read_config(self) -> RunConfig:
        return self._read(self.folder.config, read_config, RunConfig())

    def _journal(self) -> tuple[Entry, ...]:
        return self._read(self.folder.journal, lambda path: Journal(path).read(), ())

    def _steps(self) -> tuple[StepSummary, ...]:
        found = [
            self._read(self.folder.summary(n), partial(read_step, n=n), None)
            for n in range(self.folder.finished_steps())
        ]
        return tuple(s for s in found if s is not None)

    def _evals(self) -> tuple[EvalSummary, ...]:
        files = [folder / SUMMARY for folder in finished(self.folder.evals)]
        found = [self._read(f, lambda path: read_eval(path.parent), None) for f in files]
        return tuple(sorted((e for e in found if e), key=lambda e: reading_order(e.arm)))

    def _manifest(self) -> dict[str, Any] | None:
        return self._read(self.folder.manifest, lambda path: read_manifest(self.folder), None)

    def _running(self, host: str, loop: int | None, doing: Activity) -> tuple[Program, ...]:
        """The run's programs on this host. A phase started by hand holds the lock itself."""
        name = doing.phase if loop is not None and loop == doing.pid else LOOP
        return () if host else self._programs.look(loop, name)

    def _left(
        self,
        night: _Night,
        steps: Sequence[StepSummary],
        evals: Sequence[EvalSummary],
        doing: Activity,
        now: float,
    ) -> tuple[int | None, float | None]:
        """Steps in all (None where no step says yet how many fit), and seconds left."""
        if not steps:
            return None, None
        is_working = doing.state is State.WORKING
        began = self._step_began(len(steps), doing) if is_working else None
        key = (night, len(steps), len(evals), began)
        if self._plan is None or self._plan[0] != key:
            self._plan = key, self._planned(night, steps, evals, now if began is None else began)
        planned, left, underway_seconds = self._plan[1]
        if left is None or began is None:
            return planned, left
        return planned, max(0.0, left - min(max(0.0, now - began), underway_seconds))

    def _planned(
        self,
        night: _Night,
        steps: Sequence[StepSummary],
        evals: Sequence[EvalSummary],
        began: float,
    ) -> tuple[int | None, float | None, float]:
        """Steps in all, seconds left when the present step `began` (Unix seconds), and its expected
        seconds."""
        files = RunFiles(
            started=True,
            adapters=tuple(s.adapter_sha for s in steps),
            bundle_ready=False,
            evaluated=frozenset(e.adapter_sha for e in evals),
            converged=False,
        )
        measured = read_measured(self.folder, files)
        run, deadline = night
        deadline_in = None if deadline is None else deadline - began
        planned = planned_steps(
            run.steps, run.minutes, measured, eval_every=run.eval_every, deadline_in=deadline_in
        )
        found = outlook(replace(self._config, run=run), files, planned, measured, deadline_in)
        if found.forecast is None:
            return found.steps, found.left, found.left or 0.0
        is_last = files.newest >= planned
        step = found.forecast if is_last else measured.next_step_seconds
        return found.steps, found.left, step

    def _step_began(self, n: int, doing: Activity) -> float:
        """When the present step began; during training, the start of its rollout, and in an
        evaluation the end of the arm before."""
        if doing.phase == Phase.EVAL:
            played = [read_timings(self.folder.timings(k), k).segments for k in (0, n - 1)]
            return max([doing.since, *(s.ended for segments in played for s in segments)])
        if doing.phase != Phase.TRAIN:
            return doing.since
        segments = read_timings(self.folder.timings(n), n).segments
        began = min([doing.since, *(s.began for s in segments)])
        if not self._config.run.overlap:
            return began
        before = read_timings(self.folder.timings(n - 1), n - 1).segments  # it played beside them
        return max([began, *(s.ended for s in before)])

    def _eval_partial(self) -> Path | None:
        """The partial file of the unfinished evaluation: the newest without a summary."""
        places = (self.folder.evals, self.folder.training_evals)
        files = [file for place in places for file in place.glob(f"*/{PARTIAL}")]
        unfinished = [f for f in files if not (f.parent / SUMMARY).is_file()]
        return max(unfinished, key=lambda f: f.stat().st_mtime, default=None)

    def _progress(
        self,
        config: RunConfig,
        doing: Activity,
        steps: Sequence[StepSummary],
        eval_partial: Path | None,
    ) -> Progress | None:
        if doing.state is not State.WORKING:
            return None
        n = len(steps)
        if doing.phase == Phase.ROLLOUT:
            total = config.rollout.tasks_per_step * config.rollout.group_size
            n += bool(config.run.overlap and self.folder.has_bundle(n))
            there = self.folder.has_bundle(n)
            done = total if there else self._partial(self.folder.partial(n)).n
            if done > total:  # groups are replaced, and more may be
                total = -(-done // config.rollout.group_size) * config.rollout.group_size
            return Progress(done, total, "episodes")
        if doing.phase == Phase.EVAL and eval_partial is not None:
            total = self._heldout(config)
            if self.folder.training_evals in eval_partial.parents:
                few = config.eval.tasks_at_training_temperature * config.eval.samples
                total = min(total, few)
            return Progress(self._partial(eval_partial).n, total, "episodes")
        if doing.phase == Phase.TRAIN and (expected := self._training_seconds(n - 1)):
            # The clock may have been set back since the phase began.
            return Progress(max(0.0, time.time() - doing.since), expected, "s")
        return None

    def _partial(self, path: Path) -> _Partial:
        return self._read(path, _read_partial, _Partial())

    def _heldout(self, config: RunConfig) -> int:
        """Number of episodes of an evaluation."""
        manifest = self._manifest()
        n = int(manifest["data"]["heldout"]["n"]) if manifest else 0
        return config.eval.samples * len(range(n)[: config.eval.settled(manifest).most])

    def _training_seconds(self, n: int) -> float:
        """Seconds that training step `n` took; 0 if not measured."""
        segments = read_timings(self.folder.timings(n), n).segments
        return sum(s.wall for s in segments if s.phase == Phase.TRAIN)

    def _said(self) -> str:
        logs = sorted(self.folder.log.glob("loop-*.log"))
        return self._read(logs[-1], _last_said, "") if logs else ""

    def _episode(
        self, doing: Activity, steps: Sequence[StepSummary], eval_partial: Path | None
    ) -> Episode | None:
        """The last finished episode of the present phase, else of the newest bundle. An evaluation
        that was given up leaves its partial file for the rest of the night."""
        n = len(steps)
        played = eval_partial if doing.phase == Phase.EVAL else None
        if played is not None and (last := self._partial(played).last):
            return Episode(last, f"{_player(last.adapter_sha, steps)}, held-out set")
        for k in (n + 1, n):  # the later one is played while step n is trained
            if last := self._partial(self.folder.partial(k)).last:
                return Episode(last, f"step {k}")
        for k in (n + 1, n, n - 1):
            bundle = self.folder.bundle(k)
            read = partial(_last_of, bundle)
            if last := self._read(stored(bundle) or bundle, read, None):
                return Episode(last, f"step {k}")
        return None


def _player(adapter_sha: str, steps: Sequence[StepSummary]) -> str:
    """The adapter's name in tables."""
    return arm_names(steps).get(adapter_sha, adapter_sha[:12])


def _read_partial(path: Path) -> _Partial:
    lines = list(read_lines(path))
    if not lines:
        return _Partial()
    number, text = lines[-1]
    return _Partial(len(lines), decode_trajectory(text, f"{path}:{number}"))


def _last_of(bundle: Path, _: Path) -> Trajectory | None:
    """The last trajectory of a bundle."""
    group = last_group(bundle)
    return None if group is None else group.trajectories[-1]


def _last_said(path: Path) -> str:
    """The last line of a loop's log that begins with a time, which rows of a table do not."""
    with open(path, "rb") as f:
        f.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = f.read().decode(errors="replace").splitlines()
    return next((line for line in reversed(lines) if _TIMED.match(line)), "")
