"""The trainer's settings of one step: [trainer] of run.toml, with what earlier steps found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fieldkit.files.atomic import read_json
from scripts.phases.context import Context
from trainer.settings import TrainerSettings


def settings_of_step(ctx: Context, n: int) -> TrainerSettings:
    """[trainer] for step n: with the dtype that was measured, and without a KL where it is small.

    The faster dtype is measured once per run: a machine that is briefly busy must not change the
    arithmetic in the middle of a night.
    """
    settings = ctx.trainer()
    if settings.dtype == "auto" and (bits := _newest(ctx, n, "training_bits")) is not None:
        settings = replace(settings, dtype="bf16" if bits == 16 else "fp32")
    return settings if _computes_kl(ctx, n, settings) else settings.without_kl()


def _computes_kl(ctx: Context, n: int, settings: TrainerSettings) -> bool:
    """Whether step n computes the KL: always, unless one of the last steps found one that is still
    small. A KL grows with the square of the distance from the reference, which is taken to go on
    growing as it has: in proportion to the steps before. A step that began at the reference found
    nothing: there it is 0 whatever the policy does next."""
    if settings.kl_small == 0 or settings.kl_coef == 0:
        return True
    for earlier, train in _trained_before(ctx, n, among=settings.kl_every - 1):
        if train["parent_sha"] != train["reference_sha"] and "kl" in train["train"]:
            grown = (n - 1) / max(1, earlier - 1)
            return bool(train["train"]["kl"] * grown**2 >= settings.kl_small)
    return True


def _newest(ctx: Context, n: int, figure: str) -> float | None:
    """The trainer's figure in the newest step before n that has it; a step without signal has
    none."""
    found = (train["train"].get(figure) for _, train in _trained_before(ctx, n, among=n))
    return next((float(value) for value in found if value is not None), None)


def _trained_before(ctx: Context, n: int, among: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(step, its train.json) of the last `among` steps before n, newest first."""
    for earlier in range(n - 1, max(1, n - among) - 1, -1):
        file = ctx.folder.step(earlier) / "train.json"
        if file.is_file():
            yield earlier, read_json(file)
