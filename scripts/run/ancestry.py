"""Which run came from which: a row of fieldkit's lineage table for each run that starts from a run.

The table is `lineage/results.tsv` beside the runs; `fieldkit lineage` shows it. A run that starts
from no run stands in it only as the parent of others. Rows are only added: each evaluation of a new
adapter adds one, and the newest row of a run counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.lineage import FailureLabel, LineageStore, Trial
from scripts.base.checkout import from_checkout
from scripts.run.config import flat
from scripts.run.folder import RunFolder
from scripts.run.reader import RunReader
from scripts.run.run_pool import GROWN

FOLDER = "lineage"
"""Beside the runs."""


@dataclass(frozen=True)
class Made:
    """What an adapter came to. rate: share of the held-out tasks that it passes; before: that of
    the adapter it was made from; notes: hashes and settings, JSON-ready; seconds: of the making."""

    name: str
    parent: str
    rate: float
    before: float | None
    notes: Mapping[str, Any]
    hypothesis: str = ""
    seconds: float | None = None


def record_trial(runs: Path, made: Made) -> None:
    """Add one row to the table beside the runs, unless its newest row for that name says the same.
    Safe with other writers."""
    store = LineageStore(runs / FOLDER, lower_is_better=False)
    better = made.before is None or made.rate >= made.before
    status = FailureLabel.KEEP if better else FailureLabel.DISCARD
    trial = Trial(
        exp_id=made.name,
        timestamp=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        specialist="grpo",
        parent_exp=made.parent,
        baseline_exp="",
        domain="",
        hypothesis=made.hypothesis,
        expected_delta="",
        status=status if made.parent else FailureLabel.BASELINE,
        core_metric=made.rate,
        val_bpb=None,
        delta_vs_best=None if made.before is None else made.rate - made.before,
        train_s=made.seconds,
        total_s=None,
        job_name=str(made.notes.get("adapter_sha", ""))[:12],
        snapshot_path="",
        notes=json.dumps(made.notes, sort_keys=True),
    )
    said = [t for t in store.all_trials() if t.exp_id == made.name]
    if not said or said[-1].notes != trial.notes:
        store.append(trial)


def record_run(folder: RunFolder) -> None:
    """Record a run that starts from a run, and the run that it starts from where the table does not
    have it yet. Nothing happens for other runs, before the first step, and before the newest
    adapter is evaluated. Raises `BadInput` for a table that cannot be read."""
    made = _made(folder)
    if made is None or not made.parent or not made.notes["steps"]:
        return
    parent = folder.path.parent / made.parent
    store = LineageStore(folder.path.parent / FOLDER)
    if all(t.exp_id != made.parent for t in store.all_trials()):
        first = _made(RunFolder(parent))
        if first is not None:
            record_trial(folder.path.parent, first)
    record_trial(folder.path.parent, made)


def _made(folder: RunFolder) -> Made | None:
    reader = RunReader(folder)
    manifest, steps = reader.manifest, reader.steps
    if manifest is None or not steps:
        return None
    rates = {sha: e["n_passed"] / e["n_trajectories"] for sha, e in reader.evaluations.items()}
    newest = steps[-1].adapter_sha
    if newest not in rates:
        return None
    config = manifest["config"]
    parent = _parent(folder, str(config["model"]["adapter"]))
    before = RunReader(parent).manifest if parent is not None else None
    return Made(
        name=folder.name,
        parent=parent.name if parent is not None else "",
        rate=rates[newest],
        before=rates.get(steps[0].adapter_sha),
        hypothesis=_changed(before, config),
        seconds=round(sum(t.training_wall for t in reader.timings), 1),
        notes={
            "adapter_sha": newest,
            "parent_sha": steps[0].adapter_sha,
            "started_from": config["model"]["adapter"],
            "steps": len(steps) - 1,
            "data": {name: data["sha256"] for name, data in _task_files(manifest["data"])},
            "settings": flat(config),
        },
    )


def _task_files(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The files that a manifest's `data` names, those of tasks that joined the pool among them."""
    named = [(name, data[name]) for name in ("pool", "heldout") if name in data]
    return [*named, *data.get(GROWN, {}).items()]


def _parent(folder: RunFolder, adapter: str) -> RunFolder | None:
    """The run beside this one whose step the adapter is."""
    path = from_checkout(adapter)
    run = RunFolder(path.parent.parent)
    is_step = path.name == "adapter" and path.parent.name.startswith("step-")
    beside = run.path.parent == folder.path.parent and run.path != folder.path
    return run if is_step and beside and run.manifest.is_file() else None


def _changed(before: Mapping[str, Any] | None, config: Mapping[str, Any]) -> str:
    """The settings that differ from the parent's, but for where it starts."""
    if before is None:
        return ""
    was = flat(before["config"])
    found = [f"{k}={v}" for k, v in flat(config).items() if k in was and was[k] != v]
    return ", ".join(one for one in found if not one.startswith("model.adapter="))
