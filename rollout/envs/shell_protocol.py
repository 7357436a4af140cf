"""How a reply is read: the command it runs, and whether it says that the task is done.

Only this module decides what counts as an action in a reply's text. Stored replies can be read
again under another protocol of `PROTOCOLS`. A reader uses the reply alone: it runs nothing and does
not know earlier turns.

Fences are CommonMark's, at any indentation, in list items and quotes too: a line of three or more
backticks and a language opens a block, a line of at least as many backticks and nothing else closes
it. A block that is never closed (a reply cut at its length limit) is not run, because half a
command can do something else than the whole. Text inside `<think>` neither runs nor stops anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fieldkit.records import Action, ActionKind
from fieldkit.registry import Registry
from rollout.envs.thoughts import after_thoughts

NO_ACTION_OBSERVATION = (
    "No command found. Write one block:\n"
    "```bash\n"
    "COMMAND\n"
    "```\n"
    "or, when the task is done, TASK_COMPLETE outside a block."
)
"""The observation after a reply with neither a command nor a stop. It names the expected form."""

# The word on a line of its own, with or without markdown's marks, so "Not TASK_COMPLETE yet." does
# not match. Models also write TASK_COMPLETED. A sentence that contains the word stops nothing.
_WORD_LINE = r"[*_`#\s]*TASK_COMPLETE{}[*_`.!\s]*"
_LITERAL_LINE = re.compile(_WORD_LINE.format(""))
_SENTINEL_LINE = re.compile(_WORD_LINE.format("D?"))

# The prefix that a quote or a list item puts before its first line.
_CONTAINER = re.compile(r"(?:[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])(?=[ \t])))*")
_QUOTE = re.compile(r"(?:[ \t]*>)*[ ]?")

# The prose sentinel: a command that only echoes the phrase. With a redirection, a pipe or a second
# command it has an effect on the world, and is run as a command.
_PHRASE = r"task(?:\s+|_)completed?(?:\s*[.!])?"
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


def _split(text: str) -> tuple[list[_Block], list[str]]:
    """A reply's closed blocks in order, and the lines outside every block."""
    blocks: list[_Block] = []
    outside: list[str] = []
    body: list[str] = []
    opened_with, language, before = 0, "", ""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    for raw in after_thoughts(text).split("\n"):
        if not opened_with:
            before = _prefix(_CONTAINER, raw)
            line = raw[len(before) :]
            opened_with, label = _fence(line)
            language = label.partition(" ")[0]
            if not opened_with:
                outside.append(line)
            continue
        line = _in_container(raw, before)
        ticks, label = _fence(line)
        if ticks >= opened_with and not label:
            blocks.append(_Block(language, "\n".join(body)))
            opened_with, body = 0, []
        else:
            body.append(line)
    return blocks, outside


def _prefix(pattern: re.Pattern[str], line: str) -> str:
    found = pattern.match(line)
    return found[0] if found else ""


def _in_container(line: str, before: str) -> str:
    """A line of a block whose first line began with `before`, without the quote's marks or the
    indentation of a list item."""
    if ">" in before:
        return line[len(_prefix(_QUOTE, line)) :]
    indented = len(line) - len(line.lstrip(" "))
    return line[min(indented, len(before) + 1) :] if before else line


def _commands(block: str) -> list[str]:
    """The lines that are neither blank nor comments."""
    stripped = [line.strip() for line in block.split("\n")]
    return [line for line in stripped if line and not line.startswith("#")]


def is_bare_echo(command: str) -> bool:
    """Whether the command is only an echo of the phrase; blank lines and comments do not count."""
    lines = _commands(command)
    return len(lines) == 1 and _BARE_ECHO.fullmatch(lines[0]) is not None


def parse_literal(text: str) -> Action:
    """Only a line TASK_COMPLETE outside a block stops.

    Of several bash blocks the first with more than comments is the command. DONE may have a command
    too: a reply with a block and TASK_COMPLETE outside of it runs the block and then stops.
    """
    return _parse(text, _LITERAL_LINE)


def _parse(text: str, done: re.Pattern[str]) -> Action:
    blocks, outside = _split(text)
    bash = (b.body.strip("\n") for b in blocks if b.language.lower() == "bash")
    command = next(filter(_commands, bash), "")
    if any(map(done.fullmatch, outside)):
        return Action(ActionKind.DONE, command)
    return Action(ActionKind.RUN, command) if command else Action(ActionKind.NONE, "")


def parse_action(text: str) -> Action:
    """As "literal", and a block that only echoes "Task complete" stops as well.

    TASK_COMPLETED and an echo of "Task completed" stop as well. The phrase may be quoted, in any
    letter case, with a space or an underscore, a full stop, a trailing semicolon or a comment. The
    echo itself is not run because it would change nothing.
    """
    action = _parse(text, _SENTINEL_LINE)
    if is_bare_echo(action.command):
        return Action(ActionKind.DONE, "")
    return action


PROTOCOLS: Registry[Callable[[str], Action]] = Registry("protocol")
"""The protocols, by the names that settings and `grpo replay` use."""
PROTOCOLS.register("sentinel", parse_action)
PROTOCOLS.register("literal", parse_literal)


def block(command: str) -> str:
    """A command in the form that the policy has to write."""
    return f"```bash\n{command}\n```"


STOP = "TASK_COMPLETE"
"""The reply that only says that the task is done."""
