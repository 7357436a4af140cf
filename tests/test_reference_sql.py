"""What the committed nights of the SQL agent learned, and its page, which quotes them rightly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from fieldkit.eval.resampling import mean
from fieldkit.eval.stats import mcnemar
from rollout.tasks import decode_tasks
from scripts.base.checkout import ROOT
from scripts.evidence.played import PlayedArm, finished, read_played
from scripts.evidence.transcripts import turn_views
from scripts.show.side_by_side import (
    CALL_CHARS,
    as_code,
    chosen,
    kind_of,
    transcripts_page,
)

NIGHTS = [ROOT / "runs" / f"sql-{seed}" for seed in range(3)]
PAGE = (ROOT / "docs" / "environments-sql.md").read_text(encoding="utf-8")
SIDES = (ROOT / "docs" / "sql-side-by-side.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARMS = ("warm start", "step 6", "step 12")


def played(night: Path, arm: str) -> PlayedArm:
    (found,) = [p for p in map(read_played, finished(night / "evals")) if p.summary.arm == arm]
    return found


def passed(night: Path, arm: str) -> dict[str, bool]:
    """Whether each held-out question was answered rightly, in the order of the ids."""
    found = played(night, arm)
    return {t.task_id: t.grade.passed for t in sorted(found.trajectories, key=lambda t: t.task_id)}


def differences(nights: Sequence[Path]) -> list[float]:
    """Of each question: the mean over the nights of right afterwards minus right before."""
    arms = [(passed(n, ARMS[-1]), passed(n, ARMS[0])) for n in nights]
    return [fmean(after[q] - before[q] for after, before in arms) for q in arms[0][0]]


def test_two_nights_of_three_answer_more_than_luck_explains() -> None:
    learned = []
    for night in NIGHTS:
        before, after = passed(night, ARMS[0]), passed(night, ARMS[-1])
        assert before.keys() == after.keys()
        assert len(before) == 120
        test = mcnemar([*after.values()], [*before.values()])
        # The page of a night makes five tests.
        learned.append(test.first_only > test.second_only and test.p_value < 0.05 / 5)
    assert learned == [True, True, False]
    assert "two of three" in PAGE.replace("\n", " ")


def test_the_mean_over_the_nights_is_more_than_luck_by_question() -> None:
    gained = mean(differences(NIGHTS))
    assert gained.interval is not None
    assert gained.sign == 1
    points = [100 * x for x in (gained.value, gained.interval.low, gained.interval.high)]
    assert "{:+.1f} points [{:+.1f} to {:+.1f}]".format(*points) in PAGE
    assert "{:+.1f} points on average [{:+.1f} to {:+.1f}]".format(*points) in README


def test_the_page_has_each_nights_figures() -> None:
    rows = re.findall(r"^\| (\d) \| (\d+) \| (\d+) \| (\d+) \|", PAGE, re.MULTILINE)
    assert [[int(n) for n in row] for row in rows] == [
        [seed, *(sum(passed(night, arm).values()) for arm in ARMS)]
        for seed, night in enumerate(NIGHTS)
    ]


def test_the_transcripts_show_the_questions_of_their_rule_as_the_run_has_them() -> None:
    tasks = decode_tasks(ROOT / "data" / "sql" / "heldout.jsonl")
    arms = [played(NIGHTS[0], arm).first_attempts for arm in (ARMS[0], ARMS[-1], "oracle")]
    before, after, _ = arms
    kinds = {t.task_id: kind_of(before[t.task_id], after[t.task_id]) for t in tasks}
    sections = re.findall(r"^## (.+): (sql-\S+)$", SIDES, re.MULTILINE)
    assert sections == [
        (kinds[t.task_id].value.capitalize(), t.task_id) for t in chosen(tasks, kinds, 6)
    ]
    for kind, task_id in sections:
        _, _, text = SIDES.partition(f"## {kind}: {task_id}\n")
        text = text.partition("\n## ")[0]
        for arm in arms:
            for view in turn_views(arm[task_id]):
                assert as_code([view.command or view.reply], CALL_CHARS) in text
        rewards = re.findall(r"^\| reward \| \S+ \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
        expected = [f"{arm[task_id].reward:.3f}".replace("-", "−") for arm in (before, after)]
        assert rewards == [tuple(expected)]


@pytest.mark.envs  # the random policy plays on the databases
def test_the_transcripts_are_what_their_command_prints() -> None:
    assert transcripts_page("sql-0", 6) == SIDES
