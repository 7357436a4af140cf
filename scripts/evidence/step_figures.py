"""The figures of a step: one table that everything that shows a step is a reader of.

A figure is read from a step's summary and nothing else; one that a step does not have is None, and
is left out by whoever shows it. A further figure is one more entry in `FIGURES`: the page's curves
and number table and the trackers show it from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fieldkit.eval.matched import ArmRow
from fieldkit.eval.stats import Estimate
from fieldkit.records import StepSummary
from scripts.words.quantities import plain

Read = Callable[[StepSummary], float | None]

NOTHING = "–"
"""Stands where a step does not have the figure."""


@dataclass(frozen=True)
class StepFigure:
    """One figure of a step, and how it is shown.

    name: in words, as the heading of its curve. symbol: in a word or two, as the heading of a
    column. unit: of the figure times `scale`. tag: what trackers call it, `group/name`.
    """

    name: str
    symbol: str
    unit: str
    read: Read
    tag: str
    up: int = 0
    """+1 where up is better, −1 where down is, 0 where neither is."""
    digits: int = 3
    """Decimals in a column of its own."""
    is_rate: bool = False
    """In [0, 1], and written in percent."""
    scale: float = 1.0
    """From the figure to its curve's unit."""
    colour: str = "blue"
    """Of its line: a name in the page's palette."""
    held_out: Callable[[ArmRow], Estimate] | None = None
    """The same of an adapter on the held-out tasks: a dot with its interval on the curve."""
    curve: str | None = None
    """The heading of the curve that it is a line of; None: its own. Empty: it has no curve."""
    line: str = ""
    """The name of its line where the curve has several."""
    is_number: bool = True
    """It has a column in the table of numbers."""
    is_tracked: bool = True
    """Trackers are told it."""

    @property
    def key(self) -> str:
        """Its name for programs: the tag without the group."""
        return self.tag.rpartition("/")[2]

    @property
    def heading(self) -> str:
        """Of the curve that it is a line of; empty where there is none."""
        return self.name if self.curve is None else self.curve

    def written(self, value: float | None, digits: int | None = None) -> str:
        """The figure for a narrow column; `digits` in place of its own."""
        if value is None:
            return NOTHING
        return f"{100 * value:.0f} %" if self.is_rate else plain(value, digits or self.digits)


def train(key: str) -> Read:
    """The trainer's figure of that name."""
    return lambda step: step.train.get(key)


def tokens_a_turn(step: StepSummary) -> float | None:
    """Mean length of a reply."""
    if not step.mean_tokens or not step.mean_turns:
        return None
    return step.mean_tokens / step.mean_turns


def sampled_rate(s: StepSummary) -> float | None:
    """Tokens that the server sampled in a second of rollout."""
    seconds = s.seconds.get("rollout")
    return s.n_trajectories * s.mean_tokens / seconds if seconds and s.mean_tokens else None


REWARD = StepFigure(
    "Reward", "reward", "mean of a step's rollouts", lambda s: s.mean_reward, "rollout/reward", +1
)
STOPS = StepFigure(
    "Stops by itself", "stops", "% of episodes", lambda s: s.stop_rate, "rollout/stop_rate", +1,
    is_rate=True, scale=100.0, held_out=lambda arm: arm.stop_rate,
)  # fmt: skip
PASSES = StepFigure(
    "Passes", "passes", "% of episodes", lambda s: s.pass_rate, "rollout/pass_rate", +1,
    is_rate=True, scale=100.0, held_out=lambda arm: arm.pass_rate,
)  # fmt: skip
ASSERTIONS = StepFigure(
    "Assertions that hold", "assertions", "% of assertions", lambda s: s.assertion_rate,
    "rollout/assertion_rate", +1, is_rate=True, scale=100.0, curve="", is_number=False,
)  # fmt: skip
TURNS = StepFigure(
    "Turns", "turns", "an episode", lambda s: s.mean_turns, "rollout/turns", -1,
    digits=2, held_out=lambda arm: arm.mean_turns,
)  # fmt: skip
REPLY = StepFigure(
    "Length of a reply", "tokens a turn", "tokens a turn", tokens_a_turn, "rollout/tokens_a_turn",
    is_number=False,
)  # fmt: skip
SAMPLED = StepFigure(
    "Speed of the server", "sampled", "tokens a second", sampled_rate,
    "rollout/tokens_per_second", +1, curve="Speed", line="sampled", is_number=False,
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
    train("sampler_mean_abs"), "train/sampler_trainer_difference", -1,
)  # fmt: skip
LARGEST_DRIFT = StepFigure(
    "Largest sampler − trainer", "its maximum", "|Δ|, nats a token", train("sampler_max_abs"),
    "train/sampler_trainer_maximum", -1, curve="", is_tracked=False,
)  # fmt: skip
CLIPPED = StepFigure(
    "Clipped share", "clipped", "% of tokens", train("clipped_share"), "train/clipped_share", -1,
    scale=100.0,
)  # fmt: skip
ENTROPY = StepFigure(
    "Entropy", "entropy", "nats a token", train("entropy"), "train/entropy", colour="green"
)
TRAINED = StepFigure(
    "Speed of the trainer", "trained", "tokens a second", train("tokens_per_second"),
    "train/tokens_per_second", +1, colour="orange", curve="Speed", line="trained", is_number=False,
)  # fmt: skip

FIGURES: list[StepFigure] = [
    REWARD, STOPS, PASSES, ASSERTIONS, TURNS, REPLY, SAMPLED, LOSS, KL, DELTA, DELTA_SERVED,
    GRADIENT, DRIFT, LARGEST_DRIFT, CLIPPED, ENTROPY, TRAINED,
]  # fmt: skip
"""Every figure, in the order in which tables, curves and trackers have them."""


def by_step(steps: Sequence[StepSummary], figure: StepFigure) -> list[tuple[int, float]]:
    """(step, figure) of every step that has it."""
    return [(s.step, v) for s in steps if (v := figure.read(s)) is not None]


def curves() -> dict[str, list[StepFigure]]:
    """Heading of a curve → its lines. A curve stands where the last of its figures does."""
    found: dict[str, list[StepFigure]] = {}
    for figure in FIGURES:
        if heading := figure.heading:
            found[heading] = [*found.pop(heading, []), figure]
    return found
