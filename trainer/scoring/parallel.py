"""Micro-batches in parallel on a CPU, each by a thread of its own.

Several threads that share each operation wait for each other at its end, a thousand times in a
micro-batch, and wake slowly where they sleep meanwhile (docs/LOG.md, 2026-11-28). Threads with a
micro-batch each never wait. Results come in the order of the items, so sums over them have the same
bits whichever is ready first. Nothing here knows what is computed. torch is imported where threads
begin, since `trainer.footprint` asks how many there are before that.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST = 4
"""Micro-batches that are computed at a time at most: each holds its activations."""
_THREADS_VARIABLE = "OMP_NUM_THREADS"


def at_once(processes: int = 1, *, on_gpu: bool) -> int:
    """How many micro-batches each of so many processes on this machine computes at a time."""
    if on_gpu:
        return 1
    said = os.environ.get(_THREADS_VARIABLE, "")
    threads = int(said) if said.isdigit() else len(os.sched_getaffinity(0)) // processes
    return min(MOST, max(1, threads))


def in_order(
    work: Callable[[T], R],
    items: Iterable[T],
    at_once: int,
    alone: Callable[[T], bool] = lambda _: False,
) -> Iterator[R]:
    """work(item) of each item, in their order, so many at a time. The threads of this process are
    shared out among them, also where there are fewer items; one that has to be alone has all of
    them, and is computed in this thread. alone: whether it has to, although several may be computed
    at a time.

    Results of at_once + 2 items are held at most, that of the caller's included. Threads have none
    of torch's modes of this thread (`torch.no_grad`). An error is raised in its
    item's place, after those that are being computed have ended; the others are not begun.
    """
    for is_alone, run in groupby(items, alone):
        if is_alone or at_once == 1:
            yield from map(work, run)
        else:
            several = list(run)
            yield from _several(work, several, min(at_once, len(several)))


def _several(work: Callable[[T], R], items: Iterable[T], at_once: int) -> Iterator[R]:
    """`in_order`, of two at a time or more."""
    import torch

    threads = torch.get_num_threads()
    each = max(1, threads // at_once)
    ahead: deque[Future[R]] = deque()
    with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(each,)) as pool:
        try:
            for item in items:
                while len(ahead) > at_once:
                    yield ahead.popleft().result()
                ahead.append(pool.submit(work, item))
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()
            torch.set_num_threads(threads)  # which a thread has set for those to come
