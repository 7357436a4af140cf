"""The settings of an environment in run.toml: `[envs.NAME]`.

The settings declare which part of an environment's reward means "passed". A style is the interface
that the environment's code has; each style is a file in this folder that makes an environment from
these settings.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

from pydantic import FiniteFloat, PositiveFloat, PositiveInt

from fieldkit.errors import BadInput
from fieldkit.eval.grade import AssertionResult, Grade, RewardPart
from fieldkit.registry import Registry, nearest
from fieldkit.settings import Change, Choice, Unit, settings
from rollout.envs.base import Environment


@dataclass(frozen=True)
class EnvStyle:
    """An interface of environment code.

    meaning: its description in one line. make, identity: the functions behind `environment` and
    `code_hash`, or their "module:function", which is imported on first use, because every command
    reads the settings and few play an environment.
    """

    meaning: str
    make: str | Callable[[str, EnvSettings, Path], Environment]
    identity: str | Callable[[str, EnvSettings, Path], str]

    def environment(self, name: str, settings: EnvSettings, root: Path) -> Environment:
        """The environment that the settings describe. root: the folder of relative paths. Raises
        `BadInput` for code that cannot be found or lacks the interface."""
        make = resolve_name(self.make) if isinstance(self.make, str) else self.make
        made: Environment = make(name, settings, root)
        return made

    def code_hash(self, name: str, settings: EnvSettings, root: Path) -> str:
        """A hash of the code. Another hash means another environment. Raises as `environment`."""
        identity = resolve_name(self.identity) if isinstance(self.identity, str) else self.identity
        found: str = identity(name, settings, root)
        return found


ENV_STYLES: Registry[EnvStyle] = Registry("style")
"""By the names that `style` may have."""
ENV_STYLES.register(
    "trl",
    EnvStyle(
        "a class for TRL's `environment_factory`, or functions for its `tools`",
        "rollout.envs.trl_class:trl_environment",
        "rollout.envs.trl_class:trl_identity",
    ),
)
ENV_STYLES.register(
    "verifiers",
    EnvStyle(
        "a verifiers package or file, v0 or v1, in a virtual environment of its own",
        "rollout.envs.foreign.verifiers_world:verifiers_environment",
        "rollout.envs.foreign.verifiers_world:verifiers_identity",
    ),
)
ENV_STYLES.register(
    "openenv",
    EnvStyle(
        "a server of OpenEnv's protocol",
        "rollout.envs.openenv.openenv_style:openenv_environment",
        "rollout.envs.openenv.openenv_style:openenv_identity",
    ),
)


@settings("envs.NAME")
class EnvSettings:
    """An environment of your own. NAME is what tasks give in `env`."""

    use: str
    """`module:Class` or `path/to/file.py:Class`; with style "verifiers" a package or a file."""
    passes: str
    """The condition for an attempt to count as passed: a part of the reward compared with a number,
    such as `reward >= 1`. Where no part is called `reward`, it means their weighted sum."""
    style: Annotated[str, Choice(ENV_STYLES)] = "trl"
    """The interface of the code."""
    rewards: dict[str, FiniteFloat] = field(default_factory=dict)
    """Reward functions (`module:function`, `file.py:function`) with their weights. A part of weight
    0 is reported but not trained on."""
    group_rewards: dict[str, FiniteFloat] = field(default_factory=dict)
    """Reward functions that compare the attempts of a group, with their weights. They are called
    once with all attempts, after the last has ended, and get no environments. Evaluations have no
    groups."""
    config: dict[str, Any] = field(default_factory=dict)
    """Configuration that the code gets."""
    oracle: str = ""
    """A function (`module:function`) of a row's columns that returns the calls that solve it, as
    (tool, arguments) pairs. It makes an oracle arm and demonstrations possible."""
    chance: str = ""
    """A function of a random generator, the text shown so far and a row's columns that returns a
    call of a random policy; by default a tool and its arguments are drawn at random."""
    ends: str = ""
    """An attribute of the environment that is true once the episode is over. By default an episode
    is over when a reply calls no tool."""
    fallback: str = ""
    """Style "trl": a tool with one text argument that is called with any reply that calls no tool,
    and with a closed code block of one that was cut. By default such a reply ends the episode."""
    url: str = ""
    """Style "openenv": the URL of a running server; with `serve`, the URL on this machine whose
    port our server takes."""
    serve: str = ""
    """Style "openenv": the server to start, `module:app` or `path/to/file.py:app`."""
    sessions: PositiveInt = 64
    """Style "openenv": the most episodes at once; a server with fewer sessions lowers it."""
    show: list[str] = field(default_factory=list)
    """Style "openenv": the fields of an observation that the policy reads; all by default."""
    python: str = ""
    """The Python of the virtual environment that has the code's packages."""
    call_seconds: Annotated[PositiveFloat, Unit("seconds"), Change.MACHINE] = 60.0
    """How long one reset, tool or reward may take. A longer reset or reward means a broken
    environment; a longer call of a tool ends the episode as TIME_LIMIT without a reward, as long as
    few do."""

    def __post_init__(self) -> None:
        parse_passes(self.passes)

    @property
    def code(self) -> str:
        """The class or package, the server to start, or the URL of a running one."""
        return self.use or self.serve or self.url


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "<=": operator.le,
    "<": operator.lt,
}
_PASSES = re.compile(r"\s*(.+?)\s*(>=|<=|==|>|<)\s*(-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


TOTAL = "reward"
"""What an episode is paid, the weighted sum of the parts, where no part is called so."""


def parse_passes(text: str) -> tuple[str, str, float]:
    """`passes` as (part, comparison, number). Raises `BadInput`."""
    read = _PASSES.fullmatch(text)
    if read is None:
        raise BadInput(
            f"envs.NAME.passes: {text!r} compares no part of the reward with a number; write for"
            ' example passes = "reward >= 1"'
        )
    return read[1], read[2], float(read[3])


def graded(parts: Sequence[RewardPart], passes: str, where: str) -> Grade:
    """The grade of an attempt from the parts of its reward.

    `passes` may name `TOTAL` where no part has that name. What does not apply does not count as
    passed. Raises `BadInput` that begins with `where`
    if `passes` names an unknown part.
    """
    name, comparison, bound = parse_passes(passes)
    found = {TOTAL: Grade((), tuple(parts)).reward} if parts else {}
    found |= {part.name: part.value for part in parts}
    if name not in found:
        near = nearest(name, found)
        hint = f"; did you mean {near!r}?" if near else ""
        raise BadInput(
            f"{where}: passes = {passes!r} names {name!r}, which is no part of the reward;"
            f" parts: {', '.join(part.name for part in parts) or 'none'}{hint}"
        )
    value = found[name]
    passed = value is not None and _COMPARISONS[comparison](value, bound)
    detail = "" if passed else ("does not apply" if value is None else f"is {value:g}")
    return Grade((AssertionResult("passes", passes, passed, detail),), tuple(parts))


def ungraded(passes: str, where: str) -> Grade:
    """The grade of an attempt that nobody can judge: nothing applies to it. Raises as `graded`."""
    return graded([RewardPart(parse_passes(passes)[0], None)], passes, where)
