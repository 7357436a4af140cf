from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.errors import BadInput
from fieldkit.records import StepSummary, StopReason
from rollout.settings import EpisodeSettings
from scripts.evidence.collect import Evidence, TaskSet, compare, outcome, tags_of
from scripts.evidence.played import read_arms
from scripts.evidence.tables import pass_at_k_table
from tests.scripts.evals import arm, collect, step, task, tasks, trajectory, write_eval

N = 24


def night(evals: Path, *, late: bool = False) -> list[StepSummary]:
    """do-nothing, oracle, base, warm start and the newest adapter on 24 tasks."""
    on = tasks(N)
    write_eval(evals, [trajectory(t.task_id, "do-nothing", 1, 0, True) for t in on], on)
    write_eval(evals, arm("oracle", on, passes=N, turns=3, stops=N), on)
    write_eval(evals, arm("base", on, passes=0, turns=12, stops=2), on)
    write_eval(evals, arm("warm-sha", on, passes=10, turns=12, stops=0), on)
    write_eval(evals, arm("new-sha", on, passes=12, turns=4, stops=N), on)
    steps = [step(0, "warm-sha"), step(1, "mid-sha", stop_rate=0.5, turns=9.0, reward=0.3)]
    if late:
        write_eval(evals, arm("mid-sha", on, passes=12, turns=6, stops=N), on)
    return [*steps, step(2, "new-sha", stop_rate=1.0, turns=4.0, reward=0.5)]


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    evals = tmp_path_factory.mktemp("evals")
    return collect(evals, tasks(N), night(evals, late=True))


def test_the_arms_of_a_night_are_read_and_named_in_reading_order(evidence: Evidence) -> None:
    assert [a.name for a in evidence.arms] == [
        "do-nothing",
        "oracle",
        "base",
        "warm start",
        "step 1",
        "step 2",
    ]
    assert evidence.newest == "step 2"
    assert evidence.reference == "warm start"


def test_the_differences_are_those_of_the_newest_adapter_to_the_warm_start(
    evidence: Evidence,
) -> None:
    paired = evidence.against_reference("step 2")
    assert paired.stopped.test.second_only == N
    assert paired.passed.test.second_only == 2
    assert paired.turns.value == -8
    assert paired.assertion_rate.value == pytest.approx(2 * 2 / (4 * N))
    assert paired.tokens.value == -80


def test_an_adapter_carried_on_by_a_step_without_signal_is_named_after_the_last(
    tmp_path: Path,
) -> None:
    steps = [*night(tmp_path), step(3, "new-sha", stop_rate=1.0, turns=4.0, reward=0.5)]
    assert collect(tmp_path, tasks(N), steps).newest == "step 3"


def test_where_nothing_was_ever_learned_the_warm_start_is_still_the_warm_start(
    tmp_path: Path,
) -> None:
    night(tmp_path)
    steps = [step(0, "warm-sha"), step(1, "warm-sha", stop_rate=0.0, turns=12.0, reward=0.3)]
    evidence = collect(tmp_path, tasks(N), steps)
    assert evidence.newest is None
    assert "warm start" in [a.name for a in evidence.arms]


def test_an_evaluation_on_the_way_shows_what_the_last_steps_bought(evidence: Evidence) -> None:
    assert [(p.reference, p.name) for p in evidence.late] == [("step 1", "step 2")]
    assert evidence.late[0].turns.value == -2
    assert evidence.late[0].passed.test.p_value == 1.0


def test_the_tables_are_split_by_persona_difficulty_and_template(evidence: Evidence) -> None:
    splits = evidence.splits
    assert [r.value for r in splits["persona"]] == ["backend-developer", "ml-engineer"]
    assert sum(r.n_tasks for r in splits["difficulty"]) == N
    unseen = next(r for r in splits["template"] if r.value == "unseen")
    assert unseen.n_tasks == N / 4
    assert all(r.paired is not None for r in splits["persona"])


def test_assertion_kinds_are_counted_over_all_of_their_assertions(evidence: Evidence) -> None:
    kinds = {k.value: k for k in evidence.kinds}
    exists = kinds["file_exists"].rows["warm start"]
    assert exists.assertions_total == 2 * N
    assert exists.assertions_passed == N + 10
    assert kinds["file_unchanged"].rows["warm start"].assertions_passed == 10


def test_the_mix_of_stop_reasons_is_counted(evidence: Evidence) -> None:
    stops = evidence.stops
    assert stops["base"] == {"TASK_COMPLETE": 2, "MAX_TURNS": N - 2}
    assert stops["step 2"] == {"TASK_COMPLETE": N}


def test_tasks_without_tags_have_no_split_tables(tmp_path: Path) -> None:
    steps = night(tmp_path)
    played = read_arms(tmp_path, tasks(N))
    bare = [type(t)(t.task_id, t.env, t.prompt, {}) for t in tasks(N)]
    evidence = compare({"warm start": played["warm-sha"], "step 2": played["new-sha"]}, bare)
    assert steps
    assert evidence.splits == {}


def test_several_attempts_a_task_give_pass_at_k_and_pairs_of_first_attempts(
    tmp_path: Path,
) -> None:
    on = tasks(6)
    for sha, passes in (("warm-sha", (2, 4)), ("new-sha", (3, 3))):
        twice = [
            t for k, p in enumerate(passes) for t in arm(sha, on, passes=p, turns=5, stops=6, k=k)
        ]
        write_eval(tmp_path, twice, on, samples=2)
    evidence = collect(tmp_path, on, [step(0, "warm-sha"), step(1, "new-sha")])
    assert evidence.arm("warm start").passed == 2
    assert evidence.pass_at_k["warm start"][1].value == pytest.approx(0.5)
    assert evidence.pass_at_k["warm start"][2].value == pytest.approx(4 / 6)
    assert evidence.pass_at_k_gain[2].value == pytest.approx(3 / 6 - 4 / 6)
    table = pass_at_k_table(evidence)
    assert table is not None
    assert table.rows[-1][0] == "step 1 − warm start, points"
    assert table.notes[0].startswith("Endings and the parts of the reward count all attempts.")
    assert evidence.stops["step 1"] == {"TASK_COMPLETE": 12}


def test_the_evidence_is_plain_json(evidence: Evidence) -> None:
    plain = evidence.plain()
    again = json.loads(json.dumps(plain, allow_nan=False))
    assert again["arms"][3]["name"] == "warm start"
    assert again["paired"][-1]["passed"]["test"]["second_only"] == 2


def test_a_missing_warm_start_says_what_to_type(tmp_path: Path) -> None:
    evals = tmp_path / "first" / "evals"
    night(evals)
    with pytest.raises(BadInput, match=f"grpo eval {tmp_path}/first"):
        collect(evals, tasks(N), [step(0, "another-sha")])


def test_evaluations_on_other_tasks_are_not_mixed_in(tmp_path: Path) -> None:
    steps = night(tmp_path)
    fewer = tasks(N - 1)
    write_eval(tmp_path, arm("new-sha", fewer, passes=0, turns=1, stops=0), fewer)
    assert collect(tmp_path, tasks(N), steps).arm("step 2").passed == 12


def test_one_adapter_evaluated_under_two_settings_is_refused(tmp_path: Path) -> None:
    steps = night(tmp_path)
    hotter = EpisodeSettings(temperature=1.0)
    on = tasks(N)
    write_eval(tmp_path, arm("new-sha", on, passes=1, turns=2, stops=0), on, settings=hotter)
    with pytest.raises(BadInput, match="other settings"):
        collect(tmp_path, on, steps)


def test_arms_played_under_other_settings_are_refused_and_named(tmp_path: Path) -> None:
    on = tasks(N)
    write_eval(tmp_path, arm("warm-sha", on, passes=1, turns=2, stops=0), on)
    hotter = EpisodeSettings(temperature=1.0)
    write_eval(tmp_path, arm("new-sha", on, passes=1, turns=2, stops=0), on, settings=hotter)
    with pytest.raises(BadInput, match="not the same settings"):
        collect(tmp_path, on, [step(0, "warm-sha"), step(1, "new-sha")])


def test_a_torn_trajectories_file_is_noticed(tmp_path: Path) -> None:
    steps = night(tmp_path)
    file = next(tmp_path.glob("*/trajectories.jsonl"))
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(BadInput, match="23 trajectories"):
        collect(tmp_path, tasks(N), steps)


def test_an_outcome_counts_sampled_tokens_and_only_the_policys_own_stop() -> None:
    found = outcome(trajectory("t", "a", 3, 5, stopped=False))
    assert (found.tokens, found.turns, found.stopped) == (50, 5, False)
    assert found.stop_reason == StopReason.MAX_TURNS
    assert found.by_kind["file_exists"] == (1, 2)


def test_a_headline_says_only_how_often_the_final_set_had_been_opened(evidence: Evidence) -> None:
    runs = ("run a on 2026-11-25 (warm start)", "run b on 2026-11-26 (step 4)")
    final = replace(evidence, played_on=TaskSet.FINAL, opened_before=runs)
    assert final.caution == ("The final set had been opened before, by 2 runs.",)
    told = f"The final set had been opened before, by 2 runs: {runs[0]}; {runs[1]}. A setting"
    assert final.about_tasks[0].startswith(told)
    assert replace(final, opened_before=()).caution == ()
    assert len(replace(evidence, played_on=TaskSet.DEVELOPMENT).caution) == 1


def test_the_unseen_templates_are_told_apart() -> None:
    assert tags_of(task(0))["template"] == "unseen"
    assert tags_of(task(1))["template"] == "seen"
