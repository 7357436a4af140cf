"""Warnings: possible problems, found in the numbers of a night whose steps all succeeded.

Each check is a pure function that returns a warning or None. A warning states what was seen, what
it means and what to try. It never stops a run, and a night without warnings may still be unhealthy.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from fieldkit.eval.stats import wilson
from fieldkit.records import AtStop, Outcome, StepSummary
from fieldkit.training.adapter import base_name, is_quantised
from fieldkit.training.advantages import group_size_warning
from scripts.evidence import step_figures
from scripts.evidence.collect import Evidence
from scripts.evidence.milestones import Gain, Milestones, window
from scripts.evidence.step_figures import StepFigure, by_step
from scripts.run.config import RunConfig
from scripts.words.quantities import MINUS, percent, points, signed

KL_SPIKE = 3.0
"""A spike is a KL above this multiple of the largest earlier KL; steady growth is not a spike."""

KL_FLOOR = 0.01
"""Nats a token. A jump to a lower KL is ignored: bf16 rounding is of this size."""

STEPS_BEFORE = 3
"""Earlier steps needed before a KL counts as a spike: one or two steps are too noisy."""

REWARD_UP = 0.02
PASS_DOWN = 0.05
"""Smallest changes of the trailing means that count: of the reward, as a share of its size, because
every environment pays on a scale of its own, and of the pass rate."""

IDLE = 0.25
"""Share of the stops with nothing done: two of a group of eight. Fewer can be tasks beyond the
model, for which giving up is right: a healthy night had 9 % at its end and 21 % over its three
worst steps. The 95 % interval, which takes attempts as independent, has to lie above it."""

HAD_FOR_NOTHING = 0.5
"""Share of the assertions gained that doing nothing meets: with more, most of the gain is no
work."""

COLLAPSED = 0.5
"""Tokens a turn, last steps over first steps."""

ENTROPY_COLLAPSED = 0.25
"""Entropy, last steps over first steps; below a quarter, a group's episodes are near copies."""

DRIFT = 0.02
DRIFT_GROWTH = 2.0
"""Mean |sampler − trainer| in nats a token, and its growth since the first steps; bf16 alone gives
0.01."""

CLIPPED = 0.05
"""Share of tokens whose importance weight reached its cap."""

SILENT = 0.5
"""Share of steps without signal."""


@dataclass(frozen=True)
class Warning_:
    """A possible problem that a person should look at."""

    title: str
    seen: str
    meaning: str
    remedy: str


def unseen(
    config: RunConfig, steps: Sequence[StepSummary], found: Milestones, evidence: Evidence | None
) -> str:
    """What the checks look for in such a run, for a page without warnings. What they cannot see in
    it, as in a night of three steps, is left out. Arguments as for `warnings`."""
    reply, entropy, drifts, cut = (
        _first_and_last(steps, figure) is not None
        for figure in (
            *(step_figures.REPLY, step_figures.ENTROPY),
            *(step_figures.DRIFT, step_figures.CLIPPED),
        )
    )
    kl = len(by_step(steps, step_figures.KL)) > STEPS_BEFORE
    rewards = not config.reward.schedule and any(g.figure == "reward" for g in found.gains)
    stops = stops_first_and_last(steps) is not None
    gained = evidence is not None and evidence.newest is not None and evidence.by_need is not None
    own = not step_figures.overlap_figures(steps)
    looked_for = (
        (
            kl,
            f"a KL, after the first {STEPS_BEFORE}, of more than {KL_SPIKE:g} times any before it",
        ),
        (rewards, "a reward that rises while fewer tasks pass"),
        (stops, f"more than {percent(IDLE)} of the stops with nothing done"),
        (
            gained,
            f"more than {percent(HAD_FOR_NOTHING)} of the assertions gained met by doing nothing",
        ),
        (reply, f"replies shorter than {percent(COLLAPSED)} of the first ones"),
        (entropy, f"an entropy below {percent(ENTROPY_COLLAPSED)} of the first"),
        (
            own and drifts,
            f"a sampler and a trainer that drift apart, by more than {DRIFT} nats a token",
        ),
        (own and cut, f"more than {percent(CLIPPED)} of the tokens clipped"),
        (bool(steps), f"{percent(SILENT)} of the steps without a signal"),
        (True, "a sandbox that is off"),
        (True, "an adapter of another model"),
        (True, "groups that are too small"),
    )
    return "; ".join(what for looked, what in looked_for if looked)


def warnings(
    steps: Sequence[StepSummary],
    found: Milestones,
    config: RunConfig,
    manifest: Mapping[str, Any],
    evidence: Evidence | None,
) -> tuple[Warning_, ...]:
    """Run every check. steps: the steps with rollouts, oldest first."""
    checks = (
        sandbox_off(manifest),
        base_in_doubt(manifest),
        kl_spike(steps),
        reward_without_work(found, evidence),
        idle_stops(steps),
        gained_for_nothing(evidence),
        length_collapse(steps),
        entropy_collapse(steps),
        drift(steps),
        clipped(steps),
        silent_steps(steps),
        small_groups(config),
    )
    return tuple(w for w in checks if w is not None)


def sandbox_off(manifest: Mapping[str, Any]) -> Warning_ | None:
    """The model's commands ran without a sandbox."""
    if manifest.get("sandbox") != "none":
        return None
    return Warning_(
        "The sandbox was off",
        "It was played with `--sandbox none`.",
        "Commands that the model wrote ran as you, with your files and your network.",
        "Start another run without --sandbox none; `grpo doctor` says whether bwrap works here.",
    )


def base_in_doubt(manifest: Mapping[str, Any]) -> Warning_ | None:
    """The adapter at the start names another base model."""
    other = manifest.get("adapter", {}).get("other_base")  # absent in runs before 22 November
    if other is None:
        return None
    if is_quantised(other, manifest["model"]["dir"]):
        return Warning_(
            "The adapter was trained on weights of fewer bits",
            f"Its adapter_config.json says that it was trained on {other}; the run served and"
            f" trained it on {base_name(manifest['model']['dir'])}.",
            "It was fitted to rounded weights, and may do less well on those that are not.",
            "Compare base and start in the table: the start is the adapter on these weights.",
        )
    return Warning_(
        "The adapter may be one of another model",
        f"Its adapter_config.json says that it was trained on {other}; the run served and trained"
        f" it on {base_name(manifest['model']['dir'])}.",
        "Where these are two models of one shape, the night began from a damaged policy. Where"
        " they are one model under two names, nothing is wrong.",
        "Compare base and start in the table: an adapter of this model is not below its base.",
    )


def kl_spike(steps: Sequence[StepSummary]) -> Warning_ | None:
    """The KL to the start spiked."""
    known = by_step(steps, step_figures.KL)
    before = max((v for _, v in known[:STEPS_BEFORE]), default=0.0)
    for step, value in known[STEPS_BEFORE:]:
        if value > KL_FLOOR and value > KL_SPIKE * before:
            return Warning_(
                f"The KL jumped at step {step}",
                f"{value:.4f} nats a token, at most {before:.4f} before it.",
                "One update moved the policy far from where it began. What it learned in that step"
                " may be a trick of a few groups.",
                "Lower trainer.lr, or raise trainer.kl_coef; look at that step's bundle first.",
            )
        before = max(before, value)
    return None


def reward_without_work(found: Milestones, evidence: Evidence | None) -> Warning_ | None:
    """The reward rose while fewer tasks pass, in all or in one of several environments.

    Uses the held-out pass rate once an adapter is evaluated, and the rollouts' pass rate before
    that, because each step plays other tasks.
    """
    cases = {"": found.gains, **found.by_environment}
    seen = [s for env, gains in cases.items() if (s := _unearned(gains, evidence, env))]
    if not seen:
        return None
    title = "The reward rose while fewer tasks pass"
    if evidence is not None and evidence.reward_parts:
        return Warning_(
            title,
            " ".join(seen),
            "The policy found a part of the reward that it gets without finishing.",
            "Read the transcripts below, then lower that part's weight in envs.NAME.rewards, or"
            " have it pay only for finished work.",
        )
    return Warning_(
        title,
        " ".join(seen),
        "The policy found something that is paid better than finishing: stopping early is the"
        " usual one.",
        "`grpo reward explain` shows what is paid for; lower reward.turn_penalty.",
    )


def _unearned(gains: Sequence[Gain], evidence: Evidence | None, env: str) -> str:
    """A reward that rose and passes that fell, in words; empty otherwise. env: empty for all."""
    of = {g.figure: g for g in gains}
    if "reward" not in of or "pass rate" not in of:
        return ""
    reward, passed = of["reward"], of["pass rate"].last - of["pass rate"].first
    size = max(abs(reward.first), abs(reward.last))
    if not reward.last - reward.first > REWARD_UP * size:
        return ""
    where = f"In {env}: reward" if env else "Reward"
    rose = f"{where} {reward.first:.3g} → {reward.last:.3g}".replace("-", MINUS)
    change = _held_out_passes(evidence, env) if evidence is not None else None
    if evidence is None or change is None:
        fell = passed <= -PASS_DOWN
        return f"{rose}, tasks passed {points(passed)} points over the steps." if fell else ""
    sign, lost = change
    if sign >= 0:
        return ""
    told = f"{rose} over the steps, held-out tasks passed {points(lost)} points."
    return told + _risen_part(evidence, env)


def _held_out_passes(evidence: Evidence, env: str) -> tuple[int, float] | None:
    """The newest adapter's change in held-out tasks passed, with its sign where it is proven; None
    where it was not played on such tasks."""
    if evidence.newest is None:
        return None
    if not env:
        change = evidence.against_reference(evidence.newest).passed
        return change.sign, change.difference.value
    for row in evidence.splits.get("environment", ()):
        if row.value == env and row.paired is not None:
            change = row.paired.passed
            return change.sign, change.difference.value
    return None


def _risen_part(evidence: Evidence, env: str) -> str:
    """The part that adds most to the reward of held-out tasks, in words; empty if none rose."""
    risen = [(0.0, "")]
    for row in evidence.reward_parts:
        before, after = (row.means.get(arm) for arm in (evidence.reference, evidence.newest or ""))
        if before is not None and after is not None and (not env or row.env == env):
            told = f" The part {row.name} went from {before:.3g} to {after:.3g}."
            risen.append((row.weight * (after - before), told.replace("-", MINUS)))
    return max(risen)[1]


def stops_first_and_last(steps: Sequence[StepSummary]) -> tuple[AtStop, AtStop] | None:
    """The stops of the first and of the last steps, each added up over as many as `window`
    says; None with fewer than two steps that tell."""
    known = [s.at_stop for s in steps if s.at_stop is not None]
    n = min(window(len(known)), len(known) // 2)
    return (_added(known[:n]), _added(known[-n:])) if n else None


def _added(stops: Sequence[AtStop]) -> AtStop:
    return AtStop(*(sum(counts) for counts in zip(*map(astuple, stops), strict=True)))


def idle_stops(steps: Sequence[StepSummary]) -> Warning_ | None:
    """Attempts end by themselves with nothing done."""
    change = stops_first_and_last(steps)
    if change is None or not change[1].n:
        return None
    first, last = change
    interval = wilson(last.idle, last.n).interval
    if interval is None or interval.low <= IDLE:
        return None
    return Warning_(
        "Attempts stop with nothing done",
        f"{last.idle} of {last.n} stops in the last steps, {first.idle} of {first.n} in the first.",
        "An attempt that gives up at once takes the fewest turns, which can be paid better than one"
        " that tries and fails.",
        "Set reward.false_claim_penalty, or lower reward.turn_penalty; `grpo reward explain` shows"
        " what giving up earns.",
    )


def gained_for_nothing(evidence: Evidence | None) -> Warning_ | None:
    """More held-out assertions hold, mostly those that doing nothing meets, and no more tasks
    pass."""
    if evidence is None or evidence.newest is None or evidence.by_need is None:
        return None
    change = evidence.against_reference(evidence.newest)
    held = evidence.by_need.held
    met, unmet = (
        after - before
        for before, after in zip(held[evidence.reference], held[evidence.newest], strict=True)
    )
    if change.assertion_rate.sign <= 0 or change.passed.sign > 0:
        return None
    if met <= HAD_FOR_NOTHING * (met + unmet):
        return None
    return Warning_(
        "The assertions gained are met by doing nothing",
        f"Held-out assertions that doing nothing meets: {signed(met, 0)}; those that need work:"
        f" {signed(unmet, 0)}.",
        "The policy breaks less than before and does no more: `file_unchanged`, for one, holds for"
        " whoever does nothing.",
        "Judge the run by tasks passed; reward.pass_bonus pays for finished work.",
    )


def length_collapse(steps: Sequence[StepSummary]) -> Warning_ | None:
    """Replies shrank to less than half their length."""
    change = _first_and_last(steps, step_figures.REPLY)
    if change is None or change[1] >= COLLAPSED * change[0]:
        return None
    return Warning_(
        "Replies collapsed",
        f"{change[1]:.1f} tokens a turn in the last steps, {change[0]:.1f} in the first.",
        "Short replies can be a policy that learned to say nothing. Fewer turns are wanted;"
        " emptier ones are not.",
        "Read the transcripts below. If work is left undone, lower reward.turn_penalty.",
    )


def entropy_collapse(steps: Sequence[StepSummary]) -> Warning_ | None:
    """The policy hardly explores."""
    change = _first_and_last(steps, step_figures.ENTROPY)
    if change is None or change[1] >= ENTROPY_COLLAPSED * change[0]:
        return None
    return Warning_(
        "The entropy collapsed",
        f"{change[1]:.3f} nats a token in the last steps, {change[0]:.3f} in the first.",
        "A task's rollouts are near copies of each other, so their rewards are equal and teach"
        " nothing.",
        "Lower trainer.lr or raise trainer.kl_coef; fresh tasks help too.",
    )


def drift(steps: Sequence[StepSummary]) -> Warning_ | None:
    """Server and trainer increasingly disagree about the probabilities of the same tokens. Not
    looked at where an older policy plays: the difference is then also that of two policies."""
    if step_figures.overlap_figures(steps):
        return None
    change = _first_and_last(steps, step_figures.DRIFT)
    if change is None or change[1] < DRIFT or change[1] < DRIFT_GROWTH * change[0]:
        return None
    return Warning_(
        "Sampler and trainer drift apart",
        f"Mean |sampler − trainer| {change[1]:.3f} nats a token in the last steps,"
        f" {change[0]:.3f} in the first.",
        "The trainer scores other probabilities than the server sampled from: another adapter,"
        " another temperature, or too little precision.",
        '`grpo doctor`; set engine.lifecycle = "restart", or engine.dtype = "float32" in another'
        " run.",
    )


def clipped(steps: Sequence[StepSummary]) -> Warning_ | None:
    """Many importance weights reached their cap. Not looked at where an older policy plays, which
    the weights are for."""
    if step_figures.overlap_figures(steps):
        return None
    change = _first_and_last(steps, step_figures.CLIPPED)
    if change is None or change[1] < CLIPPED:
        return None
    return Warning_(
        "Many tokens are clipped",
        f"{percent(change[1])} of the tokens met trainer.tis_cap in the last steps.",
        "The bundles no longer come from the policy that is trained on them.",
        "See in journal.jsonl whether the server proves its adapter, and run `grpo doctor`.",
    )


def silent_steps(steps: Sequence[StepSummary]) -> Warning_ | None:
    """Most steps had no signal."""
    silent = [s for s in steps if s.outcome is Outcome.NO_SIGNAL]
    if not silent or len(silent) < SILENT * len(steps):
        return None
    return Warning_(
        "Most steps taught nothing",
        f"{len(silent)} of {len(steps)} steps had no group whose rewards differ.",
        "Tasks that always pass, or never do, cost time and move nothing.",
        "Add tasks of another difficulty, raise rollout.group_size, or the temperature.",
    )


def small_groups(config: RunConfig) -> Warning_ | None:
    """Groups are too small for a good baseline."""
    told = group_size_warning(config.rollout.group_size, config.advantages.scale)
    if told is None:
        return None
    return Warning_(
        "Groups are small",
        f"{told[0].upper()}{told[1:]}.",
        "The mean of so few rewards is a rough baseline.",
        "Raise rollout.group_size in a new run.",
    )


def _first_and_last(steps: Sequence[StepSummary], figure: StepFigure) -> tuple[float, float] | None:
    """Means over as many steps at either end as `window` says; None if the two would overlap."""
    values = [v for _, v in by_step(steps, figure)]
    n = window(len(values))
    if len(values) < 2 * n:
        return None
    return statistics.fmean(values[:n]), statistics.fmean(values[-n:])
