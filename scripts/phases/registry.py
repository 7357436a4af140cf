"""The registry of phases: the name, help and function of each.

`grpo <phase>`, `run_phase`, the loop and grpo_loop.sh all use it, so a new phase needs one file
with its function and one entry here. `scripts.run.next_phase` alone decides which phase is next.
Importing this module is cheap: a phase's module is imported when the phase runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from fieldkit.registry import Registry

if TYPE_CHECKING:
    from scripts.phases.context import Context, Done


@dataclass(frozen=True)
class PhaseEntry:
    """One phase.

    name: the command, the word that `grpo next` prints, and the journal's name. help: one line.
    work: the function, or its "module:function". flags: the command's own flags with their help;
    the function reads them from `Context.flags`. numbers: its options that take a number from 0,
    with their help; the function reads them from `Context.numbers`. has_figures: the trackers get
    the run's figures when the phase ends. shows_table: the phase changes the tables, so they are
    written and shown. check: as `work`, what raises for numbers that this run cannot take; then no
    phase has begun, and the journal knows nothing of it.
    """

    name: str
    help: str
    work: str | Callable[[Context], Done]
    flags: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    has_figures: bool = False
    shows_table: bool = False
    check: str | Callable[[Context], None] | None = None

    def load(self) -> Callable[[Context], Done]:
        """The function; its module is imported now."""
        work: Callable[[Context], Done] = _loaded(self.work)
        return work

    def require_possible(self, ctx: Context) -> None:
        """Raise as `check` does."""
        if self.check is not None:
            _loaded(self.check)(ctx)


def _loaded(function: str | Callable[..., Any]) -> Callable[..., Any]:
    return resolve_name(function) if isinstance(function, str) else function


SKIP_PREFLIGHT = "skip_preflight"
STEP = "step"
HARDER = "harder"

PHASES: Registry[PhaseEntry] = Registry("phase")
"""By name, in the order in which `grpo --help` lists them."""
for _entry in (
    PhaseEntry(
        "start",
        "Check everything, write the manifest and step-000, play the preflight.",
        "scripts.phases.start:start",
        flags={SKIP_PREFLIGHT: "Start without a preflight."},
    ),
    PhaseEntry(
        "rollout",
        "Play the next step's episodes and write its bundle.",
        "scripts.phases.rollout:rollout",
    ),
    PhaseEntry(
        "train",
        "Train on the step's bundle and finish the step.",
        "scripts.phases.train:train",
        has_figures=True,
    ),
    PhaseEntry(
        "grow",
        "Add tasks of the reserve to the pool, if it has converged.",
        "scripts.phases.grow:grow",
        flags={HARDER: "Tasks first that are like those which still teach, or are stuck."},
    ),
    PhaseEntry(
        "eval",
        "Evaluate the newest adapter and any missing start arm; print the tables.",
        "scripts.phases.eval:evaluate",
        numbers={STEP: "Evaluate this step's adapter instead."},
        check="scripts.phases.eval:check_step",
        has_figures=True,
        shows_table=True,
    ),
):
    PHASES.register(_entry.name, _entry)
