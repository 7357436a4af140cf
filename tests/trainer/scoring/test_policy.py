"""The dtype in which the base's weights are kept. How a policy scores is in `test_gradient`."""

from __future__ import annotations

import pytest
import torch

from fieldkit.errors import BadInput
from trainer.scoring import policy
from trainer.scoring.policy import training_dtype


def test_a_sharded_base_is_kept_in_the_servers_dtype_however_slow_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy, "_fastest", lambda served: torch.float32)
    assert training_dtype("auto", torch.bfloat16) == torch.float32
    assert training_dtype("auto", torch.bfloat16, sharded=True) == torch.bfloat16
    assert training_dtype("fp32", torch.float32, sharded=True) == torch.float32


def test_a_sharded_base_in_another_dtype_is_refused_with_what_to_set() -> None:
    assert training_dtype("fp32", torch.bfloat16) == torch.float32
    with pytest.raises(BadInput, match=r"dtype is fp32 .* in bfloat16.*false"):
        training_dtype("fp32", torch.bfloat16, sharded=True)


@pytest.mark.parametrize("setting", ["auto", "bf16", "fp32"])
def test_a_sharded_base_under_a_server_in_float16_is_refused_since_its_gradients_would_vanish(
    setting: str,
) -> None:
    assert training_dtype("auto", torch.float16) == torch.float32
    with pytest.raises(
        BadInput, match=r'set engine\.dtype to "bfloat16", or trainer\.shard_base to'
    ):
        training_dtype(setting, torch.float16, sharded=True)
