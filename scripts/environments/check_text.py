"""The output of `grpo env check`: findings, tools, and the rewards of episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollout.envs.tool_calls import TOOL_FORMS
from scripts.environments.env_check import Checked

_ROWS = {"random": "random policy", "model": "model"}


def check_text(checked: Checked) -> str:
    """All of it as lines."""
    figures = checked.figures
    lines = [str(finding) for finding in checked.findings]
    if tools := figures.get("tools"):
        tell = TOOL_FORMS["text"].tell
        assert tell is not None
        lines += [f"tools, as described to a policy without a tool template ({len(tools)}):"]
        lines += [f"  {line}" for line in tell(tools, "").splitlines()[1:-1]]
    for key, name in _ROWS.items():
        if key in figures:
            lines.append(f"{name}: {_episodes(figures[key])}")
    for key, name in (("empty", "an episode without a call"), ("perfect", "the perfect episode")):
        if key in figures:
            lines.append(f"{name}: reward {_number(figures[key]['reward'])}{_passed(figures[key])}")
    if "sessions" in figures:
        lines.append(f"sessions at once: {figures['sessions']}")
    if context := figures.get("context_tokens"):
        lines.append(
            f"context: the longest opening takes {context['opening']} of"
            f" {context['max_model_len']} tokens, the longest answer {context['answer']}"
        )
    if "reset_ms" in figures:
        times = f"reset {figures['reset_ms']:.2g} ms"
        if figures["step_ms"] is not None:
            times += f", a call {figures['step_ms']:.2g} ms"
            times += f" (the slowest {figures['slowest_step_ms']:.2g} ms)"
        lines.append(times)
    return "\n".join(lines)


def _episodes(figures: Mapping[str, Any]) -> str:
    said = f"{figures['episodes']} episodes, "
    said += f"{figures['unrewarded']} without a reward, " if figures["unrewarded"] else ""
    said += f"reward {_number(figures['mean'])}"
    if figures["sd"] is not None:
        said += f" ± {figures['sd']:.3g}"
    if "lowest" in figures:
        said += f" ({_number(figures['lowest'])} to {_number(figures['highest'])})"
    if figures["passed"] is not None:
        said += f", {figures['passed']:.0%} passed"
    said += f", {figures['calls']:.1f} calls an episode"
    return said + (f", {figures['raised']} of them raised" if figures.get("raised") else "")


def _passed(worth: Mapping[str, Any]) -> str:
    if worth["passed"] is None:
        return ""
    return ", passed" if worth["passed"] else ", not passed"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
