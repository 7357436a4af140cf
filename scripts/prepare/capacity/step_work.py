"""The work of a step: what was sampled, read and scored, whatever machine it was done on.

Read from a step that was played. step.json has all of it but the longest episode and what episodes
share, which a bundle tells. Where a run has no bundles (a committed copy) the longest is a guess,
and what is read is as in its stored held-out episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any, ClassVar

from pydantic import ConfigDict

from fieldkit.codec import read_bundle, stored_trajectories
from fieldkit.errors import BadInput, MissingFile
from fieldkit.records import Outcome, StepSummary, Trajectory, Turn, in_common
from rollout.arm import stored_transcripts
from scripts.run.manifest_shape import HELP
from scripts.run.reader import RunReader

LONGEST_OVER_MEAN = 1.64
"""Sampled tokens of a step's longest episode over those of its mean one: the median of the 21 steps
of measured.json whose bundles were there (1.24 to 3.92)."""

MOST = 1e12
"""A count that is larger is none."""

LATE = 5
"""Steps at a run's end that are taken together: a single one has a longest episode by chance."""


@dataclass(frozen=True)
class StepWork:
    """What a step asks of a machine. Tokens, over all episodes but for `longest` and `context`.

    sampled: ids that the engine samples. read: prompt and observation ids that it reads, with its
    prefix cache. longest: sampled by the longest episode, so decode iterations when all episodes
    are in flight. context: a mean episode's at its end. inputs: ids that the trainer runs through
    the model in each pass. scored: those of them that need the output layer. referenced: 1 where
    they are run under the reference too, 0 where not, as in a step that begins at the reference or
    has no KL; of a mean step between. is_exact: longest and read are a bundle's.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    episodes: float
    group_size: int
    turns: float
    sampled: float
    read: float
    longest: float
    context: float
    inputs: float
    scored: float
    referenced: float = 1.0
    is_exact: bool = False

    def times(self, factor: float) -> StepWork:
        """The same with `factor` times the episodes. The longest one stays as long: of more
        episodes one is longer, but a limit of turns and tokens bounds it."""
        names = ("episodes", "turns", "sampled", "read", "inputs", "scored")
        more: dict[str, Any] = {name: factor * getattr(self, name) for name in names}
        return replace(self, **more)


def mean_work(works: Sequence[StepWork]) -> StepWork:
    """The mean of some steps' work, number by number."""
    numbers = [f.name for f in fields(StepWork) if f.type == "float"]
    means: dict[str, Any] = {name: fmean(getattr(w, name) for w in works) for name in numbers}
    return replace(works[0], **means, is_exact=all(w.is_exact for w in works))


def trained_steps(reader: RunReader) -> list[int]:
    """The run's steps that trained. Raises `BadInput` where there is none."""
    found = [s.step for s in reader.steps if s.outcome is Outcome.TRAINED and s.n_trajectories]
    if not found:
        raise BadInput(
            f"{reader.folder.path}: no step of this run has trained, so its work is not known;"
            f" `grpo run {reader.folder.typed}` plays it, or name another run"
        )
    return found


def manifest_of(reader: RunReader) -> dict[str, Any]:
    """The manifest of a run that was started. Raises `BadInput` where it is gone."""
    if reader.manifest is None:
        raise MissingFile(f"{reader.folder.manifest}: no such file; {HELP}")
    return reader.manifest


def first_and_late(reader: RunReader) -> dict[str, tuple[int, ...]]:
    """A run's first step that trained, and its last ones, by what they are called. Raises
    `BadInput`."""
    steps = trained_steps(reader)
    found = {named(steps[:1]): tuple(steps[:1])}
    if late := tuple(steps[1:][-LATE:]):
        found[named(late)] = late
    return found


def named(steps: Sequence[int]) -> str:
    """What some steps are called."""
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"


def work_of(reader: RunReader, n: int) -> StepWork:
    """The work of step `n`, which has trained. Raises `BadInput`."""
    rollout = manifest_of(reader)["config"]["rollout"]
    limit = rollout["max_turns"] * rollout["max_new_tokens"]
    work = summary_work(reader.step(n), rollout["group_size"], limit, str(reader.folder.summary(n)))
    if not reader.folder.has_bundle(n):
        held_out = _held_out(reader)
        return with_held_out(work, held_out) if held_out else work
    groups = read_bundle(reader.folder.bundle(n))
    return with_episodes(work, [group.trajectories for group in groups])


def _held_out(reader: RunReader) -> list[Trajectory]:
    """The stored held-out episodes of the newest adapter that has some; empty where none has."""
    for sha in (reader.adapters[-1], reader.adapters[0]):
        arm = reader.evaluations.get(sha)
        folder = None if arm is None else reader.folder.evals / str(arm["key"])
        if folder and (path := stored_transcripts(folder)) is not None:
            return list(stored_trajectories(path))
    return []


def summary_work(step: StepSummary, group_size: int, limit: int, where: str) -> StepWork:
    """The work as step.json tells it. limit: most tokens that an episode samples.

    The trainer's inputs are every id of the attempts that it used, also those that it computes once
    for several: an engine with a prefix cache reads and samples at most as many. Raises `BadInput`
    beginning with `where`.
    """
    trained, episodes = step.train, step.n_trajectories
    if missing := {"n_input_tokens", "n_scored_tokens", "n_used"} - trained.keys():
        raise BadInput(
            f"{where}: train has no {min(missing)}, so the work of this step is not known; name a"
            " run of a newer version, or leave out RUN: `grpo plan` takes a night that was measured"
        )
    counts = {
        "n_trajectories": episodes,
        "mean_turns": step.mean_turns,
        "mean_tokens": step.mean_tokens,
        **{f"train.{name}": trained[name] for name in ("n_input_tokens", "n_used")},
    }
    for name, value in counts.items():
        if not (value and 0 < value < MOST):
            raise BadInput(f"{where}: {name} is {value!r} in a step that trained; {HELP}")
    assert step.mean_tokens is not None
    assert step.mean_turns is not None
    sampled = step.mean_tokens * episodes
    ids = trained["n_input_tokens"] / trained["n_used"] * episodes
    return StepWork(
        episodes=float(episodes),
        group_size=group_size,
        turns=step.mean_turns * episodes,
        sampled=sampled,
        read=max(0.0, ids - sampled),
        longest=min(LONGEST_OVER_MEAN * step.mean_tokens, float(max(limit, 1))),
        context=ids / episodes,
        inputs=trained["n_input_tokens"],
        scored=trained["n_scored_tokens"],
        referenced=float("reference" in step.seconds),
    )


def with_held_out(work: StepWork, episodes: Sequence[Trajectory]) -> StepWork:
    """The work, with what is read as in these episodes of the same environment: prompts as long,
    with as long a beginning in common, and as much to read in each further turn."""
    played = [t.turns for t in episodes if t.turns]
    later = sum(len(turns) - 1 for turns in played)
    if not played:
        return work
    prompts = [turns[0].prompt_ids for turns in played]
    prompt, common = fmean(map(len, prompts)), _common(prompts)
    further = (sum(map(_read, played)) - sum(map(len, prompts))) / max(later, 1)
    groups = work.episodes / work.group_size
    turns = work.turns - work.episodes
    return replace(work, read=common + groups * (prompt - common) + turns * further)


def with_episodes(work: StepWork, groups: Sequence[Sequence[Trajectory]]) -> StepWork:
    """The work with what a bundle's episodes tell. A prefix cache has a group's prompt after its
    first attempt, and what all prompts begin with after the first of all."""
    played = [t.turns for group in groups for t in group if t.turns]
    lengths = [sum(len(turn.completion_ids) for turn in turns) for turns in played]
    prompts = [turns[0].prompt_ids for turns in played]
    of_groups = [group[0].turns[0].prompt_ids for group in groups if group[0].turns]
    common = _common(of_groups)
    new = sum(len(ids) - common for ids in of_groups) + common
    return replace(
        work,
        sampled=float(sum(lengths)),
        read=float(sum(map(_read, played)) - sum(map(len, prompts)) + new),
        longest=float(max(lengths)),
        context=fmean(len(t[-1].prompt_ids) + len(t[-1].completion_ids) for t in played),
        is_exact=True,
    )


def _common(prompts: Sequence[tuple[int, ...]]) -> int:
    """Ids that all of them begin with: what the first and the last of them in order share."""
    return in_common(min(prompts), max(prompts)) if prompts else 0


def _read(turns: Sequence[Turn]) -> int:
    """Prompt ids that do not continue the turn before."""
    before, new = 0, 0
    for turn in turns:
        new += len(turn.prompt_ids) - before
        before = len(turn.prompt_ids) + len(turn.completion_ids)
    return new
