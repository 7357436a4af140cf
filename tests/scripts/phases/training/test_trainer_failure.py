"""After a trainer that was killed for memory, what is advised makes the next one smaller."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout.cluster.cluster_settings import ClusterSettings
from rollout.engine.engine_settings import EngineSettings
from scripts.phases.training.trainer_failure import _what_else_is_smaller, _what_is_smaller
from tests.scripts.phases.training.conftest import context
from trainer.settings import TrainerSettings

HALF = "trainer.processes = 2"
RESTART = 'engine.lifecycle = "restart"'


@pytest.mark.parametrize(
    ("changes", "advised", "not_advised"),
    [
        ({"engine": EngineSettings()}, {HALF, RESTART}, set()),
        ({"engine": EngineSettings(replicas=0, urls=["http://box:1"])}, {HALF}, {RESTART}),
        ({"cluster": ClusterSettings(kind="ray")}, {HALF}, {RESTART}),
        ({"trainer": TrainerSettings(processes=4, shard_base=True)}, {RESTART}, {HALF}),
    ],
    ids=["one box", "no engine beside it", "a cluster", "a base in four parts"],
)
def test_after_a_killed_trainer_what_is_advised_makes_this_run_s_smaller(
    changes: dict[str, Any], advised: set[str], not_advised: set[str], tmp_path: Path
) -> None:
    ctx = context(tmp_path / "night", 0.0, [])
    trainer = replace(ctx.config.trainer, processes=4)
    ctx.config = replace(ctx.config, **{"trainer": trainer, **changes})
    said = _what_else_is_smaller(ctx, ctx.config.trainer)
    assert [part for part in advised if part not in said] == []
    assert [part for part in not_advised if part in said] == []


def test_after_a_killed_trainer_of_a_cluster_no_memory_of_this_machine_is_told(
    tmp_path: Path,
) -> None:
    ctx = context(tmp_path / "night", 0.0, [])
    ctx.config = replace(ctx.config, cluster=ClusterSettings(kind="ray"))
    told = (
        r"of its node's memory .* not known here: set trainer\.tokens_per_microbatch below 64, or"
    )
    assert re.search(told, _what_is_smaller(ctx, 1))


def test_where_the_micro_batch_is_in_a_gpus_own_memory_the_hosts_is_not_asked_for_a_smaller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldkit.gate.nvidia.gpu_count", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("fieldkit.gate.memory.gpu_total", lambda: 80 * 2**30)
    ctx = context(tmp_path / "night", 0.0, [])
    said = _what_is_smaller(ctx, 1)
    assert (
        said
        == "It was the host's memory, of which a micro-batch on the GPU takes none: free memory"
    )
