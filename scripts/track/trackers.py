"""Every tracker of a run, brought up to date as a phase ends.

No tracker can end a night: what fails is told as a line.
"""

from __future__ import annotations

from collections.abc import Callable

from scripts.base.events import Tell, note
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.track.tensorboard import write_tensorboard
from scripts.track.weights_biases import send_when_due


def track(
    folder: RunFolder,
    config: RunConfig,
    tell: Tell,
    stop_asked: Callable[[], bool] = lambda: False,
) -> None:
    """Bring every tracker up to date as a phase ends. Raises nothing: a failure is told."""

    def tensorboard() -> None:
        write_tensorboard(folder)

    def wandb() -> None:
        if config.run.wandb:
            send_when_due(folder, stop_asked)

    for name, bring in (("TensorBoard", tensorboard), ("Weights & Biases", wandb)):
        try:
            bring()
        except Exception as e:  # whatever a tracker does, the night goes on
            note(tell, f"{name}: {e or repr(e)}; `grpo track {folder.typed}` makes up for it")
