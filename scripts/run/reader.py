"""The small files of a run that decide and that are shown, each read at most once by a reader.

Whatever needs a run's manifest, step summaries, timings or evaluations asks here, so that one look
at a run opens each file once and sees one state of it. What the loop needs of all steps is in
`Sums`, which are kept in sums.json, so that a step costs the same late in a run as early.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from fieldkit.codec import bundle_groups, decode, encode
from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, sha256_file, write_text
from fieldkit.records import Draw, StepSummary
from reward.group_signal import draw_of, is_paid
from reward.pool_history import draws_of
from reward.solve_rate import DrawSums
from rollout.arm import BASE_ADAPTER, SUMMARY, key_of
from rollout.yardsticks import YARDSTICKS
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest
from scripts.run.plan import RECENT
from scripts.run.timings import StepTimings, read_timings


def read_step(path: Path, n: int) -> StepSummary:
    """step.json of step `n`. Raises `BadInput` where it is torn, or another step's."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as e:
        raise BadInput(f"{path}:1: not UTF-8 ({e})") from None
    summary = decode(StepSummary, text, f"{path}:1")
    if summary.step != n:
        raise BadInput(f"{path}: not the summary of step {n}")
    return summary


_FIGURES = {"adapter_sha": str, "key": str, "n_passed": int, "n_trajectories": int}


def _evaluation(path: Path) -> dict[str, Any]:
    """An eval.json as far as decisions read it; `rollout.arm.read_eval` reads it whole. Raises
    `BadInput` naming file and key."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise BadInput(f"{path}:1: not an eval summary; remove the folder and evaluate again")
    for key, kind in _FIGURES.items():
        if not isinstance(value.get(key), kind):
            raise BadInput(
                f"{path}:1: {key} is not {kind.__name__}; remove the folder and evaluate again"
            )
    return value


@dataclass(frozen=True)
class Sums:
    """What decisions need of the steps 0 to `steps` − 1, so that nobody reads them all each time.

    summary_sha: of the last one's step.json, which ties stored sums to the run. earlier: the
    seconds of rollout and training of all steps but step 0 and the `recent` ones. start: those of
    step 0. evaluations: the seconds of evaluations. evaluated: the newest step after which its own
    adapter was evaluated; None without one.
    """

    steps: int = 0
    summary_sha: str = ""
    earlier: float = 0.0
    recent: tuple[float, ...] = ()
    start: float = 0.0
    evaluations: float = 0.0
    evaluated: int | None = None
    draws: DrawSums = field(default_factory=DrawSums)

    def plus(self, summary: StepSummary, timings: StepTimings, draws: Iterable[Draw]) -> Sums:
        """With one more step. The order of the additions is that of the steps, always."""
        n, wall = summary.step, timings.training_wall
        recent = (*self.recent, wall) if n else ()
        return Sums(
            steps=n + 1,
            earlier=self.earlier + sum(recent[:-RECENT]),
            recent=recent[-RECENT:],
            start=self.start if n else wall,
            evaluations=self.evaluations + timings.eval_wall,
            evaluated=self.evaluated if timings.eval_of(summary.adapter_sha) is None else n,
            draws=self.draws.plus(n, draws) if n else self.draws,
        )


class Adapters(Sequence[str]):
    """The adapter's hash of every finished step, step-000 first; read when it is asked for.

    A step without signal carries its adapter on, so steps with one adapter are neighbours.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    def __len__(self) -> int:
        return self._reader.n_steps

    @overload
    def __getitem__(self, n: int) -> str: ...
    @overload
    def __getitem__(self, n: slice) -> tuple[str, ...]: ...
    def __getitem__(self, n: int | slice) -> str | tuple[str, ...]:
        if isinstance(n, slice):
            return tuple(self[i] for i in range(*n.indices(len(self))))
        return self._reader.step(range(len(self))[n]).adapter_sha

    def __contains__(self, sha: object) -> bool:
        return self._last(sha) is not None

    def index(self, sha: str, start: int = 0, stop: int | None = None) -> int:
        """The first step with that adapter."""
        n = self._last(sha)
        if n is None:
            raise ValueError(f"{sha} is the adapter of no step")
        while n > 0 and self[n - 1] == sha:
            n -= 1
        return n

    def _last(self, sha: object) -> int | None:
        """The last step with that adapter: mostly the newest, so it is looked for from there."""
        if sha in (BASE_ADAPTER, *YARDSTICKS):
            return None
        return next((n for n in reversed(range(len(self))) if self[n] == sha), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


class _Evaluations(Mapping[str, dict[str, Any]]):
    """Finished evaluations by adapter hash. One is looked up by its folder's name; the others are
    read when all are asked for."""

    def __init__(self, evals: Path, wanted: Mapping[str, str]) -> None:
        self._evals, self._wanted = evals, wanted
        self._known: dict[str, dict[str, Any] | None] = {}

    def __getitem__(self, sha: str) -> dict[str, Any]:
        if sha not in self._known:
            key = key_of(sha, self._wanted["tasks_sha"], self._wanted["settings_sha"])
            self._known[sha] = self._read(self._evals / key / SUMMARY)
        found = self._known[sha]
        if found is None:
            raise KeyError(sha)
        return found

    def _read(self, path: Path) -> dict[str, Any] | None:
        value = _evaluation(path) if path.is_file() else {}
        fits = value and all(value.get(key) == sha for key, sha in self._wanted.items())
        return value if fits else None

    @cached_property
    def _all(self) -> dict[str, dict[str, Any]]:
        files = sorted(self._evals.glob(f"*/{SUMMARY}"))
        found = [value for path in files if (value := self._read(path)) is not None]
        return {str(value["adapter_sha"]): value for value in found}

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


@dataclass(frozen=True)
class UnderWay:
    """A step that is played and not finished: its draws, and the mean reward of its episodes."""

    step: int
    draws: tuple[Draw, ...]
    mean_reward: float | None


class RunReader:
    """One look at a run. What a property finds stays as it is for as long as the reader lives."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._steps: dict[int, StepSummary] = {}
        self._timings: dict[int, StepTimings] = {}

    @cached_property
    def manifest(self) -> dict[str, Any] | None:
        """As `read_manifest`."""
        return read_manifest(self.folder)

    @cached_property
    def n_steps(self) -> int:
        """As `RunFolder.finished_steps`."""
        return self.folder.finished_steps()

    def step(self, n: int) -> StepSummary:
        """step.json of a finished step. Raises as `read_step`."""
        if n not in self._steps:
            self._steps[n] = read_step(self.folder.summary(n), n)
        return self._steps[n]

    @property
    def steps(self) -> tuple[StepSummary, ...]:
        """step.json of every finished step, step-000 first. Raises as `read_step`."""
        return tuple(map(self.step, range(self.n_steps)))

    @property
    def adapters(self) -> Adapters:
        """The adapters' hashes, without reading every step."""
        return Adapters(self)

    def timing(self, n: int) -> StepTimings:
        """timings.json of a finished step; an empty one where it has none."""
        if n not in self._timings:
            self._timings[n] = read_timings(self.folder.timings(n), n)
        return self._timings[n]

    @property
    def timings(self) -> tuple[StepTimings, ...]:
        """timings.json of every finished step."""
        return tuple(map(self.timing, range(self.n_steps)))

    @cached_property
    def evaluations(self) -> Mapping[str, dict[str, Any]]:
        """eval.json of every finished arm of this run by adapter hash (or its stand-in for one).

        An arm that was played on other tasks or under other limits, before run.toml was changed,
        does not count; of a run that was not started none does.
        """
        if self.manifest is None:
            return {}
        return _Evaluations(self.folder.evals, self.manifest["evaluation"])

    @cached_property
    def sums(self) -> Sums:
        """The sums of every finished step. Only the steps after those of sums.json are read."""
        settled = self._settled
        return settled if settled.steps == self.n_steps else self._plus(settled, self.n_steps - 1)

    @cached_property
    def under_way(self) -> UnderWay | None:
        """What the bundle of the step after the finished ones holds; None where none is there.

        All of it is in that step's step.json later, so what is decided from it does not depend on
        whether the step is trained yet.
        """
        n = self.n_steps
        if not self.folder.has_bundle(n):
            return None
        draws, rewards = [], []
        for group in bundle_groups(self.folder.bundle(n)):
            draws.append(draw_of(group))
            rewards += [t.reward for t in group.trajectories if is_paid(t)]
        return UnderWay(n, tuple(draws), statistics.fmean(rewards or (0.0,)) if draws else None)

    def draws_before(self, step: int) -> DrawSums:
        """What the steps before `step` drew. Of them all but one are finished at least, and that
        one has its bundle: with an overlap the next step is drawn before it is trained."""
        ahead = self.under_way if step > self.n_steps else None
        found = self.sums.draws
        return found if ahead is None else found.plus(ahead.step, ahead.draws)

    def store_sums(self) -> None:
        """Write sums.json: of all finished steps but the newest, whose evaluation may follow."""
        settled = self._settled
        if settled != self._stored:
            sha = sha256_file(self.folder.summary(settled.steps - 1))
            write_text(self.folder.sums, encode(replace(settled, summary_sha=sha)) + "\n")

    @cached_property
    def _settled(self) -> Sums:
        sums = self._stored
        for n in range(sums.steps, self.n_steps - 1):
            sums = self._plus(sums, n)
        return sums

    def _plus(self, sums: Sums, n: int) -> Sums:
        step = self.step(n)
        return sums.plus(step, self.timing(n), draws_of(step, self.folder.bundle))

    @cached_property
    def _stored(self) -> Sums:
        """The sums in sums.json; empty ones where they are not of this run's steps."""
        file = self.folder.sums
        try:
            found = decode(Sums, file.read_text(encoding="utf-8"), str(file))
        except (BadInput, FileNotFoundError, UnicodeDecodeError):
            return Sums()  # they are made again from the steps
        if not 0 < found.steps < self.n_steps:
            return Sums()
        is_ours = sha256_file(self.folder.summary(found.steps - 1)) == found.summary_sha
        return found if is_ours else Sums()
