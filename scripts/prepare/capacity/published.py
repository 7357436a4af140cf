"""The model held against a step that somebody else measured: GRPO on one DGX Spark.

The article "ClawGym GRPO on Spark" plays Qwen2.5-7B (LoRA of rank 16 on all linear layers) on a
DGX Spark, one episode after another, and loads the trainer and restarts the engine for each step.
It gives turns and seconds, but no tokens. So the tokens of a turn are taken from one of its figures
(an arm in which every attempt has 12 turns) and the others are predicted. Weights load at the speed
that it measured, which is the disk of `boxes/spark.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from scripts.prepare.capacity.box import named_box
from scripts.prepare.capacity.measured import default_night, measured_runs
from scripts.prepare.capacity.model_shape import named_shape
from scripts.prepare.capacity.step_time import (
    TURN_SECONDS,
    Efficiency,
    StepTime,
    Way,
    iteration_seconds,
    step_time,
)
from scripts.prepare.capacity.step_work import StepWork

MODEL, BOX = "Qwen2.5-7B-Instruct", "spark"
SFT_TURNS, SFT_SECONDS = 12.0, 28.3
"""Of an attempt of the arm that always plays to the limit."""

EPISODES, GROUP = 32, 4
FIRST_TURNS, MEAN_TURNS = 7.38, 5.05
"""Turns of an attempt in its first step, and in the mean of the eight steps of its table."""

GRADIENT_SECONDS = (22.0, 28.0)

PLAIN_REFERENCE, PLAIN_GRADIENT = 0.243, 0.226
"""Shares of matrix products that the plain rebuild of its trainer reaches: docs/PERFORMANCE-gpu.md,
which the box's own shares are from too."""


@dataclass(frozen=True)
class Check:
    """A figure of the article and the model's prediction of it, in seconds. known: what the
    prediction rests on."""

    what: str
    known: str
    measured: float
    predicted: float

    @property
    def off(self) -> float:
        """Share by which the prediction is too large; below 0 it is too small."""
        return self.predicted / self.measured - 1


def tokens_of_a_turn(efficiency: Efficiency) -> float:
    """Tokens that the article's model must have sampled in a turn, by the arm of 12 turns."""
    box, shape = named_box(BOX), named_shape(MODEL)
    seconds = SFT_SECONDS / SFT_TURNS - TURN_SECONDS
    return seconds / iteration_seconds(shape, box, efficiency, 1, 0)


def step_of_the_article(
    efficiency: Efficiency, like: StepWork, turns: float, sampled_by_turn: float
) -> StepTime:
    """Its step. like: prompts and observations are as long as in this work, because the article
    does not say."""
    box = replace(named_box(BOX), reference_share=PLAIN_REFERENCE, gradient_share=PLAIN_GRADIENT)
    shape = named_shape(MODEL)
    episodes = like.episodes / EPISODES
    read_by_turn = like.read / like.turns
    n_turns = turns * EPISODES
    work = StepWork(
        episodes=float(EPISODES),
        group_size=GROUP,
        turns=n_turns,
        sampled=sampled_by_turn * n_turns,
        read=read_by_turn * n_turns,
        longest=sampled_by_turn * SFT_TURNS,
        context=like.context * episodes,
        inputs=(sampled_by_turn + read_by_turn) * n_turns,
        scored=sampled_by_turn * n_turns,
    )
    way = Way(1, restart=True, load=True, lora_parameters=shape.lora_parameters(16))
    return step_time(work, shape, box, efficiency, way)


def checks(efficiency: Efficiency, like: StepWork) -> dict[str, Check]:
    """The article's figures, by a short name. like: a step of this project, for what the article
    does not say."""
    tokens = tokens_of_a_turn(efficiency)
    a_turn = SFT_SECONDS / SFT_TURNS
    first = step_of_the_article(efficiency, like, FIRST_TURNS, tokens)
    usual = step_of_the_article(efficiency, like, MEAN_TURNS, tokens)
    ours = step_of_the_article(efficiency, like, MEAN_TURNS, like.sampled / like.turns)
    by_turns = "seconds of a turn of the arm of 12 turns"
    by_tokens = f"{tokens:.1f} tokens a turn, from the arm of 12 turns"
    return {
        "prose": Check("433 turns", by_turns, 13 * 60.0, 433 * a_turn),
        "base": Check("an attempt of the base model, 4.59 turns", by_turns, 12.4, 4.59 * a_turn),
        "trained": Check("an attempt of the last adapter, 5.00 turns", by_turns, 10.7, 5 * a_turn),
        "rollout": Check("rollouts of a step", by_tokens, 500.0, usual.rollout),
        "blind": Check(
            "rollouts of a step",
            f"nothing: {like.sampled / like.turns:.1f} tokens a turn, as in this project's night",
            500.0,
            ours.rollout,
        ),
        "passes": Check(
            "reference pass and gradient of the first step",
            by_tokens,
            sum(GRADIENT_SECONDS) / 2,
            first.training,
        ),
        "restart": Check("restart of the engine", "the disk", 210.0, usual.engine_restart),
        "step": Check("a step", f"{by_tokens}; the disk", 8.5 * 3600 / 34, usual.total),
    }


def told(efficiency: Efficiency) -> str:
    """The check in a sentence."""
    found = checks(efficiency, default_night(measured_runs()).steps[0].work)
    step, passes = found["step"], found["passes"]
    return (
        "A step on a GPU that somebody else measured, of an article on GRPO on a DGX Spark, took"
        f" {step.measured:.0f} s and is predicted as {step.predicted:.0f}; its two passes took"
        f" {passes.measured:.0f} s and are predicted as {passes.predicted:.0f}."
    )
