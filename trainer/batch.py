"""A bundle as sequences to score: ids, the positions of sampled ids, advantages, logprobs.

Everything is taken from the records as it is; nothing is tokenised a second time. All conditions
for training are checked here, before a model is loaded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup, Sampling, Signal, Trajectory, Turn, segments
from fieldkit.training.objectives import token_shares
from trainer.settings import TrainerSettings

_TOP_K_OFF = (0, -1)  # both spellings are in use


@dataclass(frozen=True)
class Span:
    """One turn's sampled ids within a segment: `length` of them from position `start`."""

    turn: int
    start: int
    length: int


@dataclass(frozen=True)
class Segment:
    """What one forward pass can score of a trajectory: turns whose prompts extend one another.

    ids: the last turn's prompt + completion. spans: where the sampled ids are, in turn order.
    sampler_logprobs: of the sampled ids, in order, at the sampling temperature. advantages: of the
    sampled ids, in order; all of a turn have the same. shares: of the sampled ids, in order: the
    weight of each one's loss (`token_shares`).
    """

    task_id: str
    k: int
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    sampler_logprobs: tuple[float, ...]
    advantages: tuple[float, ...]
    shares: tuple[float, ...]

    @property
    def n_trained(self) -> int:
        return len(self.sampler_logprobs)

    @property
    def n_inputs(self) -> int:
        """Ids that go into the forward pass: all but the last, which is only predicted."""
        return len(self.ids) - 1

    def where(self, i: int) -> str:
        """Name of the i-th trained token, for messages."""
        for span in self.spans:
            if i < span.length:
                return f"task {self.task_id} k={self.k} turn {span.turn} token {i}"
            i -= span.length
        raise IndexError(i)


@dataclass(frozen=True)
class TrainingBatch:
    """A bundle as segments, without groups that were left out of training.

    segments: the scored ones (`collect`). n_tokens: the sampled tokens of the whole bundle. This
    includes groups without signal, whose loss is 0: without them the gradient of one learnable
    group would be as large as that of eight. (A step is as long as the optimizer and clip_norm make
    it.) total: divides the sum of share x loss; it is n_tokens if the mean is over tokens. n_used
    of n_trajectories carry gradient.
    """

    segments: tuple[Segment, ...]
    n_tokens: int
    total: float
    n_trajectories: int
    n_used: int
    groups: dict[str, int]

    @property
    def n_scored(self) -> int:
        """Trained tokens that go through the model."""
        return sum(s.n_trained for s in self.segments)

    @property
    def has_signal(self) -> bool:
        """Whether its rewards move the policy. A KL alone makes no step, asked for or not."""
        return self.groups[Signal.LEARNABLE] > 0 and bool(self.segments)


def check_bundle(
    groups: Sequence[RolloutGroup],
    adapter_sha: str,
    settings: TrainerSettings,
    where: Path,
    sampler_sha: str | None = None,
) -> None:
    """Raise `BadInput` unless this adapter may be trained on the bundle with these settings.

    sampler_sha: the adapter that has to have sampled it, where that is another one: every
    objective weights by the policy over the sampler (`trainer.objective`), and so corrects for it.
    """
    role = "the initial adapter" if sampler_sha is None else "the adapter that should have"
    expected = sampler_sha or adapter_sha
    if not groups:
        raise BadInput(f"{where}: the bundle is empty; run the rollout again")
    if len(steps := {g.step for g in groups}) > 1:
        raise BadInput(f"{where}: groups of several steps are mixed: {sorted(steps)}")
    for line, group in enumerate(groups, start=1):
        _check_advantages(group, f"{where}:{line}: task {group.task_id}")
        for trajectory in group.trajectories:
            name = f"{where}:{line}: task {group.task_id} k={trajectory.k}"
            _check_sampling(trajectory.sampling, settings.temperature, name)
            _check_ids(trajectory, name)
            if trajectory.adapter_sha != expected:
                raise BadInput(
                    f"{name}: sampled by adapter {trajectory.adapter_sha[:12]}, but {role} "
                    f"is {expected[:12]}; give the one that sampled it as --sampler-adapter"
                )


def _check_advantages(group: RolloutGroup, where: str) -> None:
    spread = any(a != 0 for turns in group.by_turn for a in turns)
    if spread != (group.signal is Signal.LEARNABLE):
        raise BadInput(
            f"{where}: signal {group.signal} does not agree with advantages {group.advantages}"
        )


def _check_sampling(sampling: Sampling, temperature: float, where: str) -> None:
    if sampling.temperature != temperature:
        raise BadInput(
            f"{where}: sampled at temperature {sampling.temperature}, but the trainer is set to "
            f"{temperature}; pass --temperature {sampling.temperature}"
        )
    if sampling.top_p != 1 or sampling.top_k not in _TOP_K_OFF or sampling.min_p != 0:
        raise BadInput(
            f"{where}: sampled with top_p {sampling.top_p}, top_k {sampling.top_k}, min_p "
            f"{sampling.min_p}; only top_p 1, top_k off and min_p 0 can be trained on, since a "
            "cut distribution is not the policy's"
        )


def _check_ids(trajectory: Trajectory, where: str) -> None:
    for i, turn in enumerate(trajectory.turns):
        if not turn.prompt_ids:
            raise BadInput(f"{where}: turns.{i}: the prompt is empty")
        if min(*turn.prompt_ids, *turn.completion_ids, 0) < 0:
            raise BadInput(f"{where}: turns.{i}: a token id is negative")
        for j, logprob in enumerate(turn.logprobs):
            if not (math.isfinite(logprob) and logprob <= 0):
                raise BadInput(f"{where}: turns.{i}: logprobs.{j} is {logprob}")


def collect(groups: Sequence[RolloutGroup], settings: TrainerSettings) -> TrainingBatch:
    """Turn a checked bundle into segments.

    Groups without signal have advantage 0 throughout, and so no policy term. By default they are
    not scored, which saves time and applies the KL only to groups that move the policy;
    `kl_on_silent_groups` scores them too. Where there is no KL, the same is true of every turn with
    advantage 0, and what comes after the last other turn of a segment is left away. Every mean of
    the loss counts all of them in either case. The sequence of an objective is a turn, which was
    sampled in one piece, has one advantage, and is never cut.
    """
    has_kl = settings.kl_coef > 0
    groups = [g for g in groups if not g.left_out]
    trajectories = [t for g in groups for t in g.trajectories]
    of_turns = [
        [len(turn.completion_ids) for t in g.trajectories for turn in t.turns] for g in groups
    ]
    n_tokens, found = sum(map(sum, of_turns)), Counter(g.signal for g in groups)
    by_signal = {signal.value: found[signal] for signal in Signal}
    if n_tokens == 0:  # no attempt had room for a turn
        return TrainingBatch((), 0, 1.0, len(trajectories), 0, by_signal)
    longest = max(t.sampling.max_tokens for t in trajectories)
    shares, total = token_shares(of_turns, settings.normalised_by, longest)
    return TrainingBatch(
        segments=tuple(
            segment
            for group, of_group in zip(groups, shares, strict=True)
            if group.signal is Signal.LEARNABLE or (has_kl and settings.kl_on_silent_groups)
            for segment in _segments(group, of_group, silent_turns=has_kl)
        ),
        n_tokens=n_tokens,
        total=total,
        n_trajectories=len(trajectories),
        n_used=sum(any(turns) for g in groups for turns in g.by_turn),
        groups=by_signal,
    )


def _segments(
    group: RolloutGroup, shares: Sequence[float], *, silent_turns: bool
) -> Iterator[Segment]:
    """shares: of each turn's tokens, all trajectories' turns one after another. silent_turns: turns
    with advantage 0 are scored too."""
    share = iter(shares)
    for trajectory, of_turns in zip(group.trajectories, group.by_turn, strict=True):
        # Each zip looks at the shorter side first, so it takes no item of the longer one too many.
        numbered = enumerate(zip(of_turns, share, strict=False))
        for turns in segments(trajectory.turns):
            scored = [
                (Span(i, len(turn.prompt_ids), len(turn.completion_ids)), turn, advantage, weight)
                for turn, (i, (advantage, weight)) in zip(turns, numbered, strict=False)
                if silent_turns or advantage != 0
            ]
            if any(span.length for span, *_ in scored):
                yield _segment(group.task_id, trajectory.k, scored)


def _segment(task_id: str, k: int, scored: Sequence[tuple[Span, Turn, float, float]]) -> Segment:
    """scored: of each turn its span, itself, its advantage, and the share of each of its tokens."""
    last = scored[-1][1]
    return Segment(
        task_id,
        k,
        ids=last.prompt_ids + last.completion_ids,
        spans=tuple(span for span, *_ in scored),
        sampler_logprobs=tuple(lp for _, turn, _, _ in scored for lp in turn.logprobs),
        advantages=tuple(a for span, _, a, _ in scored for _ in range(span.length)),
        shares=tuple(w for span, _, _, w in scored for _ in range(span.length)),
    )
