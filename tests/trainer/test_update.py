"""What a whole update refuses; what it does is in `test_step` and `ranks/test_torchrun`."""

from __future__ import annotations

import pytest

from trainer.update import _require_equal


def test_ranks_that_drifted_apart_are_an_error_that_names_them() -> None:
    _require_equal(["a" * 64, "a" * 64])
    with pytest.raises(RuntimeError, match=r"rank 0 a{12}, rank 1 b{12}"):
        _require_equal(["a" * 64, "b" * 64])
