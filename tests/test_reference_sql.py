"""What the committed nights of the SQL agent learned, and its page, which quotes them rightly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fieldkit.eval.stats import mcnemar, mean
from scripts.base.checkout import ROOT
from scripts.evidence.played import finished, read_played

NIGHTS = [ROOT / "runs" / f"sql-{seed}" for seed in range(3)]
PAGE = (ROOT / "docs" / "environments-sql.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARMS = ("warm start", "step 6", "step 12")


def passed(night: Path, arm: str) -> dict[str, bool]:
    """Whether each held-out question was answered rightly, in the order of the ids."""
    (found,) = [p for p in map(read_played, finished(night / "evals")) if p.summary.arm == arm]
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
