"""The run folder as `RunFiles` and as measured times: the facts that decide what is next.

Only small files are read here, and nothing heavy is imported, because `grpo next` is asked between
any two phases. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, NoReturn

from fieldkit.errors import PoolConverged
from fieldkit.files.journal import Entry
from fieldkit.records import Signal
from reward.plateau import rise
from reward.pool_history import draws_of
from rollout.arm import BASE_ADAPTER
from scripts.base.checkout import from_checkout, in_checkout
from scripts.run.config import NightSettings, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.manifest import bound_changes, check_host, played_yardsticks, refuse_change
from scripts.run.next_phase import Phase, RunFiles, is_over, next_phase
from scripts.run.plan import (
    REFERENCE_SHARE,
    Measured,
    has_time_for_base,
    planned_steps,
    scaled_eval_seconds,
    seconds_allotted,
    seconds_left,
)
from scripts.run.reader import RunReader, Sums, UnderWay
from scripts.run.run_pool import last_growth, next_tasks, pool_now
from scripts.run.until import seconds_until
from scripts.words.quantities import counted


def read_files(folder: RunFolder, config: RunConfig, reader: RunReader | None = None) -> RunFiles:
    """What is on disk now. reader: a reader that may have read part of it already.

    Raises `BadInput` where run.toml or the data were changed after the first step. Before it, a
    changed run.toml means: not started.
    """
    reader = reader or RunReader(folder)
    manifest, n_done = reader.manifest, reader.n_steps
    if manifest is None or n_done == 0:
        return _nothing_yet()
    if n_done > 1:
        refuse_change(folder, manifest, config)
    elif bound_changes(manifest, config):
        return _nothing_yet()
    # With an overlap, a bundle that is there is followed by the next before it is trained.
    ahead = reader.under_way if config.run.overlap else None
    is_done = _is_converged(reader, config, ahead)
    grows = is_done and config.run.on_converged != "stop" and bool(next_tasks(reader, config))
    return RunFiles(
        started=True,
        adapters=reader.adapters,
        bundle_ready=folder.has_bundle(n_done),
        evaluated=reader.evaluations.keys(),
        converged=is_done and not grows,
        grows=grows,
        flat=config.run.stop_when_flat and is_flat(reader, ahead),
        second_bundle_ready=folder.has_bundle(n_done + 1),
        yardsticks=played_yardsticks(manifest),
    )


def look(
    folder: RunFolder,
    config: RunConfig,
    deadline: float | None = None,
    reader: RunReader | None = None,
) -> tuple[Phase, int]:
    """The next phase, and the number of steps that are planned now. deadline: `steps_planned`'s.

    Raises as `read_files`, and `NotOwner` where the run belongs to another host.
    """
    reader = reader or RunReader(folder)
    check_host(folder, reader.manifest)
    files = read_files(folder, config, reader)
    steps = steps_planned(folder, config, files, deadline, reader)
    return phase_now(folder, config, files, steps, deadline, reader), steps


def phase_now(
    folder: RunFolder,
    config: RunConfig,
    files: RunFiles,
    steps: int,
    deadline: float | None = None,
    reader: RunReader | None = None,
) -> Phase:
    """The next phase of a run whose night takes `steps` steps. deadline: `steps_planned`'s."""
    base = config.eval.base == "start"
    if config.eval.base == "end" and files.adapters and is_over(files, steps):
        base = has_time_for_base(
            config.run.steps,
            config.run.minutes,
            read_measured(folder, files, reader),
            deadline_in=seconds_until(deadline),
        )
    return next_phase(files, steps, config.run.eval_every, base=base)


def as_told(
    run: NightSettings, entries: Sequence[Entry], loop: int | None = None
) -> tuple[NightSettings, float | None]:
    """[run] with the limits that a loop was started with, and its deadline in Unix seconds.

    Limits that were typed (`--steps 3`) are in the journal. loop: the loop's pid; None: the newest
    loop. Where the journal has no limits, run.toml's apply.
    """
    started = [e for e in entries if e.event == "loop_start" and loop in (None, e.pid)]
    limits = started[-1].data.get("limits", {}) if started else {}
    known = {f.name for f in fields(NightSettings)}
    return replace(run, **{k: v for k, v in limits.items() if k in known}), limits.get("until")


def of_the_night(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The journal without the phases that were typed since the loop ended, where they have ended
    too and none of them wrote a part of the night: a look at a finished night, or a refused word.
    Nor is there the end of a loop that repeats the error of its last phase.
    """
    end = max((i for i, e in enumerate(entries) if e.event == "loop_end"), default=None)
    since = () if end is None else entries[end + 1 :]
    over = [e for e in since if e.event == "phase_end"]
    has_more = any(e.event == "loop_start" for e in since) or any(e.data.get("wrote") for e in over)
    if end is None or has_more:
        return entries
    typed = {e.pid for e in over}
    before = last_word(entries[:end])
    repeated = "error" in entries[end].data and before is not None and before.data.get("exit")
    night = entries[:end] if repeated else entries[: end + 1]
    return [*night, *(e for e in since if e.pid not in typed)]


PAUSE = "pause"
"""The journal's word of a loop that waits for `seconds` before it does the failed `phase` again."""

SERVERS = "servers"
"""The journal's word of a server that was lost, of several, or that is back: `text` is the line."""


def last_word(entries: Sequence[Entry]) -> Entry | None:
    """The newest start or end of a phase or a loop."""
    told = ("loop_start", "loop_end", "phase_start", "phase_end")
    return next((e for e in reversed(entries) if e.event in told), None)


def loop_said(journal: Sequence[Entry]) -> str | None:
    """What the newest loop said was next when it ended; None where it did not end."""
    loops = [e for e in journal if e.event in ("loop_start", "loop_end")]
    return loops[-1].data.get("next") if loops and loops[-1].event == "loop_end" else None


def steps_planned(
    folder: RunFolder,
    config: RunConfig,
    files: RunFiles,
    deadline: float | None = None,
    reader: RunReader | None = None,
) -> int:
    """Steps in all: as set, or as many as fit into the minutes at the speed measured so far.

    deadline: Unix time by which everything has to be done, in place of the minutes. It moves on
    while a bundle is sampled; a bundle that is there is trained on all the same, which is the
    shorter part of its step.
    """
    planned = planned_steps(
        config.run.steps,
        config.run.minutes,
        read_measured(folder, files, reader),
        eval_every=config.run.eval_every,
        deadline_in=seconds_until(deadline),
    )
    if not files.bundle_ready or (deadline is None and config.run.steps != "auto"):
        return planned
    under_way = files.newest + 1
    most = under_way if config.run.steps == "auto" else min(config.run.steps, under_way)
    return max(planned, most)


def read_measured(folder: RunFolder, files: RunFiles, reader: RunReader | None = None) -> Measured:
    """The times of the finished steps and evaluations, from timings.json files."""
    reader = reader or RunReader(folder)
    sums = reader.sums if files.adapters else Sums()
    eval_seconds = _eval_seconds(reader, files) if files.adapters else 0.0
    is_evaluated = not files.adapters or files.adapters[-1] in files.evaluated
    return Measured(
        step_seconds=sums.recent,
        other_seconds=sums.evaluations + sums.start,
        earlier_steps=max(0, sums.steps - 1 - len(sums.recent)),
        earlier_seconds=sums.earlier,
        spared_seconds=_spared(reader),
        final_eval_seconds=0.0 if is_evaluated else eval_seconds,
        eval_seconds=eval_seconds,
        start_eval_seconds=_seconds_to_play(reader.evaluations.get(files.adapters[0]))
        if files.adapters
        else 0.0,
    )


def _spared(reader: RunReader) -> float:
    """Seconds of the reference's logprobs, which a first step is spared where it has a KL: it
    begins at the reference. Once a second step was measured nothing has to be expected."""
    if reader.manifest is None or reader.n_steps != 2:
        return 0.0
    first = reader.step(1)
    if "kl" not in first.train or "reference" in first.seconds:
        return 0.0
    passes: int = reader.manifest["config"]["trainer"].get("passes", 1)
    return REFERENCE_SHARE * first.seconds.get("gradient", 0.0) / passes


def seconds_to_end(
    config: RunConfig,
    files: RunFiles,
    steps: int,
    measured: Measured,
    deadline_in: float | None = None,
) -> float | None:
    """Seconds until step `steps` is finished and evaluated, and the base model's arm is played
    where it comes last and has time; None before a step was measured.

    deadline_in: seconds from now by which everything has to be done.
    """
    run = config.run
    left = seconds_left(steps, measured, run.eval_every)
    if left is None or config.eval.base != "end" or BASE_ADAPTER in files.evaluated:
        return left
    is_played = has_time_for_base(
        run.steps, run.minutes, measured, deadline_in=deadline_in, before=left
    )
    return left + measured.base_seconds if is_played else left


class Outlook(NamedTuple):
    """How far a night goes. steps: in all; None where time limits them and none was measured yet.
    left: seconds until all is done; None where nothing tells. forecast: the same where it was
    measured, and not only allowed."""

    steps: int | None
    left: float | None
    forecast: float | None


def outlook(
    config: RunConfig,
    files: RunFiles,
    steps: int,
    measured: Measured,
    deadline_in: float | None = None,
) -> Outlook:
    """What a person is told of a night that is planned to have so many steps. Parameters as
    `seconds_to_end`."""
    run, found = config.run, seconds_to_end(config, files, steps, measured, deadline_in)
    if found is not None:
        return Outlook(steps, found, found)
    allotted = seconds_allotted(run.steps, run.minutes, measured, deadline_in=deadline_in)
    return Outlook(steps if allotted is None else None, allotted, None)


def is_flat(reader: RunReader, ahead: UnderWay | None = None) -> bool:
    """Whether the reward has risen and hardly rises any more, since tasks last joined the pool.
    Reads every step.json. ahead: a step that is played and not trained yet, to count too."""
    since = last_growth(reader.manifest)
    steps = [s for s in (*reader.steps, *([ahead] if ahead else ())) if s.step > since]
    found = rise([s.mean_reward for s in steps if s.mean_reward is not None])
    return found is not None and found.over


_FEW_STOPS = 0.4  # that a group is expected to have: two groups of three have none


def raise_converged(folder: RunFolder, config: RunConfig) -> NoReturn:
    """Raise `PoolConverged` with the evidence and what to do next."""
    reader, newest = RunReader(folder), folder.adapter(folder.finished_steps() - 1)
    run = f"`grpo run {folder.typed}{config.flags}"
    n = len(next_tasks(reader, config))
    if n:
        go_on = f"{run} --on-converged grow` goes on with {counted(n, 'task')} of the reserve"
    else:
        go_on = f"Add tasks to {from_checkout(config.data.pool)}, then {run}` goes on"
    habit = ""
    stops = reader.step(reader.n_steps - 1).stop_rate
    if stops is not None and stops * config.rollout.group_size < _FEW_STOPS:
        habit = (
            f" Of the last step's attempts {stops:.0%} ended by themselves, and where a whole group"
            " plays to the limit none shows another that it can stop: begin another run with a"
            " higher rollout.temperature, or from demonstrations that stop (`grpo sft DIR --stops"
            " 0.1`)."
        )
    raise PoolConverged(
        f"{pool_now(reader, config).message}.{habit} Everything is saved. {go_on}; or `grpo new`"
        f' another run, on other tasks, with [model] adapter = "{in_checkout(newest)}"'
    )


def _nothing_yet() -> RunFiles:
    return RunFiles(False, (), False, frozenset(), False)


def _is_converged(reader: RunReader, config: RunConfig, ahead: UnderWay | None) -> bool:
    """Whether the pool teaches too little to go on. A newest step of which half the groups differ
    in their work is evidence enough against, and no pool is read. ahead: as for `is_flat`."""
    newest = reader.n_steps - 1 if ahead is None else ahead.step
    if newest == 0:
        return False
    draws = ahead.draws if ahead else draws_of(reader.step(newest), reader.folder.bundle)
    learnable = sum(d.signal is Signal.LEARNABLE for d in draws)
    if 2 * learnable >= len(draws):
        return False
    return pool_now(reader, config, newest + 1).converged


def _eval_seconds(reader: RunReader, files: RunFiles) -> float:
    """What evaluating the newest adapter takes now, from the last adapter that was evaluated.

    An arm that was taken over from another run, or of which an earlier start had played a part, has
    cost this night less than it takes to play: there the arm's own seconds count.
    """
    n = reader.sums.evaluated
    if n is None:
        return 0.0
    adapter = reader.step(n).adapter_sha
    seconds = reader.timing(n).eval_of(adapter) or 0.0
    whole = max(seconds, _seconds_to_play(reader.evaluations.get(adapter)))
    return scaled_eval_seconds(whole, *_turns(reader, n, files.newest))


def _seconds_to_play(arm: Mapping[str, Any] | None) -> float:
    """What all episodes of a finished arm take, by its eval.json."""
    if arm is None:
        return 0.0
    played = arm["n_trajectories"] - arm["n_kept"]
    return float(arm["seconds"] * arm["n_trajectories"] / max(1, played))


def _turns(reader: RunReader, then: int, now: int) -> tuple[float, float]:
    """Mean turns of the rollouts of two steps; step 0 has none of its own, so step 1's.

    Equal while there is no step 1.
    """
    if now == 0:
        return 1.0, 1.0
    turns = [reader.step(max(1, min(n, now))).mean_turns or 0.0 for n in (then, now)]
    return turns[0], turns[1]
