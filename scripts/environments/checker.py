"""The process that loads and plays an environment for `grpo env check`.

User code may hang, print, or end its process, so it runs in a process apart from the command. As in
a run, it is imported in the main thread and played in another one. An order comes as JSON on stdin.
JSON lines go to the original stdout: `at` before each call into the environment, `progress`, and at
the end `findings` with `figures`. The environment's own output goes to stderr. On a signal the
stack of a hanging call is written to the descriptor in argv.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fieldkit.errors import FieldkitError
from fieldkit.files.json_text import parse_json
from fieldkit.process.parent import end_with_parent
from rollout.envs.user_code import place_of
from scripts.environments.contract import Finding, Level, broken_promises, schemas_of
from scripts.environments.endpoint import play_model
from scripts.environments.instance import Broken
from scripts.environments.order import Order, class_of, trials_of
from scripts.environments.tryout import run_trials

STACK = signal.SIGUSR1
"""The signal that asks for the stack."""
IMPORT_SECONDS = 60.0


def main() -> None:
    """Read the order, check the environment, report."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    end_with_parent()  # it may hang for ever
    faulthandler.register(STACK, file=int(sys.argv[1]))
    order = Order(**parse_json(sys.stdin.read(), "the order"))

    def tell(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    try:
        tell(at=f"import {order.use}", seconds=IMPORT_SECONDS)
        class_of(order)
        with ThreadPoolExecutor(1) as thread:
            findings, figures = thread.submit(check, order, tell).result()
    except FieldkitError as e:
        tell(failed=str(e), code=e.exit_code)
        return
    tell(findings=[f.plain() for f in findings], figures=figures)


def check(order: Order, tell: Callable[..., None]) -> tuple[list[Finding], dict[str, Any]]:
    """Findings and figures. Raises `BadInput` for code that cannot be loaded."""
    tell(at="reading the class", seconds=IMPORT_SECONDS)
    kind = class_of(order)
    findings = broken_promises(kind, order.rows[0])
    figures: dict[str, Any] = {"tools": schemas_of(kind)}
    trials = trials_of(order, kind)
    if not trials.pays:
        text = "nothing gives a reward: add a method get_reward(), or name a reward function, as"
        text += " in `--reward rewards.py:right`"
        findings.append(Finding(Level.ERROR, place_of(kind), text))
    if any(f.level is Level.ERROR for f in findings):
        return findings, figures

    def at(what: str, seconds: float = order.call_seconds) -> None:
        tell(at=what, seconds=seconds)

    def progress(what: str, done: int, total: int) -> None:
        tell(progress=[what, done, total])

    try:
        found, played = run_trials(trials, at, progress)
        findings, figures = [*findings, *found], {**figures, **played}
        if order.endpoint and not any(f.level is Level.ERROR for f in findings):
            found, figures["model"] = play_model(
                trials, order.endpoint, order.model, order.model_episodes, played, at, progress
            )
            findings += found
    except Broken as e:
        findings.append(e.finding)
    return findings, figures


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the process that asked is gone
        main()
