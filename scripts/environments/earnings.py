"""What the episodes of a check earned, and the findings that follow from it.

A group of equal rewards teaches nothing, and a reward that doing nothing or chance earns teaches
the wrong thing. This holds for an environment of any style; nothing here plays one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.environments.contract import Finding, Level

MOSTLY = 0.5
"""A share of passed random episodes above which the task is no task."""


def earned(
    rewards: Sequence[float | None], passes: Sequence[bool] | None, calls: Sequence[int]
) -> dict[str, Any]:
    """A policy's episodes as figures, from one value each. unrewarded: how many have no reward,
    which the figures of rewards leave out. passed: a share; None if no condition is declared."""
    paid = [r for r in rewards if r is not None]
    return {
        "episodes": len(rewards),
        "unrewarded": len(rewards) - len(paid),
        "mean": statistics.fmean(paid) if paid else None,
        "sd": statistics.stdev(paid) if len(paid) > 1 else None,
        "lowest": min(paid, default=None),
        "highest": max(paid, default=None),
        "passed": statistics.fmean(passes) if passes else None,
        "calls": statistics.fmean(calls),
    }


def short(text: str) -> str:
    """What was said, in a message of one line."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def by_chance(figures: Mapping[str, Any], where: str) -> list[Finding]:
    """The findings of a random policy's figures. where: of the reward."""
    findings = []
    if figures["mean"] is None:
        text = "no episode of a random policy had a reward: every part was None, or there is none"
        findings.append(Finding(Level.ERROR, where, text))
    elif figures["unrewarded"]:
        text = f"{figures['unrewarded']} of {figures['episodes']} episodes had no reward (None)"
        text += " and would have no advantage: return 0.0 for a failure"
        findings.append(Finding(Level.WARNING, where, text))
    if figures["mean"] is not None and figures["lowest"] == figures["highest"]:
        which = "every episode of a random policy is worth"
        if figures["unrewarded"]:
            which = "every episode of a random policy that had a reward is worth"
        text = f"{which} {figures['lowest']:g}: a group of equals"
        text += " teaches nothing, so a first reward has to be within reach of the policy"
        findings.append(Finding(Level.WARNING, where, text))
    if figures["passed"] is not None and figures["passed"] > MOSTLY:
        text = f"a random policy passes {figures['passed']:.0%} of its episodes"
        findings.append(Finding(Level.WARNING, where, text))
    return findings


def worth(
    reward: float | None, parts: Mapping[str, float | None], passed: bool | None
) -> dict[str, Any]:
    """One episode as figures."""
    return {"reward": reward, "parts": dict(parts), "passed": passed}


def of_nothing(empty: Mapping[str, Any], where: str) -> list[Finding]:
    """The findings of an episode without a call."""
    if not empty["passed"]:
        return []
    text = "an episode without a call passes: doing nothing would be learned"
    return [Finding(Level.ERROR, where, text)]


def not_perfect(
    perfect: Mapping[str, Any],
    empty: Mapping[str, Any],
    chance: Mapping[str, Any],
    where: str,
    oracle: str = "",
    failed: str = "",
) -> list[Finding]:
    """The findings of the episode that should be perfect, beside nothing and chance. oracle: the
    function that gave its calls, if one did. failed: its first call that failed."""
    which = f"the episode of oracle = {oracle}" if oracle else "the perfect episode"
    failed = f"; {failed}" if failed else ""
    if perfect["passed"] is False:
        text = f"{which} does not pass: {perfect['parts']}{failed}"
        return [Finding(Level.ERROR, where, text)]
    floor = [r for r in (empty["reward"], chance["mean"]) if r is not None]
    if perfect["reward"] is None or (floor and perfect["reward"] <= max(floor)):
        text = f"{which} is worth {perfect['reward']}, no more than nothing or chance{failed}"
        return [Finding(Level.ERROR, where, text)]
    return []


def of_model(model: Mapping[str, Any], chance: float | None, where: str) -> list[Finding]:
    """The findings of a model's figures. chance: a random policy's mean reward."""
    findings = []
    if model["calls"] == 0:
        text = "the model called no tool: do prompt, names and docstrings state the goal?"
        findings.append(Finding(Level.WARNING, where, text))
    if model["mean"] is None or (chance is not None and model["mean"] <= chance):
        text = f"the model earns {_number(model['mean'])} an episode, a random policy"
        text += f" {_number(chance)}: skill does not pay here"
        findings.append(Finding(Level.WARNING, where, text))
    return findings


def _number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.3g}"
