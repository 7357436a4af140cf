"""The train phase: frees memory, runs the trainer as a separate program, and finishes the step.

The trainer does not know the run folder; it gets the paths of one step and writes the adapter, the
optimizer state and train.json next to the bundle. It is the process that stayed from the step
before, or was begun while the engine loaded; else one for this step alone, which has torchrun start
several where trainer.launch says so. This module then writes step.json from those files. step.json
comes last because it marks the step as finished.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from enum import Enum, auto
from math import ceil
from typing import Any

from fieldkit.codec import encode, read_bundle
from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.atomic import read_json, sweep_temporaries, write_json, write_text
from fieldkit.files.json_text import parse_json
from fieldkit.process.ledger import Ledger
from fieldkit.records import Outcome, StepSummary
from rollout.cluster.placed import LOST, prefix
from rollout.engine.serve import find_engine, release_memory
from rollout.engine.vllm_server import computing, require_driver
from scripts.base.children import run_child
from scripts.base.display import to_the_second
from scripts.base.events import detail, progress
from scripts.base.exit_codes import raise_code
from scripts.base.quiet import Quiet
from scripts.evidence.step_figures import CLIPPED, DELTA, DRIFT, GRADIENT, KL, LOSS
from scripts.phases.context import Context, Done
from scripts.phases.rollout import next_step
from scripts.phases.summary import several_envs, step_summary
from scripts.phases.training.kept_trainer import (
    TRAINER,
    KeptTrainer,
    as_it_waits,
    may_be_kept,
    stands_beside,
)
from scripts.phases.training.step_settings import settings_of_step
from scripts.phases.training.trainer_failure import last_error, refuse_failure
from scripts.run.next_phase import sampled_from
from scripts.run.reader import RunReader
from scripts.run.timings import read_timings, write_timings
from trainer.inputs import StepInputs
from trainer.persistent import Request
from trainer.settings import TrainerSettings

_PARTS = {
    "read": "trainer_load",
    "import": "trainer_load",
    "load": "trainer_load",
    "reference": "reference",
    "gradient": "gradient",
    "save": "save",
    "canary": "canary",
}
"""Names of the trainer's parts in timings.json."""

_STARTS, _TRAININGS, _STEPS = 4, 3, 8
"""A trainer hangs that says nothing, not even that a micro-batch is done, for so many times
engine.start_seconds and for so many times the longest training of so many last steps: a server that
loads the same model needs less than the first for its whole start."""


def train(ctx: Context) -> Done:
    """Train on the current step's bundle and finish the step."""
    n = next_step(ctx)
    if not ctx.folder.has_bundle(n):
        return Done(
            f"step {n - 1} is finished, and step {n} has no bundle yet; "
            f"`grpo rollout {ctx.folder.typed}{ctx.config.flags}` samples it"
        )
    overlaps = ctx.config.run.overlap > 0
    kept = KeptTrainer(ctx.folder.path, _environment(ctx), overlaps=overlaps)
    stays = False
    try:
        with ctx.watch.part("reclaim"):
            held = kept.held
            if not overlaps:  # else it plays meanwhile, and keeps its memory
                engine = ctx.engine()
                ctx.waiting(lambda: release_memory(ctx.folder.path, engine, ctx.say, held=held))
            stays = _stays(ctx)
            is_asked = stays or (may_be_kept(ctx.config) and kept.is_begun)
            if not is_asked:
                kept.stop()
        sweep_temporaries(ctx.folder.step(n))
        trained = _run_trainer(ctx, n, kept if is_asked else None)
    finally:
        if not stays:
            kept.stop()  # its memory is the next engine's
    summary = _finish(ctx, n, trained)
    return Done(_told(summary), {ctx.folder.relative(ctx.folder.adapter(n)): summary.adapter_sha})


def _stays(ctx: Context) -> bool:
    """Whether the trainer's process stays for the next step. Servers elsewhere leave it room."""
    if not may_be_kept(ctx.config):
        return False
    return not ctx.config.engine.replicas or stands_beside(find_engine(ctx.folder.path))


def _run_trainer(ctx: Context, n: int, kept: KeptTrainer | None) -> dict[str, Any]:
    """Have step `n` trained, by `kept` where there is one; return its train.json."""
    log = ctx.folder.log / f"train-{n:03d}-{time.strftime('%Y%m%d-%H%M%S')}.log"
    log.parent.mkdir(exist_ok=True)
    request = Request(_inputs(ctx, n), settings_of_step(ctx, n), log)
    # One that has a model has its GPU too, and goes on where the driver was updated meanwhile.
    if not ctx.config.cluster.used and (kept is None or kept.is_begun):
        require_driver()
    began = time.monotonic()
    asked = _ask(ctx, n, kept, request) if kept else None
    if asked is not _Asked.DONE:
        _run_alone(ctx, n, request, tries=1 if kept else 2, hung=int(asked is _Asked.HUNG))
    # Of a file that another machine wrote NFS may go on saying that it is not there, until its
    # folder is read.
    list(request.inputs.out_dir.iterdir())
    trained = read_json(request.inputs.out_dir / "train.json")
    _count_seconds(ctx, trained["seconds"], time.monotonic() - began)
    return dict(trained)


def _environment(ctx: Context) -> dict[str, str]:
    """The trainer's, however it is run on this machine; a node has one of its own."""
    if ctx.config.cluster.used:
        return dict(ctx.environ)
    return computing(as_it_waits(ctx.folder.path, ctx.environ), ctx.config.engine)


def _inputs(ctx: Context, n: int) -> StepInputs:
    folder, state = ctx.folder, ctx.folder.trainer_state(n - 1)
    sampler = sampled_from(n, ctx.config.run.overlap)
    return StepInputs(
        bundle=folder.bundle(n),
        adapter=folder.adapter(n - 1),
        reference=folder.adapter(0),
        model_dir=ctx.model_dir(),
        state=state if state.is_dir() else None,
        out_dir=folder.step(n),
        sampler=folder.adapter(sampler) if sampler < n - 1 else None,
    )


class _Listener:
    """Hears the trainer of step `n`, and notices where it hangs."""

    def __init__(self, ctx: Context, n: int) -> None:
        self._ctx = ctx
        self.quiet = Quiet(silence_allowed(ctx, n))

    def hear(self, line: str) -> None:
        """Pass on a line."""
        self.quiet.heard()
        _tell_line(self._ctx, line)

    def stop_asked(self) -> bool:
        """Whether the trainer is to be ended."""
        return self._ctx.wish.now or self.quiet.too_long()

    @property
    def told(self) -> str:
        """That it hung, in words."""
        silent = f"said nothing for {to_the_second(self.quiet.seconds)}"
        return f"the trainer {silent} and was ended in the middle of the step"


def silence_allowed(ctx: Context, n: int) -> float:
    """Seconds for which the trainer of step `n` may say nothing before it counts as hanging."""
    files = [ctx.folder.step(i) / "train.json" for i in range(max(1, n - _STEPS), n)]
    took = [float(read_json(f)["seconds"]["total"]) for f in files if f.is_file()]
    waits = ctx.config.cluster.room_seconds if ctx.config.cluster.used else 0.0
    start = _STARTS * ctx.config.engine.start_seconds
    return waits + max(start, _TRAININGS * max(took, default=0.0))


class _Asked(Enum):
    """What became of a step that the kept trainer was asked to take."""

    DONE = auto()
    KILLED = auto()
    """Its process ended by itself, or something ended it."""
    HUNG = auto()
    """It said nothing for too long, and was ended."""


def _ask(ctx: Context, n: int, kept: KeptTrainer, request: Request) -> _Asked:
    """Have the kept trainer take step `n`. Raises its errors."""
    listener = _Listener(ctx, n)
    answer = kept.ask(request.line(), listener.hear, listener.stop_asked)
    ctx.check_stop()
    if answer is None:
        hung = listener.quiet.was_too_long
        ended = "the trainer's process ended in the middle of the step"
        ctx.say(f"{listener.told if hung else ended}, which is taken anew")
        return _Asked.HUNG if hung else _Asked.KILLED
    raise_code(answer.code, answer.error, f"step {n}: the trainer", request.log)
    return _Asked.DONE


def _run_alone(ctx: Context, n: int, request: Request, tries: int, hung: int = 0) -> None:
    """Run `python -m trainer` on step `n`, once more where it hung or its node was lost. Raises the
    error of its exit code, and `Unavailable` where it hung at last.

    hung: how often a trainer has hung in this step already.
    """
    for left in reversed(range(tries)):
        listener = _Listener(ctx, n)
        code = run_child(
            _command(ctx, n, request.inputs, request.settings),
            ledger=Ledger(ctx.folder.ledger),
            name=TRAINER,
            log=request.log,
            on_line=listener.hear,
            stop_asked=listener.stop_asked,
            env=_environment(ctx),
        )
        ctx.check_stop()
        if code == LOST:
            code = Unavailable.exit_code
            if left:
                ctx.say(f"{last_error(request.log)}; the step is begun once more")
                continue
        if code == 0 or not listener.quiet.was_too_long:
            refuse_failure(ctx, code, n, request.log)
            return
        hung += 1
        if left:
            ctx.say(f"{listener.told}, which is taken anew")
    run = f"{ctx.folder.typed}{ctx.config.flags}"
    longer = ceil(2 * listener.quiet.seconds / _STARTS)
    look = " `nvidia-smi` where it ran shows whether the GPU still answers."
    raise Unavailable(
        f"step {n}: {listener.told}{', a second time' if hung > 1 else ''}."
        f"{look if ctx.trainer_devices else ''} The bundle is kept, and `grpo run {run}` takes the"
        f" step anew; where the trainer was only slow, `grpo run {run} --set"
        f" engine.start_seconds={longer}` gives it twice as long. Its log: {request.log}"
    )


def _command(ctx: Context, n: int, inputs: StepInputs, settings: TrainerSettings) -> list[str]:
    file = ctx.folder.log / f"trainer-settings-{n:03d}.json"
    write_json(file, asdict(settings))
    paths = {
        "--bundle": inputs.bundle,
        "--adapter-init": inputs.adapter,
        "--reference-adapter": inputs.reference,
        "--model": inputs.model_dir,
        "--out-dir": inputs.out_dir,
        "--settings-json": file,
        "--optimizer-state": inputs.state,
        "--sampler-adapter": inputs.sampler,
    }
    words = [word for flag, path in paths.items() if path for word in (flag, str(path))]
    trainer = [sys.executable, "-P", "-m", "trainer", *words, "--progress-json"]
    return [*_placed(ctx), *trainer]


def _placed(ctx: Context) -> list[str]:
    """The words that have a command run on a node of the run's cluster; none on one box."""
    if not ctx.config.cluster.used:
        return []
    return prefix(ctx.config.cluster, "trainer_needs", "the trainer")


def _tell_line(ctx: Context, line: str) -> None:
    """Pass a line of the trainer to the display; a line that is not JSON came from a library."""
    try:
        value = parse_json(line, "trainer")
        kind = value["event"]
    except (BadInput, KeyError, TypeError):
        if line.strip():
            detail(ctx.tell, f"trainer: {line}")
        return
    if kind == "microbatch":
        rate = value["tokens"] / value["seconds"] if value["seconds"] else 0.0
        what = f"{value['phase']} micro-batches"
        progress(ctx.tell, what, value["done"], value["of"], tokens_per_s=rate)
    elif kind == "line":
        detail(ctx.tell, f"trainer: {value['text']}")


def _count_seconds(ctx: Context, seconds: dict[str, float], wall: float) -> None:
    """Split the child's wall time among its parts; the rest is its start and end."""
    if seconds["total"] > wall:  # an earlier start's figures: the step was trained already
        ctx.watch.add("trainer_start", wall)
        return
    ctx.watch.add("trainer_start", wall - seconds["total"])
    for name, value in seconds.items():
        if name != "total":
            ctx.watch.add(_PARTS.get(name, f"trainer_{name}"), value)
    inside = sum(v for k, v in seconds.items() if k != "total")
    ctx.watch.add("trainer_other", seconds["total"] - inside)


def _finish(ctx: Context, n: int, trained: dict[str, Any]) -> StepSummary:
    """Write timings.json, then step.json, the last file of the step."""
    with ctx.watch.part("summary"):
        groups = read_bundle(ctx.folder.bundle(n))
    before = read_timings(ctx.folder.timings(n), n)
    timings = before.with_segment(ctx.watch.segment("train"))
    overlap = ctx.config.run.overlap
    if overlap:
        timings = timings.after(read_timings(ctx.folder.timings(n - 1), n - 1))
    write_timings(ctx.folder.timings(n), timings)
    apart = several_envs(ctx.config, ctx.pool_file)
    age = n - 1 - sampled_from(n, overlap)
    summary = step_summary(n, groups, trained, timings, by_env=apart, policy_age=age)
    write_text(ctx.folder.summary(n), encode(summary) + "\n")
    RunReader(ctx.folder).store_sums()
    return summary


def _told(s: StepSummary) -> str:
    if s.outcome is Outcome.NO_SIGNAL:
        return f"step {s.step}: no group had signal; the adapter is carried over unchanged"
    shown = {f.symbol: f.read(s) for f in (LOSS, KL, CLIPPED, DRIFT, GRADIENT, DELTA)}
    figures = ", ".join(f"{name} {value:.4g}" for name, value in shown.items() if value is not None)
    wall = s.seconds.get("wall", 0.0)
    return f"step {s.step}: trained, {figures}, {wall:.0f} s in all"
