"""manifest.json: the identity of a run, written before its first step and binding after it.

The manifest holds the resolved settings, the hashes of model and data, and the machine. It makes
the folder self-describing and keeps the run one experiment: this module decides which settings may
still change, and on which host and in which sandbox the run may continue.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from fieldkit.codec import plain
from fieldkit.errors import BadInput, NotOwner
from fieldkit.files.atomic import read_json, sha256_file, sha256_text
from fieldkit.records import Task
from fieldkit.settings import Change
from fieldkit.training.adapter import AdapterInfo, other_base
from rollout.envs.configured import environment_hashes
from rollout.envs.env_settings import EnvSettings
from rollout.sandbox.command import SandboxKind
from scripts.base.checkout import ROOT, from_checkout, in_checkout
from scripts.run.config import AUTO, RunConfig, flat, play_flags
from scripts.run.folder import RunFolder
from scripts.run.keys import all_keys, as_listed, dotted_keys
from scripts.run.lock import inherited
from scripts.run.manifest_shape import HELP, whole_manifest
from scripts.run.template import template_hash

SCHEMA = 1

LENGTH_KEYS = dotted_keys(Change.LENGTH)
TYPED_KEYS = dotted_keys(Change.TYPED)
"""A command that plays compares these with the manifest (`check_sandbox`); one that only reads the
run ignores them."""
FREE_KEYS = dotted_keys(Change.LENGTH, Change.MACHINE)
"""The keys of run.toml that may change after the first step. What a message about too little
memory, too few files or a busy port tells a person to set is among them."""

KEPT_KEYS = ("trainer.tokens_per_microbatch", "eval.tasks")
"""The keys that a run.toml may leave to the run (left out, or "auto") and that the manifest then
holds as chosen."""


FOLLOWERS = {key.dotted for key in all_keys() if key.follows}
"""They have the value of another key, whose change is told."""

FEWER = "fewer_tasks"
"""The manifest's key of a run that evaluates on fewer held-out tasks, to leave time for steps."""


def read_manifest(folder: RunFolder) -> dict[str, Any] | None:
    """The manifest, or None where the run was not started. Raises `BadInput` for another schema."""
    if not folder.manifest.is_file():
        return None
    value = read_json(folder.manifest)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise BadInput(f"{folder.manifest}: schema: not a manifest of schema {SCHEMA}; {HELP}")
    return whole_manifest(value, folder.manifest)


def new_manifest(
    folder: RunFolder,
    config: RunConfig,
    model_dir: Path,
    adapter: AdapterInfo,
    evaluation: Mapping[str, str],
) -> dict[str, Any]:
    """The manifest of a run that starts here and now; the caller writes it.

    `adapter`: the one it starts from. `evaluation`: tasks_sha and settings_sha of the arms that
    belong to this run. Reads the model's weights once for their hashes.
    """
    files = model_hashes(model_dir) | template_hash(config.model)
    model = {"dir": str(model_dir), "files": files}
    start = {"sha": adapter.sha, "other_base": other_base(adapter, str(model_dir))}
    return manifest_of(folder, config, model, start, evaluation)


def manifest_of(
    folder: RunFolder,
    config: RunConfig,
    model: Mapping[str, Any],
    adapter: Mapping[str, Any],
    evaluation: Mapping[str, str],
) -> dict[str, Any]:
    """The same for a model and an adapter that are described already: one behind an endpoint has
    no folder."""
    from scripts.base import machine

    heldout = _identity(config.data.heldout)
    del heldout["tasks"]  # it must stay as it is to the byte, so its tasks need no hashes
    return {
        "schema": SCHEMA,
        "run": folder.name,
        "created": time.time(),
        "config": config.plain(),
        "versions": machine.versions(),
        "model": dict(model),
        "adapter": dict(adapter),
        "data": {"pool": _identity(config.data.pool), "heldout": heldout},
        "evaluation": dict(evaluation),
        **_own_environments(config),
        "hardware": machine.hardware(),
        "sandbox": config.sandbox.kind,
        "host": machine.host_identity(),
    }


def _own_environments(config: RunConfig) -> dict[str, Any]:
    """The hashes of the run's own environments, where it has some; and its yardsticks, where not
    all of them can be played: tasks from elsewhere come without an oracle."""
    from rollout.tasks import read_tasks
    from rollout.yardsticks import ORACLE, evaluated_yardsticks, has_oracle

    found: dict[str, Any] = {}
    if config.envs:
        found["environments"] = environment_hashes(config.envs, ROOT)
    if not all(map(has_oracle, config.eval.of(read_tasks(from_checkout(config.data.heldout))))):
        found["yardsticks"] = [name for name in evaluated_yardsticks() if name != ORACLE]
    return found


def played_yardsticks(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The yardsticks that the run's evaluation plays."""
    from rollout.yardsticks import evaluated_yardsticks

    return tuple(manifest.get("yardsticks", evaluated_yardsticks()))


def check_environments(folder: RunFolder, config: RunConfig) -> None:
    """Raise `BadInput` where the code of an environment, or the chat template of run.toml, is not
    that which the run began with."""
    manifest = read_manifest(folder)
    if manifest is None:
        return
    for file, sha in template_hash(config.model).items():
        if manifest["model"]["files"].get(file) != sha:
            raise BadInput(
                f"{folder.config}: model.chat_template: {file} changed since the run started. Put"
                " it back, or start another run with `grpo new`"
            )
    if not config.envs:
        return
    now = environment_hashes(config.envs, ROOT)
    for name, then in manifest.get("environments", {}).items():
        if now.get(name) != then:
            raise BadInput(
                f"{folder.config}: envs.{name}: the code of {config.envs[name].code} changed since"
                " the run started, so its attempts could not be compared with earlier ones. Put"
                " it back, or start another run with `grpo new`"
            )


def check_host(folder: RunFolder, manifest: Mapping[str, Any] | None) -> None:
    """Raise `NotOwner` where the run belongs to another host. manifest: None where it has not
    begun. A phase of a loop asks no more: the loop has, and a host may get another name meanwhile,
    as with a new lease of its address."""
    from scripts.base import machine

    if manifest is None or inherited(folder.lock) is not None:
        return
    host, here = manifest["host"], machine.host_identity()
    if is_same_host(host, here):
        return
    theirs, ours = host["name"], here["name"]
    if theirs == ours:  # two machines of one name, as copies of an image are
        theirs, ours = (f"{h['name']} (machine id {h['machine_id']})" for h in (host, here))
    raise NotOwner(
        f"{folder.manifest}: run {folder.name} belongs to host {theirs}, this is {ours}; if "
        f"nothing works on it there any more, `grpo takeover {folder.typed}` makes it this host's"
    )


def other_host(manifest: Mapping[str, Any] | None) -> str:
    """The name of the run's host; empty where it is this one, or where the run was not started."""
    from scripts.base import machine

    if manifest is None or is_same_host(manifest["host"], machine.host_identity()):
        return ""
    return str(manifest["host"]["name"])


def is_same_host(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two host identities name one machine: by name, and by machine id where both have
    one."""
    ids = one.get("machine_id"), other.get("machine_id")
    return one["name"] == other["name"] and (not all(ids) or ids[0] == ids[1])


def check_sandbox(folder: RunFolder, config: RunConfig) -> None:
    """Raise `BadInput` where a started run is played with another kind of sandbox: its arms and
    steps could not be compared any more."""
    manifest = read_manifest(folder)
    if manifest is None or folder.finished_steps() == 0:
        return
    was = sandbox_kind(manifest)
    if was == config.sandbox.kind:
        return
    if was == "none":
        how = "without a sandbox"
        remedy = f"repeat the flag: `grpo run {typed_to_play(folder.typed, manifest)}`"
    else:
        how = "in a sandbox"
        remedy = f"leave out --sandbox none: `grpo run {folder.typed}`"
    raise BadInput(
        f"{folder.manifest}: run {folder.name} is played {how}, and what is played otherwise could "
        f"not be compared with it; {remedy}, or start another run with `grpo new`"
    )


def program_version(manifest: Mapping[str, Any]) -> str | None:
    """The version of worlds, protocol and graders; None if the manifest has none."""
    from scripts.base.machine import PROGRAM

    found: str | None = manifest.get("versions", {}).get(PROGRAM)
    return found


def sandbox_kind(manifest: Mapping[str, Any]) -> SandboxKind:
    """The kind of sandbox that a run is played in; "none" is none."""
    return "none" if manifest.get("sandbox") == "none" else "bwrap"


def overlap_of(manifest: Mapping[str, Any] | None) -> int:
    """run.overlap of a run, whatever its run.toml says now; 0 where it was not started."""
    return int((manifest or {}).get("config", {}).get("run", {}).get("overlap", 0))


def typed_to_play(word: str, manifest: Mapping[str, Any] | None) -> str:
    """RUN in a next command that plays, with the flag that a run without a sandbox needs.

    word: RUN as a person types it. manifest: None where the run was not started.
    """
    return word + play_flags(sandbox_kind(manifest or {}))


def evaluated_adapter(manifest: Mapping[str, Any] | None) -> str:
    """The adapter of a folder that `grpo eval` made for one arm, by its path; empty for a run.

    There it is no start of a night, whatever trained it (`RunConfig.is_one_arm`).
    """
    config = manifest["config"] if manifest else {}
    data = config.get("data", {})
    if not data or data.get("pool") != data.get("heldout"):
        return ""
    return str(in_checkout(from_checkout(config["model"]["adapter"])))


def changes(manifest: Mapping[str, Any], config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The dotted keys that differ from the manifest, with (old, new).

    A key that the manifest does not hold was added after the run began. The run had its default,
    which is what an older version did: where run.toml leaves it so, nothing changed. An environment
    that it does not hold is a change: nothing holds its code to what it is now. One of `KEPT_KEYS`
    that run.toml leaves to the run is unchanged. A key that follows another one is not told beside
    it, and an older version may have left it out.
    """
    then, now = manifest["config"], config.plain()
    old = flat(RunConfig().plain()) | flat({k: v for k, v in then.items() if k != "envs"})
    new = flat({k: v for k, v in now.items() if k != "envs"})
    kept = {k for k in KEPT_KEYS if new.get(k) in (None, AUTO)} | FOLLOWERS
    found = _different(old, new) | _changed_environments(then.get("envs", {}), now.get("envs", {}))
    return {k: pair for k, pair in found.items() if k not in kept}


def _different(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    keys = [k for k in {**old, **new} if old.get(k, MISSING) != new.get(k, MISSING)]
    return {k: (old.get(k), new.get(k)) for k in keys}


def _changed_environments(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    found: dict[str, tuple[Any, Any]] = {
        f"envs.{name}": (None, _code(new[name])) for name in new if name not in old
    }
    for name, then in old.items():
        if name in new:
            then = plain(EnvSettings(use="", passes="reward >= 0")) | then
            pairs = _different(then, new[name])
            found |= {f"envs.{name}.{key}": pair for key, pair in pairs.items()}
        else:
            found[f"envs.{name}"] = (_code(then), None)
    return found


def _code(env: Mapping[str, Any]) -> str:
    """`EnvSettings.code` of a table that may lack keys."""
    return next((str(env[key]) for key in ("use", "serve", "url") if env.get(key)), "")


def bound_changes(manifest: Mapping[str, Any], config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The changes that a run with a finished step forbids."""
    found = changes(manifest, config)
    return {k: pair for k, pair in found.items() if as_listed(k) not in FREE_KEYS | TYPED_KEYS}


def free_changes(manifest: Mapping[str, Any], config: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The changes that it allows."""
    return {k: pair for k, pair in changes(manifest, config).items() if as_listed(k) in FREE_KEYS}


def refuse_change(folder: RunFolder, manifest: Mapping[str, Any], config: RunConfig) -> None:
    """Raise `BadInput` naming the first key that a run with finished steps cannot change."""
    bound = bound_changes(manifest, config)
    if bound:
        keys = list(bound)
        old, new = bound[keys[0]]
        more = f" (and {len(keys) - 1} more: {', '.join(keys[1:])})" if len(keys) > 1 else ""
        raise BadInput(
            f"{folder.config}: {keys[0]} was {old!r} when the run started and is now {new!r}"
            f"{more}; after the first step only {', '.join(sorted(LENGTH_KEYS))} may change, and "
            "what fits the night to the machine (micro-batches, concurrency, the engine's memory). "
            "Put it back, or start another run with `grpo new`"
        )
    _refuse_other_program(folder, manifest)
    _refuse_other_data(folder, manifest, config)


class OtherProgram(BadInput):
    """A run was begun with another version of the program."""


def _refuse_other_program(folder: RunFolder, manifest: Mapping[str, Any]) -> None:
    """A version of the program stands for its worlds, its protocol and its graders: arms that two
    versions played cannot be compared."""
    from scripts.base import machine

    then, now = program_version(manifest), machine.version()
    if then not in (None, now):
        commit = manifest["versions"].get("commit", "").removesuffix("+")
        raise OtherProgram(
            f"{folder.manifest}: the run was begun with {machine.PROGRAM} {then}, and this is"
            f" {now}, which reads replies or grades files otherwise: its arms could not be"
            " compared with the run's. Commands that only read work. "
            + (f"To go on, `git checkout {commit}`; with" if commit else "With")
            + f" this version {folder.how_to_play_again}"
        )


def _refuse_other_data(folder: RunFolder, manifest: Mapping[str, Any], config: RunConfig) -> None:
    """The held-out set must be the same to the byte; the pool may grow, and nothing else."""
    heldout = from_checkout(config.data.heldout)
    if manifest["data"]["heldout"]["sha256"] != sha256_file(heldout):
        raise BadInput(
            f"{heldout}: not the held-out set that run {folder.name} started with, so its "
            "evaluations could not be compared; put the file back, or start another run"
        )
    pool = from_checkout(config.data.pool)
    if manifest["data"]["pool"]["sha256"] == sha256_file(pool):
        return
    now = _line_hashes(pool)
    gone = [t for t, sha in manifest["data"]["pool"]["tasks"].items() if now.get(t) != sha]
    if gone:
        raise BadInput(
            f"{pool}: task {gone[0]} was removed or changed since run {folder.name} started "
            f"({len(gone)} such); a pool may only grow. Put it back, or start another run"
        )


def _identity(file: str) -> dict[str, Any]:
    """A task file: where, what, and every task's own hash."""
    path = from_checkout(file)
    tasks = _line_hashes(path)
    return {"path": file, "sha256": sha256_file(path), "n": len(tasks), "tasks": tasks}


def _line_hashes(path: Path) -> dict[str, str]:
    """The hash of every task by task id."""
    from rollout.tasks import read_tasks

    return {t.task_id: task_hash(t) for t in read_tasks(path)}


def task_hash(task: Task) -> str:
    """A short hash of a task's record."""
    from fieldkit.codec import encode

    return sha256_text(encode(task))[:16]


def model_files(model_dir: Path) -> list[Path]:
    """The files that make the model what it is."""
    wanted = ("*.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "*.jinja")
    return sorted({p for pattern in wanted for p in model_dir.glob(pattern)})


def model_hashes(model_dir: Path) -> dict[str, str]:
    """Their SHA-256, by name."""
    return {p.name: sha256_file(p) for p in model_files(model_dir)}


def model_identity(manifest: Mapping[str, Any]) -> str:
    """One short text that two runs on the same model share."""
    lines = [f"{name} {sha}" for name, sha in sorted(manifest["model"]["files"].items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
