"""The committed default night reaches what it is shown for, and the README quotes it rightly."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from scripts.base.checkout import ROOT

NIGHT = ROOT / "runs" / "night-0"
TASKS = 48
MAX_TURNS = 12


def arm(name: str) -> dict[str, Any]:
    evals = [json.loads(p.read_text()) for p in NIGHT.glob("evals/*/eval.json")]
    (found,) = [e for e in evals if e["arm"] == name]
    assert found["n_tasks"] == TASKS
    return dict(found)


def steps(file: str) -> list[dict[str, Any]]:
    """That file of every step, step-000 left out."""
    return [json.loads(p.read_text()) for p in sorted(NIGHT.glob(f"step-*/{file}"))][1:]


def newest() -> str:
    return f"step {len(steps('step.json'))}"


def test_it_starts_with_the_habit() -> None:
    warm = arm("warm start")
    assert warm["stops"].get("TASK_COMPLETE", 0) <= 0.02 * TASKS
    assert warm["mean_turns"] >= 11.5
    assert 0.3 <= warm["n_passed"] / TASKS <= 0.7


def test_it_ends_without_the_habit_and_with_the_work() -> None:
    warm, last = arm("warm start"), arm(newest())
    assert last["stops"]["TASK_COMPLETE"] >= 0.95 * TASKS
    assert last["mean_turns"] <= warm["mean_turns"] / 2
    assert last["n_passed"] >= warm["n_passed"]
    assert last["assertions_passed"] >= warm["assertions_passed"]


def test_every_arm_is_in_its_evidence() -> None:
    evidence = json.loads((NIGHT / "evidence.json").read_text())
    played = ["do-nothing", "oracle", "warm start", "step 25", newest()]
    assert [a["name"] for a in evidence["arms"]] == played


def test_in_bf16_sampler_and_trainer_agree_to_two_hundredths_in_every_step() -> None:
    differences = [s["train"]["sampler_mean_abs"] for s in steps("step.json")]
    assert len(differences) == len(steps("step.json"))
    assert max(differences) <= 0.02


def test_the_seconds_of_the_phases_add_up_to_every_steps_wall() -> None:
    for timings in steps("timings.json"):
        assert sum(timings["seconds"].values()) == pytest.approx(timings["wall"], rel=0.05)


def test_the_readme_quotes_its_table() -> None:
    readme = (ROOT / "README.md").read_text()
    warm, last = arm("warm start"), arm(newest())
    for row in (
        f"| ended by itself | {warm['stops'].get('TASK_COMPLETE', 0)} "
        f"| {last['stops']['TASK_COMPLETE']} |",
        f"| mean turns | {warm['mean_turns']:.1f} | {last['mean_turns']:.1f} |",
        f"| tasks passed | {warm['n_passed']} | {last['n_passed']} |",
    ):
        assert row in readme, row
    evidence = (NIGHT / "evidence.md").read_text()
    _, _, below = readme.partition(f"| {TASKS} held-out tasks, T = 0.2 |")
    table, _, _ = below.partition("\n\n")
    quoted = re.findall(r"\[[+−]\d+\.\d to [+−]\d+\.\d\]", table)
    assert len(quoted) >= 4
    assert all(interval in evidence for interval in quoted)


def test_nothing_of_it_is_heavier_than_five_megabytes() -> None:
    committed = [NIGHT / "report.html", NIGHT / "curve.png", NIGHT / "evidence.json"]
    assert all(p.stat().st_size < 5_000_000 for p in committed)
