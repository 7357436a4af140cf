"""One line for each task of a bundle: what its episodes added to the step's gradient.

The trainer's log gets a task's line when the last of its segments has been scored, so that
`tail -f` shows a step while it is trained; of what other ranks scored, after the last one's last.
It reads what `trainer.gradient` computed and adds nothing to loss or gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.batch import Segment, TrainingBatch
from trainer.progress import Progress
from trainer.ranks.rank import Rank


@dataclass
class _Task:
    """Sums over the scored tokens of one task. k3: None where β is 0. lowest, highest: of its
    tokens' advantages."""

    episodes: set[int] = field(default_factory=set)
    tokens: int = 0
    policy: float = 0.0
    k3: float | None = None
    lowest: float = float("inf")
    highest: float = float("-inf")

    def add(self, part: _Task) -> None:
        """Take in another part of the same task."""
        self.episodes |= part.episodes
        self.tokens += part.tokens
        self.policy += part.policy
        if part.k3 is not None:
            self.k3 = (self.k3 or 0.0) + part.k3
        self.lowest = min(self.lowest, part.lowest)
        self.highest = max(self.highest, part.highest)


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
            task.add(
                _Task(
                    episodes={segment.k},
                    tokens=segment.n_trained,
                    policy=sum(parts_n[here]),
                    k3=None if k3_n is None else sum(k3_n[here]),
                    lowest=min(segment.advantages),
                    highest=max(segment.advantages),
                )
            )
            self._left[segment.task_id] -= 1
            if not self._left[segment.task_id]:
                self._tell(segment.task_id, task)

    def tell_shared(self, rank: Rank) -> None:
        """Tell the tasks that other ranks scored, wholly or in part. All ranks call it, after their
        last micro-batch."""
        parts = rank.gather(self._tasks)
        for task_id in [task_id for task_id, left in self._left.items() if left]:
            whole = _Task()
            for part in parts:
                whole.add(part[task_id])
            self._tell(task_id, whole)

    def _tell(self, task_id: str, task: _Task) -> None:
        kl = "" if task.k3 is None else f" kl={task.k3 / task.tokens:.5f}"
        self._progress.say(
            f"task {task_id}: episodes={len(task.episodes)} tokens={task.tokens} "
            f"advantage={task.lowest:+.3f}..{task.highest:+.3f} policy_loss={task.policy:+.5f}{kl}"
        )
