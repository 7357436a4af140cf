"""The process that loads and plays an environment for `grpo env check`.

User code may hang, print, or end its process, so it runs in a process apart from the command. As in
a run, it is imported in the main thread and played in another one. An order comes as JSON on stdin.
JSON lines go to the original stdout: `at` before each call into the environment, `progress`, and at
the end `findings` with `figures`. The environment's own output goes to stderr. On a signal the
stack of a hanging call is written to the descriptor in argv.

With "again" in argv it is the second process, in which one episode is replayed: it plays the
order's calls and says what they gave.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from fieldkit.errors import BadInput, FieldkitError
from fieldkit.eval.grade import RewardPart
from fieldkit.files.json_text import parse_json
from fieldkit.process.parent import end_with_parent
from rollout.envs.user_code import place_of
from scripts.environments.contract import Finding, Level, broken_promises, schemas_of
from scripts.environments.endpoint import play_model
from scripts.environments.instance import Broken, Instance, Played, recited
from scripts.environments.order import Order, class_of, trials_of
from scripts.environments.tryout import Elsewhere, run_trials, same_elsewhere

STACK = signal.SIGUSR1
"""The signal that asks for the stack."""
IMPORT_SECONDS = 60.0
_AGAIN = "again"
_AGAIN_SECONDS = 60.0
"""The limit of the second process; it takes a second or two."""


def main() -> None:
    """Read the order, check the environment, report."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    end_with_parent()  # it may hang for ever
    if sys.argv[1] == _AGAIN:
        json.dump(_replayed(Order(**parse_json(sys.stdin.read(), "the order"))), out)
        out.flush()
        return
    faulthandler.register(STACK, file=int(sys.argv[1]))
    order = Order(**parse_json(sys.stdin.read(), "the order"))

    def tell(**what: Any) -> None:
        out.write(json.dumps(what) + "\n")
        out.flush()

    try:
        tell(at=f"import {order.use}", seconds=IMPORT_SECONDS)
        class_of(order)
        with ThreadPoolExecutor(1) as thread:
            elsewhere = functools.partial(played_elsewhere, order, tell)
            findings, figures = thread.submit(check, order, tell, elsewhere).result()
    except FieldkitError as e:
        tell(failed=str(e), code=e.exit_code)
        return
    tell(findings=[f.plain() for f in findings], figures=figures)


def check(
    order: Order, tell: Callable[..., None], elsewhere: Elsewhere | None = None
) -> tuple[list[Finding], dict[str, Any]]:
    """Findings and figures. elsewhere: replays an episode; None: none is. Raises `BadInput` for
    code that cannot be loaded."""
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
        # Last, because loading the environment again may disturb what this process has open.
        if elsewhere is not None and not any(f.level is Level.ERROR for f in findings):
            findings += same_elsewhere(trials, at, elsewhere)
    except Broken as e:
        findings.append(e.finding)
    return findings, figures


def played_elsewhere(order: Order, tell: Callable[..., None], once: Played) -> Played | None:
    """An episode's calls again, in a process of its own as each phase of a run is, where strings
    have other hashes. None where the environment cannot be played a second time beside this
    process: then there is nothing to compare."""
    tell(at="the same calls in another process", seconds=2 * _AGAIN_SECONDS)
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", f"{__package__}.checker", _AGAIN],
            input=replace(order, perfect=once.calls).text(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, "PYTHONHASHSEED": hashes},
            timeout=_AGAIN_SECONDS,
            check=True,
        )
        said = parse_json(ended.stdout, "the second process")
    except (subprocess.SubprocessError, BadInput):
        return None
    parts = tuple(RewardPart(**part) for part in said.pop("parts"))
    return Played(once.seed, **said, parts=parts)


def _replayed(order: Order) -> dict[str, Any]:
    """What the order's calls give, as JSON-ready values. Raises as `check`, and `Broken`."""
    kind, calls = class_of(order), order.perfect or []

    def play() -> Played:
        instance = Instance(trials_of(order, kind), lambda what: None)
        return instance.play(order.rows[0], 0, recited(calls), len(calls))

    with ThreadPoolExecutor(1) as thread:
        played = thread.submit(play).result()
    parts = [asdict(part) for part in played.parts]
    return {"prompt": played.prompt, "calls": played.calls, "said": played.said, "parts": parts}


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # the process that asked is gone
        main()
