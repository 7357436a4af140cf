"""`grpo replay` and `grpo reward explain`: tables of what a reward would pay.

Stored trajectories are scored again under another reward or stop protocol. Nothing is played, so a
setting can be judged before a night is spent on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fieldkit.errors import BadInput
from fieldkit.records import RolloutGroup, Trajectory, read_bundle, read_trajectories
from reward.rescore import Fate, ReplaySummary, replay_groups, rescore, summarise
from reward.reward import Reward
from reward.shaping import REWARDS, RewardSettings, explain
from rollout.envs.shell_protocol import PROTOCOLS
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.words.table import Table


def replay_run(
    folder: RunFolder,
    config: RunConfig,
    kind: str,
    turn_penalty: float | None,
    protocol: str | None,
) -> list[Table]:
    """One table for the run's bundles, if any, and one for each evaluation of a policy."""
    settings = _settings(config, kind, turn_penalty)
    reward = Reward(settings)
    parse = PROTOCOLS.named(protocol, "--protocol") if protocol else None
    what = f"reward {settings.kind}, λ {settings.turn_penalty:g}"
    what += f", protocol {protocol}" if protocol else ""
    tables = []
    if groups := _groups(folder):
        _, summary = replay_groups(groups, reward, parse)
        tables.append(_table(f"Training rollouts under {what}", summary))
    for name, trajectories in _evaluations(folder).items():
        scored = [rescore(t, reward, parse) for t in trajectories]
        tables.append(_table(f"Evaluation {name} under {what}", summarise(scored)))
    if not tables:
        raise BadInput(
            f"{folder.path}: nothing has been played yet; `grpo rollout {folder.typed}` plays"
        )
    return tables


def _settings(config: RunConfig, kind: str, turn_penalty: float | None) -> RewardSettings:
    REWARDS.named(kind, "--reward")
    penalty = config.reward.turn_penalty if turn_penalty is None else turn_penalty
    return replace(config.reward, kind=kind, turn_penalty=penalty)


def _groups(folder: RunFolder) -> list[RolloutGroup]:
    bundles = sorted(folder.path.glob("step-*/trajectory_bundle.jsonl"))
    return [group for bundle in bundles for group in read_bundle(bundle)]


def _evaluations(folder: RunFolder) -> dict[str, Sequence[Trajectory]]:
    """The trajectories of every arm except the yardsticks, by the arm's name."""
    from rollout.arm import TRAJECTORIES, read_eval
    from rollout.yardsticks import YARDSTICKS
    from scripts.evidence.played import finished

    found = {read_eval(path).arm: path / TRAJECTORIES for path in finished(folder.evals)}
    return {arm: read_trajectories(file) for arm, file in found.items() if arm not in YARDSTICKS}


def _table(title: str, s: ReplaySummary) -> Table:
    rows = [
        ("trajectories", str(s.n_trajectories), str(s.n_trajectories)),
        ("mean reward", f"{s.mean_reward_stored:.3f}", f"{s.mean_reward:.3f}"),
        ("rewards of zero", str(s.zero_rewards_stored), str(s.zero_rewards)),
        ("turns", str(s.turns_stored), str(s.turns_stored - s.turns_saved)),
        ("would stop earlier", "", str(s.fates[Fate.STOPS_EARLIER])),
        ("would go on", "", str(s.fates[Fate.GOES_ON])),
        ("would act otherwise", "", str(s.fates[Fate.DIVERGES])),
    ]
    if s.n_groups:
        rows.append(("groups", str(s.n_groups), str(s.n_groups)))
        rows.append(("without signal", str(s.without_signal_stored), str(s.without_signal)))
        rows.append(("cannot be told", "", str(s.undecided_groups)))
    notes = []
    if s.estimated:
        notes.append(
            f"{s.estimated} rewards are estimates: commands came after the earlier stop, and the "
            "stored grade has seen them."
        )
    return Table(title, ("", "stored", "replayed"), tuple(rows), tuple(notes))


def explain_table(config: RunConfig) -> Table:
    """The reward's corner cases as a table."""
    paid, scale = config.reward, config.advantages.scale
    rows = explain(paid, config.rollout.group_size, scale)
    cells = tuple(
        (row.case, "" if row.reward is None else f"{row.reward:.3f}", row.note) for row in rows
    )
    title = f"Reward {paid.kind}, λ {paid.turn_penalty:g}, advantages by {scale}"
    return Table(title, ("case", "reward", "what follows"), cells)
