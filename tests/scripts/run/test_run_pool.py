"""The pool of a run that grows: which tasks of the reserve join, and which never do."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldkit.errors import BadInput, PoolConverged
from fieldkit.records import Draw, Signal, Task
from reward.pool import PoolState, TaskState, pool_state
from reward.solve_rate import DrawSums
from scripts.base.signals import Wish
from scripts.night.loop import _Loop
from scripts.night.loop_options import LoopOptions, with_options
from scripts.night.running_phases import phase_command
from scripts.phases.context import Context
from scripts.phases.grow import grow as phase
from scripts.phases.rollout import _draw
from scripts.run.config import RunConfig
from scripts.run.next_phase import Phase
from scripts.run.reader import RunReader
from scripts.run.run_pool import (
    by_likeness,
    candidates,
    grown_files,
    joined_tasks,
    last_growth,
    next_tasks,
    pool_now,
    pool_tasks,
    require_reserve,
    reserve_file,
)
from scripts.run.state import as_told, look, raise_converged
from scripts.run.timings import LOOP_VARIABLE, Stopwatch
from tests.scale.probes import Silent
from tests.scripts.made_night import Night, tasks, write_tasks
from tests.scripts.run.exhausted import LONG, exhausted_night

GROW = replace(RunConfig().run, steps=99, on_converged="grow")


def of_reserve(n: int) -> list[Task]:
    """Tasks with prompts of their own."""
    return [replace(t, prompt=f"Keep {t.task_id} in order.") for t in tasks(n, "r")]


@pytest.fixture
def night(tmp_path: Path) -> Night:
    """An exhausted night with ten tasks in its reserve."""
    made = exhausted_night(tmp_path)
    write_tasks(tmp_path / "reserve.jsonl", of_reserve(10))
    text = made.folder.config.read_text()
    made.folder.config.write_text(
        text.replace("[run]", '[run]\non_converged = "grow"') + 'final = ""\n'
    )
    data = replace(made.config.data, final="")
    manifest = json.loads(made.folder.manifest.read_text())
    manifest["config"]["data"]["final"] = ""
    manifest["data"]["pool"]["tasks"] = {f"p{i:03d}": "" for i in range(4)}
    made.folder.manifest.write_text(json.dumps(manifest))
    return Night(made.folder, replace(made.config, run=GROW, data=data))


def names(found: Any) -> list[str]:
    return [t.task_id for t in found]


def context(night: Night, *flags: str) -> Context:
    watch = Stopwatch(time.time())
    config = night.config
    return Context(night.folder, config, lambda e: None, Wish(), watch, frozenset(flags))


def grow(night: Night, *flags: str) -> str:
    """What the phase says, its files journalled or not."""
    return phase(context(night, *flags)).text


def test_a_pool_that_has_converged_grows_by_as_many_tasks_as_it_began_with(night: Night) -> None:
    pool = Path(night.config.data.pool)
    before = pool.read_bytes()
    assert look(night.folder, night.config)[0] is Phase.GROW
    assert grow(night) == f"4 tasks of the reserve joined the pool after step {LONG}"
    reader = RunReader(night.folder)
    found = pool_tasks(night.folder, night.config, reader.manifest)
    assert names(found) == [*(f"p{i:03d}" for i in range(4)), *(f"r{i:03d}" for i in range(4))]
    assert pool.read_bytes() == before
    assert look(night.folder, night.config)[0] is Phase.ROLLOUT
    assert names(context(night).pool()) == names(found)
    state = pool_now(reader, night.config)
    assert state.of(TaskState.FRESH) == tuple(f"r{i:03d}" for i in range(4))
    assert state.share > 0.2, "nothing is known of the tasks that joined"


def test_with_an_overlap_tasks_join_after_the_step_that_is_drawn_already(night: Night) -> None:
    bundle = night.folder.bundle(LONG + 1)
    bundle.parent.mkdir()
    bundle.write_bytes(night.folder.bundle(LONG).read_bytes())
    assert grow(night).endswith(f"joined the pool after step {LONG + 1}")


def test_a_pool_that_still_teaches_does_not_grow(night: Night) -> None:
    grow(night)
    files = [p.name for p in night.folder.path.glob("grown-*")]
    assert "still teaches" in grow(night)
    assert [p.name for p in night.folder.path.glob("grown-*")] == files == ["grown-001.jsonl"]


def test_a_growth_that_was_killed_before_the_manifest_named_it_happens_again(night: Night) -> None:
    night.folder.grown(1).write_text("half a ta")
    assert look(night.folder, night.config)[0] is Phase.GROW
    grow(night)
    assert len(pool_tasks(night.folder, night.config, RunReader(night.folder).manifest)) == 8


def test_tasks_that_joined_are_bound_like_the_pool_is(night: Night) -> None:
    grow(night)
    file = night.folder.grown(1)
    file.write_text(file.read_text().replace("in order", "tidy"))
    with pytest.raises(BadInput, match=r"grown-001\.jsonl: not the tasks that were added"):
        grown_files(night.folder, RunReader(night.folder).manifest)
    with pytest.raises(BadInput, match=r"grown-001\.jsonl"):
        context(night).pool()


def test_tasks_that_a_person_adds_to_the_file_are_known_by_the_step_that_first_meets_them(
    night: Night,
) -> None:
    of_two = replace(night.config.rollout, tasks_per_step=2)
    ctx = context(Night(night.folder, replace(night.config, rollout=of_two)))
    write_tasks(Path(night.config.data.pool), [*ctx.pool(), *of_reserve(2)])
    assert not pool_now(RunReader(night.folder), night.config).converged
    assert last_growth(RunReader(night.folder).manifest) == 0
    for step in (LONG + 1, LONG + 2, LONG + 1):
        drawn = names(_draw(ctx, step))
        assert last_growth(RunReader(night.folder).manifest) == LONG
        assert (set(drawn) == {"r000", "r001"}) == (step == LONG + 1), "what is new comes first"
    manifest, told = RunReader(night.folder).manifest, {"r000": LONG, "r001": LONG}
    assert joined_tasks(manifest, {}, ctx.pool(), now=99) == told


def test_no_task_joins_that_an_evaluation_or_the_pool_has(night: Night, tmp_path: Path) -> None:
    reserve = of_reserve(10)
    shared = {
        "heldout": replace(reserve[0], task_id="held"),
        "final": replace(reserve[1], task_id="last"),
        "development": replace(reserve[2], task_id="chosen-on"),
        "pool": replace(reserve[3], task_id="known"),
    }
    for split, task in shared.items():
        file = tmp_path / f"{split}.jsonl"
        rest = file.read_text() if file.is_file() else ""
        write_tasks(file, [task])
        file.write_text(rest + file.read_text())
    data = replace(night.config.data, final=str(tmp_path / "final.jsonl"))
    config = replace(night.config, data=data)
    assert names(next_tasks(RunReader(night.folder), config)) == [f"r{i:03d}" for i in range(4, 9)]


def test_a_reserve_without_a_task_left_ends_the_night(night: Night, tmp_path: Path) -> None:
    with pytest.raises(PoolConverged, match="--on-converged grow` goes on with 4 tasks of the"):
        raise_converged(night.folder, night.config)
    shutil.copy(night.config.data.pool, tmp_path / "reserve.jsonl")
    assert next_tasks(RunReader(night.folder), night.config) == ()
    assert look(night.folder, night.config)[0] is Phase.CONVERGED
    with pytest.raises(PoolConverged, match=r"Add tasks to .*pool\.jsonl, then `grpo run"):
        raise_converged(night.folder, night.config)
    with pytest.raises(BadInput, match="no task of it may join"):
        grow(night)


def test_a_pool_that_converged_on_attempts_that_never_stop_is_told_what_would_show_them(
    night: Night,
) -> None:
    newest = night.folder.summary(night.folder.finished_steps() - 1)
    step = json.loads(newest.read_text())
    newest.write_text(json.dumps({**step, "stop_rate": 0.03}))
    with pytest.raises(
        PoolConverged, match=r"3% ended by themselves.* higher rollout\.temperature"
    ):
        raise_converged(night.folder, night.config)
    newest.write_text(json.dumps({**step, "stop_rate": 0.9}))
    with pytest.raises(PoolConverged) as usual:
        raise_converged(night.folder, night.config)
    assert "higher rollout.temperature" not in str(usual.value)


def too_long(task: Task) -> Task:
    return replace(task, prompt=f"{task.prompt} {'And so on. ' * 10_000}")


def test_tasks_that_cannot_join_do_not_stand_before_those_that_can(
    night: Night, tmp_path: Path
) -> None:
    reserve = of_reserve(10)
    regex = {"kind": "file_contents_match_regex", "path": "f0", "regex": "("}
    unsound = {**reserve[1].info, "verifiable_assertions": [regex]}
    reserve[:3] = [
        too_long(reserve[0]),
        replace(reserve[1], info=unsound),
        too_long(reserve[2]),
    ]
    write_tasks(tmp_path / "reserve.jsonl", reserve)
    told: list[str] = []
    ctx = replace(context(night), tell=lambda event: told.append(str(event)))
    assert phase(ctx).text == (
        f"4 tasks of the reserve joined the pool after step {LONG};"
        " 2 passed over, too long for the context"
    )
    assert "reserve.jsonl:2: r001: " in told[0]
    reader = RunReader(night.folder)
    joined = pool_tasks(night.folder, night.config, reader.manifest)[4:]
    assert names(joined) == ["r003", "r004", "r005", "r006"]
    assert names(next_tasks(reader, night.config)) == ["r007", "r008", "r009"]


def test_a_reserve_of_tasks_that_are_too_long_ends_the_night_as_converged(
    night: Night, tmp_path: Path
) -> None:
    reserve = of_reserve(3)
    write_tasks(tmp_path / "reserve.jsonl", [too_long(task) for task in reserve])
    assert look(night.folder, night.config)[0] is Phase.GROW
    assert "3 passed over" in grow(night)
    assert look(night.folder, night.config)[0] is Phase.CONVERGED
    assert not night.folder.grown(1).exists()
    write_tasks(tmp_path / "reserve.jsonl", [too_long(reserve[0]), reserve[1]])
    assert names(next_tasks(RunReader(night.folder), night.config)) == ["r001"]


def test_a_pool_that_has_nothing_to_grow_from_is_refused_before_the_night(night: Night) -> None:
    require_reserve(night.folder, night.config)
    reserve_file(night.config).unlink()
    require_reserve(night.folder, replace(night.config, run=replace(GROW, on_converged="stop")))
    with pytest.raises(BadInput, match=r'no such file, and run\.on_converged is "grow"') as refused:
        require_reserve(night.folder, night.config)
    assert f"`grpo run {night.folder.typed} --set run.on_converged=stop`" in str(refused.value)


def test_a_pool_does_not_grow_from_itself(night: Night) -> None:
    data = replace(night.config.data, pool=str(reserve_file(night.config)))
    with pytest.raises(
        BadInput, match=r"reserve\.jsonl: it is the run's pool already, and run\.on"
    ):
        require_reserve(night.folder, replace(night.config, data=data))


def test_a_night_that_shall_stop_stops(night: Night) -> None:
    stops = replace(night.config, run=replace(GROW, on_converged="stop"))
    assert look(night.folder, stops)[0] is Phase.CONVERGED


def test_the_loop_says_to_the_phase_what_was_typed(night: Night) -> None:
    options = LoopOptions(on_converged="harder")
    assert options.words() == ["--on-converged", "harder"]
    config = with_options(night.config, options)
    assert config.run.on_converged == "harder"
    loop = _Loop(night.folder, config, options, Silent(), Wish(), 0)
    assert "--harder" in phase_command(Phase.GROW, night.folder, config, options)
    assert "--harder" not in phase_command(Phase.ROLLOUT, night.folder, config, options)
    loop.journal_start()
    stops = replace(night.config.run, on_converged="stop")
    told, _ = as_told(stops, loop.journal.read())
    assert told.on_converged == "harder"


@pytest.mark.parametrize(("typed", "harder"), [("grow", False), ("harder", True)])
def test_what_the_loop_was_told_counts_in_its_phase(
    night: Night, monkeypatch: pytest.MonkeyPatch, typed: str, harder: bool
) -> None:
    asked: list[bool] = []

    def noted(reader: RunReader, config: RunConfig, *, harder: bool) -> tuple[Task, ...]:
        asked.append(harder)
        return candidates(reader, config, harder=harder)

    monkeypatch.setattr("scripts.phases.grow.candidates", noted)
    ctx = context(night)
    written = replace(GROW, on_converged="grow" if harder else "harder")
    ctx.config = replace(ctx.config, run=written)
    ctx.journal.append("loop_start", limits={"on_converged": typed})
    monkeypatch.setenv(LOOP_VARIABLE, str(os.getpid()))
    assert "joined the pool" in phase(ctx).text
    assert asked == [harder]


# --- harder ---------------------------------------------------------------------------------------


def shell(name: str, *skills: str, difficulty: str = "easy") -> Task:
    info = {"skills_required": list(skills), "template": "+".join(skills), "difficulty": difficulty}
    return Task(name, "clawgym", name, info)


def after(signals: dict[str, Signal]) -> PoolState:
    draws = (Draw(t, s, 4 if s is Signal.SATURATED else 0, 4) for t, s in signals.items())
    return pool_state(DrawSums().plus(1, draws), dict.fromkeys([*signals, "fresh"], 1.0))


def test_tasks_like_those_that_are_not_saturated_come_first() -> None:
    pool = [
        *(shell(f"copy-{i}", "copy") for i in range(3)),
        *(shell(f"sort-{i}", "sort", "head", difficulty="hard") for i in range(3)),
        shell("fresh", "copy", "copy", "copy"),
    ]
    state = after(
        {
            **{f"copy-{i}": Signal.SATURATED for i in range(3)},
            **{f"sort-{i}": Signal.STUCK if i else Signal.LEARNABLE for i in range(3)},
        }
    )
    fresh = [
        shell("r-copy", "copy"),
        shell("r-other", "join"),
        shell("r-copy-sort", "copy", "sort", difficulty="hard"),
        shell("r-sort", "sort", "head", difficulty="hard"),
    ]
    order = names(by_likeness(fresh, pool, state))
    assert order == ["r-sort", "r-copy-sort", "r-other", "r-copy"]


def test_tasks_that_tell_nothing_of_their_kind_keep_their_order() -> None:
    pool = [Task("a", "own", "", {}), Task("fresh", "own", "", {})]
    fresh = [Task(f"r{i}", "own", "", {}) for i in range(5)]
    assert by_likeness(fresh, pool, after({"a": Signal.SATURATED})) == fresh
