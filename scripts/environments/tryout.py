"""Plays an environment's class to check determinism, isolation, rewards and times.

`instance` plays one episode; this module chooses the trials and judges their results.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rollout.envs.user_code import place_of
from scripts.environments import earnings
from scripts.environments.contract import Finding, Level
from scripts.environments.earnings import short
from scripts.environments.end_attribute import unset_end
from scripts.environments.instance import Instance, Played, Row, Trials, chance, recited

Elsewhere = Callable[[Played], Played | None]
"""Plays an episode's calls again in another process; None where that cannot be done."""


def run_trials(
    trials: Trials, tell: Callable[[str], None], progress: Callable[[str, int, int], None]
) -> tuple[list[Finding], dict[str, Any]]:
    """Run all trials; return findings, and figures for the report. Raises `Broken`."""
    row = trials.rows[0]
    findings: list[Finding] = []
    figures: dict[str, Any] = {}

    def fresh() -> Instance:
        return Instance(trials, tell)

    first = fresh()
    choose = chance(first.schemas, 0)
    once = first.play(row, 0, choose, trials.turns)
    progress("trials", 1, 4)
    findings += _same(trials.kind, once, fresh(), row, "the same seed and calls")
    progress("trials", 2, 4)
    if not findings:
        findings += _same(trials.kind, once, first, row, "a second episode of one instance")
    progress("trials", 3, 4)
    if not findings:
        findings += _apart(trials, once, fresh(), fresh())
    progress("trials", 4, 4)
    more, figures["random"], played = _random(trials, first, progress)
    findings += more
    empty = first.play(row, 0, recited(()), 0)
    figures["empty"] = _worth(trials, empty)
    findings += earnings.of_nothing(figures["empty"], _pays(trials.kind))
    if trials.perfect is not None:
        perfect = first.play(row, 0, recited(trials.perfect), len(trials.perfect))
        figures["perfect"] = _worth(trials, perfect)
        where = (perfect.failed and trials.oracle_place) or _pays(trials.kind)
        worth = figures["perfect"], figures["empty"], figures["random"]
        findings += earnings.not_perfect(*worth, where, trials.oracle, perfect.failed)
        played.append(perfect)
    played += [once, empty]
    findings += _luck(trials.kind, played)
    if not trials.ends:
        findings += unset_end(trials.kind, [p.flags for p in played if p.calls])
    figures["longest"] = {
        "prompt": list(max(played, key=lambda p: len(p.opening)).prompt),
        "answer": max((said for p in played for said in p.said), key=len, default=""),
    }
    figures["reset_ms"] = 1000 * statistics.median(p.reset_s for p in played)
    steps = sorted(s for p in played for s in p.call_s)
    figures["step_ms"] = 1000 * statistics.median(steps) if steps else None
    figures["slowest_step_ms"] = 1000 * steps[-1] if steps else None
    return findings, figures


def _same(kind: type, once: Played, instance: Instance, row: Row, what: str) -> list[Finding]:
    """Play the calls of `once` again; a finding if anything differs."""
    again = instance.play(row, once.seed, recited(once.calls), len(once.calls))
    return _difference(kind, once, again, f"{what} gave something else")


def _difference(kind: type, once: Played, again: Played, what: str) -> list[Finding]:
    if once.opening != again.opening:
        text = f"{what}: reset said {short(once.opening)}, then {short(again.opening)}"
        return [Finding(Level.ERROR, place_of(getattr(kind, "reset", kind)), text)]
    for i, (one, two) in enumerate(zip(once.said, again.said, strict=False)):
        if one != two:
            name = once.calls[i][0]
            text = f"{what}: call {i + 1}, {name}, said {short(one)}, then {short(two)}"
            return [Finding(Level.ERROR, place_of(getattr(kind, name, kind)), text)]
    if len(once.calls) != len(again.calls) or once.parts != again.parts:
        text = f"{what}: the episode had {len(once.calls)} calls and was worth {once.worth},"
        text += f" then {len(again.calls)} calls and {again.worth}"
        return [Finding(Level.ERROR, _pays(kind), text)]
    return []


def _apart(trials: Trials, once: Played, one: Instance, other: Instance) -> list[Finding]:
    """Play two instances in turn; the second must not change the first."""
    row, last = trials.rows[0], trials.rows[-1]
    begun = one.begin(row, once.seed)
    disturbing = other.begin(last, once.seed + 1)
    choose = chance(other.schemas, once.seed + 1)
    for name, arguments in once.calls:
        if not other.done and (call := choose(len(disturbing.calls), disturbing.shown)):
            other.call(disturbing, *call)
        one.call(begun, name, arguments)
    other.end(disturbing, last)
    return _difference(
        trials.kind, once, one.end(begun, row), "two instances share state: beside another one it"
    )


def same_elsewhere(
    trials: Trials, tell: Callable[[str], None], elsewhere: Elsewhere
) -> list[Finding]:
    """Play an episode here and in another process; a finding if anything differs. Only there is the
    order of a set another one. Raises `Broken`."""
    here = Instance(trials, tell)
    once = here.play(trials.rows[0], 0, chance(here.schemas, 0), trials.turns)
    again = elsewhere(once)
    if again is None:
        return []
    what = "the same seed and calls in another process gave something else"
    return [
        replace(found, text=f"{found.text}; as the order of a set does: sort what is shown")
        for found in _difference(trials.kind, once, again, what)
    ]


def _luck(kind: type, played: Sequence[Played]) -> list[Finding]:
    """A warning where a tool draws from the generators of the process."""
    tool = next((p.drew for p in played if p.drew), "")
    if not tool:
        return []
    text = (
        f"tool {tool} draws from the generators of the process, from which other episodes of a run"
        " draw as well, so attempts at a task differ by luck, which a group takes for skill: make"
        " one in reset, as self._random = random.Random(random.random())"
    )
    return [Finding(Level.WARNING, place_of(getattr(kind, tool, kind)), text)]


def many(
    trials: Trials,
    n: int,
    play: Callable[[Row, int], Played],
    told: Callable[[int], None],
) -> list[Played]:
    """Up to `n` episodes of the rows in turn, each with its own seed; none begins after the trials'
    time limit."""
    stop_at = time.monotonic() + trials.seconds
    played: list[Played] = []
    for seed in range(n):
        if played and time.monotonic() > stop_at:
            break
        played.append(play(trials.rows[seed % len(trials.rows)], seed))
        told(len(played))
    return played


def earned(trials: Trials, played: Sequence[Played]) -> dict[str, Any]:
    """The rewards of a policy's episodes. passed: a share; None if no condition is declared."""
    passes = [trials.passed(p.parts) for p in played] if trials.passed else None
    return earnings.earned([p.reward for p in played], passes, [len(p.calls) for p in played])


def _random(
    trials: Trials, instance: Instance, progress: Callable[[str, int, int], None]
) -> tuple[list[Finding], dict[str, Any], list[Played]]:
    """Episodes of a random policy, each with its own seed."""

    def play(row: Row, seed: int) -> Played:
        return instance.play(row, seed, chance(instance.schemas, seed), trials.turns)

    played = many(
        trials, trials.episodes, play, lambda n: progress("random episodes", n, trials.episodes)
    )
    figures = earned(trials, played)
    figures["raised"] = sum(len(p.raised) for p in played)
    findings = earnings.by_chance(figures, _pays(trials.kind))
    lines = [line for p in played for line in p.raised]
    if lines and len(lines) == sum(len(p.calls) for p in played):
        where, _, text = lines[0].partition(": ")
        findings.append(Finding(Level.ERROR, where, f"every call of a tool raised: {text}"))
    return findings, figures, played


def _worth(trials: Trials, played: Played) -> dict[str, Any]:
    passed = trials.passed(played.parts) if trials.passed else None
    return earnings.worth(played.reward, played.worth, passed)


def _pays(kind: type) -> str:
    """file:line of the method that gives the reward, or of the class."""
    return place_of(getattr(kind, "get_reward", kind))
