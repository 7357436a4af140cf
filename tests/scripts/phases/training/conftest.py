"""A run as the train phase meets it."""

from __future__ import annotations

from pathlib import Path

from fieldkit.files.atomic import write_json
from scripts.base.signals import Wish
from scripts.phases.context import Context
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch
from trainer.settings import TrainerSettings


def context(
    folder: Path, kl_small: float, kls: list[float | None], at_reference: int = 0
) -> Context:
    """A run whose steps from 1 on have these KLs, the first ones from the reference on."""
    run = RunFolder(folder)
    for n, kl in enumerate(kls, start=1):
        run.step(n).mkdir(parents=True)
        train = {"training_bits": 16} | ({} if kl is None else {"kl": kl})
        shas = {"parent_sha": "r" if n <= at_reference else f"{n}", "reference_sha": "r"}
        write_json(run.step(n) / "train.json", {"train": train, **shas})
    trainer = TrainerSettings(
        serving_dtype="bfloat16", tokens_per_microbatch=64, kl_small=kl_small, kl_every=3
    )
    return Context(run, RunConfig(trainer=trainer), lambda event: None, Wish(), Stopwatch(0.0))
