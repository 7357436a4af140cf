from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fieldkit.eval.stats import Estimate
from fieldkit.files.journal import Entry
from scripts.evidence.collect import TaskSet
from scripts.evidence.ending import EndKind, ending, next_steps
from scripts.evidence.findings import Findings, Plan, read_findings
from scripts.evidence.verdict import Habit, Learning, Work
from scripts.report.headline import headline
from scripts.run.next_phase import Phase
from tests.scripts.evals import arm, write_eval
from tests.scripts.made_night import HELD_OUT, make_night, tasks


def findings(root: Path, *, lost: int = 2) -> Findings:
    night = make_night(root, lost=lost)
    return read_findings(night.folder, night.config)


def test_a_night_with_nothing_left_to_do_is_complete_and_its_adapter_is_named(
    tmp_path: Path,
) -> None:
    m = findings(tmp_path, lost=0)
    end = ending(m)
    assert end.kind is EndKind.COMPLETE
    assert next_steps(m, end) == (f"Use it: `{m.path}/step-008/adapter`.",)


def test_a_habit_that_is_gone_with_fewer_passes_is_no_reason_to_use_it_unseen(
    tmp_path: Path,
) -> None:
    m = findings(tmp_path, lost=5)
    assert m.verdict is not None
    assert m.verdict.learning is Learning.DONE
    said = next_steps(m, ending(m))[0]
    assert said.startswith(f"`{m.path}/step-008/adapter` ends by itself and may pass fewer tasks")


def test_an_earlier_step_that_passes_more_is_named_first(tmp_path: Path) -> None:
    night = make_night(tmp_path, lost=5)
    on = tasks(HELD_OUT)
    write_eval(night.folder.evals, arm("sha-4", on, passes=24, turns=4, stops=24), on, arm="step 4")
    m = read_findings(night.folder, night.config)
    assert next_steps(m, ending(m))[0] == (
        "Step 4 passes more tasks than step 8 (−62.5 [−78.8 to −38.4] points since):"
        f" `grpo use {m.typed} --step 4` says how to take it."
    )
    assert "since step 4: tasks passed −62.5 [−78.8 to −38.4] points" in headline(m, None).worse


def test_a_number_of_steps_that_was_changed_is_told(tmp_path: Path) -> None:
    asked = [
        Entry(float(i), 1, "loop_start", {"limits": {"steps": n}}) for i, n in enumerate((12, 8))
    ]
    m = replace(findings(tmp_path), journal=tuple(asked))
    assert ending(m).sentence == (
        "Complete: 8 steps, and the evaluations. 12 were asked for at first."
    )
    assert "asked for" not in ending(replace(m, journal=(asked[1],))).sentence


def test_a_night_that_was_complete_and_got_another_limit_says_so(tmp_path: Path) -> None:
    first = Entry(0.0, 1, "loop_start", {"limits": {"steps": "auto", "minutes": 27.0}})
    again = Entry(2.0, 2, "loop_start", {"limits": {"steps": "auto", "minutes": 60.0}})
    trained = Entry(3.0, 2, "phase_end", {"phase": "train", "exit": 0})
    end = Entry(4.0, 2, "loop_end", {"next": Phase.DONE.value})
    m = findings(tmp_path)
    told = "It was complete once, and then asked for more."
    assert told in ending(replace(m, journal=(first, trained, end, again, trained, end))).sentence
    looked = (first, trained, end, again, end)
    assert told not in ending(replace(m, journal=looked)).sentence, "nothing was played"
    cut_off = replace(end, data={"next": "train"})
    assert told not in ending(replace(m, journal=(first, cut_off, again, trained, end))).sentence


def test_an_adapter_that_lost_the_work_is_not_recommended(tmp_path: Path) -> None:
    m = findings(tmp_path, lost=14)
    assert next_steps(m, ending(m))[0].startswith("Do not use this adapter")


def test_a_night_that_is_under_way_says_how_many_steps_go_on_from_there(tmp_path: Path) -> None:
    m = findings(tmp_path, lost=0)
    assert m.verdict is not None
    m.__dict__["verdict"] = replace(m.verdict, learning=Learning.UNDER_WAY)
    assert next_steps(m, ending(m)) == (f"More steps: `grpo run {m.typed} --steps 16`.",)


@pytest.mark.parametrize(
    ("habit", "stops", "held_out", "temperature", "stretch"),
    [
        (Habit.REDUCED, 0.98, 0.9, 1.0, True),
        (Habit.UNCHANGED, 0.96, 0.9, 1.0, True),
        (Habit.UNCHANGED, 0.96, 1.0, 1.0, False),
        (Habit.REDUCED, 0.80, 0.9, 1.0, False),
        (Habit.REDUCED, 0.98, 0.9, 0.2, False),
        (Habit.NEVER_THERE, 0.98, 0.9, 1.0, False),
    ],
)
def test_a_habit_that_is_left_at_the_low_temperature_alone_gets_a_last_stretch_of_smaller_steps(
    habit: Habit, stops: float, held_out: float, temperature: float, stretch: bool, tmp_path: Path
) -> None:
    m = findings(tmp_path, lost=0)
    assert m.verdict is not None
    assert m.evidence is not None
    arms = tuple(replace(a, stop_rate=Estimate(held_out, None)) for a in m.evidence.arms)
    evidence = replace(m.evidence, arms=arms)
    verdict = replace(m.verdict, learning=Learning.UNDER_WAY, habit=habit)
    rollout = replace(m.config.rollout, temperature=temperature)
    steps = tuple(replace(s, stop_rate=stops) for s in m.steps)
    m = replace(m, config=replace(m.config, rollout=rollout), steps=steps)
    m.__dict__.update(verdict=verdict, evidence=evidence)
    said = next_steps(m, ending(m))[0]
    lr = m.config.trainer.lr / 2
    new = f"`grpo new {m.typed}-last --from {m.typed} --set trainer.lr={lr:g} --set run.steps=20`"
    assert (new in said) is stretch
    assert said.startswith("In training, at T = 1, 9" if stretch else "More steps")


@pytest.mark.parametrize(("n", "more"), [(24, False), (158, True)])
def test_all_tasks_are_offered_where_the_file_has_more_than_were_played(
    n: int, more: bool, tmp_path: Path
) -> None:
    m = findings(tmp_path)
    m.manifest["data"]["heldout"]["n"] = n
    assert m.verdict is not None
    assert m.verdict.work is Work.NOT_DISTINGUISHABLE
    auto = replace(m, config=replace(m.config, eval=replace(m.config.eval, tasks="auto")))
    assert any("set eval.tasks = 0" in said for said in next_steps(auto, ending(auto))) is more


def test_a_number_of_steps_is_not_chosen_by_a_look_at_the_final_set(tmp_path: Path) -> None:
    m = findings(tmp_path, lost=0)
    assert m.verdict is not None
    assert m.evidence is not None
    m.__dict__["verdict"] = replace(m.verdict, learning=Learning.UNDER_WAY)
    m.__dict__["evidence"] = replace(m.evidence, played_on=TaskSet.FINAL)
    (said,) = next_steps(m, ending(m))
    assert said.startswith("More steps may help, but their number would be chosen by a look at")


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.3, "More steps: `grpo run {m.typed} --steps 16`."), (0.95, "There was nothing to mend")],
)
def test_without_a_habit_more_steps_are_for_tasks_that_are_still_failed(
    share: float, said: str, tmp_path: Path
) -> None:
    m = findings(tmp_path)
    assert m.verdict is not None
    assert m.evidence is not None
    m.__dict__["verdict"] = replace(m.verdict, learning=Learning.NONE, habit=Habit.NEVER_THERE)
    arms = tuple(replace(arm, passed=round(share * arm.n_tasks)) for arm in m.evidence.arms)
    m.__dict__["evidence"] = replace(m.evidence, arms=arms)
    assert next_steps(m, ending(m))[0].startswith(said.format(m=m))


def test_a_night_that_is_flat_or_goes_on_by_itself_is_not_told_a_number_of_steps(
    tmp_path: Path,
) -> None:
    m = findings(tmp_path)
    assert m.verdict is not None
    m.__dict__["verdict"] = replace(m.verdict, learning=Learning.UNDER_WAY, habit=Habit.UNCHANGED)
    flat = replace(m, plan=Plan(Phase.DONE, 100))
    flat.__dict__["verdict"] = m.verdict
    assert "`run.stop_when_flat = false`" in next_steps(flat, ending(flat))[0]
    killed = replace(m, plan=Plan(Phase.ROLLOUT, 100))
    killed.__dict__["verdict"] = m.verdict
    assert not any("--steps" in said for said in next_steps(killed, ending(killed)))


def test_a_converged_pool_asks_for_tasks(tmp_path: Path) -> None:
    m = replace(findings(tmp_path), plan=Plan(Phase.CONVERGED, 20))
    end = ending(m)
    assert end.kind is EndKind.CONVERGED
    for name, said in {
        "pool": f"`grpo run {m.to_play} --on-converged grow` goes on with tasks of the reserve",
        "reserve": f"Add tasks to data/reserve.jsonl, then `grpo run {m.to_play}` goes on",
    }.items():
        data = replace(m.config.data, pool=f"data/{name}.jsonl")
        m = replace(m, config=replace(m.config, data=data))
        assert next_steps(m, end)[0].startswith(said)


def test_a_finished_night_that_cannot_go_on_here_is_finished(tmp_path: Path) -> None:
    """Another version of the program, or an edited run.toml, leaves it without a plan."""
    m = replace(findings(tmp_path), plan=None)
    began, over = (Entry(float(i), 1, f"loop_{e}", {}) for i, e in enumerate(("start", "end")))
    done = replace(over, data={"next": Phase.DONE.value})
    assert ending(replace(m, journal=(began, done))).kind is EndKind.COMPLETE
    assert ending(replace(m, journal=(began, over))).kind is EndKind.UNFINISHED
    again = replace(began, time=2.0)
    assert ending(replace(m, journal=(began, done, again))).kind is EndKind.UNFINISHED


def test_an_interrupted_night_says_what_is_next_and_what_goes_on(tmp_path: Path) -> None:
    m = replace(findings(tmp_path), plan=Plan(Phase.ROLLOUT, 20))
    end = ending(m)
    assert end.sentence == "Not finished: 8 of 20 steps are done; next: rollout."
    assert f"`grpo run {m.typed}` goes on" in next_steps(m, end)[0]


def test_an_error_in_the_night_stays_one_after_its_deadline_has_gone_by(tmp_path: Path) -> None:
    """Looked at in the morning, when there is no time left for another step."""
    night, now = make_night(tmp_path), time.time()
    limits = {"steps": "auto", "until": now - 600}
    failed = {"phase": "rollout", "exit": 5, "error": "the disk is full"}
    with night.folder.journal.open("a") as f:
        for ago, event, data in (
            (7200, "loop_start", {"limits": limits}),
            (7000, "phase_end", failed),
        ):
            f.write(json.dumps({"schema": 1, "time": now - ago, "pid": 1, "event": event, **data}))
            f.write("\n")
    end = ending(read_findings(night.folder, night.config))
    assert (end.kind, end.failure) == (EndKind.FAILED, "the disk is full")


def test_what_goes_on_without_a_sandbox_says_so_again(tmp_path: Path) -> None:
    m = findings(tmp_path)
    m = replace(m, plan=Plan(Phase.ROLLOUT, 20), manifest={**m.manifest, "sandbox": "none"})
    assert f"`grpo run {m.typed} --sandbox none` goes on" in next_steps(m, ending(m))[0]


def test_an_error_counts_only_while_it_is_the_last_thing_that_happened(tmp_path: Path) -> None:
    failed = Entry(0.0, 1, "phase_end", {"phase": "rollout", "exit": 4, "error": "no server"})
    went_on = Entry(1.0, 2, "phase_start", {"phase": "rollout"})
    m = replace(findings(tmp_path), plan=Plan(Phase.ROLLOUT, 20), journal=(failed,))
    assert (ending(m).kind, ending(m).failure) == (EndKind.FAILED, "no server")
    assert ending(replace(m, journal=(failed, went_on))).kind is EndKind.UNFINISHED
    measured = Entry(1.0, 3, "memory_used", {"bytes": 5})
    assert ending(replace(m, journal=(failed, measured))).failure == "no server"


def test_an_error_of_the_loop_itself_counts_and_a_stop_by_a_person_does_not(tmp_path: Path) -> None:
    over = Entry(0.0, 2, "phase_end", {"phase": "eval", "exit": 0})
    failed = Entry(1.0, 1, "loop_end", {"exit": 2, "error": "step.json: no"})
    m = replace(findings(tmp_path), plan=Plan(Phase.ROLLOUT, 20), journal=(over, failed))
    end = ending(m)
    assert (end.kind, end.failure) == (EndKind.FAILED, "step.json: no")
    assert end.sentence.endswith("(exit 2).")
    assert "phase" not in end.sentence
    stopped = Entry(0.0, 2, "phase_end", {"phase": "train", "exit": 130, "error": "stopped"})
    last = Entry(1.0, 1, "loop_end", {"exit": 130, "error": "stopped; it goes on"})
    assert ending(replace(m, journal=(stopped, last))).kind is EndKind.UNFINISHED


def test_a_refused_word_after_the_loops_end_is_no_error_of_the_night(tmp_path: Path) -> None:
    over = Entry(0.0, 1, "loop_end", {"next": "rollout"})
    refused = Entry(1.0, 2, "phase_end", {"phase": "eval", "exit": 2, "error": "--step 999: no"})
    m = replace(findings(tmp_path), plan=Plan(Phase.ROLLOUT, 20), journal=(over, refused))
    assert ending(m).kind is EndKind.UNFINISHED
