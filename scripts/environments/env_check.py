"""`grpo env check`: finds what is wrong with an environment before anything is trained on it.

The environment runs in a process of its own (`checker.py`) that reports each call before it makes
it. So a call that hangs, a process that dies and an import that never ends are findings with a
line, and the check always ends.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fieldkit.errors import BadInput, Unavailable
from fieldkit.files.json_text import parse_json
from rollout.envs.base import Opening
from rollout.envs.tool_calls import TOOL_FORMS
from rollout.envs.tool_world import opening
from rollout.settings import EpisodeSettings
from scripts.environments import checker
from scripts.environments.contract import Finding, Level
from scripts.environments.order import Order

if TYPE_CHECKING:  # its import takes seconds
    from rollout.transcript import ChatRenderer

START_SECONDS = 120.0
"""The time for starting Python and our imports."""
LONGEST = 5
"""The limit of all play, as a multiple of the seconds for random episodes."""
_STACK_SECONDS, _REST_SECONDS = 2.0, 0.2
_HERE = str(Path(__file__).parent)
_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_SHOWN = 400  # characters of a process's output before it died


@dataclass(frozen=True)
class Checked:
    """The result of a check."""

    use: str
    findings: tuple[Finding, ...]
    figures: dict[str, Any]
    """By name, JSON-ready. `longest`: the longest prompt (with what `reset` shows) and the longest
    answer of a tool that were played, by their characters."""

    @property
    def sound(self) -> bool:
        """Whether it can be trained on; there may be warnings."""
        return not any(f.level is Level.ERROR for f in self.findings)

    def plain(self) -> dict[str, Any]:
        """JSON-ready values."""
        findings = [f.plain() for f in self.findings]
        figures = {name: value for name, value in self.figures.items() if name != "longest"}
        return {"use": self.use, "sound": self.sound, "findings": findings, **figures}


def check_environment(order: Order, progress: Callable[[str, int, int], None]) -> Checked:
    """Load and play what the order names. Raises `BadInput` for code that cannot be loaded, and
    `Unavailable` for an endpoint that does not answer."""
    stack, write_end = os.pipe()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", checker.__name__, str(write_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            pass_fds=(write_end,),
        )
        os.close(write_end)
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(order.text().encode())
            child.stdin.close()
            return _watched(child, _Lines(child.stdout), order, said, stack, progress)
        finally:
            os.close(stack)
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def with_context(
    checked: Checked, renderer: ChatRenderer, form: str, fallback: str, limits: EpisodeSettings
) -> Checked:
    """The result, with the tokens that a run's policy reads at most before its first reply and of
    one answer, and what is wrong with them.

    renderer, form (of tool calls), limits: the run's. fallback: as in `ToolWorld`.
    """
    if "longest" not in checked.figures:  # no episode came to its end
        return checked
    longest, tools = checked.figures["longest"], checked.figures["tools"]
    begins = opening(TOOL_FORMS.named(form), longest["prompt"], tools, fallback)
    alone = Opening(({"role": "user", "content": longest["answer"]},))
    tokens = {
        name: len(renderer.start(shown.messages, shown.tools).prompt_ids)
        for name, shown in (("opening", begins), ("answer", alone))
    }
    reply, most = limits.max_new_tokens, limits.max_model_len
    too_long = (
        f"tokens, which with a reply of rollout.max_new_tokens = {reply} exceed"
        f" engine.max_model_len = {most}"
    )
    found = []
    if tokens["opening"] + reply > most:
        text = f"an episode begins with {tokens['opening']} {too_long},"
        text += " so it ends before the first reply (CONTEXT_FULL): shorten what reset shows or the"
        text += " prompt, or raise engine.max_model_len"
        found.append(Finding(Level.ERROR, "", text))
    if tokens["answer"] + reply > most:
        text = f"an answer of a tool has {tokens['answer']} {too_long}, so the episode ends with it"
        text += " (CONTEXT_FULL): shorten it, or raise engine.max_model_len"
        found.append(Finding(Level.WARNING, "", text))
    context = {**tokens, "max_model_len": most}
    figures = {**checked.figures, "context_tokens": context}
    return Checked(checked.use, (*checked.findings, *found), figures)


def _watched(
    child: subprocess.Popen[bytes],
    lines: _Lines,
    order: Order,
    said: IO[str],
    stack: int,
    progress: Callable[[str, int, int], None],
) -> Checked:
    at, seconds = "the start of Python", START_SECONDS
    over = time.monotonic() + START_SECONDS + LONGEST * order.seconds
    while True:
        line = lines.within(min(seconds, max(over - time.monotonic(), 0.0)))
        if line is None and time.monotonic() >= over:
            text = f"the check as a whole took longer than {START_SECONDS:g} s and {LONGEST} times"
            text += f" {order.seconds:g} s; it was at {at}"
            return Checked(order.use, (Finding(Level.ERROR, _stands_at(child, stack), text),), {})
        if line is None:
            text = f"{at} did not return within {seconds:g} s"
            return Checked(order.use, (Finding(Level.ERROR, _stands_at(child, stack), text),), {})
        if not line:
            child.wait()
            text = f"{at} ended the process ({_ending(child.returncode)})"
            if last := _tail(said):
                text += f"; its last words: {last}"
            return Checked(order.use, (Finding(Level.ERROR, "", text),), {})
        told = parse_json(line, "checker")
        if "at" in told:
            at, seconds = told["at"], told["seconds"]
        elif "progress" in told:
            progress(*told["progress"])
        elif "failed" in told:
            error = Unavailable if told["code"] == Unavailable.exit_code else BadInput
            raise error(told["failed"])
        else:
            findings = (Finding(Level(f["level"]), f["where"], f["text"]) for f in told["findings"])
            return Checked(order.use, tuple(findings), told["figures"])


class _Lines:
    """Lines of a pipe, each with a time limit."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe, self._rest = pipe, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)

    def within(self, seconds: float) -> bytes | None:
        """The next line; empty at the end of the pipe, None if none came in time."""
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                return None
            chunk = self._pipe.read1(65536)  # type: ignore[attr-defined]
            if not chunk:
                return b""
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _stands_at(child: subprocess.Popen[bytes], stack: int) -> str:
    """file:line that the process is executing; empty if it does not report it."""
    child.send_signal(checker.STACK)
    said, wait = b"", _STACK_SECONDS
    while select.select([stack], [], [], wait)[0] and (chunk := os.read(stack, 65536)):
        said, wait = said + chunk, _REST_SECONDS
    stacks = [s for s in said.decode(errors="replace").split("\n\n") if _HERE in s]  # of the check
    frames = [f for stack in stacks for f in _FRAME.findall(stack) if _HERE not in f[0]]
    theirs = [f for f in frames if not f[0].startswith((sys.prefix, sys.base_prefix))]
    return "{}:{}".format(*(theirs or frames)[0][:2]) if frames else ""


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _tail(said: IO[str]) -> str:
    said.seek(0)
    return " ".join(said.read()[-_SHOWN:].split())
