"""`grpo replay` and `grpo reward explain`: tables of what a reward would pay.

Stored trajectories are scored again under another reward or stop protocol. Nothing is played, so a
setting can be judged before a night is spent on it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fieldkit.codec import bundle_groups
from fieldkit.errors import BadInput
from fieldkit.eval.resampling import mean_difference
from fieldkit.eval.stats import Estimate
from fieldkit.records import RolloutGroup, Task, Trajectory
from reward.part_means import part_rows
from reward.rescore import (
    Fate,
    ReplaySummary,
    Rescored,
    replay_groups,
    rescore,
    spread,
    summarise,
)
from reward.reward import Reward
from reward.shaping import REWARDS, RewardSettings, explain
from rollout.arm import EvalSummary
from rollout.envs.shell_protocol import PROTOCOLS
from rollout.yardsticks import DO_NOTHING, ORACLE, RANDOM, YARDSTICKS
from scripts.base.display import Progress, silent
from scripts.evidence.played import PlayedArm, read_played, read_summaries
from scripts.evidence.stored import absent_episodes, has_episodes
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.words.quantities import ALIKE, is_alike, signed
from scripts.words.table import Table

PAIRED_NOTE = (
    "Mean of the differences task by task, first attempts only, with a 95 % interval (bootstrap"
    " over tasks), and the standard deviation of the differences."
)


def replay_run(
    folder: RunFolder,
    config: RunConfig,
    kind: str | None,
    turn_penalty: float | None,
    protocol: str | None,
    progress: Progress = silent,
) -> tuple[list[Table], tuple[str, ...]]:
    """Make one table of the run's bundles, one of each policy's evaluation, and one of the rewards'
    differences between these; also return what to say about episodes that are not here.

    Raises `BadInput` if nothing has been played, if this copy of the run has no episodes, and for
    another reward or protocol where environments pay every episode themselves.
    """
    settings = _settings(config, kind, turn_penalty)
    reward = Reward(settings)
    parse = PROTOCOLS.named(protocol, "--protocol") if protocol else None
    under = f", protocol {protocol}" if protocol else ""
    what = f"reward {settings.kind}, λ {settings.turn_penalty:g}{under}"
    arms = _evaluations(folder)
    if own := bool(arms) and all(t.grade.rewards for arm in arms for t in arm.trajectories):
        if settings != config.reward or parse:
            raise BadInput(
                f"{folder.path}: its environments pay every episode themselves, so --reward,"
                " --turn-penalty and --protocol, which are about shell tasks, change nothing; `grpo"
                f" reward explain {folder.typed}` shows what they pay"
            )
        what = "the environment's own reward"
    tables = []
    _, summary = replay_groups(_groups(folder, progress), reward, parse)
    if summary.n_groups:
        changes = "turn_penalty" in settings.schedule and not own
        trained = f"reward {settings.kind}, λ of its schedule{under}" if changes else what
        tables.append(_table(f"Training rollouts under {trained}", summary))
    scored = [
        _Scored(arm.summary, [rescore(t, reward, parse) for t in arm.trajectories]) for arm in arms
    ]
    for one in scored:
        title = f"Evaluation {one.summary.arm} under {what}"
        tables.append(_table(title, summarise(one.rescored)))
    tables += _differences(scored, what)
    absent = absent_episodes(folder, folder.finished_steps())
    if not tables and not absent:
        raise BadInput(
            f"{folder.path}: nothing has been played yet; `grpo rollout {folder.typed}` plays"
        )
    if not tables:
        raise BadInput(
            f"{folder.path}: this copy of the run has no episodes, and nothing here can restore"
            f" them; `grpo table {folder.typed}` shows its figures"
        )
    return tables, tuple(f"not scored: {missing} are not in this copy" for missing in absent)


def _settings(config: RunConfig, kind: str | None, turn_penalty: float | None) -> RewardSettings:
    """Those of the run with what the person gave, which holds at every step."""
    kind = kind or config.reward.kind
    REWARDS.named(kind, "--reward")
    settings = replace(config.reward, kind=kind)
    if turn_penalty is None:
        return settings
    schedule = {key: at for key, at in settings.schedule.items() if key != "turn_penalty"}
    return replace(settings, turn_penalty=turn_penalty, schedule=schedule)


def _groups(folder: RunFolder, progress: Progress) -> Iterator[RolloutGroup]:
    """Every group of every bundle, one after another: all together may fill the memory."""
    played = [n for n in folder.steps_there() if folder.has_bundle(n)]
    for done, n in enumerate(played, start=1):
        yield from bundle_groups(folder.bundle(n))
        progress("steps scored again", done, len(played))


@dataclass(frozen=True)
class _Scored:
    """One evaluation, scored again."""

    summary: EvalSummary
    rescored: Sequence[Rescored]


def _evaluations(folder: RunFolder) -> list[PlayedArm]:
    """Every finished evaluation of a policy whose episodes are here, in reading order."""
    summaries = [s for s in read_summaries(folder.evals) if s.arm not in YARDSTICKS]
    arms = [folder.evals / s.key for s in summaries]
    return [read_played(arm) for arm in arms if has_episodes(arm)]


def _table(title: str, s: ReplaySummary) -> Table:
    before, after = s.stored_rewards, s.rewards
    rows = [
        ("trajectories", str(s.n_trajectories), str(s.n_trajectories)),
        ("mean reward", f"{before.mean:.3f}", f"{after.mean:.3f}"),
        ("standard deviation", f"{before.deviation:.3f}", f"{after.deviation:.3f}"),
        ("median reward", f"{before.median:.3f}", f"{after.median:.3f}"),
        ("rewards of zero", str(s.zero_rewards_stored), str(s.zero_rewards)),
        ("turns", str(s.turns_stored), str(s.turns_stored - s.turns_saved)),
        ("turns saved", "", str(s.turns_saved)),
        (
            "seconds",
            f"{s.seconds_stored:.0f}",
            f"{s.seconds_stored - s.seconds_saved:.0f}",
        ),
        ("seconds saved", "", f"{s.seconds_saved:.0f}"),
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


def _differences(scored: Sequence[_Scored], what: str) -> list[Table]:
    """The table of paired reward differences; empty if no two arms played the same tasks."""
    rows = [
        (f"{later.summary.arm} − {first.summary.arm}", *_difference(first, later))
        for first, later in itertools.combinations(scored, 2)
        if first.summary.tasks_sha == later.summary.tasks_sha
        and first.summary.settings_sha == later.summary.settings_sha
    ]
    if not rows:
        return []
    columns = ("", "stored", "deviation", "replayed", "deviation")
    return [Table(f"Differences of the reward under {what}", columns, tuple(rows), (PAIRED_NOTE,))]


def _difference(first: _Scored, later: _Scored) -> Iterator[str]:
    """The mean difference with its interval, and its deviation: of the stored rewards, then of the
    replayed ones."""
    for name in ("stored_reward", "reward"):
        before, after = (
            [getattr(r, name) for r in sorted(arm.rescored, key=lambda r: r.task_id) if r.k == 0]
            for arm in (first, later)
        )
        change = mean_difference(before, after)
        yield f"{signed(change.value, 3)}{_interval(change)}"
        yield f"{spread([b - a for a, b in zip(before, after, strict=True)]).deviation:.3f}"


def _interval(change: Estimate) -> str:
    if change.interval is None:
        return ""
    if is_alike(change):
        return f" [{ALIKE}]"
    return f" [{signed(change.interval.low, 3)} to {signed(change.interval.high, 3)}]"


def explain_table(config: RunConfig) -> Table:
    """The reward's corner cases as a table."""
    paid, scale = config.reward, config.advantages.scale
    rows = explain(paid, config.rollout.group_size, scale)
    cells = tuple(
        (row.case, "" if row.reward is None else f"{row.reward:.3f}", row.note) for row in rows
    )
    title = f"Reward {paid.kind}, λ {paid.turn_penalty:g}, advantages by episode and {scale}"
    changes = " and ".join(paid.schedule)
    notes = (f"reward.schedule changes {changes} by step: --step N shows what step N is paid by.",)
    return Table(title, ("case", "reward", "what follows"), cells, notes if changes else ())


# --- environments that give the reward ------------------------------------------------------------

PAID = 0.1
"""From this share of the oracle's reward on, what chance earns is warned of …"""
TIMES = 3.0
"""… if it passes less than a third of what that share would be."""

_NAMES = {DO_NOTHING: "doing nothing", RANDOM: "by chance"}


def worth_table(
    env: str,
    tasks: Sequence[Task],
    played: Mapping[str, Sequence[Trajectory]],
    absent: Mapping[str, str],
) -> Table:
    """Passes, reward and its parts. played: yardsticks by name, on these tasks of `env`; absent:
    those that could not be played, with the reason."""
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
    notes = [f"Not played: {_NAMES.get(name, name)} ({why})." for name, why in absent.items()]
    return Table(
        f"What {env} pays",
        ("", *(_NAMES.get(name, name) for name in played)),
        tuple(rows),
        (of, *notes),
        _worth_alarm(passed, reward),
    )


def _worth_alarm(passed: Mapping[str, float], reward: Mapping[str, float]) -> str:
    if not {RANDOM, ORACLE} <= reward.keys() or reward[ORACLE] <= reward[DO_NOTHING]:
        return ""
    share = (reward[RANDOM] - reward[DO_NOTHING]) / (reward[ORACLE] - reward[DO_NOTHING])
    if share < PAID or passed[RANDOM] * TIMES >= share:
        return ""
    return (
        f"Replies by chance earn {share:.0%} of what the oracle earns and pass {passed[RANDOM]:.0%}"
        " of the tasks. A policy learns to do the same: weigh the part that pays them less, or let"
        " it pay only where the work is done."
    )
