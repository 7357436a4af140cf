"""The conditions under which an arm was played, and whether the conditions of several arms match.

Two arms are comparable if only the policy differs: tasks, seeds, limits, temperature, sandbox and
program version must be equal. The error names each differing key and the commands that make the
arms match. Engine speed is not a condition. Differences in software and machine become remarks,
because no two nights have them equal.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from fieldkit.errors import BadInput
from rollout.envs.env_settings import EnvSettings
from rollout.settings import EpisodeSettings
from scripts.base.machine import PROGRAM, version
from scripts.evidence.played import BASE
from scripts.evidence.stored_arm import StoredArm, replay
from scripts.run.config import RunConfig, read_config
from scripts.run.keys import all_keys
from scripts.run.manifest import model_identity, program_version, typed_to_play

TABLES = ("engine", "sandbox")
"""The tables of run.toml on which an arm depends besides tasks, limits, model and adapter."""

TALK = (("model", "chat_template_kwargs"), ("model", "tool_form"))
"""The keys of how the model is talked to."""

ENV_KEYS = ("use", "style", "passes", "config", "ends", "fallback", "serve", "show")
"""The keys of [envs.NAME] on which it depends what an attempt is and when it passes. What its parts
weigh is paid again by whoever compares rewards."""

VERSION_KEY = f"versions.{PROGRAM}"

NO_CONDITION = frozenset(key.dotted for key in all_keys() if not key.condition)
"""Keys that are not conditions: the training temperature, repeats of a [rollout] key, and keys that
change the speed of an arm but not its samples. Every other key is a condition."""

_SHOWN_COMMIT = 10
"""Commit digits shown."""


@dataclass(frozen=True)
class Mismatch:
    """One condition in which two arms differ, and how."""

    key: str
    how: str


def condition_keys() -> list[tuple[str, str]]:
    """Table and key of every setting that has to be equal between arms."""
    defaults = RunConfig().plain()
    keys = [
        ("eval", "temperature"),
        *[("rollout", f.name) for f in fields(EpisodeSettings)],
        *[(table, key) for table in TABLES for key in defaults[table]],
        *TALK,
    ]
    return [(table, key) for table, key in keys if f"{table}.{key}" not in NO_CONDITION]


def conditions(arm: StoredArm) -> dict[str, Any]:
    """The arm's conditions by dotted key of run.toml, and its attempts per task.

    A key that the manifest lacks takes today's default, which matches what older versions did.
    """
    found = _settings(arm.manifest, condition_keys())
    return {"attempts a task": arm.played.summary.samples, **found, **_envs(arm.manifest, ENV_KEYS)}


def _settings(manifest: Mapping[str, Any], wanted: Sequence[tuple[str, str]]) -> dict[str, Any]:
    config, defaults = manifest["config"], RunConfig().plain()
    return {
        f"{table}.{key}": config.get(table, {}).get(key, defaults[table][key])
        for table, key in wanted
    }


def _envs(manifest: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """These keys of the run's own environments, and the hashes of their code: a file may lie
    elsewhere."""
    blank = asdict(EnvSettings(use="", passes="reward > 0"))  # an older run lacks newer keys
    code = {f"code of {name}": sha for name, sha in manifest.get("environments", {}).items()}
    envs = manifest["config"].get("envs", {})
    found = {
        f"envs.{name}.{key}": env.get(key, blank[key])
        for name, env in envs.items()
        for key in wanted
    }
    for name in envs:
        for key in ("use", "serve"):
            found[f"envs.{name}.{key}"] = found[f"envs.{name}.{key}"].rpartition("/")[2]
    return code | found


def refuse_unmatched(arms: Mapping[str, StoredArm]) -> None:
    """Raise `BadInput` if an arm's conditions differ from those of the first arm.

    arms: by label, the reference first. The message lists for every such arm the keys that differ
    and the commands to type.
    """
    (reference, first), *others = arms.items()
    found = {
        label: differing
        for label, arm in others
        if (differing := tuple(mismatches(reference, first, label, arm)))
    }
    if not found:
        return
    lines = []
    for label, differing in found.items():
        lines.append(f"{label} was not played as {reference} was:")
        lines += [f"  {m.key}: {m.how}" for m in differing]
        lines += [f"  {hint}" for hint in _hints(reference, first, arms[label], differing)]
    lines += _newer(arms)
    raise BadInput("these arms do not match, so they cannot be compared\n" + "\n".join(lines))


def mismatches(
    reference: str, first: StoredArm, label: str, other: StoredArm
) -> Iterator[Mismatch]:
    """Yield the conditions in which `other` (named `label`) differs from `first` (`reference`)."""

    def differ(key: str, mine: Any, theirs: Any) -> Mismatch:
        return Mismatch(key, f"{mine!r} in {reference}, {theirs!r} in {label}")

    if first.played.summary.tasks_sha != other.played.summary.tasks_sha:
        yield Mismatch("held-out tasks", _tasks(reference, first, label, other))
    known = False
    theirs = conditions(other)
    for key, value in conditions(first).items():
        if theirs.get(key, value) != value:  # an environment that the other run lacks played none
            known = True
            yield differ(key, value, theirs[key])
    mine_sha, their_sha = (a.played.summary.settings_sha[:12] for a in (first, other))
    if mine_sha != their_sha and not known:
        # The hash covers limits that this version does not know.
        yield differ("episode settings (hash)", mine_sha, their_sha)
    yield from _seeds(first, other)
    was, now = _version(first), _version(other)
    if was and now and was != now:
        yield differ(VERSION_KEY, was, now)


def _tasks(reference: str, first: StoredArm, label: str, other: StoredArm) -> str:
    mine, theirs = (frozenset(t.task_id for t in a.played.trajectories) for a in (first, other))
    files = [a.manifest["data"]["heldout"]["path"] for a in (first, other)]
    if mine == theirs:
        return (
            f"the same {len(mine)} ids, but other contents or another order ({files[0]} in"
            f" {reference}, {files[1]} in {label})"
        )
    return (
        f"{len(mine)} ({files[0]}) in {reference}, {len(theirs)} ({files[1]}) in {label};"
        f" {len(mine & theirs)} are in both"
    )


def _seeds(first: StoredArm, other: StoredArm) -> Iterator[Mismatch]:
    """Compare the sampling seeds of the first attempts; only first attempts are compared."""
    mine, theirs = (
        {task: t.seed for task, t in a.played.first_attempts.items()} for a in (first, other)
    )
    common = mine.keys() & theirs.keys()
    if n := sum(mine[task] != theirs[task] for task in common):
        yield Mismatch("sampling seeds", f"not the same on {n} of {len(common)} tasks")


def same_conditions(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether two manifests agree in model, engine, sandbox, environments and program version, so
    that an arm of the same tasks and limits is the same under both, its rewards too."""
    limits = ("eval", "rollout")
    keys = [(table, key) for table, key in condition_keys() if table not in limits]
    own = (*ENV_KEYS, "rewards")
    return (
        theirs["model"]["files"] == mine["model"]["files"]
        and program_version(theirs) == program_version(mine)
        and _settings(theirs, keys) == _settings(mine, keys)
        and _envs(theirs, own) == _envs(mine, own)
    )


def _version(arm: StoredArm) -> str | None:
    return program_version(arm.played_by or {})


# --- hints: how to make arms match ----------------------------------------------------------------


def _hints(
    reference: str, first: StoredArm, other: StoredArm, differing: tuple[Mismatch, ...]
) -> Iterator[str]:
    """Yield the commands that make the arms match: play the other arm again as the first was, and
    the first arm again too if the program has changed since."""
    by_version = any(m.key == VERSION_KEY for m in differing)
    now = version()
    again = []
    if by_version and _version(first) != now:
        again.append(first)
    if any(m.key != VERSION_KEY for m in differing) or (by_version and _version(other) != now):
        again.append(other)
    for arm in again:
        yield _how_again(reference, first, arm)


def _how_again(reference: str, first: StoredArm, arm: StoredArm) -> str:
    same_model = model_identity(first.manifest) == model_identity(arm.manifest)
    theirs = arm.manifest["config"]["model"]["path"]
    model, new = None if same_model else theirs, f"{arm.folder.name}-{arm.arm}-again"
    if arm.arm == BASE and read_config(first.folder.config).is_one_arm:
        # `grpo eval` plays adapters; one that changes nothing is the base model.
        blank = first.folder.path.parent / f"{new}.adapter"
        makes = shlex.join(["grpo", "sft", str(blank), "--fresh", "--model", theirs])
        how, name = replay(first.folder, blank, new, model)
        return f"To make them match: `{makes}`, {how}; then compare with {name}"
    if arm is not first and arm.arm == BASE and same_model:
        return (
            f"To make them match: {first.word}@{BASE} is this base model as {reference} was played"
        )
    adapter = arm.adapter or arm.folder.adapter(0)
    if not adapter.is_dir():
        return (
            f"To make them match: this copy of the run has no weights to play {arm.label} with."
            f" {arm.folder.how_to_play_again}; what differs in its run.toml is set alike first"
        )
    how, name = replay(first.folder, adapter, new, model)
    if arm.arm == BASE:
        name = name.rpartition("@")[0] + f"@{BASE}"
    return f"To make them match: {how}; then compare with {name}"


# --- remarks: differences that are allowed --------------------------------------------------------


def remarks(arms: Mapping[str, StoredArm]) -> tuple[str, ...]:
    """Differences that are allowed but that a reader should know."""
    return (
        *_unprotected(arms),
        *_newer(arms),
        *_same_adapter(arms),
        *_models(arms),
        *_payment(arms),
        *_surroundings(arms),
    )


def _unprotected(arms: Mapping[str, StoredArm]) -> Iterator[str]:
    bare = [label for label, arm in arms.items() if conditions(arm)["sandbox.kind"] == "none"]
    if bare:
        yield f"Played without a sandbox (--sandbox none): {', '.join(bare)}."


def _newer(arms: Mapping[str, StoredArm]) -> Iterator[str]:
    for label, arm in arms.items():
        if arm.newer is not None:
            plays = f"`grpo eval {typed_to_play(arm.word, arm.manifest)}` plays it"
            is_here = arm.folder.adapter(arm.newer).is_dir()
            yield (
                f"{label} is the newest adapter of its run that was evaluated; step {arm.newer} is"
                f" newer, and {plays if is_here else 'this copy of the run does not have it'}."
            )


def _same_adapter(arms: Mapping[str, StoredArm]) -> Iterator[str]:
    by_policy: dict[tuple[str, str], list[str]] = {}
    for label, arm in arms.items():
        policy = (arm.played.summary.adapter_sha, model_identity(arm.manifest))
        by_policy.setdefault(policy, []).append(label)
    for labels in by_policy.values():
        if len(labels) > 1:
            yield f"{' and '.join(labels)} are the same policy."


def _models(arms: Mapping[str, StoredArm]) -> Iterator[str]:
    models = {label: model_identity(arm.manifest) for label, arm in arms.items()}
    if len(set(models.values())) > 1:
        named = {n: f"{arms[n].manifest['model']['dir']} {sha}" for n, sha in models.items()}
        yield (
            f"Not the same base model: {_by_value(named)}. Each counts tokens by its own tokenizer."
        )


def payment(arms: Mapping[str, StoredArm]) -> dict[str, dict[str, str]]:
    """The settings of the reward in which arms differ: by dotted key the value of each arm."""
    keys = [("reward", key) for key in RunConfig().plain()["reward"]]
    return _differing({label: _settings(arm.manifest, keys) for label, arm in arms.items()})


def _payment(arms: Mapping[str, StoredArm]) -> Iterator[str]:
    if differing := payment(arms):
        yield f"Paid differently, so that mean rewards do not compare: {_told(differing)}."


def _surroundings(arms: Mapping[str, StoredArm]) -> Iterator[str]:
    """Remarks on software and machine, if the arms differ in them."""
    found = {label: surroundings(arm) for label, arm in arms.items()}
    unknown = [label for label, there in found.items() if not there]
    if unknown:
        yield (
            f"{' and '.join(unknown)}: taken over from a run that is gone, so software and machine"
            " are not known."
        )
    if differing := _differing({label: there for label, there in found.items() if there}):
        yield (
            f"Not refused, but not the same: {_told(differing)}. Part of a difference may come"
            " from there."
        )


def surroundings(arm: StoredArm) -> dict[str, str]:
    """The software and the machine that played the arm; empty if the run that played it is gone."""
    if arm.played_by is None:
        return {}
    software = {str(k): str(v) for k, v in arm.played_by.get("versions", {}).items()}
    if "commit" in software:
        software["commit"] = software["commit"][:_SHOWN_COMMIT]
    hardware = arm.played_by.get("hardware", {})
    gpus = ", ".join(map(str, hardware.get("gpus") or ())) or "none"
    return {**software, "processor": str(hardware.get("cpu")), "GPU": gpus}


def _differing(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """What is not the same in all: by key the text of each label."""
    keys = dict.fromkeys(key for values in found.values() for key in values)
    texts = {k: {label: str(of.get(k, "none")) for label, of in found.items()} for k in keys}
    return {key: by_label for key, by_label in texts.items() if len({*by_label.values()}) > 1}


def _told(differing: Mapping[str, Mapping[str, str]]) -> str:
    return "; ".join(f"{key}: {_by_value(by_label)}" for key, by_label in differing.items())


def _by_value(by_label: Mapping[str, str]) -> str:
    values = dict.fromkeys(by_label.values())
    return ", ".join(
        f"{value} ({', '.join(n for n, v in by_label.items() if v == value)})" for value in values
    )
