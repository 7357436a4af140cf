"""`grpo new --from RUN`: a new run with another one's settings, from the adapter that it made."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from fieldkit.errors import BadInput
from fieldkit.training.adapter import read_adapter
from scripts.base.checkout import from_checkout, in_checkout
from scripts.run.assignments import assigned, parse
from scripts.run.config import read_config
from scripts.run.folder import RunFolder
from scripts.run.manifest import read_manifest
from scripts.run.run_pool import grown_files


def text_from(run: RunFolder, step: int | None = None, assignments: Sequence[str] = ()) -> str:
    """The run.toml of a new run that starts from `step`'s adapter; None: the newest.

    Its settings are the run's, but for the adapter, which its KL refers to, the seed (one more, so
    that other tasks are drawn and other replies sampled), what had become of the learning rate by
    that step, where it stays, and these assignments. What else goes by the number of a step begins
    anew, as `reward.schedule`. Raises `BadInput` where there is no such adapter.
    """
    newest = run.finished_steps() - 1
    chosen = newest if step is None else step
    if newest < 1 or not 0 < chosen <= newest:
        have = f"its steps are 1 to {newest}" if newest > 0 else "no step of it is trained yet"
        what = f"--step {step}: " if step is not None else ""
        raise BadInput(f"{what}{run.path}: {have}; `grpo run {run.typed}` trains further ones")
    adapter = run.adapter(chosen)
    if not adapter.is_dir():
        kept = [n for n in range(1, newest + 1) if run.adapter(n).is_dir()]
        others = f"; --step takes {', '.join(map(str, kept))}"
        again = f" (a committed run has no weights); {run.how_to_play_again}"
        raise BadInput(f"{adapter}: step {chosen} has no adapter here{others if kept else again}")
    read_adapter(adapter)
    config = read_config(run.config)
    own: dict[str, Any] = {
        "model.adapter": str(in_checkout(adapter)),
        "run.seed": config.run.seed + 1,
    }
    if config.rollout.run_seed != config.run.seed:
        own["rollout.run_seed"] = config.rollout.run_seed + 1
    if (lr := config.trainer.at_step(chosen).lr) != config.trainer.lr:
        own |= {"trainer.lr": float(f"{lr:.4g}"), "trainer.decay_after": 0}
    text = assigned(run.config.read_text(encoding="utf-8"), own, str(run.config))
    return assigned(text, parse(assignments), "the new run.toml")


def grown_elsewhere(run: RunFolder, new: RunFolder) -> str | None:
    """What to say where tasks joined `run`'s pool and the new run begins with the file alone; None
    where none did, or the new run has another pool. Raises as `grown_files`."""
    pool = read_config(new.config).data.pool
    files = grown_files(run, read_manifest(run))
    if not files or pool != read_config(run.config).data.pool:
        return None
    n_tasks = sum(len(file.read_bytes().splitlines()) for file in files)
    whole, names = new.path / "pool.jsonl", " ".join(shlex.quote(str(file)) for file in files)
    return (
        f"the tasks that joined the pool of {run.typed} ({n_tasks}) are not in {pool}, which"
        f" this run begins with; with them: `cat {shlex.quote(str(from_checkout(pool)))} {names} >"
        f" {shlex.quote(str(whole))}`, and `grpo run {new.typed} --set"
        f" data.pool={shlex.quote(str(in_checkout(whole)))}`"
    )
