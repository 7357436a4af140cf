"""Which phase is next, for every run folder that a kill can leave."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from rollout.arm import BASE_ADAPTER
from rollout.yardsticks import evaluated_yardsticks
from scripts.run.next_phase import (
    Phase,
    RunFiles,
    drive,
    due_arms,
    is_over,
    next_phase,
    phase_beside,
    sampled_from,
)

YARDSTICKS = frozenset({*evaluated_yardsticks(), BASE_ADAPTER})
START = "sha-0"
STARTED = YARDSTICKS | {START}


def files(
    n_steps: int = 0,
    *,
    bundle: bool = False,
    evaluated: frozenset[str] = STARTED,
    converged: bool = False,
    started: bool = True,
) -> RunFiles:
    """A run with step-000 and `n_steps` more, every one with an adapter of its own."""
    adapters = tuple(f"sha-{n}" for n in range(n_steps + 1))
    return RunFiles(started, adapters, bundle, evaluated, converged)


def test_a_fresh_folder_is_started() -> None:
    assert next_phase(RunFiles(False, (), False, frozenset(), False), 5, 0) is Phase.START


def test_a_run_whose_settings_were_changed_is_started_again() -> None:
    assert next_phase(files(0, started=False), 5, 0) is Phase.START


def test_the_start_is_evaluated_before_anything_is_rolled_out() -> None:
    assert next_phase(files(0, evaluated=frozenset()), 5, 0) is Phase.EVAL
    assert due_arms(files(0, evaluated=frozenset()), 5, 0) == (
        "do-nothing",
        "oracle",
        "base",
        START,
    )


def test_an_arm_that_is_there_is_not_played_again() -> None:
    half = frozenset({"oracle", "do-nothing"})
    assert due_arms(files(0, evaluated=half), 5, 0) == ("base", START)


def test_a_step_goes_from_rollout_to_train() -> None:
    assert next_phase(files(3), 5, 0) is Phase.ROLLOUT
    assert next_phase(files(3, bundle=True), 5, 0) is Phase.TRAIN


def test_the_end_is_evaluated_and_then_done() -> None:
    assert next_phase(files(5), 5, 0) is Phase.EVAL
    assert next_phase(files(5, evaluated=STARTED | {"sha-5"}), 5, 0) is Phase.DONE


def test_no_step_at_all_is_done_after_the_start_was_evaluated() -> None:
    assert next_phase(files(0), 0, 0) is Phase.DONE


def test_a_bundle_beyond_the_last_step_is_left_alone() -> None:
    done = files(5, bundle=True, evaluated=STARTED | {"sha-5"})
    assert next_phase(done, 5, 0) is Phase.DONE


def test_more_steps_go_on_from_a_run_that_was_done() -> None:
    done = files(5, evaluated=STARTED | {"sha-5"})
    assert next_phase(done, 8, 0) is Phase.ROLLOUT


@pytest.mark.parametrize(("newest", "due"), [(24, False), (25, True), (26, False), (50, True)])
def test_the_newest_adapter_is_evaluated_at_the_cadence(newest: int, due: bool) -> None:
    expected = Phase.EVAL if due else Phase.ROLLOUT
    assert next_phase(files(newest), 100, 25) is expected


def test_an_adapter_carried_over_unchanged_is_not_evaluated_again() -> None:
    carried = RunFiles(True, (START, START), False, STARTED, False)
    assert next_phase(carried, 1, 1) is Phase.DONE


def test_a_converged_pool_is_evaluated_and_then_ends_the_run() -> None:
    assert next_phase(files(3, converged=True), 9, 0) is Phase.EVAL
    evaluated = STARTED | {"sha-3"}
    assert next_phase(files(3, converged=True, evaluated=evaluated), 9, 0) is Phase.CONVERGED


def test_a_bundle_that_is_there_is_trained_on_even_where_the_pool_has_converged() -> None:
    assert next_phase(files(3, converged=True, bundle=True), 9, 0) is Phase.TRAIN


def test_a_night_whose_reward_rises_no_longer_is_evaluated_and_then_done() -> None:
    flat = replace(files(3), flat=True)
    assert next_phase(replace(flat, bundle_ready=True), 9, 0) is Phase.TRAIN
    assert next_phase(flat, 9, 0) is Phase.EVAL
    assert not is_over(flat, 9)
    evaluated = replace(flat, evaluated=STARTED | {"sha-3"})
    assert next_phase(evaluated, 9, 0) is Phase.DONE
    assert is_over(evaluated, 9)


def test_a_run_that_reached_its_last_step_is_done_whether_or_not_the_pool_converged() -> None:
    ended = files(9, converged=True, evaluated=STARTED | {"sha-9"})
    assert next_phase(ended, 9, 0) is Phase.DONE


ALL_STATES = [
    files(n, bundle=bundle, evaluated=evaluated, converged=converged, started=started)
    for n, bundle, converged, started in itertools.product(
        range(4), (False, True), (False, True), (False, True)
    )
    for size in range(3)
    for missing in itertools.combinations([*YARDSTICKS, START, f"sha-{n}"], size)
    for evaluated in [frozenset((STARTED | {f"sha-{n}"}) - set(missing))]
]


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
@pytest.mark.parametrize("eval_every", [0, 1, 2])
def test_every_state_leads_to_its_end_and_no_phase_is_done_twice(
    steps: int, eval_every: int
) -> None:
    """Doing what is asked for always ends, after one rollout and one training for each step."""
    for state in ALL_STATES:
        here, seen = state, []
        while (phase := next_phase(here, steps, eval_every)) not in (Phase.DONE, Phase.CONVERGED):
            seen.append(phase)
            assert len(seen) < 100, f"{state} never ends"
            here = _after(here, phase, steps, eval_every)
        newest = state.newest if state.started else 0
        if phase is Phase.DONE:
            assert seen.count(Phase.TRAIN) == max(0, steps - newest)
        assert seen.count(Phase.START) == (0 if state.started else 1)
        assert {*YARDSTICKS, here.adapters[0], here.adapters[-1]} <= here.evaluated


def _after(state: RunFiles, phase: Phase, steps: int, eval_every: int) -> RunFiles:
    """The folder after a phase that did its work."""
    match phase:
        case Phase.START:
            return files(0, evaluated=frozenset())
        case Phase.EVAL:
            done = state.evaluated | set(due_arms(state, steps, eval_every))
            return RunFiles(True, state.adapters, state.bundle_ready, done, state.converged)
        case Phase.ROLLOUT:
            return RunFiles(True, state.adapters, True, state.evaluated, state.converged)
        case _:
            adapters = (*state.adapters, f"sha-{state.newest + 1}")
            return RunFiles(True, adapters, False, state.evaluated, state.converged)


class _Night:
    """A run of two steps, and a person who may ask to stop at a given phase."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.state, self.stop_at = files(0), stop_at
        self.done: list[Phase] = []

    def look(self) -> Phase:
        return next_phase(self.state, 2, 0)

    def do(self, phase: Phase) -> None:
        self.done.append(phase)
        self.state = _after(self.state, phase, 2, 0)

    def stop_asked(self) -> bool:
        return self.stop_at is not None and len(self.done) >= self.stop_at


def test_the_loop_runs_phases_until_the_end() -> None:
    night = _Night()
    assert drive(night.look, night.do, night.stop_asked) is Phase.DONE
    step = [Phase.ROLLOUT, Phase.TRAIN]
    assert night.done == [*step, *step, Phase.EVAL]


def test_asked_to_finish_in_a_rollout_the_loop_trains_the_step_and_stops() -> None:
    night = _Night(stop_at=1)
    assert drive(night.look, night.do, night.stop_asked) is Phase.ROLLOUT
    assert night.done == [Phase.ROLLOUT, Phase.TRAIN]


def test_asked_to_finish_between_steps_the_loop_begins_nothing_new() -> None:
    night = _Night(stop_at=0)
    assert drive(night.look, night.do, night.stop_asked) is Phase.ROLLOUT
    assert night.done == []


def test_a_base_arm_that_is_not_wanted_now_holds_nothing_up() -> None:
    here = files(0, evaluated=STARTED - {"base"})
    assert next_phase(here, 5, 0) is Phase.EVAL
    assert next_phase(here, 5, 0, base=False) is Phase.ROLLOUT
    assert due_arms(here, 5, 0, base=False) == ()


def test_a_night_is_over_once_no_step_is_left_and_its_newest_adapter_is_evaluated() -> None:
    evaluated = STARTED | {"sha-5"}
    assert is_over(files(5, evaluated=evaluated), 5)
    assert not is_over(files(5), 5)
    assert not is_over(files(5, evaluated=evaluated), 6)
    assert is_over(files(5, evaluated=evaluated, converged=True), 6)
    assert not is_over(files(5, evaluated=evaluated, converged=True, bundle=True), 6)


def test_a_pool_grows_after_what_is_due_and_before_the_next_rollout() -> None:
    grows = replace(files(3), grows=True)
    assert next_phase(grows, 5, 0) is Phase.GROW
    assert next_phase(replace(grows, bundle_ready=True), 5, 0) is Phase.TRAIN
    assert next_phase(replace(grows, adapters=("sha-0", "sha-1", "sha-2")), 5, 2) is Phase.EVAL
    ended = replace(files(5, evaluated=STARTED | {"sha-5"}), grows=True)
    assert next_phase(ended, 5, 0) is Phase.DONE
    assert not is_over(grows, 5)


def test_a_wish_to_stop_leaves_a_pool_as_it_is() -> None:
    done: list[Phase] = []
    assert drive(lambda: Phase.GROW, done.append, lambda: True) is Phase.GROW
    assert done == []


# --- with an overlap ------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "before", "one_earlier"), [(1, 0, 0), (2, 1, 0), (7, 6, 5)])
def test_a_bundle_is_sampled_by_the_adapter_of_a_step_that_its_number_gives(
    step: int, before: int, one_earlier: int
) -> None:
    assert sampled_from(step, 0) == before
    assert sampled_from(step, 1) == one_earlier


def test_the_next_bundle_is_played_beside_the_training_of_one_that_is_there() -> None:
    here = files(3, bundle=True)
    assert phase_beside(Phase.TRAIN, here, 9, 1) is Phase.ROLLOUT
    assert phase_beside(Phase.TRAIN, here, 9, 0) is None
    assert phase_beside(Phase.EVAL, here, 9, 1) is None
    assert phase_beside(Phase.ROLLOUT, files(3), 9, 1) is None


@pytest.mark.parametrize(
    "what", [{"second_bundle_ready": True}, {"converged": True}, {"grows": True}, {"flat": True}]
)
def test_nothing_is_played_ahead_that_is_there_or_may_not_follow(what: dict[str, bool]) -> None:
    here = replace(files(3, bundle=True), **what)  # type: ignore[arg-type]
    assert phase_beside(Phase.TRAIN, here, 9, 1) is None


def test_nothing_is_played_beyond_the_last_step() -> None:
    assert phase_beside(Phase.TRAIN, files(3, bundle=True), 5, 1) is Phase.ROLLOUT
    assert phase_beside(Phase.TRAIN, files(3, bundle=True), 4, 1) is None


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("eval_every", [0, 1, 2])
def test_a_night_with_an_overlap_plays_and_trains_every_step_once(
    steps: int, eval_every: int
) -> None:
    """And what plays beside a training finds the adapter that it needs."""
    bundles, here = set[int](), files(0)
    played, trained = list[int](), list[int]()

    def play() -> None:
        step = here.newest + 1 + ((here.newest + 1) in bundles)
        assert sampled_from(step, 1) <= here.newest
        played.append(step)
        bundles.add(step)

    while (phase := next_phase(here, steps, eval_every)) is not Phase.DONE:
        if phase is Phase.ROLLOUT or phase_beside(phase, here, steps, 1):
            play()
        if phase is Phase.TRAIN:
            trained.append(here.newest + 1)
        due = due_arms(here, steps, eval_every) if phase is Phase.EVAL else ()
        evaluated = frozenset({*here.evaluated, *due})
        here = files(len(trained), bundle=len(trained) + 1 in bundles, evaluated=evaluated)
        here = replace(here, second_bundle_ready=len(trained) + 2 in bundles)
    assert played == trained == list(range(1, steps + 1))


def test_asked_to_finish_the_step_no_bundle_that_was_played_ahead_is_trained_on() -> None:
    done: list[Phase] = []
    assert drive(lambda: Phase.TRAIN, done.append, lambda: bool(done)) is Phase.TRAIN
    assert done == [Phase.TRAIN]
