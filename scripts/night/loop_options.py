"""What a person typed for one loop, over what run.toml says."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from rollout.sandbox.command import SandboxKind
from scripts.run.config import OnConverged, RunConfig, play_flags
from scripts.run.until import next_time


@dataclass(frozen=True)
class LoopOptions:
    """Options of the command line; None keeps the value of run.toml."""

    steps: int | None = None
    minutes: float | None = None
    eval_every: int | None = None
    until: str | None = None
    on_converged: OnConverged | None = None
    skip_preflight: bool = False
    keep_engine: bool = False
    sandbox: SandboxKind = "bwrap"

    def check(self) -> None:
        """Raise `BadInput` for a value that no loop takes, before anything is written."""
        with_options(RunConfig(), self)
        if self.until:
            next_time(self.until, time.time())

    def words(self) -> list[str]:
        """The options as words of a command line."""
        words = []
        for key in ("steps", "minutes", "eval_every", "until", "on_converged"):
            if (value := getattr(self, key)) is not None:
                words += [f"--{key.replace('_', '-')}", str(value).removesuffix(".0")]
        for key in ("skip_preflight", "keep_engine"):
            if getattr(self, key):
                words.append(f"--{key.replace('_', '-')}")
        return words + play_flags(self.sandbox).split()


def with_options(config: RunConfig, options: LoopOptions) -> RunConfig:
    """The settings, overridden by the command line."""
    given = {
        key: value
        for key in ("steps", "minutes", "eval_every", "on_converged")
        if (value := getattr(options, key)) is not None
    }
    if "steps" not in given and "minutes" in given:
        given["steps"] = "auto"
    return replace(config, run=replace(config.run, **given))
