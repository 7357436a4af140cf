"""A score of (prediction, expected) becomes a reward with a label, for a loop of one's own.

The loop of this project pays for grades of a world (`reward.shaping`) and has its advantages in
`fieldkit.training.advantages`; this is for texts that a function or a judge scores.
"""

from __future__ import annotations

import inspect
import math
import numbers
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.eval.text_match import is_refusal
from fieldkit.lineage.trial import FailureLabel


class RewardError(BadInput):
    """The caller's mistake: what scores is no function, or a rollout has no prediction."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled text. rubric: hints for a scorer that takes `rubric`."""

    prediction: str
    expected: str = ""
    rubric: Mapping[str, Any] | None = None
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class Reward:
    """What a text earned. failure_class: KEEP, DISCARD, or CRASH where the scorer itself failed;
    auxiliary: "score", "scorer", and "refusal" or "error"."""

    success: bool
    failure_class: FailureLabel
    auxiliary: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scalar(self) -> float:
        """The score where there is one, else 1.0 for a success and 0.0."""
        score = self.auxiliary.get("score")
        if isinstance(score, numbers.Real) and not isinstance(score, bool):
            return float(score)
        return float(self.success)

    @property
    def is_informational(self) -> bool:
        """Whether the ending says something about the text."""
        return self.failure_class.is_informational

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; the scalar to six decimals."""
        return {
            "success": self.success,
            "failure_class": self.failure_class.value,
            "scalar": round(self.scalar, 6),
            "auxiliary": dict(self.auxiliary),
        }


@dataclass
class RewardAdapter:
    """Rewards by a scorer: of (prediction, expected), and those of `scorer_kwargs` that it takes.

    pass_threshold: the score from which a text is a success.

    >>> from fieldkit.eval import exact_match
    >>> RewardAdapter(exact_match).score({"prediction": "Yes", "expected": "yes"}).scalar
    1.0
    """

    verifier: Callable[..., float]
    pass_threshold: float = 1.0
    scorer_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.verifier):
            raise RewardError(f"a verifier is a function, not a {type(self.verifier).__name__}")

    @property
    def scorer_name(self) -> str:
        """The function's name, or "custom"."""
        return str(getattr(self.verifier, "__name__", "custom"))

    def score(self, rollout: Any) -> Reward:
        """The reward of a rollout: an object or mapping with prediction and perhaps expected and
        rubric.

        A scorer that raises, or whose score is not finite, gives a CRASH with a score of 0 and the
        error, so that one text does not end the group. Raises `RewardError`.
        """
        prediction = _of(rollout, "prediction")
        if prediction is None:
            raise RewardError("the rollout has no prediction to score")
        expected = _of(rollout, "expected")
        prediction, expected = str(prediction), "" if expected is None else str(expected)
        try:
            score = self._scored(prediction, expected, _of(rollout, "rubric"))
        except Exception as e:
            crash = {"score": 0.0, "scorer": self.scorer_name, "error": f"{type(e).__name__}: {e}"}
            return Reward(False, FailureLabel.CRASH, crash)
        success = score >= self.pass_threshold
        label = FailureLabel.KEEP if success else FailureLabel.DISCARD
        refusal = is_refusal(prediction)
        scorer = self.scorer_name
        return Reward(success, label, {"score": score, "scorer": scorer, "refusal": refusal})

    def score_group(self, rollouts: Sequence[Any]) -> list[Reward]:
        """`score` of each."""
        return [self.score(r) for r in rollouts]

    def _scored(self, prediction: str, expected: str, rubric: Any) -> float:
        options = {**({} if rubric is None else {"rubric": rubric}), **self.scorer_kwargs}
        accepts = _accepted(self.verifier)
        kept = {k: v for k, v in options.items() if accepts is None or k in accepts}
        value = float(self.verifier(prediction, expected, **kept))
        if not math.isfinite(value):
            raise ValueError(f"the score is {value}, not a finite number")
        return value


def group_advantage(
    rewards: Sequence[Reward], *, normalize_std: bool = True, eps: float = 1e-8
) -> list[float]:
    """K rewards → K advantages: r − μ, over the population's standard deviation + eps if asked.

    All zeros where the spread is at most eps. `fieldkit.training.group_advantages` is what our
    trainer takes: the sample's deviation, and 1e-4.
    """
    scalars = [r.scalar for r in rewards]
    if not scalars:
        return []
    mean = statistics.fmean(scalars)
    spread = statistics.pstdev(scalars, mean)
    if spread <= eps:
        return [0.0] * len(scalars)
    divisor = spread + eps if normalize_std else 1.0
    return [(s - mean) / divisor for s in scalars]


def _of(rollout: Any, name: str) -> Any:
    return rollout.get(name) if isinstance(rollout, Mapping) else getattr(rollout, name, None)


def _accepted(function: Callable[..., Any]) -> set[str] | None:
    """The keyword arguments a function takes; None where it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
