"""What a run's reward pays to policies that are no model, where environments give the reward.

`grpo reward explain RUN` shows it before a night is spent: a part that pays replies by chance
teaches what they do, whatever it is called. Nothing is trained and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fieldkit.errors import BadInput
from fieldkit.records import Task, Trajectory
from reward.part_means import part_rows
from rollout.envs.base import MissingOracle
from rollout.transcript import ChatRenderer
from rollout.yardsticks import DO_NOTHING, ORACLE, RANDOM
from scripts.base.display import Progress
from scripts.prepare.task_sets import play_yardstick
from scripts.run.config import RunConfig
from scripts.words.table import Table

TASKS = 24
"""Of each environment so many are played, from the pool's first."""
PAID = 0.1
"""From this share of the oracle's reward on, what chance earns is warned of …"""
TIMES = 3.0
"""… if it passes less than a third of what that share would be."""

NAMES = {DO_NOTHING: "doing nothing", RANDOM: "by chance", ORACLE: "oracle"}


def worth_tables(
    config: RunConfig,
    tasks: Sequence[Task],
    load: Callable[[], ChatRenderer],
    scratch: Path,
    progress: Progress,
) -> list[Table]:
    """One table for each environment of `config` that has tasks here: passes, reward and its parts.

    load: gives the tokenizer, which the policy by chance needs. Raises what playing raises.
    """
    tables = []
    for env in config.envs:
        own = [task for task in tasks if task.env == env][:TASKS]
        if not own:
            continue
        played, notes = {}, []
        for name, title in NAMES.items():
            try:
                played[title] = play_yardstick(name, own, scratch, title, progress, config, load)
            except (BadInput, MissingOracle) as e:
                if name == DO_NOTHING:
                    raise
                notes.append(f"Not played: {title} ({e}).")
        tables.append(_table(env, own, played, notes))
    return tables


def _table(
    env: str,
    tasks: Sequence[Task],
    played: Mapping[str, Sequence[Trajectory]],
    notes: Sequence[str],
) -> Table:
    passed = {name: fmean(t.grade.passed for t in of) for name, of in played.items()}
    reward = {name: fmean(t.reward for t in of) for name, of in played.items()}
    turns = {name: fmean(len(t.turns) for t in of) for name, of in played.items()}
    parts = part_rows(played, tasks)
    rows = [
        ("passed", *(f"{share:.1%}" for share in passed.values())),
        ("replies", *(f"{mean:.1f}" for mean in turns.values())),
        ("reward", *(f"{mean:.3f}" for mean in reward.values())),
    ]
    for part in parts:
        means = [part.means.get(name) for name in played]
        cells = ["–" if mean is None else f"{mean:.3f}" for mean in means]
        rows.append((f"{part.name}, weight {part.weight:g}", *cells))
    of = f"Means over {len(tasks)} tasks of the pool, played under the run's limits. The reward is"
    of += " the weighted sum of the parts; a part of weight 0 is shown and never learned from."
    return Table(
        f"What {env} pays", ("", *played), tuple(rows), (of, *notes), _alarm(passed, reward)
    )


def _alarm(passed: Mapping[str, float], reward: Mapping[str, float]) -> str:
    chance, best, idle = (NAMES[name] for name in (RANDOM, ORACLE, DO_NOTHING))
    if not {chance, best} <= reward.keys() or reward[best] <= reward[idle]:
        return ""
    share = (reward[chance] - reward[idle]) / (reward[best] - reward[idle])
    if share < PAID or passed[chance] * TIMES >= share:
        return ""
    return (
        f"Replies by chance earn {share:.0%} of what the oracle earns and pass {passed[chance]:.0%}"
        " of the tasks. A policy learns to do the same: weigh the part that pays them less, or let"
        " it pay only where the work is done."
    )
