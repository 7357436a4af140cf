"""What is checked before a run starts: which tasks are kept apart from the pool."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput
from fieldkit.files.atomic import read_json, write_json
from fieldkit.gate.memory import GIB
from fieldkit.training.adapter import CONFIG_FILE, read_adapter, weight_bytes
from rollout.engine.engine_settings import EngineSettings
from rollout.envs.env_settings import EnvSettings
from scripts.base import checkout
from scripts.base.signals import Wish
from scripts.phases.checks import (
    check_before_it_begins,
    check_engine,
    check_kept_apart,
    check_start_adapter,
    disk_needed,
)
from scripts.phases.context import Context
from scripts.run.config import DataSettings, ModelSettings, RunConfig, read_config
from scripts.run.folder import RunFolder
from scripts.run.timings import LOOP_VARIABLE, Stopwatch
from tests.scripts.cli.in_process import grpo
from tests.tiny_model import make_adapter, make_tiny_model
from tests.tiny_policy import write_tasks


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A pool and a held-out set of one's own, with different tasks."""
    write_tasks(tmp_path / "pool.jsonl", 3, "pool")
    write_tasks(tmp_path / "heldout.jsonl", 3, "held")
    return tmp_path


def test_an_adapter_of_the_output_layer_is_refused_before_a_model_is_downloaded(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, model = context(data), make_tiny_model(data / "model")
    adapter = make_adapter(data / "adapter", model)
    ctx.config = replace(ctx.config, model=ModelSettings(str(model), adapter=str(adapter)))
    assert check_start_adapter(ctx).path == adapter
    config = read_json(adapter / CONFIG_FILE)
    write_json(adapter / CONFIG_FILE, config | {"target_modules": ["lm_head", "q_proj"]})
    monkeypatch.setattr(Context, "model_dir", lambda _: pytest.fail("its model was looked for"))
    with pytest.raises(BadInput, match=r"target_modules: lm_head: .* frozen; train an adapter"):
        check_start_adapter(ctx)


def test_the_disk_has_to_hold_spare_tasks_long_episodes_and_evaluations(data: Path) -> None:
    adapter = read_adapter(make_adapter(data / "adapter", make_tiny_model(data / "model")))
    ctx = context(data)

    def needed(heldout: int = 3, **rollout: Any) -> int:
        settings = replace(RunConfig().rollout, tasks_per_step=4, group_size=4, **rollout)
        run = replace(RunConfig().run, steps=10, eval_every=5)
        evaluation = replace(RunConfig().eval, tasks=0, tasks_at_training_temperature=1)
        ctx.config = replace(ctx.config, run=run, rollout=settings, eval=evaluation)
        write_tasks(data / "heldout.jsonl", heldout, "held")
        return disk_needed(ctx, adapter)

    plain = needed(max_model_len=1000)
    assert needed(max_model_len=1000, resample=4) - plain == 10 * 4 * 4 * 50 * 1000
    assert needed(max_model_len=1000, heldout=103) - plain == 7 * 100 * 50 * 1000
    assert needed(max_model_len=8000) > plain + 10 * 16 * 50 * 7000
    for done in range(7):  # steps 0 to 6
        ctx.folder.step(done).mkdir(parents=True)
        ctx.folder.summary(done).touch()
    a_step, an_arm = 16 * 50 * 1000 + 4 * weight_bytes(adapter.path, 4), (3 + 1) * 50 * 1000
    assert plain - needed(max_model_len=1000) == 6 * a_step + 2 * an_arm


def test_the_disk_has_to_hold_the_steps_that_were_typed(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = read_adapter(make_adapter(data / "adapter", make_tiny_model(data / "model")))
    ctx = context(data)
    ctx.config = replace(ctx.config, run=replace(ctx.config.run, steps=1000))
    as_set = disk_needed(ctx, adapter)
    ctx.folder.path.mkdir()
    ctx.journal.append("loop_start", limits={"steps": 3})
    assert disk_needed(ctx, adapter) == as_set, "a phase that is typed is of no loop"
    monkeypatch.setenv(LOOP_VARIABLE, str(os.getpid()))
    assert disk_needed(ctx, adapter) - GIB < (as_set - GIB) / 20


def context(data: Path, pool: str = "", final: str = DataSettings().final) -> Context:
    pool, heldout = pool or str(data / "pool.jsonl"), str(data / "heldout.jsonl")
    settings = DataSettings(pool=pool, heldout=heldout, final=final)
    watch = Stopwatch(time.time())
    folder = RunFolder(data / "night")
    return Context(folder, RunConfig(data=settings), lambda event: None, Wish(), watch)


def test_a_pool_that_shares_a_task_with_the_final_set_is_refused(data: Path) -> None:
    final = shutil.copy(data / "pool.jsonl", data / "final.jsonl")
    with pytest.raises(BadInput, match=r"pool\.jsonl:1: .* as final task pool-0 .*never trained"):
        check_kept_apart(context(data, final=str(final)))


def test_only_a_run_that_starts_servers_here_needs_settings_with_which_they_start(
    data: Path,
) -> None:
    ctx, model = context(data), make_tiny_model(data / "model")
    sleeping = EngineSettings(lifecycle="sleep")
    ctx.config = replace(ctx.config, model=ModelSettings(path=str(model)), engine=sleeping)
    with pytest.raises(BadInput, match="is for a GPU"):
        check_engine(ctx)
    elsewhere = replace(sleeping, replicas=0, urls=["http://gpu-box:8000"])
    ctx.config = replace(ctx.config, engine=elsewhere)
    check_engine(ctx)


def test_an_environment_that_no_task_names_would_play_a_night_of_something_else(
    data: Path,
) -> None:
    ctx = context(data, final="")
    check_before_it_begins(ctx)
    ctx.config = replace(ctx.config, envs={"game": EnvSettings("game.py:Game", "reward >= 1")})
    with pytest.raises(BadInput, match=r"is one of \[envs\.game\]: `grpo env tasks game --run "):
        check_before_it_begins(ctx)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without the default task sets."""
    root = tmp_path / "checkout"
    (root / "data").mkdir(parents=True)
    monkeypatch.setattr(checkout, "ROOT", root)
    return root


def test_tasks_of_ones_own_need_no_default_final_set(data: Path, bare: Path) -> None:
    check_kept_apart(context(data))


@pytest.mark.parametrize("pool", ["pool.jsonl", "reserve.jsonl"])
def test_the_shipped_pools_need_it_and_the_message_names_both_ways_on(
    pool: str, data: Path, bare: Path
) -> None:
    shutil.copy(data / "pool.jsonl", bare / "data" / pool)
    with pytest.raises(BadInput) as refused:
        check_kept_apart(context(data, pool=f"data/{pool}"))
    said = str(refused.value)
    assert f"data.final is {bare / 'data' / 'final.jsonl'}: no such file" in said
    assert "`grpo synth`" in said
    assert f"`grpo run {data / 'night'} --set 'data.final=\"\"'`" in said


def test_a_final_set_that_was_named_has_to_be_there_and_the_way_on_can_be_typed(
    data: Path,
) -> None:
    assert grpo("new", data / "night", "--set", f"data.final={data / 'gone.jsonl'}").code == 0
    with pytest.raises(BadInput, match=r"gone\.jsonl: no such file; put it there") as refused:
        check_kept_apart(context(data, final=str(data / "gone.jsonl")))
    typed = str(refused.value).rpartition("`grpo ")[2].partition("`")[0]
    _, run, *words = shlex.split(typed)
    # `grpo run` with these words writes them as `grpo new` does.
    again = data / "again"
    assert grpo("new", again, *words).code == 0
    assert run == str(data / "night")
    assert read_config(again / "run.toml").data.final == ""
