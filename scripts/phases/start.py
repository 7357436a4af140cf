"""The start phase: check everything, write the manifest and step-000, play the preflight.

The phase finds problems before the night begins. step-000 holds the starting adapter, which is also
the reference of the KL; its step.json is written last. Nothing here trains.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from fieldkit.files.atomic import whole_dir, write_json, write_text
from fieldkit.gate.memory import available
from fieldkit.records import Outcome, StepSummary, Task
from fieldkit.training.adapter import AdapterInfo, copy_adapter
from rollout.arm import settings_sha, tasks_sha
from rollout.engine.forecast import forecast
from rollout.engine.preload import ABSENT
from rollout.engine.vllm_server import is_cpu_build, preloads
from scripts.base.events import alarm, note
from scripts.evidence.conditions import same_conditions
from scripts.phases.checks import check_run, doubt
from scripts.phases.context import Context, Done
from scripts.phases.play_preflight import play_preflight, require_signal
from scripts.phases.registry import SKIP_PREFLIGHT
from scripts.phases.usual import (
    Foresight,
    Settled,
    alike,
    foresee,
    held_out_tasks,
    shape,
    told,
    usual_nights,
)
from scripts.run.config import AUTO, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.manifest import (
    FEWER,
    bound_changes,
    check_sandbox,
    manifest_of,
    new_manifest,
    read_manifest,
)
from scripts.run.memory_account import FORECAST
from scripts.run.template import untold_tools
from scripts.run.timings import StepTimings, write_timings
from scripts.words.quantities import counted


def start(ctx: Context) -> Done:
    """Start the run. Do nothing if it was already started with this run.toml."""
    check_sandbox(ctx.folder, ctx.config)
    if _is_started(ctx):
        return Done("started already")
    with ctx.watch.part("checks"):
        adapter = check_run(ctx)
        if (about_the_base := doubt(ctx, adapter)) is not None:
            alarm(ctx.tell, about_the_base)
        model = ctx.config.model
        if ctx.config.envs and (about := untold_tools(model, ctx.model_dir())) is not None:
            alarm(ctx.tell, about)
    _journal_memory(ctx)
    _drop_what_was_started_otherwise(ctx)
    before = read_manifest(ctx.folder)
    library = preloads(ctx.config.engine.tcmalloc)
    if library is None and ctx.config.engine.tcmalloc and is_cpu_build():
        note(ctx.tell, ABSENT)
    with _all_or_nothing(ctx.folder, before):
        with ctx.watch.part("manifest"):
            identity = evaluation_identity(ctx, ctx.heldout())
            tokens = ctx.trainer().tokens_per_microbatch
            resolved = replace(ctx.config.trainer, tokens_per_microbatch=tokens)
            config = replace(ctx.config, trainer=resolved, eval=ctx.evaluation)
            now = new_manifest(ctx.folder, config, ctx.model_dir(), adapter, identity)
            now["preloaded"] = [library] if library else []
            if before is not None and ctx.config.eval.tasks == AUTO and FEWER in before:
                now[FEWER] = before[FEWER]  # settled by an earlier start, whose arms may be there
            _drop_evaluations_of_other_conditions(ctx, before, now)
            write_json(ctx.folder.manifest, now)
            write_step_zero(ctx, adapter)
        foreseen = None
        if ctx.config.run.preflight and SKIP_PREFLIGHT not in ctx.flags:
            report = play_preflight(ctx, ctx.folder.adapter(0), 0, for_training=True)
            require_signal(ctx, report)
            foreseen = _foresight(ctx, report.seconds)
        if config.eval.tasks == AUTO:
            write_json(ctx.folder.manifest, _with_settled_tasks(ctx, config, now, foreseen))
        if foreseen is not None:
            _tell_forecast(ctx, foreseen)
        segment = ctx.watch.segment("start")
        write_timings(ctx.folder.timings(0), StepTimings(0).with_segment(segment))
        write_text(ctx.folder.summary(0), encode(start_summary(ctx, adapter.sha)) + "\n")
    text = f"step 0 is adapter {adapter.sha[:12]}, rank {adapter.rank}"
    return Done(text, {ctx.folder.relative(ctx.folder.adapter(0)): adapter.sha})


def _foresight(ctx: Context, preflight_seconds: float) -> Callable[[int], Foresight] | None:
    """What to expect of the night by the number of held-out tasks an arm plays; None where no
    committed night tells, and for a night of a fixed number of steps."""
    minutes = _minutes(ctx)
    nights = alike(usual_nights(), shape(ctx.config.plain()))
    if minutes is None or not nights or preflight_seconds <= 0:
        return None
    gone = sum(ctx.watch.seconds.values())

    def foreseen(tasks: int) -> Foresight:
        return foresee(
            nights,
            preflight_seconds=preflight_seconds,
            gone=gone,
            seconds=60 * minutes,
            tasks=tasks,
            start_arms=2 if ctx.config.eval.base == "start" else 1,
        )

    return foreseen


def _minutes(ctx: Context) -> float | None:
    """How long the night may take; None where it has a number of steps and no deadline."""
    night, until = ctx.night()
    if until is not None:
        return (until - ctx.watch.began) / 60
    return night.minutes if night.steps == "auto" else None


def _with_settled_tasks(
    ctx: Context,
    config: RunConfig,
    manifest: Mapping[str, Any],
    foreseen: Callable[[int], Foresight] | None,
) -> dict[str, Any]:
    """The manifest with the number of held-out tasks that an arm plays, which `config` leaves to
    the run. Nothing is evaluated yet, so all arms play the same ones."""
    tasks = ctx.heldout()
    n = len(tasks) if foreseen is None else held_out_tasks(foreseen, len(tasks))
    settled = manifest_of(
        ctx.folder,
        replace(config, eval=replace(config.eval, tasks=n)),
        manifest["model"],
        manifest["adapter"],
        evaluation_identity(ctx, tasks[:n]),
    )
    settled["preloaded"] = manifest["preloaded"]
    if n < len(tasks):
        settled[FEWER] = {"usual": len(tasks)}
    return settled


def _tell_forecast(ctx: Context, foreseen: Callable[[int], Foresight]) -> None:
    """Say how many steps the night will have, whether that is usually enough, and how many held-out
    tasks the run chose for it."""
    n, minutes = len(ctx.heldout()), _minutes(ctx)
    assert minutes is not None, "a foresight is of minutes"
    fewer = (read_manifest(ctx.folder) or {}).get(FEWER, {})
    usual = fewer.get("usual", n) if ctx.config.eval.tasks == AUTO else None
    run = f"{ctx.folder.typed}{ctx.config.flags}"
    note(ctx.tell, told(Settled(foreseen(n), n, usual), minutes, run))


def _journal_memory(ctx: Context) -> None:
    """Journal what engine and trainer are expected to hold, to compare it in the morning. On a
    cluster neither is on this machine, whose memory tells nothing of theirs."""
    if ctx.config.cluster.used:
        return
    found = forecast(ctx.engine(), ctx.model_dir(), ctx.trainer_bytes())
    if available().gpu is None:
        ctx.journal.append(FORECAST, bytes=found.used, engine=ctx.config.engine.replicas > 0)


@contextmanager
def _all_or_nothing(folder: RunFolder, before: dict[str, Any] | None) -> Iterator[None]:
    """If the start fails (a busy port, too little memory, no signal), remove step-000 and restore
    the earlier manifest, if any: it records how the evaluations were played."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder.step(0), ignore_errors=True)
        if before is None:
            folder.manifest.unlink(missing_ok=True)
        else:
            write_json(folder.manifest, before)
        raise


def _is_started(ctx: Context) -> bool:
    """Whether the run is started already. Raises `BadInput` if steps are finished but the manifest
    is missing."""
    manifest = read_manifest(ctx.folder)
    finished = ctx.folder.finished_steps()
    if finished > 1 and manifest is None:
        raise BadInput(
            f"{ctx.folder.manifest}: no such file, and {counted(finished - 1, 'step')} of training "
            "are finished under it: it says which settings, model and tasks they belong to. Put it "
            "back, or start another run with `grpo new`"
        )
    if finished > 1:
        return True
    return finished == 1 and manifest is not None and not bound_changes(manifest, ctx.config)


def _drop_evaluations_of_other_conditions(
    ctx: Context, before: Mapping[str, Any] | None, now: Mapping[str, Any]
) -> None:
    """Remove arms, finished or not, that were played under other conditions than this run's: the
    tables would compare them. What is paid for is one, and so is the training temperature, at which
    each adapter plays a few tasks. before: the manifest under which they were played."""
    if (
        before is not None
        and before["evaluation"] == now["evaluation"]
        and same_conditions(before, now)
        and _paid_and_sampled(before) == _paid_and_sampled(now)
    ):
        return
    for path in sorted(p for p in ctx.folder.evals.glob("*") if p.is_dir()):
        _drop(ctx, path, "played under other conditions")


def _paid_and_sampled(manifest: Mapping[str, Any]) -> tuple[Any, Any]:
    config = manifest["config"]
    return config["reward"], config["rollout"]["temperature"]


def _drop_what_was_started_otherwise(ctx: Context) -> None:
    """Remove step-000 and unfinished rollouts of other settings, with an overlap two; no trained
    step is lost."""
    for n in ctx.folder.steps_there():
        ctx.folder.summary(n).unlink(missing_ok=True)  # what is half removed is not finished
        _drop(ctx, ctx.folder.step(n), "unfinished, or of other settings")


def _drop(ctx: Context, folder: Path, why: str) -> None:
    ctx.journal.append("dropped", removed=[ctx.folder.relative(folder)], why=why)
    shutil.rmtree(folder)


def evaluation_identity(ctx: Context, tasks: Sequence[Task]) -> dict[str, str]:
    """The hashes that all evaluations of this run share: of the tasks and the episode settings."""
    sha = settings_sha(ctx.eval_limits, ctx.config.eval.samples)
    return {"tasks_sha": tasks_sha(tasks), "settings_sha": sha}


def write_step_zero(ctx: Context, adapter: AdapterInfo) -> None:
    """Copy the adapter into step-000, whole or not at all."""
    ctx.folder.step(0).mkdir(parents=True, exist_ok=True)
    with whole_dir(ctx.folder.adapter(0)) as folder:
        copy_adapter(adapter.path, folder)


def start_summary(ctx: Context, adapter_sha: str) -> StepSummary:
    """step.json of step 0."""
    return StepSummary(
        step=0,
        outcome=Outcome.START,
        parent_sha=None,
        adapter_sha=adapter_sha,
        optimizer_sha=None,
        bundle_sha=None,
        n_trajectories=0,
        mean_reward=None,
        pass_rate=None,
        assertion_rate=None,
        stop_rate=None,
        mean_turns=None,
        mean_tokens=None,
        groups={},
        train={},
        seconds={k: round(v, 3) for k, v in ctx.watch.seconds.items()},
    )
