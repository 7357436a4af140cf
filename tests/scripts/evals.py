"""Finished evaluations made by hand: what a run's evals/ folder holds, without playing anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fieldkit.codec import SCHEMA, encode_trajectory, plain
from fieldkit.eval.grade import AssertionResult, Grade
from fieldkit.files.journal import Journal
from fieldkit.records import (
    Action,
    ActionKind,
    Outcome,
    StepSummary,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from rollout.arm import summarise
from rollout.settings import EpisodeSettings
from scripts.evidence.collect import Evidence
from scripts.evidence.collect import collect as collect_arms
from scripts.evidence.played import read_named
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest

SETTINGS = EpisodeSettings(temperature=0.2)
KINDS = ("file_exists", "file_contents_contain", "file_unchanged", "file_exists")
PERSONAS = ("backend-developer", "ml-engineer")


def task(i: int) -> Task:
    return Task(
        task_id=f"t{i:03d}",
        env="clawgym",
        prompt="do it",
        info={
            "persona": PERSONAS[i % 2],
            "difficulty": ("easy", "middle", "hard")[i % 3],
            "unseen_template": i % 4 == 0,
        },
    )


def tasks(n: int) -> tuple[Task, ...]:
    return tuple(task(i) for i in range(n))


def trajectory(
    task_id: str, sha: str, held: int, turns: int, stopped: bool, k: int = 0
) -> Trajectory:
    """`held` of four assertions hold after `turns` turns of ten tokens and a second each."""
    grade = Grade(
        tuple(
            AssertionResult(kind, f"f{i}", i < held, "" if i < held else "missing")
            for i, kind in enumerate(KINDS)
        )
    )
    turn = Turn(
        prompt_ids=(1, 2),
        completion_ids=(3,) * 10,
        logprobs=(-0.1,) * 10,
        text="```bash\nls\n```",
        action=Action(ActionKind.RUN, "ls"),
        observation="a",
        exit_code=0,
        reward=None,
        finish_reason="stop",
        policy_version="x-v0",
        seed=0,
        seconds=1.0,
    )
    return Trajectory(
        task_id=task_id,
        k=k,
        seed=0,
        adapter_sha=sha,
        sampling=SETTINGS.sampling,
        turns=(turn,) * turns,
        stop_reason=StopReason.TASK_COMPLETE if stopped else StopReason.MAX_TURNS,
        grade=grade,
        reward=grade.rate - 0.2 * turns / 12,
        metrics={
            "tokens": 10.0 * turns,
            "commands": float(turns),
            "commands_failed": 0.0,
            "no_action_turns": 0.0,
        },
    )


def write_eval(
    evals: Path,
    played: Sequence[Trajectory],
    on: Sequence[Task],
    *,
    arm: str = "",
    settings: EpisodeSettings = SETTINGS,
    samples: int = 1,
) -> Path:
    """One arm's finished folder below `evals`."""
    summary = summarise(
        played, arm=arm or "x", tasks=on, settings=settings, samples=samples, seconds=1.0
    )
    folder = evals / summary.key
    folder.mkdir(parents=True)
    lines = "".join(encode_trajectory(t) + "\n" for t in played)
    (folder / "trajectories.jsonl").write_text(lines)
    (folder / "eval.json").write_text(json.dumps({"schema": SCHEMA, **plain(summary)}))
    return folder


def arm(
    sha: str, on: Sequence[Task], *, passes: int, turns: int, stops: int, k: int = 0
) -> list[Trajectory]:
    """The first `passes` tasks pass, the rest hold two of four; the first `stops` stop."""
    return [
        trajectory(t.task_id, sha, 4 if i < passes else 2, turns, i < stops, k)
        for i, t in enumerate(on)
    ]


def collect(evals: Path, on: Sequence[Task], steps: Sequence[StepSummary]) -> Evidence:
    """The evidence of what lies below `evals`, as the findings of its run have it."""
    folder = RunFolder(evals.parent)
    arms = read_named(evals, on, steps, folder.typed)
    return collect_arms(arms, on, read_manifest(folder), Journal(folder.journal).read())


def step(
    number: int,
    sha: str,
    *,
    stop_rate: float | None = None,
    turns: float | None = None,
    reward: float | None = None,
    kl: float | None = None,
) -> StepSummary:
    return StepSummary(
        step=number,
        outcome=Outcome.TRAINED if number else Outcome.START,
        parent_sha=None,
        adapter_sha=sha,
        optimizer_sha=None,
        bundle_sha=None,
        n_trajectories=32 if number else 0,
        mean_reward=reward,
        pass_rate=None if reward is None else 0.5,
        assertion_rate=None if reward is None else 0.7,
        stop_rate=stop_rate,
        mean_turns=turns,
        mean_tokens=None if turns is None else 20 * turns,
        groups={},
        train={} if kl is None else {"kl": kl},
        seconds={},
    )
