"""Runs a night through repeated kills, and checks what must hold.

The loop, its phases and the trainer are real, on the two-layer model; the engine is the scripted
one (site/vllm) or the real vLLM. A `Saboteur` decides when to kill which victim. `survive` starts
the same command again until the night is done, and checks after every loop that every file is
readable. Other functions check that no step was lost or done twice and no process is left.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from fieldkit.codec import read_bundle, read_trajectories
from fieldkit.files.journal import Journal
from fieldkit.process.ledger import Ledger
from fieldkit.training.adapter import adapter_sha
from rollout.engine.replica import Replica, is_engine
from rollout.engine.serve import stop_engine
from scripts.doctor.ownership import Family, families
from scripts.run.folder import RunFolder
from scripts.run.state import PAUSE
from trainer.checkpoint import state_sha

SITE = Path(__file__).parent / "site"
"""First on PYTHONPATH, this folder replaces vLLM by the scripted engine."""

GRPO_RUN = (sys.executable, "-P", "-m", "scripts.cli", "run")
POLL_SECONDS = 0.01  # a boundary must be seen before the next line is written
PATIENCE_SECONDS = 300.0
"""Most seconds without a new journal line before the test fails."""


class Victim(StrEnum):
    """The target of a kill."""

    LOOP = "loop"
    PHASE = "phase"
    TRAINER = "trainer"
    API_SERVER = "API server"
    ENGINE_CORE = "EngineCore"
    ALL = "everything at once"
    ONE_SERVER = "one of two servers"
    ONE_RANK = "one of two ranks"


SCRIPTED = (Victim.LOOP, Victim.PHASE, Victim.TRAINER, Victim.API_SERVER, Victim.ALL)
"""The victims on the scripted engine, whose child does nothing."""
ON_VLLM = (*SCRIPTED, Victim.ENGINE_CORE)
SEVERAL = (*SCRIPTED, Victim.ONE_SERVER, Victim.ONE_RANK)
"""In a night with two servers of the scripted engine and two trainer processes."""

TITLES = {Victim.ENGINE_CORE: "VLLM::EngineCore"}
"""Titles of vLLM's processes, which have none, and are not found, until they are up."""


@dataclass
class Toll:
    """What a night suffered: kills by victim and by moment, starts, and seconds in all."""

    victims: Counter[str] = field(default_factory=Counter)
    moments: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        return sum(self.victims.values())


class Saboteur:
    """Kills once at every kind of journal boundary and at random moments, every victim in turn.

    kills: how many in all. longest: most seconds from a loop's start, or from the last kill, to a
    random moment. A victim that is not alive at its random moment is tried again at further random
    moments, so that short-lived processes (trainers) are hit too, and not always at their start.
    While it is waited for, boundaries are hit too until half of the kills are done, because a short
    night may end before it lives.
    """

    def __init__(
        self, kills: int, seed: int, victims: Sequence[Victim] = SCRIPTED, longest: float = 12.0
    ) -> None:
        self.left = kills
        self.rng = random.Random(seed)
        self.longest = longest
        self.victims = dict.fromkeys(victims, 0)
        self.boundaries: set[str] = set()
        self.now = 0.0
        self.due: float | None = None
        self.missed = False

    def begin(self) -> None:
        """Plan the next kill: a loop was started."""
        self._aim(0.0)

    def moment(self, fresh: Sequence[str], seconds: float) -> str:
        """The name of this moment if a kill is due, else "".

        fresh: the journal's new lines, as from `boundaries`. seconds: since the start.
        """
        self.now = seconds
        if self.left == 0:
            return ""
        boundary = next((b for b in fresh if b not in self.boundaries), "")
        if self.due is None or (boundary and self.missed and self._first_half):
            return boundary
        if seconds < self.due:
            return ""
        self.due = seconds + self.rng.uniform(0.0, LOOK_AGAIN_SECONDS)
        return RANDOM

    @property
    def _first_half(self) -> bool:
        return sum(self.victims.values()) < self.left

    def victim(self, moment: str, living: Collection[Victim]) -> Victim | None:
        """The victim hit least so far; None if it is not alive yet."""
        chosen = self._least_hit(self.victims if moment == RANDOM else living, living)
        self.missed = self.missed or chosen not in living
        return chosen if chosen in living else None

    def killed(self, moment: str, victim: Victim) -> None:
        """Record that a kill at this moment hit this victim."""
        self.left -= 1
        self.victims[victim] += 1
        if moment == RANDOM:
            self.missed = False
        else:
            self.boundaries.add(moment)
        self._aim(self.now)

    def _aim(self, now: float) -> None:
        """Choose a boundary or a random moment for the next kill; a missed one comes first."""
        at_random = self.missed or self.rng.random() >= 0.5
        self.due = now + self.rng.uniform(0.0, self.longest) if at_random else None

    def _least_hit(self, among: Iterable[Victim], living: Collection[Victim]) -> Victim:
        return min(among, key=lambda v: (self.victims[v], v not in living, self.rng.random()))


LOOK_AGAIN_SECONDS = 1.0
"""Most seconds until a victim that was not alive is tried again: less than a trainer's life."""


class OneAStep(Saboteur):
    """Kills a live victim once in every step of a night, at a random moment of the step.

    seconds: duration of a step in an undisturbed night. A step that ends before its moment is hit
    when its trainer ends.
    """

    def __init__(self, folder: Path, steps: int, seconds: float, seed: int) -> None:
        super().__init__(steps, seed)
        self.folder = RunFolder(folder)
        self.seconds = seconds
        self.step = 0
        self.moments: dict[int, float] = {}
        self.hit_steps: set[int] = set()

    def begin(self) -> None:
        """Nothing to plan: a resumed step either had its kill or keeps its moment."""

    def moment(self, fresh: Sequence[str], seconds: float) -> str:
        step = self.step = self.folder.finished_steps()  # step-000 is among them
        if step in self.hit_steps:
            return ""
        if "phase_start rollout" in fresh and step not in self.moments:
            self.moments[step] = time.monotonic() + self.rng.uniform(0.0, self.seconds)
        late = (self.folder.step(step) / "train.json").exists()
        return RANDOM if late or time.monotonic() >= self.moments.get(step, math.inf) else ""

    def victim(self, moment: str, living: Collection[Victim]) -> Victim | None:
        return self._least_hit(living, living)

    def killed(self, moment: str, victim: Victim) -> None:
        super().killed(moment, victim)
        self.hit_steps.add(self.step)


RANDOM = "a random moment"


def boundaries(journal: Path) -> list[str]:
    """The event and phase of every complete line of a journal, in order."""
    return [f"{e.event} {e.data.get('phase', '')}".strip() for e in Journal(journal).read()]


@contextmanager
def loop_over(folder: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run `grpo run FOLDER`; kill it on leaving."""
    with open(folder / "said.log", "ab") as said:
        loop = subprocess.Popen(
            [*GRPO_RUN, str(folder)], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=env
        )
        try:
            yield loop
        finally:
            loop.kill()
            loop.wait()


def survive(
    folder: Path,
    saboteur: Saboteur,
    *,
    scripted: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> Toll:
    """Run the night to its end through every kill; return its toll.

    If the night is broken off (Ctrl-C, a failed check), its engine is stopped.
    """
    toll = Toll()
    began = time.monotonic()
    env = {**os.environ, "PYTHONPATH": str(SITE)} if scripted else dict(os.environ)
    try:
        while (code := _start(folder, env, saboteur, toll, tell)) != 0:
            if code not in KILLED_CODES:
                tail = (folder / "said.log").read_text(errors="replace")[-2000:]
                raise AssertionError(
                    f"the loop ended with {code} after {toll.kills} kills:\n{tail}"
                )
    except BaseException:
        stop_engine(folder)
        raise
    toll.seconds = time.monotonic() - began
    return toll


def _start(
    folder: Path,
    env: dict[str, str],
    saboteur: Saboteur,
    toll: Toll,
    tell: Callable[[str], None],
) -> int:
    """Run one loop to its end, check that every file is complete, and return its exit code."""
    toll.starts += 1
    with loop_over(folder, env) as loop:
        code = _until_killed(folder, loop, saboteur, toll, tell)
    require_readable(folder)
    return code


KILLED_CODES = (-signal.SIGKILL, 4, 5, 128 + signal.SIGKILL, 130)
"""Exit codes of a loop after a kill: killed, engine unavailable, killed for memory, interrupted.
After each of them the same command resumes."""


def _until_killed(
    folder: Path,
    loop: subprocess.Popen[bytes],
    saboteur: Saboteur,
    toll: Toll,
    tell: Callable[[str], None],
) -> int:
    """Watch one loop until it is killed or ends by itself; return its exit code. One that waits to
    do a phase again is killed and counts as no victim."""
    journal = folder / "journal.jsonl"
    seen, size = len(boundaries(journal)), _size(journal)
    saboteur.begin()
    began = moved = time.monotonic()
    while loop.poll() is None:
        now = time.monotonic()
        if now - moved > PATIENCE_SECONDS:
            raise AssertionError(f"nothing new in the journal for {PATIENCE_SECONDS:.0f} s")
        fresh: list[str] = []
        now_size = _size(journal)
        if now_size != size:  # the size is cheap to poll; the content is not
            lines = boundaries(journal)
            fresh, seen, size, moved = lines[seen:], len(lines), now_size, now
            if any(line.startswith(PAUSE) for line in fresh):
                loop.kill()  # it would wait up to an hour for memory; a person may type it at once
                return loop.wait()
        if moment := saboteur.moment(fresh, now - began):
            living = {v: p for v, p in targets(folder, loop).items() if v in saboteur.victims}
            victim = saboteur.victim(moment, living)
            if victim is not None and _kill(living[victim]):
                saboteur.killed(moment, victim)
                toll.victims[victim.value] += 1
                toll.moments[moment] += 1
                tell(f"kill {toll.kills}, {saboteur.left} to come: {victim.value} at {moment}")
        time.sleep(POLL_SECONDS)
    return loop.returncode


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def kill(folder: Path, loop: subprocess.Popen[Any], victim: Victim) -> bool:
    """SIGKILL the victim; False if it is not alive."""
    return _kill(targets(folder, loop).get(victim, []))


def _kill(pids: Sequence[int]) -> bool:
    """SIGKILL all of these; False if none of them was alive."""
    hit = False
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            hit = True
        except ProcessLookupError:
            continue
    return hit


def targets(folder: Path, loop: subprocess.Popen[Any]) -> dict[Victim, list[int]]:
    """The pids of every victim that is alive."""
    leaders = {e.name: e.pid for e in Ledger(RunFolder(folder).ledger).entries()}
    others = (pid for name, pid in leaders.items() if name != "trainer" and not is_engine(name))
    phase = next(others, None)
    members = [(f.name, pid) for f in _families(folder) for pid in f.pids]
    engine = {pid: _title(pid) for name, pid in members if is_engine(name)}
    alive = {loop.pid, *(pid for _, pid in members)}
    titled = {v: [p for p in engine if engine[p] == title] for v, title in TITLES.items()}
    found: dict[Victim, Sequence[int | None]] = {
        Victim.LOOP: [loop.pid],
        Victim.PHASE: [phase],
        Victim.TRAINER: [leaders.get("trainer")],
        Victim.API_SERVER: [pid for name, pid in leaders.items() if is_engine(name)],
        **titled,
        Victim.ALL: [*alive],
        Victim.ONE_SERVER: [leaders.get(Replica(1, 2).name)],
        Victim.ONE_RANK: [pid for name, pid in members if name == "trainer" and _rank(pid) == "1"],
    }
    lives = {v: [p for p in pids if p in alive] for v, pids in found.items()}
    return {v: pids for v, pids in lives.items() if pids}


def _rank(pid: int) -> str | None:
    """Of a process that torchrun started; None for any other."""
    try:
        return psutil.Process(pid).environ().get("RANK")
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # gone, or a zombie
        return None


def _title(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline()).strip()
    except psutil.NoSuchProcess:
        return ""


def _families(folder: Path) -> list[Family]:
    return [f for f in families() if f.run.path == folder]


# --- what must hold -------------------------------------------------------------------------------


def require_readable(folder: Path) -> None:
    """Check that every file with its final name is complete: it parses, and its hashes match."""
    for path in folder.rglob("*.json"):
        if ".tmp" not in str(path.relative_to(folder)):
            json.loads(path.read_bytes())
    for path in folder.rglob("trajectory_bundle.jsonl"):
        read_bundle(path)
    for path in folder.glob("evals/*/trajectories.jsonl"):
        read_trajectories(path)
    for path in folder.glob("step-*/step.json"):
        summary = json.loads(path.read_bytes())
        assert adapter_sha(path.parent / "adapter") == summary["adapter_sha"], path
        if sha := summary["optimizer_sha"]:
            assert state_sha(path.parent / "trainer_state") == sha, path
    Journal(folder / "journal.jsonl").read()


def step_shas(folder: Path) -> list[str]:
    """The adapter hash of every finished step."""
    steps = sorted(folder.glob("step-*/step.json"))
    return [str(json.loads(p.read_bytes())["adapter_sha"]) for p in steps]


def trained_twice(folder: Path) -> list[str]:
    """The paths of adapters that two train phases report as finished."""
    entries = Journal(folder / "journal.jsonl").read()
    ended = [e.data for e in entries if e.event == "phase_end" and e.data.get("phase") == "train"]
    wrote = Counter(path for e in ended for path in e.get("wrote", {}))
    return [path for path, n in wrote.items() if n > 1]


def alive(folder: Path) -> list[str]:
    """The processes of the run that are alive."""
    return [f"{f.name} {f.pids}" for f in _families(folder)]


def step_ends(folder: Path) -> list[float]:
    """The Unix time of the end of every finished step, step-000 first."""
    return [p.stat().st_mtime for p in sorted(folder.glob("step-*/step.json"))]


def require_page(folder: Path, steps: int) -> None:
    """Check that report.html is complete, and that it and the evidence include every step."""
    page = (folder / "report.html").read_text()
    assert page.endswith("</html>\n") or page.endswith("</html>"), "report.html breaks off"
    assert f"Complete: {steps} steps" in page
    evidence = json.loads((folder / "evidence.json").read_bytes())
    assert evidence["verdict"]["headline"]
    assert f"step {steps}" in (folder / "evidence.md").read_text()
