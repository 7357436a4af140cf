"""The phases there are: what each is called, what `grpo --help` says of it, and what does it.

`grpo <phase>`, `run_phase`, the loop's command lines and grpo_loop.sh all follow from this table,
so a new phase is one file with its function, and one entry here. Which of them is next is decided
in `scripts.run.next_phase` alone. Nothing heavy is imported: a phase is, once it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.phases.context import Context, Done


@dataclass(frozen=True)
class PhaseEntry:
    """One phase.

    name: what is typed, printed by `grpo next` and written into the journal. help: one line.
    work: "module:function" of what does it, or the function itself. flags: what may be said of it
    on the command line besides what every phase takes, with a line of help each; the function
    finds them in `Context.flags`. has_figures: the trackers get the run's figures when it ends.
    shows_table: its end changes the tables, so they are shown and written anew.
    """

    name: str
    help: str
    work: str | Callable[[Context], Done]
    flags: Mapping[str, str] = field(default_factory=dict)
    has_figures: bool = False
    shows_table: bool = False

    def load(self) -> Callable[[Context], Done]:
        """The function; its module is imported now."""
        work: Callable[[Context], Done] = (
            resolve_name(self.work) if isinstance(self.work, str) else self.work
        )
        return work


SKIP_PREFLIGHT = "skip_preflight"

PHASES = {
    entry.name: entry
    for entry in (
        PhaseEntry(
            "start",
            "Check everything, write manifest and step-000, play the preflight.",
            "scripts.phases.start:start",
            flags={SKIP_PREFLIGHT: "Start even where no preflight says that it pays."},
        ),
        PhaseEntry("rollout", "Sample the next step's bundle.", "scripts.phases.rollout:rollout"),
        PhaseEntry(
            "train",
            "Train on the bundle that is there and finish the step.",
            "scripts.phases.train:train",
            has_figures=True,
        ),
        PhaseEntry(
            "eval",
            "Evaluate what is missing of the start's arms, and the newest adapter; print the"
            " table.",
            "scripts.phases.eval:evaluate",
            has_figures=True,
            shows_table=True,
        ),
    )
}
"""By name, in the order in which `grpo --help` lists them."""
