"""Uniform draws: shuffled passes over the pool (epochs), without replacement.

Every task is played once before any task is played a second time. With a mix, each environment has
its own passes over its tasks. When tasks are added to the pool a pass begins anew, with these
first: the others had nothing left to teach.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Container, Sequence

from fieldkit.records import Task
from rollout.draw.base import Drawing
from rollout.seeds import epoch_seed


def by_epochs(drawing: Drawing) -> list[Task]:
    """The pool in shuffled passes: no task comes again before every other one came.

    The tasks of a step are all different. The draws of earlier steps are computed again, because
    the tasks that are left depend on them."""
    if not drawing.mix and not drawing.spare:
        return _in_equal_batches(drawing)
    tasks = drawing.by_env
    walks = {
        env: _Walk(drawing.run_seed, env, len(of_env), _first(of_env, drawing))
        for env, of_env in tasks.items()
    }
    for places in drawing.places()[drawing.grew_after :]:
        taken = {env: iter(walks[env].take(n)) for env, n in Counter(places).items()}
    return [tasks[env][next(taken[env])] for env in places]


def _in_equal_batches(drawing: Drawing) -> list[Task]:
    """For a run in which every step draws B tasks: earlier steps need not be computed again."""
    n, batch, first = len(drawing.pool), drawing.batch, _first(drawing.pool, drawing)
    epoch, at = divmod((drawing.step - drawing.grew_after - 1) * batch, n)
    places = _epoch_order(drawing.run_seed, epoch, n, batch, first)[at : at + batch]
    if len(places) < batch:
        following = _epoch_order(drawing.run_seed, epoch + 1, n, batch, first)
        places += following[: batch - len(places)]
    return [drawing.pool[i] for i in places]


def _first(tasks: Sequence[Task], drawing: Drawing) -> Container[int]:
    """The indices of the tasks that were added last."""
    last = drawing.grew_after
    return {i for i, task in enumerate(tasks) if drawing.joined.get(task.task_id) == last}


def _shuffled(seed: int, n: int, first: Container[int]) -> list[int]:
    """The numbers below n in an order of that seed; first: those that come before the others."""
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return sorted(order, key=lambda i: i not in first)


def _epoch_order(run_seed: int, epoch: int, n: int, batch: int, first: Container[int]) -> list[int]:
    """The order of an epoch's n places. first: the indices that epoch 0 begins with.

    A batch may begin in one epoch and end in the next. Its second part must not repeat a task of
    its first, so those tasks move behind the batch; such an order depends on the one before. The
    first to compute is that of the last epoch that begins with a batch.
    """
    order: list[int] = []
    for e in range(epoch - epoch % (batch // math.gcd(n, batch)), epoch + 1):
        shuffled = _shuffled(epoch_seed(run_seed, e), n, () if e else first)
        carried = e * n % batch
        taken = set(order[n - carried :]) if carried else set()
        borrowed = batch - carried if carried else 0
        head = [i for i in shuffled if i not in taken][:borrowed]
        chosen = set(head)
        order = head + [i for i in shuffled if i not in chosen]
    return order


class _Walk:
    """One environment's n tasks as indices, in shuffled epochs and batches of any size. first:
    those that epoch 0 begins with."""

    def __init__(self, run_seed: int, env: str, n: int, first: Container[int]) -> None:
        self._run_seed, self._env, self._n, self._first = run_seed, env, n, first
        self._epoch = 0
        self._left: deque[int] = deque()

    def take(self, wanted: int) -> list[int]:
        """The next indices, all different; at most n of them."""
        taken: list[int] = []
        while len(taken) < wanted:
            if not self._left:
                self._begin(taken)
            for _ in range(min(wanted - len(taken), len(self._left))):
                taken.append(self._left.popleft())
        return taken

    def _begin(self, taken: Sequence[int]) -> None:
        """Begin an epoch. Tasks that the batch took from the previous one come last."""
        seed = epoch_seed(self._run_seed, self._epoch, self._env)
        shuffled = _shuffled(seed, self._n, () if self._epoch else self._first)
        self._epoch += 1
        self._left.extend(sorted(shuffled, key=set(taken).__contains__))
