"""How the night ended, and what to type next.

The plan shows whether work is left; the journal shows how the last process ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from fieldkit.errors import Interrupted
from fieldkit.eval.matched import ArmRow
from fieldkit.files.journal import Entry
from scripts.base.checkout import from_checkout, in_checkout
from scripts.evidence.collect import Evidence, TaskSet
from scripts.evidence.findings import STEPS, Findings
from scripts.evidence.milestones import window
from scripts.evidence.played import BASE, step_name
from scripts.evidence.verdict import (
    STOPS_BY_ITSELF,
    Habit,
    Learning,
    Verdict,
    Work,
    lost_since,
)
from scripts.run.next_phase import FLAT, Phase
from scripts.run.run_pool import has_reserve
from scripts.run.state import last_word, loop_said, of_the_night
from scripts.run.until import held
from scripts.words.quantities import clock, counted, estimate, percent


class EndKind(StrEnum):
    """How the night ended."""

    COMPLETE = "COMPLETE"
    CONVERGED = "CONVERGED"
    FAILED = "FAILED"
    KEPT = "KEPT"
    """A copy of a run without its journal, so how it ended is not known."""
    UNFINISHED = "UNFINISHED"
    NOT_STARTED = "NOT_STARTED"


@dataclass(frozen=True)
class Ending:
    """The ending in a sentence. failure: the text of the error that ended it, if any. forecast:
    how the loop's first forecast held."""

    kind: EndKind
    sentence: str
    failure: str = ""
    forecast: str = ""


def ending(m: Findings) -> Ending:
    """Derive the ending from the plan and the journal."""
    done, last = max(0, len(m.steps) - 1), _failed(m.journal)
    failure = str(last.data.get("error", "")) if last else ""
    if not m.steps:
        unread = any(gap.what == STEPS for gap in m.gaps)
        told = "Its steps cannot be read." if unread else "No step is finished."
        return Ending(EndKind.NOT_STARTED, told, failure)
    if m.plan is not None and m.plan.phase is Phase.DONE:
        kept = held(m.journal, done)
        flat = f" {FLAT}." if done < m.plan.steps else ""
        return Ending(
            EndKind.COMPLETE,
            f"Complete: {counted(done, 'step')}, and the evaluations.{flat}{_asked_first(m)}",
            forecast=kept.told() if kept else "",
        )
    if m.plan is not None and m.plan.phase is Phase.CONVERGED:
        return Ending(EndKind.CONVERGED, f"The pool converged after {counted(done, 'step')}.")
    if m.plan is None and loop_said(m.journal) in (Phase.DONE.value, Phase.CONVERGED.value):
        # A copy, or one that another version or an edited run.toml keeps from going on.
        told = f"Complete: {counted(done, 'step')}.{_asked_first(m)}"
        return Ending(EndKind.COMPLETE, told)
    if m.is_copy and not m.journal:
        told = f"A copy of {counted(done, 'step')}, without their journal."
        return Ending(EndKind.KEPT, told)
    planned = f" of {m.plan.steps}" if m.plan else ""
    if last:
        phase = last.data.get("phase")
        where = f", in its {phase} phase" if phase else ""
        return Ending(
            EndKind.FAILED,
            f"Stopped by an error after {done}{planned} steps, at {clock(last.time)}{where}"
            f" (exit {last.data.get('exit')}).",
            failure,
        )
    left = f"; next: {m.plan.phase.value}" if m.plan else ""
    return Ending(EndKind.UNFINISHED, f"Not finished: {done}{planned} steps are done{left}.")


def _asked_first(m: Findings) -> str:
    """The number of steps that was set at first, where another one was set since, and that a night
    was complete before it got another limit: that may have been after a look at the figures."""
    limits = [e.data.get("limits", {}) for e in m.journal if e.event == "loop_start"]
    asked = [told["steps"] for told in limits if isinstance(told.get("steps"), int)]
    if asked and asked[0] != asked[-1]:
        return f" {asked[0]} were asked for at first."
    return " It was complete once, and then asked for more." if _went_on(m.journal) else ""


def _went_on(journal: Sequence[Entry]) -> bool:
    """Whether a step was trained after the night was complete."""
    over = [i for i, e in enumerate(journal) if e.data.get("next") == Phase.DONE.value]
    trained = {"phase": Phase.TRAIN.value, "exit": 0}
    return bool(over) and any(
        e.event == "phase_end" and trained.items() <= e.data.items() for e in journal[over[0] :]
    )


def _failed(journal: Sequence[Entry]) -> Entry | None:
    """The end of the phase, or of the loop, whose error ended the night; None if it went on or
    ended otherwise, as by a person."""
    last = last_word(of_the_night(journal))
    no_error = (None, 0, Interrupted.exit_code)
    return last if last and last.data.get("exit") not in no_error else None


def next_steps(m: Findings, end: Ending) -> tuple[str, ...]:
    """Suggestions for the next action, the most useful first."""
    if m.is_copy:
        start = m.config.model.adapter
        first = "" if from_checkout(start).is_dir() else f" once {start} is there"
        again = m.folder.how_to_play_again
        return (f"This copy of the run cannot go on: {again}{first}.",)
    out = []
    if m.gaps and m.steps:
        out.append(f"Put right what is missing above, then `grpo report {m.typed}`.")
    if m.evidence is None:
        return (*out, f"`grpo run {m.to_play}` goes on from here.")
    if end.kind in (EndKind.FAILED, EndKind.UNFINISHED):
        out.append(f"`grpo run {m.to_play}` goes on from here: finished steps are kept.")
    if end.kind is EndKind.CONVERGED:
        go_on = f"Add tasks to {m.config.data.pool}, then `grpo run {m.to_play}` goes on"
        if has_reserve(m.config):
            go_on = (
                f"`grpo run {m.to_play} --on-converged grow` goes on with tasks of the reserve, if"
                " it has any left"
            )
        out.append(f"{go_on}: the pool teaches too little now.")
    if m.is_untrained:
        if end.kind in (EndKind.COMPLETE, EndKind.CONVERGED):
            out.append(
                "Groups need rewards that differ: add tasks of another difficulty to the pool, or"
                " raise rollout.group_size or rollout.temperature in a new run."
            )
        return tuple(out)
    if m.verdict is None:
        if len(m.steps) > 1:
            newest = f"The newest adapter is step {m.steps[-1].step}'s."
            out.append(f"`grpo eval {m.to_play}` evaluates what was trained so far. {newest}")
        return tuple(out)
    out += filter(None, [_about_the_adapter(m, end, m.evidence, m.verdict)])
    if m.config.eval.base == "end" and all(arm.name != BASE for arm in m.evidence.arms):
        out.append(f"The base model was not played: `grpo eval {m.to_play}` adds it to the tables.")
    of_file = m.manifest.get("data", {}).get("heldout", {}).get("n", 0)
    if m.verdict.work is Work.NOT_DISTINGUISHABLE and m.evidence.n_tasks < of_file:
        out.append("To tell more: set eval.tasks = 0 in a new run and play all held-out tasks.")
    return tuple(out)


NEARLY_ALL = 0.9
"""Where the adapter passed this share of its tasks before, there is little to learn from them."""


def _about_the_adapter(m: Findings, end: Ending, evidence: Evidence, verdict: Verdict) -> str:
    """What to do with it; empty where the night goes on by itself."""
    assert m.judged_step is not None
    adapter = f"`{in_checkout(m.folder.adapter(m.judged_step))}`"
    before, after = evidence.arm(evidence.reference), evidence.arm(step_name(m.judged_step))
    lost = lost_since(evidence.late)
    if fell := [p for p in lost if evidence.arm(p.reference).passed >= before.passed]:
        best = min(fell, key=lambda since: since.passed.difference.value)
        step = next(s.step for s in m.steps if step_name(s.step) == best.reference)
        return (
            f"{best.reference.capitalize()} passes more tasks than {best.name}"
            f" ({estimate(best.passed.difference)} points since):"
            f" `grpo use {m.typed} --step {step}` says how to take it."
        )
    if verdict.learning is Learning.WORSE:
        return (
            "Do not use this adapter as it is: read the tasks it lost, then raise trainer.kl_coef"
            f" or change what is paid for (`grpo reward explain {m.typed}`) in a new run."
        )
    if verdict.learning is Learning.DONE:
        if after.passed < before.passed:
            return (
                f"{adapter} ends by itself and may pass fewer tasks: where these count, play more"
                " held-out tasks before you use it."
            )
        return f"Use it: {adapter}."
    if verdict.habit is Habit.NEVER_THERE and before.passed >= NEARLY_ALL * before.n_tasks:
        return "There was nothing to mend here: try a harder pool, or keep what you had."
    if evidence.played_on is TaskSet.FINAL:
        return (
            "More steps may help, but their number would be chosen by a look at the final set: try"
            " them in a new run, on other held-out tasks."
        )
    if stretch := _last_stretch(m, after, verdict):
        return stretch
    if end.kind is not EndKind.COMPLETE or m.plan is None:
        return ""
    if m.steps[-1].step < m.plan.steps:
        return (
            f"For more steps all the same: `run.stop_when_flat = false` in"
            f" {in_checkout(m.folder.config)}, then `grpo run {m.to_play}`."
        )
    return f"More steps: `grpo run {m.to_play} --steps {2 * max(1, m.steps[-1].step)}`."


def _last_stretch(m: Findings, after: ArmRow, verdict: Verdict) -> str | None:
    """What to try where attempts end by themselves in training, but not all do at the lower T of an
    evaluation. Twenty steps more, at half the learning rate that the night began with, took their
    share there from 87 to 99.5 % at the same T, and to 99.8 % at 0.7 (docs/LOG.md)."""
    rollout, low = m.config.rollout, m.config.eval.temperature
    if low >= rollout.temperature:
        return None
    rates = [s.stop_rate for s in m.played if s.stop_rate is not None]
    late = rates[-window(len(rates)) :]
    habits = (Habit.REDUCED, Habit.UNCHANGED)
    lags = verdict.habit in habits and after.stop_rate.value < STOPS_BY_ITSELF
    if not lags or not late or fmean(late) < STOPS_BY_ITSELF:
        return None
    trainer = m.config.trainer
    small = min(trainer.lr / 2, trainer.at_step(m.steps[-1].step).lr)
    return (
        f"In training, at T = {rollout.temperature:g}, {percent(fmean(late))} of the last attempts"
        f" ended by themselves; what is left shows at T = {low:g}. A last stretch of small"
        f" steps may end it: `grpo new {m.folder.beside('last')} --from {m.typed}"
        f" --set trainer.lr={small:.3g} --set run.steps=20`."
    )
