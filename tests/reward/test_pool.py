from __future__ import annotations

from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import (
    Draw,
    Outcome,
    RolloutGroup,
    Signal,
    StepSummary,
    encode_group,
)
from reward.group_signal import draw_of
from reward.pool import (
    Drawn,
    PoolHistory,
    PoolSettings,
    converged,
    forecast,
    growth,
    read_history,
)
from tests.reward.build import group, trajectory

SAT, STUCK, LEARN = Signal.SATURATED, Signal.STUCK, Signal.LEARNABLE


def played(*rows: tuple[int, str, Signal]) -> PoolHistory:
    return PoolHistory(tuple(Drawn(step, task_id, signal) for step, task_id, signal in rows))


def test_a_pool_whose_every_task_is_without_signal_has_converged() -> None:
    evidence = converged(played((1, "a", SAT), (1, "b", STUCK)), ["a", "b"])
    assert evidence.converged
    assert evidence.saturated == ("a",)
    assert evidence.stuck == ("b",)
    assert "has converged" in evidence.message


def test_one_dead_batch_is_not_convergence_while_tasks_are_unseen() -> None:
    evidence = converged(played((1, "a", SAT), (1, "b", SAT)), ["a", "b", "c"])
    assert not evidence.converged
    assert evidence.never_seen == ("c",)


def test_one_learnable_task_keeps_the_pool_alive() -> None:
    evidence = converged(played((1, "a", SAT), (1, "b", LEARN)), ["a", "b"])
    assert not evidence.converged
    assert evidence.learnable == ("b",)


def test_only_a_tasks_newest_group_counts() -> None:
    was_alive = played((1, "a", LEARN), (1, "b", LEARN), (2, "a", SAT), (2, "b", SAT))
    assert converged(was_alive, ["a", "b"]).converged
    woke_up = played((1, "a", SAT), (1, "b", SAT), (2, "a", LEARN))
    assert converged(woke_up, ["a", "b"]).learnable == ("a",)


def test_two_passes_may_be_asked_for() -> None:
    history = played((1, "a", LEARN), (1, "b", SAT), (2, "a", SAT), (2, "b", SAT))
    assert converged(history, ["a", "b"]).converged
    strict = converged(history, ["a", "b"], PoolSettings(passes=2))
    assert strict.learnable == ("a",)
    assert not strict.converged


def test_growing_the_pool_lifts_convergence() -> None:
    history = played((1, "a", SAT), (1, "b", SAT))
    assert converged(history, ["a", "b"]).converged
    assert not converged(history, ["a", "b", "new"]).converged


def test_a_task_that_left_the_pool_says_nothing() -> None:
    assert converged(played((1, "gone", LEARN), (1, "a", SAT)), ["a"]).converged


def test_a_task_not_drawn_for_long_is_stale_evidence() -> None:
    old = [(1, "a", SAT)]
    later = [(step, "b", SAT) for step in range(2, 8)]
    evidence = converged(played(*old, *later), ["a", "b"])
    assert evidence.stale == ("a",)
    assert not evidence.converged


def test_shuffled_passes_never_make_a_task_stale() -> None:
    first = [(1, t, SAT) for t in "abcd"]
    second_without_a = [(2, t, SAT) for t in "bcd"]
    assert converged(played(*first, *second_without_a), list("abcd")).stale == ()


def test_a_task_drawn_twice_in_one_step_is_learnable_if_either_group_was() -> None:
    evidence = converged(played((1, "a", LEARN), (1, "a", SAT)), ["a"])
    assert evidence.learnable == ("a",)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(BadInput, match="empty"):
        converged(played(), [])


def test_a_pool_that_names_a_task_twice_is_refused() -> None:
    with pytest.raises(BadInput, match="a more than once"):
        converged(played(), ["a", "a"])


def summary(step: int, *draws: Draw, bundle: bool = True) -> StepSummary:
    return StepSummary(
        step=step,
        outcome=Outcome.TRAINED,
        parent_sha=None,
        adapter_sha="a",
        optimizer_sha=None,
        bundle_sha="b" if bundle else None,
        n_trajectories=2,
        mean_reward=None,
        pass_rate=None,
        assertion_rate=None,
        stop_rate=None,
        mean_turns=None,
        mean_tokens=None,
        groups={},
        train={},
        seconds={},
        draws=draws,
    )


def draw(signal: Signal, passed: int = 1) -> Draw:
    return Draw("a", signal, passed, 2)


def no_bundle(step: int) -> Path:
    raise AssertionError(f"the bundle of step {step} was asked for")


def write_group(run: Path, played: RolloutGroup) -> Path:
    bundle = run / f"{played.step}.jsonl"
    bundle.write_text(encode_group(played) + "\n")
    return bundle


DONE = "TASK_COMPLETE"


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ((["ls", DONE], 2), (["ls", "ls", DONE], 2), SAT),
        ((["ls", DONE], 1), (["ls", "ls", DONE], 1), STUCK),
        ((["ls", DONE], 1), (["ls", "ls", DONE], 2), LEARN),
        ((["ls", DONE], 2), (["ls", "ls"], 2), LEARN),
    ],
    ids=["turns alone, done", "turns alone, undone", "the work", "the stop"],
)
def test_a_group_that_differs_by_turns_alone_keeps_no_pool_alive(
    first: tuple[list[str], int], second: tuple[list[str], int], told: Signal, tmp_path: Path
) -> None:
    members = [
        trajectory(texts, passed, 2, 0.9 - k / 10, k=k)
        for k, (texts, passed) in enumerate((first, second))
    ]
    drawn = draw_of(group(members, LEARN))
    assert drawn.signal is told
    history = read_history([summary(1, drawn)], no_bundle)
    assert history.by_task()["t"] == ((1, told),)
    assert converged(history, ["t"]).converged == (told is not LEARN)


def test_the_history_of_a_run_is_read_from_its_step_summaries() -> None:
    steps = [summary(0, bundle=False), summary(1, draw(LEARN)), summary(2, draw(STUCK, 0))]
    history = read_history(steps, no_bundle)
    assert history.by_task()["a"] == ((1, LEARN), (2, STUCK))
    assert [(d.passed, d.played) for d in history.drawn] == [(1, 2), (0, 2)]


def test_a_step_of_an_older_version_is_read_from_its_bundle(tmp_path: Path) -> None:
    members = [trajectory(["ls"], passed, 2, passed / 2, k=k) for k, passed in enumerate((1, 2))]
    bundle = write_group(tmp_path, group(members, LEARN))
    history = read_history([summary(1)], lambda step: bundle)
    assert history == PoolHistory((Drawn(1, "t", LEARN, 1, 2),))
    bundle.write_text(bundle.read_text() + '{"schema": 1, "step": 1}\n')
    with pytest.raises(BadInput, match=r"1\.jsonl:2"):
        read_history([summary(1)], lambda step: bundle)
    bundle.unlink()
    assert read_history([summary(1)], lambda step: bundle) == PoolHistory()


def passes(learnable_per_pass: list[int], n: int) -> tuple[PoolHistory, list[str]]:
    pool = [f"t{i}" for i in range(n)]
    rows = [
        (p, task_id, LEARN if i < x else SAT)
        for p, x in enumerate(learnable_per_pass, start=1)
        for i, task_id in enumerate(pool)
    ]
    return played(*rows), pool


def test_the_signal_is_forecast_to_run_out_where_it_halves_each_pass() -> None:
    history, pool = passes([64, 32, 16, 8], 128)
    # 8 of 128 left; halving reaches half a task four passes (here: four steps) later
    assert forecast(history, pool).step == pytest.approx(8, abs=1)


def test_no_end_is_forecast_where_the_signal_does_not_fall() -> None:
    history, pool = passes([10, 12, 11, 14], 40)
    assert forecast(history, pool).step is None


def test_too_few_passes_give_no_forecast() -> None:
    history, pool = passes([10, 5], 40)
    assert forecast(history, pool).step is None
    assert forecast(history, pool).shares == ((1, 0.25), (2, 0.125))


def test_an_empty_reserve_has_nothing_for_a_pool_to_grow_by(tmp_path: Path) -> None:
    (tmp_path / "pool.jsonl").write_text('{"task_id": "p0"}')
    (tmp_path / "reserve.jsonl").write_text("")
    assert growth(tmp_path / "pool.jsonl") == ""
