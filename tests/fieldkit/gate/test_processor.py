"""A processor's instruction sets, as the kernel names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.gate.processor import cpu_features


def test_the_features_are_the_words_of_the_kernels_own_line() -> None:
    features = cpu_features()
    assert features
    assert "flags" not in features


@pytest.mark.parametrize("line", ["flags\t\t: fpu amx_bf16", "Features\t: fpu amx_bf16"])
def test_x86_and_arm_call_the_line_otherwise(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"processor\t: 0\n{line}\nbogomips\t: 1\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert cpu_features() == {"fpu", "amx_bf16"}
