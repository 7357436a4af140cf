"""`grpo prove` computes a canary in the dtype that a server on this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollout.engine import vllm_server
from scripts.prepare.prove import prove
from tests.tiny_model import make_adapter, make_tiny_model
from tests.tiny_policy import write_tasks


@pytest.mark.parametrize(
    ("features", "dtype"), [({"avx512_bf16"}, "bfloat16"), (set[str](), "float32")]
)
def test_left_to_itself_it_is_a_servers(
    features: set[str], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_model(tmp_path / "model")
    adapter = make_adapter(tmp_path / "adapter", model)
    tasks = write_tasks(tmp_path / "tasks.jsonl", 4, "held")
    monkeypatch.setattr(vllm_server, "cpu_features", lambda: frozenset(features))
    assert prove(adapter, model, tasks, "auto").dtype == dtype
