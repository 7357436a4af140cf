"""One line for each task of a bundle: what its episodes added to the step's gradient.

The trainer's log gets a task's line when the last of its segments has been scored, so that
`tail -f` shows a step while it is trained. It reads what `trainer.gradient` computed and adds
nothing to loss or gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.batch import Segment, TrainingBatch
from trainer.progress import Progress


@dataclass
class _Task:
    """Sums over the scored tokens of one task. lowest, highest: of its tokens' advantages."""

    episodes: set[int] = field(default_factory=set)
    tokens: int = 0
    policy: float = 0.0
    k3: float = 0.0
    lowest: float = float("inf")
    highest: float = float("-inf")


class TaskFigures:
    """Collects the figures of each task while micro-batches, which mix tasks, are scored."""

    def __init__(self, batch: TrainingBatch, progress: Progress) -> None:
        self._left = Counter(s.task_id for s in batch.segments)
        self._tasks = {task_id: _Task() for task_id in self._left}
        self._progress = progress

    def add(
        self, segments: Sequence[Segment], parts_n: Sequence[float], k3_n: Sequence[float] | None
    ) -> None:
        """Add one micro-batch, its n tokens in the order of `segments`; tell what became whole.

        parts_n: what each token adds to the step's policy loss. k3_n: None where β is 0.
        """
        begin = 0
        for segment in segments:
            here = slice(begin, begin + segment.n_trained)
            begin = here.stop
            task = self._tasks[segment.task_id]
            task.episodes.add(segment.k)
            task.tokens += segment.n_trained
            task.policy += sum(parts_n[here])
            if k3_n is not None:
                task.k3 += sum(k3_n[here])
            task.lowest = min(task.lowest, *segment.advantages)
            task.highest = max(task.highest, *segment.advantages)
            self._left[segment.task_id] -= 1
            if not self._left[segment.task_id]:
                self._tell(segment.task_id, task, k3_n is not None)

    def _tell(self, task_id: str, task: _Task, has_kl: bool) -> None:
        kl = f" kl={task.k3 / task.tokens:.5f}" if has_kl else ""
        self._progress.say(
            f"task {task_id}: episodes={len(task.episodes)} tokens={task.tokens} "
            f"advantage={task.lowest:+.3f}..{task.highest:+.3f} policy_loss={task.policy:+.5f}{kl}"
        )
