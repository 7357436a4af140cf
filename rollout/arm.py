"""One arm on the held-out set: one adapter plays every task; the episodes are kept and summed up.

An arm is played once. Its folder is named after the adapter, the tasks and the limits of an
episode; the manifest records model, engine and machine. An arm whose folder is complete is only
read. Seeds depend on task, attempt and turn alone, so arms are matched. Tables come from the
trajectories; the summary holds what they are checked against.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial as bind
from pathlib import Path
from shlex import quote

from fieldkit.codec import SCHEMA, encode, encode_trajectory, from_plain, plain
from fieldkit.errors import BadInput
from fieldkit.files.atomic import PACKED, read_json, sha256_text, write_json
from fieldkit.files.sharded import stored, write_records
from fieldkit.records import StopReason, Task, Trajectory, ended_by_themselves
from reward.totals import totals
from rollout.flight import (
    Attempt,
    OnProgress,
    PartialFile,
    RolloutProgress,
    fly,
    ignore_progress,
)
from rollout.player import Player, TurnSeeds
from rollout.seeds import eval_seed
from rollout.settings import EpisodeSettings

BASE_ADAPTER = "base"
"""Takes the place of the adapter's hash where the base model is served without an adapter."""

KEY_LENGTH = 16
"""Hex digits of an arm's key: 64 bits, far more than arms in a run."""

SUMMARY, TRAJECTORIES, PARTIAL = "eval.json", "trajectories.jsonl", "trajectories.partial.jsonl"
PACKED_TRAJECTORIES = TRAJECTORIES + PACKED
"""The same records compressed, as `grpo pack` writes them: a committed run has only these."""


@dataclass(frozen=True)
class EvalSummary:
    """The summary of an arm: eval.json. Finer figures are derived from the trajectories next to it.

    settings_sha: of the episode limits and the number of samples. seconds: wall time of the process
    that finished the arm. n_kept: episodes that an earlier process had played, which are not part
    of `seconds`. Means are over trajectories.
    """

    arm: str
    key: str
    adapter_sha: str
    tasks_sha: str
    settings_sha: str
    temperature: float
    samples: int
    n_tasks: int
    n_trajectories: int
    n_passed: int
    assertions_passed: int
    assertions_total: int
    stops: dict[str, int]
    mean_turns: float
    mean_tokens: float
    mean_reward: float
    commands: int
    commands_failed: int
    no_action_turns: int
    seconds: float
    n_kept: int

    @property
    def pass_rate(self) -> float:
        return self.n_passed / self.n_trajectories

    @property
    def n_stopped(self) -> int:
        """Attempts that no limit ended."""
        return ended_by_themselves({StopReason(r): n for r, n in self.stops.items()})

    @property
    def stop_rate(self) -> float:
        return self.n_stopped / self.n_trajectories

    @property
    def assertion_rate(self) -> float:
        return self.assertions_passed / self.assertions_total if self.assertions_total else 0.0


def tasks_sha(tasks: Sequence[Task]) -> str:
    """Hex SHA-256 of the tasks in order, in the form in which they are written."""
    return sha256_text("".join(encode(t) + "\n" for t in tasks))


def settings_sha(settings: EpisodeSettings, samples: int) -> str:
    """Hex SHA-256 of what changes an episode. The number of episodes in flight is not part of
    it."""
    limits = {
        name: value
        for name, value in asdict(settings.at(settings.temperature)).items()
        if name != "concurrency"
    }
    return sha256_text(json.dumps({**limits, "samples": samples}, sort_keys=True))


def eval_key(
    adapter_sha: str, tasks: Sequence[Task], settings: EpisodeSettings, samples: int = 1
) -> str:
    """The name of an arm's folder below evals/."""
    return key_of(adapter_sha, tasks_sha(tasks), settings_sha(settings, samples))


def key_of(adapter_sha: str, tasks_sha: str, settings_sha: str) -> str:
    """As `eval_key`, from the hashes that eval.json and the manifest hold."""
    return sha256_text(json.dumps([adapter_sha, tasks_sha, settings_sha]))[:KEY_LENGTH]


async def evaluate_arm(
    arm: str,
    tasks: Sequence[Task],
    *,
    player: Player,
    evals: Path,
    samples: int = 1,
    on_progress: OnProgress = ignore_progress,
) -> EvalSummary:
    """Play `samples` episodes of every task with the player; return the summary.

    `evals` is the run's evals/ folder; the arm's own is evals/<key>/ with trajectories.jsonl (in
    the order of tasks, then k) and eval.json, written last. Finished episodes survive a kill. An
    arm that is complete is read, whatever its name. Raises as `fly`, and `BadInput` if there is no
    task.
    """
    if not tasks:
        raise BadInput(f"arm {arm}: there is no task to evaluate on")

    def seeds(attempt: Attempt) -> TurnSeeds:
        return bind(eval_seed, attempt.task.task_id, attempt.k)

    folder = evals / eval_key(player.adapter_sha, tasks, player.settings, samples)
    partial = PartialFile(folder / PARTIAL)
    if (folder / SUMMARY).is_file():
        partial.remove()  # a kill may have left it
        return read_eval(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kept = 0

    def watch(progress: RolloutProgress) -> None:
        nonlocal kept
        kept = progress.kept
        on_progress(progress)

    began = player.clock()
    trajectories = await fly(
        [Attempt(task, k) for task in tasks for k in range(samples)],
        player,
        seeds,
        partial=partial,
        on_progress=watch,
    )
    summary = summarise(
        trajectories,
        arm=arm,
        tasks=tasks,
        settings=player.settings,
        samples=samples,
        seconds=player.clock() - began,
        n_kept=kept,
    )
    await asyncio.to_thread(write_arm, folder, trajectories, summary)
    partial.remove()
    return summary


def summarise(
    trajectories: Sequence[Trajectory],
    *,
    arm: str,
    tasks: Sequence[Task],
    settings: EpisodeSettings,
    samples: int,
    seconds: float,
    n_kept: int = 0,
) -> EvalSummary:
    """Add up an arm's trajectories: at least one, and all of the same adapter."""
    adapter_sha = trajectories[0].adapter_sha
    sums = totals(trajectories)

    def count(metric: str) -> int:
        return int(sum(t.metrics[metric] for t in trajectories))

    return EvalSummary(
        arm=arm,
        key=eval_key(adapter_sha, tasks, settings, samples),
        adapter_sha=adapter_sha,
        tasks_sha=tasks_sha(tasks),
        settings_sha=settings_sha(settings, samples),
        temperature=settings.temperature,
        samples=samples,
        n_tasks=len(tasks),
        n_trajectories=sums.n,
        n_passed=sums.passed,
        assertions_passed=sums.assertions_passed,
        assertions_total=sums.assertions_total,
        stops={reason.value: n for reason, n in sorted(sums.stops.items())},
        mean_turns=sums.mean_turns,
        mean_tokens=sums.mean_tokens,
        # Added one after the other, as in every eval.json so far, so that the last bit is the same.
        # An episode to which no reward applies counts as 0: what is compared has the same tasks.
        mean_reward=sum(sums.rewards) / sums.n,
        commands=count("commands"),
        commands_failed=count("commands_failed"),
        no_action_turns=count("no_action_turns"),
        seconds=seconds,
        n_kept=n_kept,
    )


def read_eval(folder: Path) -> EvalSummary:
    """The summary of a complete arm. Raises `BadInput` naming file and key."""
    path = folder / SUMMARY
    value = read_json(path)
    if not isinstance(value, dict) or value.pop("schema", None) != SCHEMA:
        raise BadInput(f"{path}:1: not an eval summary of schema {SCHEMA}; remove the folder")
    return from_plain(EvalSummary, value, f"{path}:1")


def stored_transcripts(folder: Path) -> Path | None:
    """The path that an arm's trajectories are read by, packed or not; None where it has none."""
    paths = (folder / name for name in (TRAJECTORIES, PACKED_TRAJECTORIES))
    return next((path for path in paths if stored(path) is not None), None)


def transcripts(folder: Path) -> Path:
    """As `stored_transcripts`, of a complete arm.

    Raises `BadInput` where the folder has neither, as in a run that was committed without them.
    """
    if (path := stored_transcripts(folder)) is not None:
        return path
    raise BadInput(
        f"{folder / TRAJECTORIES}: no such file, and no {PACKED_TRAJECTORIES}: this copy of the run"
        " does not have the arm's episodes, and nothing here can restore them; `grpo table"
        f" {quote(str(folder.parents[1]))}` shows its figures"
    )


def write_arm(folder: Path, trajectories: Sequence[Trajectory], summary: EvalSummary) -> None:
    """Write an arm's folder; its summary comes last and makes it complete."""
    folder.mkdir(parents=True, exist_ok=True)
    write_records(folder / TRAJECTORIES, map(encode_trajectory, trajectories))
    write_json(folder / SUMMARY, {"schema": SCHEMA, **plain(summary)})
