import threading

import pytest
import torch

from trainer.scoring import onednn
from trainer.scoring.onednn import by_onednn, is_exact


def precision() -> str:
    return str(torch.backends.mkldnn.matmul.fp32_precision)  # type: ignore[attr-defined]


def test_products_keep_what_float32_holds_where_it_says_so() -> None:
    torch.manual_seed(0)
    left, right = torch.randn(300, 576), torch.randn(576, 200)
    exact = left.double() @ right.double()
    with by_onednn():
        error = (left @ right - exact).norm() / exact.norm()
    assert error < (1e-6 if is_exact() else 1e-2)


def test_the_block_holds_for_all_threads_and_ends_also_with_an_error() -> None:
    before = precision()
    seen: list[str] = []

    def fail() -> None:
        with by_onednn():
            other = threading.Thread(target=lambda: seen.append(precision()))
            other.start()
            other.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == ["bf16"]
    assert precision() == before


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx2"}, False),
        ({"avx512_bf16"}, True),
        ({"avx512_bf16", "amx_bf16"}, False),  # which rounds
    ],
)
def test_amx_rounds(features: set[str], expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "cpu_features", lambda: features)
    assert is_exact() is expected
