"""Grade a folder against a task's assertions in one call, for scripts outside the loop.

`fieldkit.eval.assertions` does the work: it reads the task strictly and trusts nothing in the
folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldkit.eval import assertions
from fieldkit.eval.assertions import ASSERTION_KINDS, GraderLimits
from fieldkit.eval.grade import AssertionResult


@dataclass(frozen=True, slots=True)
class GradeResult:
    """The verdicts of one task. `passed`: every assertion holds."""

    task_id: str
    passed: bool
    n_passed: int
    n_total: int
    assertions: list[AssertionResult]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            "task_id": self.task_id,
            "passed": self.passed,
            "n_passed": self.n_passed,
            "n_total": self.n_total,
            "assertions": [a.to_dict() for a in self.assertions],
        }


@dataclass
class AssertionGrader:
    """Grades folders. A kind of one's own is an entry of `ASSERTION_KINDS`.

    limits: how much of a hostile folder it reads.

    >>> import tempfile
    >>> grader = AssertionGrader()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = grader.grade([{"kind": "file_exists", "path": "a.txt"}], folder)
    >>> result.passed, result.assertions[0].detail
    (False, 'no such file')
    """

    limits: GraderLimits | None = None

    @staticmethod
    def supported_kinds() -> tuple[str, ...]:
        """The names of the kinds, those of one's own among them."""
        return tuple(ASSERTION_KINDS)

    def grade(
        self,
        task: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        post_state_root: str | Path,
        *,
        seed_files: Mapping[str, str] | None = None,
        task_id: str = "",
    ) -> GradeResult:
        """One verdict for each assertion about the folder, in their order.

        task: a dict with `verifiable_assertions` and perhaps `workspace_seed` and `task_id`, or the
        bare list of assertions. seed_files (path → text) and task_id replace the task's own.
        Raises `BadInput` for a task that is not in order (an unknown kind, a path outside the
        folder, `file_unchanged` without its seed) and `OSError` for a folder that cannot be read.
        """
        info: dict[str, Any] = (
            dict(task) if isinstance(task, Mapping) else {"verifiable_assertions": list(task)}
        )
        name = task_id or str(info.get("task_id", ""))
        where = f"task {name}" if name else "task"
        if seed_files is not None:
            files = [{"path": p, "kind": "text", "content": c} for p, c in seed_files.items()]
            info["workspace_seed"] = {"files": files}
        elif info.get("workspace_seed") is None:
            info["workspace_seed"] = {"files": []}
        grader = assertions.TreeGrader(
            assertions.parse_assertions(info, where),
            assertions.parse_seed(info, where),
            self.limits,
        )
        grade = grader.grade(Path(post_state_root))
        return GradeResult(name, grade.passed, grade.n_passed, grade.n_total, list(grade.results))
