"""What run.toml says of an environment: `[envs.NAME]`.

Which part of an environment's reward means "passed" is declared, never guessed. Whose interface the
code has is its style; a style is a file beside this one, and makes an environment from these
settings.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any

from pydantic import PositiveFloat, PositiveInt

from fieldkit.errors import BadInput
from fieldkit.eval.grade import AssertionResult, Grade, RewardPart
from fieldkit.registry import Registry, nearest
from fieldkit.settings import Choice, Unit, settings
from rollout.envs.base import Environment


@dataclass(frozen=True)
class EnvStyle:
    """Whose interface an environment's code has.

    meaning: in a line. make, identity: the functions behind `environment` and `code_hash`, or their
    "module:function", which is imported when it is used: every command reads the settings, and few
    play an environment.
    """

    meaning: str
    make: str | Callable[[str, EnvSettings, Path], Environment]
    identity: str | Callable[[str, EnvSettings, Path], str]

    def environment(self, name: str, settings: EnvSettings, root: Path) -> Environment:
        """What the settings describe. root: the folder that relative paths start at. Raises
        `BadInput` for code that cannot be found or does not have the interface."""
        make = resolve_name(self.make) if isinstance(self.make, str) else self.make
        made: Environment = make(name, settings, root)
        return made

    def code_hash(self, name: str, settings: EnvSettings, root: Path) -> str:
        """A hash of the code: another one is another environment. Raises as `environment`."""
        identity = resolve_name(self.identity) if isinstance(self.identity, str) else self.identity
        found: str = identity(name, settings, root)
        return found


ENV_STYLES: Registry[EnvStyle] = Registry("style")
"""By the name that `style` gives."""
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
        "a verifiers (v0) package or file with `load_environment`, in a virtual environment of its"
        " own",
        "rollout.envs.verifiers_world:verifiers_environment",
        "rollout.envs.verifiers_world:verifiers_identity",
    ),
)
ENV_STYLES.register(
    "openenv",
    EnvStyle(
        "a server of OpenEnv's protocol",
        "rollout.envs.openenv.openenv_style:openenv_environment",
        "rollout.envs.openenv.openenv_style:identity",
    ),
)


@settings("envs.NAME")
class EnvSettings:
    """An environment of your own, under the name that tasks give in `env`."""

    use: str
    """`module:Class`, or `path/to/file.py:Class`; of style "verifiers" a package or a file."""
    passes: str
    """When an attempt counts as passed: a part of the reward compared with a number, such as
    `reward >= 1`."""
    style: Annotated[str, Choice(ENV_STYLES)] = "trl"
    """Whose interface the code has."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Reward functions (`module:function`, `file.py:function`) with their weights. A part of weight
    0 is shown, and nothing is learned from it."""
    group_rewards: dict[str, float] = field(default_factory=dict)
    """Reward functions that compare the attempts of a group, with their weights: they get all of
    them at once, when the last has ended and without environments. Evaluations have no groups."""
    config: dict[str, Any] = field(default_factory=dict)
    """What the code is configured with."""
    oracle: str = ""
    """A function (`module:function`) of a row's columns that gives the calls that solve it, as
    (tool, arguments) pairs: an arm to hold others against, and demonstrations."""
    chance: str = ""
    """A function of a generator, the text shown so far and a row's columns that gives a call of a
    policy without skill; by default a tool and arguments are drawn."""
    ends: str = ""
    """An attribute of the environment that is true once the episode is over. By default it is over
    when a reply asks for no tool."""
    fallback: str = ""
    """Of style "trl": a tool of one text argument that is called with a reply that calls none. By
    default such a reply ends the episode."""
    url: str = ""
    """Of style "openenv": where a server answers that runs already; with `serve` the port of this
    machine that ours takes."""
    serve: str = ""
    """Of style "openenv": the server to start, `module:app` or `path/to/file.py:app`."""
    sessions: PositiveInt = 64
    """Of style "openenv": the most episodes at once; a server that has fewer sessions says so."""
    show: list[str] = field(default_factory=list)
    """Of style "openenv": the fields of an observation that the policy reads; all by default."""
    python: str = ""
    """The Python of a virtual environment, where the code needs packages of its own."""
    call_seconds: Annotated[PositiveFloat, Unit("seconds")] = 60.0
    """How long one reset, tool or reward may take; longer is a broken environment."""

    def __post_init__(self) -> None:
        parse_passes(self.passes)

    @property
    def code(self) -> str:
        """What plays it: the class or package, the server to start, or the one that answers."""
        return self.use or self.serve or self.url


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
    "<=": operator.le,
    "<": operator.lt,
}
_PASSES = re.compile(r"\s*(.+?)\s*(>=|<=|==|>|<)\s*(-?\d+(?:\.\d+)?)\s*")


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

    A part that does not apply is not passed. Raises `BadInput` that begins with `where` for a
    `passes` that names no part.
    """
    name, comparison, bound = parse_passes(passes)
    found = {part.name: part.value for part in parts}
    if name not in found:
        near = nearest(name, found)
        hint = f"; did you mean {near!r}?" if near else ""
        raise BadInput(
            f"{where}: passes = {passes!r} names {name!r}, which is no part of the reward;"
            f" parts: {', '.join(found) or 'none'}{hint}"
        )
    value = found[name]
    passed = value is not None and _COMPARISONS[comparison](value, bound)
    detail = "" if passed else ("does not apply" if value is None else f"is {value:g}")
    return Grade((AssertionResult("passes", passes, passed, detail),), tuple(parts))
