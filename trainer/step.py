"""One step: a bundle and an adapter in, a new adapter out.

`train` is the whole step, from the first check to the last file; its parts live in their own
modules. A bundle without signal is recognised before torch is imported. Where several ranks take
the step together, each of them calls `train` and does all of it with its part of the bundle; the
first one publishes the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldkit.errors import BadInput
from fieldkit.records import Outcome
from fieldkit.settings import Change, current, keys
from trainer.checkpoint import carry_over, new_result, read_result, write_marker
from trainer.inputs import Checked, StepInputs, check_inputs
from trainer.messages import report_bundle, report_result
from trainer.progress import Progress, Stopwatch
from trainer.ranks.rank import ALONE, Rank
from trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from trainer.scoring.kept_model import KeptModel


def train(
    inputs: StepInputs,
    settings: TrainerSettings,
    progress: Progress,
    model: KeptModel | None = None,
    *,
    rank: Rank = ALONE,
    launch: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Do one step and return its train.json. A step that is already done is left as it is.

    model: what is loaded already, for a program that takes several steps. rank: this process's
    part; on all but the first rank the result is empty. launch: has ranks do a step that needs a
    model, in place of this process.

    Raises `BadInput` and `Shortage`; a step that fails leaves no result. The model is taken as the
    same for the same adapter: who changes it names another `out_dir`.
    """
    watch = Stopwatch()
    with watch.phase("read"):
        checked = check_inputs(inputs, settings)
        done = _already_done(inputs.out_dir, checked.identity)
    if done is not None:
        progress.say(f"{inputs.out_dir}: this step is done already")
        return done
    if launch is not None and checked.batch.has_signal:
        launch()
        return _by_ranks(inputs.out_dir)
    report_bundle(checked.batch, progress)
    with new_result(inputs.out_dir, publish=rank.is_first) as build:
        figures: dict[str, Any] = {}
        if checked.batch.has_signal:
            outcome = Outcome.TRAINED
            with watch.phase("import"):
                from trainer.scoring.kept_model import KeptModel
                from trainer.update import update_adapter
            model = model or KeptModel()
            with rank.joined():
                figures = update_adapter(
                    inputs, checked, settings, build, watch, progress, model, rank
                )
        else:
            outcome = Outcome.NO_SIGNAL
            carry_over(build, inputs.adapter, inputs.state)
        result = {
            "outcome": outcome.value,
            **checked.identity,
            "groups": checked.batch.groups,
            "train": _counts(checked) | figures,
            "seconds": {**watch.seconds, "total": watch.total},
        }
        written = write_marker(build, result)
    if not rank.is_first:
        return {}
    report_result(written, progress)
    return written


def _by_ranks(out_dir: Path) -> dict[str, Any]:
    """The result that other processes wrote."""
    written = read_result(out_dir)
    if written is None:
        raise RuntimeError(f"{out_dir}: the step's result vanished while it was written")
    return written


def _already_done(out_dir: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    result = read_result(out_dir)
    if result is None:
        return None
    for key, value in identity.items():
        found = result.get(key)
        if key == "settings" and isinstance(found, dict):
            # A key that an older version did not have had its default.
            found = _binding(asdict(TrainerSettings()) | current(TrainerSettings, found))
            value = _binding(value)
        if found != value:
            raise BadInput(
                f"{out_dir}: holds the result of another step: its {key} is {found}, "
                f"this one's is {value}; give another --out-dir"
            )
    return result


def _binding(settings: dict[str, Any]) -> dict[str, Any]:
    """Without what fits a step to the machine, which may be another one than it was begun on."""
    free = {key.name for key in keys(TrainerSettings) if key.change is Change.MACHINE}
    return {name: value for name, value in settings.items() if name not in free}


def _counts(checked: Checked) -> dict[str, float]:
    batch = checked.batch
    return {
        "n_tokens": batch.n_tokens,
        "n_scored_tokens": batch.n_scored,
        "n_trajectories": batch.n_trajectories,
        "n_used": batch.n_used,
        "optimizer_steps": checked.optimizer_steps,
    }
