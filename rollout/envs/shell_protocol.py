"""How a reply is read: the command it runs, and whether it says that the task is done.

The policy and the environment share nothing but text, so what counts as an action is decided here
and nowhere else; stored replies can be read again under another protocol of `PROTOCOLS`. A reader
looks at the reply alone: it must not run anything or know what came before.

Fences are CommonMark's, at any indentation: a line of three or more backticks and a language opens
a block, a line of at least as many backticks and nothing else closes it. A block that is never
closed (a reply cut at its length limit) is not run: half a command can do what the whole would not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fieldkit.records import Action, ActionKind
from fieldkit.registry import Registry

NO_ACTION_OBSERVATION = (
    "No command found. Write one block:\n"
    "```bash\n"
    "COMMAND\n"
    "```\n"
    "or, when the task is done, TASK_COMPLETE outside a block."
)
"""What a reply without a command or a stop is answered with. It names the expected form."""

# The word on its own: not a part of TASK_COMPLETED, but markdown's underscores may surround it.
_SAID_DONE = re.compile(r"(?<!\w)_*TASK_COMPLETE_*(?!\w)")

# The prose sentinel: an echo of the phrase and nothing else. A redirection, a pipe or a second
# command changes the world (or reads it), so those stay commands.
_PHRASE = r"task(?:\s+|_)complete(?:\s*[.!])?"
_BARE_ECHO = re.compile(
    rf"""echo (?:\s+-[neE]+)* \s+
    (?: "\s*{_PHRASE}\s*" | '\s*{_PHRASE}\s*' | {_PHRASE} )
    \s* (?: ;\s* )? (?: (?<=[\s;]) \#.* )?""",
    re.IGNORECASE | re.VERBOSE,
)

_FENCE = 3  # backticks


@dataclass(frozen=True)
class _Block:
    language: str
    body: str


def _fence(line: str) -> tuple[int, str]:
    """(number of backticks, what follows them); (0, "") for a line that is no fence."""
    rest = line.strip().lstrip("`")
    ticks = len(line.strip()) - len(rest)
    return (ticks, rest.strip()) if ticks >= _FENCE and "`" not in rest else (0, "")


def _split(text: str) -> tuple[list[_Block], str]:
    """A reply's closed blocks in order, and the text outside every block."""
    blocks: list[_Block] = []
    outside: list[str] = []
    body: list[str] = []
    opened_with, language = 0, ""
    for line in text.replace("\r\n", "\n").split("\n"):
        ticks, label = _fence(line)
        if not opened_with:
            opened_with, language = ticks, label.partition(" ")[0]
            if not ticks:
                outside.append(line)
        elif ticks >= opened_with and not label:
            blocks.append(_Block(language, "\n".join(body)))
            opened_with, body = 0, []
        else:
            body.append(line)
    return blocks, "\n".join(outside)


def is_bare_echo(command: str) -> bool:
    """Whether the command is only an echo of the phrase; blank lines and comments do not count."""
    stripped = [line.strip() for line in command.split("\n")]
    lines = [line for line in stripped if line and not line.startswith("#")]
    return len(lines) == 1 and _BARE_ECHO.fullmatch(lines[0]) is not None


def parse_literal(text: str) -> Action:
    """The protocol without the prose sentinel: only TASK_COMPLETE outside a block stops.

    Of several bash blocks the first is the command. DONE may carry a command too: a reply that
    holds a block and says TASK_COMPLETE outside of it runs the block and stops then.
    """
    blocks, outside = _split(text)
    command = next((b.body.strip("\n") for b in blocks if b.language.lower() == "bash"), "")
    if not command.strip():
        command = ""
    if _SAID_DONE.search(outside):
        return Action(ActionKind.DONE, command)
    return Action(ActionKind.RUN, command) if command else Action(ActionKind.NONE, "")


def parse_action(text: str) -> Action:
    """The default protocol: as `parse_literal`, and a block that only echoes "Task complete" stops.

    The phrase may be quoted or not, in any case, with a space or an underscore, a full stop, a
    trailing semicolon or comment. The echo itself is not run: it would change nothing.
    """
    action = parse_literal(text)
    if is_bare_echo(action.command):
        return Action(ActionKind.DONE, "")
    return action


PROTOCOLS: Registry[Callable[[str], Action]] = Registry("protocol")
"""Every way to read a reply, by the name that settings and `grpo replay` use."""
PROTOCOLS.register("sentinel", parse_action)
PROTOCOLS.register("literal", parse_literal)


def block(command: str) -> str:
    """A command as the policy is to write it."""
    return f"```bash\n{command}\n```"


STOP = "TASK_COMPLETE"
"""The reply that only says that the task is done."""
