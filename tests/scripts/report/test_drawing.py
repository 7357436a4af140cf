"""Pictures as the page carries them: themable, apart from each other, and inert."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fieldkit.eval.stats import Estimate, Interval
from scripts.report import charts, drawing
from scripts.report.charts import Difference
from scripts.report.curves import draw_curves
from tests.scripts.made_night import summary


@pytest.fixture(autouse=True)
def styled() -> Iterator[None]:
    with drawing.style():
        yield


def picture(label: str = "row") -> str:
    rows = [Difference(label, Estimate(0.1, Interval(-0.1, 0.3)), 0)]
    return str(charts.differences(rows, "points"))


def test_every_colour_is_a_variable_of_the_page_so_that_both_schemes_show() -> None:
    pictures = [picture(), *[str(d.svg) for d in draw_curves([summary(1, 2), summary(2, 2)], None)]]
    for svg in pictures:
        assert "var(--" in svg
        assert set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg)) == set()


def test_two_pictures_of_the_same_have_no_id_in_common() -> None:
    ids = [set(re.findall(r' id="([^"]+)"', picture())) for _ in range(2)]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_a_picture_is_sound_xml_without_size_and_with_a_name() -> None:
    svg = ElementTree.fromstring(picture())
    assert svg.get("width") is None
    assert svg.get("viewBox") is not None
    assert svg.get("aria-label") == "Differences with 95 % intervals, points"


@pytest.mark.parametrize("label", ["</text><script>", "$\\frac{", "a & b", "\x1b\ud800\x00"])
def test_a_label_from_a_task_file_is_shown_as_it_is(label: str) -> None:
    svg = picture(label)
    assert "<script>" not in svg
    ElementTree.fromstring(svg.encode("utf-8"))


def test_a_long_label_keeps_the_end_that_tells_it_from_others() -> None:
    assert "researcher-00" in picture("pool-of-the-data-science-department-researcher-00")


@pytest.mark.parametrize("n", [1, 12])
def test_few_arms_are_all_drawn_and_need_no_caption(n: int) -> None:
    arms = [f"step {i}" for i in range(n)]
    assert charts.spread(arms, ["step 0"]) == ({*arms}, "")


def test_of_many_arms_a_chart_has_those_that_are_kept_and_others_in_even_steps() -> None:
    arms = ["base", "warm start", *(f"step {i}" for i in range(40))]
    kept = ["oracle", "base", "warm start", "step 17", "step 39"]
    shown, caption = charts.spread(arms, kept)
    assert {*kept} - shown == {"oracle"}, "it is no arm of this chart"
    assert (len(shown), caption) == (12, "12 of 42 arms; all are in the table.")
    others = [i for i in range(40) if f"step {i}" in shown and i not in (17, 39)]
    assert {after - before for before, after in pairwise(others)} <= {4, 5, 6}


def test_a_row_has_the_colour_of_its_sign_and_without_an_interval_only_a_dot() -> None:
    known, single = Estimate(0.1, Interval(0.05, 0.3)), Estimate(-0.1, None)
    svg = charts.differences([Difference("up", known, 1), Difference("one", single, -1)], "points")
    drawn = ElementTree.fromstring(svg)
    parts = {
        g.get("id", "").partition("-")[2]: ElementTree.tostring(g).decode() for g in drawn.iter()
    }
    lines, dots = parts["LineCollection_1"], parts["PathCollection_1"]
    assert ("--green" in lines, "--red" in lines) == (True, False)
    assert ("--green" in dots, "--red" in dots) == (True, True)


def test_a_long_night_is_drawn_as_areas_and_not_as_hundreds_of_bars() -> None:
    night = [summary(n, 200) for n in range(1, 201)]
    groups = next(d for d in draw_curves(night, None) if d.title == "Groups by signal")
    assert len(groups.svg) < 60_000


def test_a_figure_that_no_step_has_is_left_out() -> None:
    titles = {d.title for d in draw_curves([summary(1, 2)], None)}
    assert {"Reward", "KL to the start", "Groups by signal"} <= titles
    bare = replace(summary(1, 2), train={})
    assert "KL to the start" not in {d.title for d in draw_curves([bare], None)}


def test_what_an_objective_holds_back_is_drawn_where_it_has_a_band() -> None:
    plain = summary(1, 2)
    assert "Held back by the objective" not in {d.title for d in draw_curves([plain], None)}
    clipped = replace(plain, train={**plain.train, "ratio_clipped_share": 0.05})
    (found,) = [d for d in draw_curves([clipped], None) if d.title == "Held back by the objective"]
    assert (found.unit, bool(found.meaning)) == ("% of tokens", True)


@pytest.mark.parametrize("rewards", [(-0.4, -0.3), (-0.4, 0.2)])
def test_a_reward_below_zero_is_not_cut_off(rewards: tuple[float, ...]) -> None:
    """An attempt that does nothing in all its turns earns less than nothing."""
    night = [replace(summary(n, 2), mean_reward=r) for n, r in enumerate(rewards, start=1)]
    (found,) = [d for d in draw_curves(night, None) if d.title == "Reward"]
    assert "−0." in found.svg, "the axis has numbers below zero"


@pytest.mark.parametrize("label", ["", "W" * 30, "‱" * 30])
@pytest.mark.parametrize("legend", [0, 1, 2])
def test_rows_have_room_for_their_labels(label: str, legend: int) -> None:
    figure, axes = drawing.make_rows([label], 1.15, legend=legend)
    axes.set_xlabel("points")
    canvas: Any = FigureCanvasAgg(figure)  # Matplotlib's renderers are untyped
    with rc_context({"text.hinting": "none"}):  # an SVG's letters lie on no pixels
        box = axes.get_tightbbox(canvas.get_renderer())
    assert box is not None
    assert box.y0 >= 0
    assert box.x1 <= figure.bbox.width
    assert box.x0 >= 0 or label == "‱" * 30, "that one is cut, and no error"
