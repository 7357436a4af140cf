"""A whole run folder made by hand: what a night leaves, without playing or training anything."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fieldkit.codec import decode, encode, encode_group
from fieldkit.records import (
    Action,
    ActionKind,
    AtStop,
    EnvSummary,
    Outcome,
    RolloutGroup,
    Signal,
    StepSummary,
    Task,
    Trajectory,
    Turn,
)
from reward.group_signal import draw_of
from rollout.arm import tasks_sha
from scripts.run.config import DataSettings, NightSettings, RunConfig
from scripts.run.folder import RunFolder
from scripts.run.timings import Segment, StepTimings, write_timings
from tests.scripts.evals import KINDS, arm, step, task, trajectory, write_eval

HELD_OUT = 24


def tasks(n: int, prefix: str = "t") -> tuple[Task, ...]:
    """Sound tasks whose assertions are those that the hand-made attempts are graded by."""
    return tuple(
        replace(task(i), task_id=f"{prefix}{i:03d}", info={**_info(f"{prefix}{i}"), **task(i).info})
        for i in range(n)
    )


def _info(name: str) -> dict[str, Any]:
    own = {"file_contents_contain": {"must_contain": [name]}}
    return {
        "intent": "keep files in order",
        "workspace_seed": {"files": [{"path": "f2", "kind": "text", "content": name}]},
        "skills_required": ["touch"],
        "verifiable_assertions": [
            {"kind": kind, "path": f"f{i}", **own.get(kind, {})} for i, kind in enumerate(KINDS)
        ],
        "estimated_steps": 1,
        "oracle": ["touch f0"],
    }


@dataclass(frozen=True)
class Night:
    """A run folder and its settings."""

    folder: RunFolder
    config: RunConfig

    @property
    def evals(self) -> list[Path]:
        return sorted(self.folder.evals.iterdir())

    def eval_of(self, sha: str) -> Path:
        """The evaluation of one adapter."""
        wanted = f'"adapter_sha": "{sha}"'
        return next(e for e in self.evals if wanted in (e / "eval.json").read_text())


def make_night(
    root: Path,
    *,
    n_steps: int = 8,
    held_out: Sequence[Task] | None = None,
    pool_size: int = 4,
    evaluated: bool = True,
    lost: int = 2,
) -> Night:
    """A finished night that broke the habit: 12 turns before, 3 after; `lost` tasks lost, 4 won."""
    on = held_out or tasks(HELD_OUT)
    folder = RunFolder(root / "night")
    folder.path.mkdir(parents=True)
    pool = tasks(pool_size, "p")
    config = RunConfig(
        run=NightSettings(steps=n_steps, eval_every=0),
        data=DataSettings(
            pool=str(write_tasks(root / "pool.jsonl", pool)),
            heldout=str(write_tasks(root / "heldout.jsonl", on)),
        ),
    )
    folder.config.write_text("")
    _write_start_evals(folder.evals, on)
    if evaluated:
        write_eval(folder.evals, after(on, f"sha-{n_steps}", lost), on, arm=f"step {n_steps}")
    for n in range(n_steps + 1):
        _write_step(folder, n, n_steps, [t.task_id for t in pool])
    _write_manifest(folder, config, on)
    return Night(folder, config)


def write_tasks(path: Path, those: Sequence[Task]) -> Path:
    path.write_text("".join(encode(t) + "\n" for t in those), encoding="utf-8")
    return path


def _write_start_evals(evals: Path, on: Sequence[Task]) -> None:
    n = len(on)
    nothing = [trajectory(t.task_id, "do-nothing", 1, 0, True) for t in on]
    write_eval(evals, nothing, on, arm="do-nothing")
    write_eval(evals, arm("oracle", on, passes=n, turns=3, stops=n), on, arm="oracle")
    write_eval(evals, arm("base", on, passes=0, turns=12, stops=1), on, arm="base")
    before = arm("sha-0", on, passes=10, turns=12, stops=0)
    write_eval(evals, before, on, arm="warm start")


def after(on: Sequence[Task], sha: str, lost: int) -> list[Trajectory]:
    """The newest arm: the warm start's ten passes less `lost`, and four more."""
    return [
        trajectory(t.task_id, sha, 4 if lost <= i < 14 else 2, 3, True) for i, t in enumerate(on)
    ]


def summary(n: int, n_steps: int) -> StepSummary:
    """A step of a night in which everything goes well."""
    done = n / n_steps
    base = step(n, f"sha-{n}", stop_rate=done, turns=12 - 9 * done, reward=0.3 + 0.4 * done)
    if n == 0:
        return replace(base, stop_rate=None, mean_turns=None, mean_reward=None, mean_tokens=None)
    return replace(
        base,
        outcome=Outcome.TRAINED,
        groups={"LEARNABLE": 6, "SATURATED": 2},
        train={
            "kl": 0.001 * n,
            "delta_l2": 0.2,
            "delta_served_l2": 0.19,
            "grad_norm": 0.1,
            "sampler_mean_abs": 0.007,
            "sampler_max_abs": 0.5,
            "clipped_share": 0.0,
            "entropy": 0.2,
            "tokens_per_second": 300.0,
        },
        seconds={"rollout": 40.0, "gradient": 30.0, "wall": 80.0},
        at_stop=AtStop(n=4 * n, passed=2 * n, idle=n // 4),
    )


def _write_step(folder: RunFolder, n: int, n_steps: int, pool: Sequence[str]) -> None:
    folder.step(n).mkdir()
    drawn = [pool[(2 * n + i) % len(pool)] for i in range(2 if n else 0)]
    groups = [group(n, task) for task in drawn]
    whole = replace(summary(n, n_steps), draws=tuple(map(draw_of, groups)))
    folder.summary(n).write_text(encode(whole))
    write_timings(folder.timings(n), timings(n))
    if groups:
        folder.bundle(n).write_text("".join(encode_group(g) + "\n" for g in groups))


def played_in(reward: float, pass_rate: float, stop_rate: float = 0.5) -> EnvSummary:
    """Sixteen attempts of a step in one environment."""
    return EnvSummary(16, reward, pass_rate, 0.5, stop_rate, 4.0, 80.0)


def tell_apart(night: Night, environments: Mapping[str, Sequence[EnvSummary]]) -> None:
    """Give the steps 1, 2, … of a night the figures of these environments."""
    for env, figures in environments.items():
        for n, own in enumerate(figures, start=1):
            path = night.folder.summary(n)
            summary = decode(StepSummary, path.read_text(), str(path))
            envs = {**summary.environments, env: own}
            path.write_text(encode(replace(summary, environments=envs)))


def timings(n: int) -> StepTimings:
    """A rollout of 45 s and a training of 35 s, 80 s in all; 100 s of evaluation at the start."""
    if n == 0:
        return StepTimings(0, (Segment("eval base", "1", 0, 100, {"eval": 98.0}),))
    began = 100.0 + 80 * n
    rollout = Segment(
        "rollout", "1", began, began + 45, {"startup": 4.0, "engine": 1.0, "rollout": 40.0}
    )
    train = Segment("train", "1", began + 45, began + 80, {"trainer_load": 5.0, "gradient": 29.0})
    return StepTimings(n, (rollout, train))


def group(n: int, task_id: str) -> RolloutGroup:
    """Two rollouts whose rewards differ."""
    pair = [trajectory(task_id, f"sha-{n - 1}", 4 - 2 * k, 3, True, k) for k in range(2)]
    return RolloutGroup(n, "clawgym", task_id, tuple(pair), (0.7, -0.7), Signal.LEARNABLE)


def _write_manifest(folder: RunFolder, config: RunConfig, on: Sequence[Task]) -> None:
    evaluation = json.loads((next(folder.evals.glob("*/eval.json"))).read_text())
    pool = Path(config.data.pool)
    manifest = {
        "schema": 1,
        "run": folder.name,
        "config": config.plain(),
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "model": {"dir": "/models/smol", "files": {"model.safetensors": "7ef915c9bf9d94d8"}},
        "data": {
            "pool": {"path": str(pool), "sha256": _sha(pool), "n": 4, "tasks": {}},
            "heldout": {
                "path": config.data.heldout,
                "sha256": _sha(Path(config.data.heldout)),
                "n": len(on),
            },
        },
        "evaluation": {"tasks_sha": tasks_sha(on), "settings_sha": evaluation["settings_sha"]},
        "hardware": {"cpu": "a CPU", "cores": 2, "memory_bytes": 2**34, "gpus": []},
        "sandbox": "bwrap",
        "host": {"name": socket.gethostname()},
    }
    folder.manifest.write_text(json.dumps(manifest))


def _sha(path: Path) -> str:
    from fieldkit.files.atomic import sha256_file

    return sha256_file(path)


def turn(text: str, *, command: str = "", observation: str = "a", logprob: float = -0.1) -> Turn:
    """One turn of three tokens."""
    kind = ActionKind.RUN if command else ActionKind.NONE
    return Turn(
        prompt_ids=(1, 2),
        completion_ids=(11, 12, 13),
        logprobs=(logprob,) * 3,
        text=text,
        action=Action(kind, command),
        observation=observation,
        exit_code=0 if command else None,
        reward=None,
        finish_reason="stop",
        policy_version="x-v0",
        seed=0,
        seconds=1.0,
    )
