"""What a grader says about an attempt: one verdict per assertion, and their sum.

Kept apart from any particular grader, so that statistics, rewards and reports depend on these two
records only. See `fieldkit.eval.assertions` for the grader of file assertions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class AssertionResult:
    """One assertion's verdict. `detail` says why it failed, and is empty when it passed."""

    kind: str
    path: str
    passed: bool
    detail: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True)
class Grade:
    """The verdicts of all assertions of one attempt, in declaration order."""

    results: tuple[AssertionResult, ...]

    @property
    def n_total(self) -> int:
        return len(self.results)

    @property
    def n_passed(self) -> int:
        return sum(r.passed for r in self.results)

    @property
    def passed(self) -> bool:
        """Every assertion holds, and there is at least one."""
        return self.n_total > 0 and self.n_passed == self.n_total

    @property
    def rate(self) -> float:
        """Share of assertions that hold, in [0, 1]; 0 when there are none."""
        return self.n_passed / self.n_total if self.n_total else 0.0
