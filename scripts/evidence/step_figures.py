"""The figures of a step: one list for the tables, the curves and the trackers.

A figure is read from the step's summary alone. A figure that a step lacks is None and is not shown.
To add a figure, add one entry to `FIGURES`: the page's curves, its table of numbers and the
trackers then show it. A run with several environments has the figures of `BY_ENV` for each as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fieldkit.eval.matched import ArmRow
from fieldkit.eval.stats import Estimate
from fieldkit.records import AtStop, StepSummary
from scripts.words.quantities import plain

Read = Callable[[StepSummary], float | None]

NOTHING = "–"
"""The cell of a step that lacks the figure."""


@dataclass(frozen=True)
class StepFigure:
    """One figure of a step, and how it is shown.

    name: heading of its curve. symbol: heading of its column. unit: unit of the figure times
    `scale`. tag: its name in trackers, `group/name`, or `group/name/environment`.
    """

    name: str
    symbol: str
    unit: str
    read: Read
    tag: str
    digits: int = 3
    """Decimals in a column of its own."""
    is_rate: bool = False
    """The figure is a rate in [0, 1], written in percent."""
    scale: float = 1.0
    """Factor from the figure to its curve's unit."""
    colour: str = "blue"
    """Colour of its line: a name in the page's palette."""
    held_out: Callable[[ArmRow], Estimate] | None = None
    """The same figure of an arm on the held-out tasks: a dot with its interval on the curve."""
    curve: str | None = None
    """Heading of the curve that contains its line; None: `name`. Empty: it has no curve."""
    line: str = ""
    """Name of its line, if the curve has several."""
    is_number: bool = True
    """The table of numbers has a column for it."""
    is_tracked: bool = True
    """Trackers receive it."""

    @property
    def key(self) -> str:
        """The figure's name in code: the tag without group and environment."""
        return self.tag.split("/")[1]

    @property
    def heading(self) -> str:
        """Heading of the curve that contains its line; empty if it has no curve."""
        return self.name if self.curve is None else self.curve

    def written(self, value: float | None, digits: int | None = None) -> str:
        """Format the figure for a narrow column; `digits` overrides its own."""
        if value is None:
            return NOTHING
        return f"{100 * value:.0f} %" if self.is_rate else plain(value, digits or self.digits)


def train(key: str) -> Read:
    """A reader of the trainer's figure `key`."""
    return lambda step: step.train.get(key)


def tokens_a_turn(step: StepSummary) -> float | None:
    """Mean tokens of a reply."""
    if not step.mean_tokens or not step.mean_turns:
        return None
    return step.mean_tokens / step.mean_turns


def mixed_share(s: StepSummary) -> float | None:
    """Share of the groups that were trained on in which some attempts passed and some did not."""
    trained = [d for d in s.draws if not d.left_out]
    return sum(d.mixed for d in trained) / len(trained) if trained else None


def of_stops(count: Callable[[AtStop], int]) -> Read:
    """A reader of a share of the attempts that no limit ended."""

    def read(step: StepSummary) -> float | None:
        stops = step.at_stop
        return count(stops) / stops.n if stops is not None and stops.n else None

    return read


def sampled_rate(s: StepSummary) -> float | None:
    """Tokens that the server sampled per second of rollout."""
    seconds = s.seconds.get("rollout")
    return s.n_trajectories * s.mean_tokens / seconds if seconds and s.mean_tokens else None


REWARD = StepFigure(
    "Reward", "reward", "mean of a step's rollouts", lambda s: s.mean_reward, "rollout/reward"
)
STOPS = StepFigure(
    "Ended by itself", "stops", "% of attempts", lambda s: s.stop_rate, "rollout/stop_rate",
    is_rate=True, scale=100.0, held_out=lambda arm: arm.stop_rate,
)  # fmt: skip
STOPS_DONE = StepFigure(
    "Stops that are done", "stops done", "% of stops", of_stops(lambda e: e.passed),
    "rollout/stops_done", is_rate=True, scale=100.0, colour="green", curve="Work at a stop",
    line="everything done", is_number=False,
)  # fmt: skip
STOPS_IDLE = StepFigure(
    "Stops with nothing done", "stops idle", "% of stops", of_stops(lambda e: e.idle),
    "rollout/stops_idle", is_rate=True, scale=100.0, colour="red", curve=STOPS_DONE.curve,
    line="nothing done", is_number=False,
)  # fmt: skip
PASSES = StepFigure(
    "Passes", "passes", "% of attempts", lambda s: s.pass_rate, "rollout/pass_rate",
    is_rate=True, scale=100.0, held_out=lambda arm: arm.pass_rate,
)  # fmt: skip
ASSERTIONS = StepFigure(
    "Assertions that hold", "assertions", "% of assertions", lambda s: s.assertion_rate,
    "rollout/assertion_rate", is_rate=True, scale=100.0, curve="", is_number=False,
)  # fmt: skip
MIXED = StepFigure(
    "Groups with passes and failures", "mixed groups", "% of the groups trained on", mixed_share,
    "rollout/mixed_groups", is_rate=True, scale=100.0, is_number=False,
)  # fmt: skip
TURNS = StepFigure(
    "Turns", "turns", "an attempt", lambda s: s.mean_turns, "rollout/turns",
    digits=2, held_out=lambda arm: arm.mean_turns,
)  # fmt: skip
REPLY = StepFigure(
    "Length of a reply", "tokens a turn", "tokens a turn", tokens_a_turn, "rollout/tokens_a_turn",
    is_number=False,
)  # fmt: skip
SAMPLED = StepFigure(
    "Speed of the server", "sampled", "tokens a second", sampled_rate,
    "rollout/tokens_per_second", curve="Speed", line="sampled", is_number=False,
)  # fmt: skip
LOSS = StepFigure("Loss", "loss", "", train("loss"), "train/loss", curve="", is_number=False)
KL = StepFigure(
    "KL to the start", "KL", "nats a token", train("kl"), "train/kl", digits=4, colour="red"
)
DELTA = StepFigure(
    "Weight delta of the step", "weight delta", "L2 norm", train("delta_l2"), "train/weight_delta",
    line="as trained",
)  # fmt: skip
DELTA_SERVED = StepFigure(
    "Weight delta as served", "weight delta as served", "L2 norm", train("delta_served_l2"),
    "train/weight_delta_served", colour="orange", curve=DELTA.name, line="as served",
    is_number=False,
)  # fmt: skip
GRADIENT = StepFigure(
    "Gradient norm", "gradient norm", "before clipping", train("grad_norm"), "train/grad_norm"
)
DRIFT = StepFigure(
    "Sampler − trainer", "|sampler − trainer|", "mean |Δ|, nats a token",
    train("sampler_mean_abs"), "train/sampler_trainer_difference",
)  # fmt: skip
LARGEST_DRIFT = StepFigure(
    "Largest sampler − trainer", "its maximum", "|Δ|, nats a token", train("sampler_max_abs"),
    "train/sampler_trainer_maximum", curve="", is_tracked=False,
)  # fmt: skip
POLICY_AGE = StepFigure(
    "Age of the policy that played", "policy age", "steps", train("policy_age"),
    "train/policy_age", digits=0, curve="",
)  # fmt: skip
CLIPPED = StepFigure(
    "Clipped share", "clipped", "% of tokens", train("clipped_share"), "train/clipped_share",
    scale=100.0,
)  # fmt: skip
HELD_BACK = StepFigure(
    "Held back by the objective", "held back", "% of tokens", train("ratio_clipped_share"),
    "train/ratio_clipped_share", scale=100.0, is_number=False,
)  # fmt: skip
ENTROPY = StepFigure(
    "Entropy", "entropy", "nats a token", train("entropy"), "train/entropy", colour="green"
)
TRAINED = StepFigure(
    "Speed of the trainer", "trained", "tokens a second", train("tokens_per_second"),
    "train/tokens_per_second", colour="orange", curve="Speed", line="trained", is_number=False,
)  # fmt: skip

FIGURES: list[StepFigure] = [
    REWARD, STOPS, PASSES, ASSERTIONS, MIXED, STOPS_DONE, STOPS_IDLE, TURNS, REPLY, SAMPLED, LOSS,
    KL, DELTA, DELTA_SERVED, GRADIENT, DRIFT, LARGEST_DRIFT, CLIPPED, HELD_BACK, ENTROPY, TRAINED,
]  # fmt: skip
"""Every figure, in the order of tables, curves and trackers."""


def by_step(steps: Sequence[StepSummary], figure: StepFigure) -> list[tuple[int, float]]:
    """(step, value) for every step that has the figure."""
    return [(s.step, v) for s in steps if (v := figure.read(s)) is not None]


# --- by environment -------------------------------------------------------------------------------

BY_ENV = (REWARD, STOPS, PASSES, TURNS)
"""The figures of training that are shown for each environment, where there are several."""

ENV_COLOURS = ("orange", "green", "red", "muted")
"""Colours of the environments' lines; a fifth environment has the first one again."""


def environments(steps: Sequence[StepSummary]) -> list[str]:
    """The environments that steps tell apart, sorted by name; none in a run with one."""
    return sorted({env for s in steps for env in s.environments})


def in_env(figure: StepFigure, env: str, colour: str = ENV_COLOURS[0]) -> StepFigure:
    """The same figure of one environment's attempts: a further line of its curve."""

    def read(step: StepSummary) -> float | None:
        own = step.in_env(env)
        return None if own is None else figure.read(own)

    return replace(
        figure,
        symbol=f"{env}: {figure.symbol}",
        read=read,
        tag=f"{figure.tag}/{env}",
        colour=colour,
        held_out=None,
        line=env,
        is_number=False,
    )


def env_figures(steps: Sequence[StepSummary]) -> list[StepFigure]:
    """The figures of each environment that the steps tell apart, environment by environment."""
    coloured = zip(environments(steps), itertools.cycle(ENV_COLOURS), strict=False)
    return [in_env(figure, env, colour) for env, colour in coloured for figure in BY_ENV]


def figures_of(steps: Sequence[StepSummary]) -> list[StepFigure]:
    """Every figure of these steps: `FIGURES`, those of an overlap, and of each environment."""
    return [*FIGURES, *overlap_figures(steps), *env_figures(steps)]


def overlap_figures(steps: Sequence[StepSummary]) -> list[StepFigure]:
    """The age of the policy that played, where one was older than the adapter it trained."""
    return [POLICY_AGE] if by_step(steps, POLICY_AGE) else []


def curves(steps: Sequence[StepSummary]) -> dict[str, list[StepFigure]]:
    """Heading of a curve → its lines, ordered by the last figure of each curve."""
    found: dict[str, list[StepFigure]] = {}
    for figure in figures_of(steps):
        if heading := figure.heading:
            found[heading] = [*found.pop(heading, []), figure]
    return found
