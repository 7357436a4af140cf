"""What a rank knows of itself, and that a process by itself goes through every method unchanged.

What two ranks exchange is in `test_torchrun`, which starts them.
"""

from __future__ import annotations

import pytest
import torch

from fieldkit.errors import BadInput
from trainer.ranks import rank
from trainer.ranks.rank import ALONE, Rank, is_rank, reporting, this_rank


def test_a_process_by_itself_gets_back_what_it_gave() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = gradient = torch.tensor([1.0, 2.0])
    with ALONE.joined():
        assert ALONE.gather("figures") == ["figures"]
        ALONE.add_gradients([parameter])
    assert parameter.grad is gradient
    assert parameter.grad.tolist() == [1.0, 2.0]
    assert not torch.distributed.is_initialized()


def test_without_torchrun_a_process_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("RANK", "3")  # of a scheduler, say
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert not is_rank()
    assert this_rank() == ALONE == Rank(0, 1, 1)


def test_a_rank_that_shares_its_first_device_with_another_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"TORCHELASTIC_RUN_ID": "1", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rank, "cuda_devices", lambda: 4)
    with pytest.raises(BadInput, match=r"rank 3 sees 4 CUDA devices.* --virtual-local-rank"):
        this_rank()


def test_an_exception_is_raised_again_where_nothing_looks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    with pytest.raises(KeyError), reporting():
        raise KeyError("lost")
