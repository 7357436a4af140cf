"""One of the processes that take a step together, and what they exchange.

Each rank computes the gradient of its part of the bundle (`trainer.ranks.balance`) with a whole
adapter, and gradients and figures are summed over all. A process by itself is rank 0 of 1, for
which every method gives back what it was given. torchrun starts the processes, torch.distributed
connects them, and torch is imported when they first meet.

Which bytes depend on the number of ranks: a sum over a bundle is the sum of the ranks' sums, in
another order than one process has it, so adapter, optimizer state, canary and figures differ in the
last digits of floating-point numbers. For one number of ranks, with as many threads each, they are
equal from run to run on a CPU. A step without signal sums nothing and leaves the same bytes for
every number of ranks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from fieldkit.errors import BadInput
from fieldkit.process.parent import end_with_parent
from trainer.settings import cuda_devices

if TYPE_CHECKING:
    from torch.nn import Parameter

T = TypeVar("T")

_RUN_ID = "TORCHELASTIC_RUN_ID"  # in the environment of every process that torchrun starts
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"

_PATIENCE = timedelta(hours=1)
"""How long a rank waits for another. A dead one is noticed at once, so this is for one that hangs;
torch's ten minutes for NCCL could be a long step."""


_LAST_SECONDS = 30.0
"""How long a rank may take to end after its connection; Python's own end takes seconds."""


@dataclass(frozen=True)
class Rank:
    """Rank `number`, from 0, of `size`. beside: how many of them are on this machine."""

    number: int = 0
    size: int = 1
    beside: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that tells progress and publishes the result."""
        return self.number == 0

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Be connected with the other ranks inside the block. All others have to enter it.

        torch raises a RuntimeError where the connection to another rank ends. torchrun tells the
        error of the rank that ended first, and then ends this one, which therefore waits for it.
        After any error the connection is left to the end of the process: NCCL's own end waits for
        ranks that may be waiting for this one.
        """
        if self.size == 1:
            yield
            return
        import torch
        from torch import distributed

        backend = "nccl" if torch.cuda.is_available() else "gloo"
        try:
            distributed.init_process_group(backend, timeout=_PATIENCE)
            yield
        except RuntimeError:
            signal.sigtimedwait([], _LAST_SECONDS)  # SIGTERM ends the process
            raise
        distributed.destroy_process_group()

    def gather(self, value: T) -> list[T]:
        """`value` of every rank, in their order. Returns when all have called it.

        value: what `pickle` can copy; small, because it travels as a copy to every rank.
        """
        if self.size == 1:
            return [value]
        from torch import distributed

        found: list[T | None] = [None] * self.size
        distributed.all_gather_object(found, value)
        return found  # type: ignore[return-value]

    def add_gradients(self, parameters: Iterable[Parameter]) -> None:
        """Give each parameter the sum of its gradients over all ranks, the same bits on each.

        Every rank passes the same parameters in the same order; a gradient of None counts as 0. One
        sum over all of them, in float32 as LoRA gradients are.
        """
        if self.size == 1:
            return
        import torch
        from torch import distributed
        from torch.nn.utils import parameters_to_vector, vector_to_parameters

        gradients = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        total = parameters_to_vector(gradients)
        distributed.all_reduce(total)
        vector_to_parameters(total, gradients)


ALONE = Rank()
"""A process that takes steps by itself."""


def is_rank() -> bool:
    """Whether torchrun started this process."""
    return _RUN_ID in os.environ


def this_rank() -> Rank:
    """The rank that torchrun made of this process, which then ends with torchrun; `ALONE` without
    torchrun. Raises `BadInput` for one of several ranks that would all take the same device."""
    if not is_rank():
        return ALONE
    if os.environ["LOCAL_RANK"] != "0" and cuda_devices() > 1:
        raise BadInput(
            f"rank {os.environ['RANK']} sees {cuda_devices()} CUDA devices, and every rank takes"
            " the first that it sees; give torchrun --virtual-local-rank, or leave torchrun out and"
            " give the trainer --processes"
        )
    # torchrun's own end by SIGKILL would leave its ranks waiting for one another.
    end_with_parent()
    number, size, beside = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    return Rank(number, size, beside)


@contextmanager
def reporting() -> Iterator[None]:
    """Leave an exception that ends a rank where torchrun looks for it."""
    try:
        yield
    except Exception as e:
        if _ERROR_FILE in os.environ:
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            get_error_handler().record_exception(e)
        raise
