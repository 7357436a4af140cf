"""The run folder as `RunFiles` and as measured times: the facts that decide what is next.

Only small files are read here, and nothing heavy is imported, because `grpo next` is asked between
any two phases. Nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

from fieldkit.errors import BadInput, PoolConverged
from fieldkit.files.atomic import read_json
from fieldkit.files.journal import Entry
from fieldkit.records import Signal
from reward.pool import Convergence, converged, growth, read_history
from scripts.base.checkout import from_checkout, in_checkout
from scripts.run.config import NightSettings, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.manifest import bound_changes, check_host, read_manifest, refuse_change
from scripts.run.next_phase import Phase, RunFiles, next_phase
from scripts.run.plan import Measured, planned_steps, scaled_eval_seconds
from scripts.run.timings import StepTimings, read_timings


def read_files(folder: RunFolder, config: RunConfig) -> RunFiles:
    """What is on disk now.

    Raises `NotOwner` where the run belongs to another host, `BadInput` where run.toml or the data
    were changed after the first step. Before it, a changed run.toml means: not started.
    """
    manifest = read_manifest(folder)
    n_done = folder.finished_steps()
    if manifest is None or n_done == 0:
        return _nothing_yet()
    check_host(folder, manifest)
    if n_done > 1:
        refuse_change(folder, manifest, config)
    elif bound_changes(manifest, config):
        return _nothing_yet()
    steps = [_step_json(folder, n) for n in range(n_done)]
    return RunFiles(
        started=True,
        adapters=tuple(str(s["adapter_sha"]) for s in steps),
        bundle_ready=folder.bundle(n_done).is_file(),
        evaluated=frozenset(evaluations(folder, manifest)),
        converged=_is_converged(folder, config, steps),
    )


def look(folder: RunFolder, config: RunConfig, deadline: float | None = None) -> tuple[Phase, int]:
    """The next phase, and the number of steps that are planned now. deadline: `steps_planned`'s."""
    files = read_files(folder, config)
    steps = steps_planned(folder, config, files, deadline)
    return next_phase(files, steps, config.run.eval_every), steps


def as_told(
    run: NightSettings, entries: Sequence[Entry], loop: int | None = None
) -> tuple[NightSettings, float | None]:
    """[run] with the limits that a loop was started with, and its deadline in Unix seconds.

    What was typed (`--steps 3`) is in the journal and not in run.toml. loop: the pid of the loop
    that is asked about; None: the newest. Where the journal has none, run.toml counts.
    """
    started = [e for e in entries if e.event == "loop_start" and loop in (None, e.pid)]
    limits = started[-1].data.get("limits", {}) if started else {}
    known = {f.name for f in fields(NightSettings)}
    return replace(run, **{k: v for k, v in limits.items() if k in known}), limits.get("until")


def steps_planned(
    folder: RunFolder, config: RunConfig, files: RunFiles, deadline: float | None = None
) -> int:
    """Steps in all: as set, or as many as fit into the minutes at the speed measured so far.

    deadline: Unix time by which everything has to be done, in place of the minutes. It moves on
    while a bundle is sampled; a bundle that is there is trained on all the same, which is the
    shorter part of its step.
    """
    planned = planned_steps(
        config.run.steps,
        config.run.minutes,
        read_measured(folder, files),
        eval_every=config.run.eval_every,
        deadline_in=None if deadline is None else deadline - time.time(),
    )
    if not files.bundle_ready or (deadline is None and config.run.steps != "auto"):
        return planned
    under_way = files.newest + 1
    most = under_way if config.run.steps == "auto" else min(config.run.steps, under_way)
    return max(planned, most)


def read_measured(folder: RunFolder, files: RunFiles) -> Measured:
    """The times of the finished steps and evaluations, from timings.json files."""
    timings = [read_timings(folder.timings(n), n) for n in range(files.newest + 1)]
    eval_seconds = _eval_seconds(folder, files, timings)
    is_evaluated = not files.adapters or files.adapters[-1] in files.evaluated
    return Measured(
        step_seconds=tuple(t.training_wall for t in timings[1:]),
        other_seconds=sum(t.eval_wall for t in timings) + sum(t.training_wall for t in timings[:1]),
        final_eval_seconds=0.0 if is_evaluated else eval_seconds,
        eval_seconds=eval_seconds,
    )


def evaluations(folder: RunFolder, manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """eval.json of every finished arm of this run by adapter hash (or the arm's stand-in for one).

    An arm that was played on other tasks or under other limits, before run.toml was changed, does
    not count.
    """
    wanted = manifest["evaluation"]
    found = {}
    for path in sorted(folder.evals.glob("*/eval.json")):
        value = read_json(path)
        if all(value.get(key) == sha for key, sha in wanted.items()):
            found[str(value["adapter_sha"])] = value
    return found


def pool_state(folder: RunFolder, config: RunConfig) -> Convergence:
    """The evidence about the pool, from every bundle."""
    from rollout.tasks import read_tasks  # heavy, and seldom asked

    pool = [t.task_id for t in read_tasks(from_checkout(config.data.pool))]
    return converged(read_history(folder.path), pool, config.pool)


def raise_converged(folder: RunFolder, config: RunConfig) -> NoReturn:
    """Raise `PoolConverged` with the evidence and what to do next."""
    pool, newest = from_checkout(config.data.pool), folder.adapter(folder.finished_steps() - 1)
    command = growth(pool)
    grow = f"`{command}`" if command else f"Add tasks to {pool}"
    raise PoolConverged(
        f"{pool_state(folder, config).message}. Everything is saved. "
        f"{grow}, then `grpo run {folder.typed}{config.flags}` goes on; or `grpo new` another run, "
        f'on other tasks, with [model] adapter = "{in_checkout(newest)}"'
    )


def _nothing_yet() -> RunFiles:
    return RunFiles(False, (), False, frozenset(), False)


def _step_json(folder: RunFolder, n: int) -> dict[str, Any]:
    value = read_json(folder.summary(n))
    if not isinstance(value, dict) or value.get("step") != n or "adapter_sha" not in value:
        raise BadInput(f"{folder.summary(n)}: not the summary of step {n}")
    return value


def _is_converged(folder: RunFolder, config: RunConfig, steps: list[dict[str, Any]]) -> bool:
    """Whether the pool is exhausted. The bundles are read only where the answer could be yes."""
    newest = steps[-1]
    if len(steps) == 1 or newest["groups"].get(Signal.LEARNABLE, 0):
        return False  # a task that was just learnable is evidence enough against
    return pool_state(folder, config).converged


def _eval_seconds(folder: RunFolder, files: RunFiles, timings: Sequence[StepTimings]) -> float:
    """What evaluating the newest adapter takes now, from the last adapter that was evaluated.

    An arm that was taken over from another run, or of which an earlier start had played a part, has
    cost this night less than it takes to play: there the arm's own seconds count.
    """
    for n in range(files.newest, -1, -1):
        seconds = timings[n].eval_of(files.adapters[n])
        if seconds is not None:
            whole = max(seconds, _seconds_to_play(folder, files.adapters[n]))
            return scaled_eval_seconds(whole, *_turns(folder, n, files.newest))
    return 0.0


def _seconds_to_play(folder: RunFolder, adapter_sha: str) -> float:
    """What all episodes of an adapter's finished arm take, by eval.json."""
    manifest = read_manifest(folder)
    arm = evaluations(folder, manifest).get(adapter_sha) if manifest else None
    if arm is None:
        return 0.0
    played = arm["n_trajectories"] - arm["n_kept"]
    return float(arm["seconds"] * arm["n_trajectories"] / max(1, played))


def _turns(folder: RunFolder, then: int, now: int) -> tuple[float, float]:
    """Mean turns of the rollouts of two steps; step 0 has none of its own, so step 1's.

    Equal while there is no step 1.
    """
    if now == 0:
        return 1.0, 1.0
    values = [_step_json(folder, max(1, min(n, now))).get("mean_turns") for n in (then, now)]
    turns = [float(v) if v else 0.0 for v in values]
    return turns[0], turns[1]
