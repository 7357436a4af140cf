"""The page in a real browser: Chromium, headless, from disk, with the network off."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scripts.evidence.findings import read_findings
from scripts.report.files import write_report
from tests.scripts.made_night import make_night
from tests.scripts.report import browser
from tests.scripts.report.browser import PHONE, WIDE
from tests.scripts.report.test_page import SECTIONS

pytest.importorskip("playwright.sync_api")

NO_SPACE = "x" * 3000
"""A word that no line can hold: what makes a careless page scroll sideways."""


@dataclass
class Opened:
    """The page in a tab, and everything that the browser complained of or asked for."""

    tab: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def width_needed(self) -> int:
        return int(self.tab.evaluate("document.documentElement.scrollWidth"))

    def open_everything(self) -> None:
        self.tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")

    def colour(self, selector: str, name: str) -> tuple[int, ...]:
        told = self.tab.locator(selector).first.evaluate(f"e => getComputedStyle(e).{name}")
        return tuple(int(n) for n in told.strip("rgba()").split(",")[:3])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    night = make_night(tmp_path_factory.mktemp("browser"))
    file = night.eval_of("sha-8") / "trajectories.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["turns"][0]["observation"] = NO_SPACE
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return write_report(read_findings(night.folder, night.config))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if browser.program() is None:
        pytest.skip(f"none of {', '.join(browser.BROWSERS)} is installed")
    with browser.chromium() as running:
        yield running


@pytest.fixture
def show(chromium: Any, report: Path) -> Iterator[Any]:
    contexts = []

    def open_page(width: int = WIDE, scheme: str = "light") -> Opened:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.tab.on("console", lambda m: opened.complaints.append(m.text))
        opened.tab.on("pageerror", lambda e: opened.complaints.append(str(e)))
        opened.tab.on("request", lambda r: opened.requests.append(r.url))
        opened.tab.goto(report.as_uri())
        return opened

    yield open_page
    for context in contexts:
        context.close()


def test_it_opens_from_disk_without_a_network_and_nothing_is_complained_of(
    show: Any, report: Path
) -> None:
    page = show()
    page.open_everything()
    assert page.complaints == []
    assert [r for r in page.requests if not r.startswith("data:")] == [report.as_uri()]


def test_every_section_can_be_seen(show: Any) -> None:
    page = show()
    for name in SECTIONS:
        assert page.tab.locator(f"#{name}").is_visible(), name
    page.open_everything()
    for drawn in page.tab.locator("svg").all():
        assert drawn.bounding_box()["height"] > 50


@pytest.mark.parametrize("width", [PHONE, 768, WIDE])
def test_nothing_scrolls_sideways_even_with_everything_open(show: Any, width: int) -> None:
    page = show(width)
    page.open_everything()
    assert page.width_needed() <= width


def test_a_phone_scrolls_through_at_most_ten_screens(show: Any) -> None:
    height = show(PHONE).tab.evaluate("document.documentElement.scrollHeight")
    assert height <= 10 * 844


def test_lines_and_bands_have_colours_of_their_own(show: Any) -> None:
    page = show()
    drawn = page.tab.locator("#curves").inner_html()
    bands = set(re.findall(r"fill: var\((--band-\w+)\)", drawn))
    lines = set(re.findall(r"stroke: var\((--\w+)\)", drawn))
    assert bands
    assert not bands & lines
    colours = {
        n: page.tab.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('{n}')")
        for n in bands | lines
    }
    assert len(set(colours.values())) == len(colours)


def test_paper_has_what_a_click_opens_on_a_screen(show: Any) -> None:
    page = show()
    table = page.tab.locator("details.more table").first
    assert not table.is_visible()
    page.tab.emulate_media(media="print")
    assert table.is_visible()


def test_a_transcript_opens_at_a_click_and_stands_side_by_side(show: Any) -> None:
    page = show()
    flip = page.tab.locator("details.flip").first
    before, after = flip.locator(".attempt").all()
    assert not before.is_visible()
    flip.locator("summary").first.click()
    left, right = before.bounding_box(), after.bounding_box()
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] == right["y"]


def test_on_a_phone_the_transcripts_stand_one_above_the_other(show: Any) -> None:
    page = show(PHONE)
    page.open_everything()
    first, second = page.tab.locator("details.flip").first.locator(".attempt").all()
    assert first.bounding_box()["x"] == second.bounding_box()["x"]


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_text_and_pictures_follow_the_colour_scheme(show: Any, scheme: str, dark: bool) -> None:
    page = show(scheme=scheme)
    paper = sum(page.colour("body", "backgroundColor"))
    ink = sum(page.colour("body", "color"))
    drawn = sum(page.colour("#curves svg text", "fill"))
    assert (paper < ink) is dark
    assert (paper < drawn) is dark


def test_it_prints_on_white_paper_without_the_navigation(show: Any) -> None:
    page = show(scheme="dark")
    page.tab.emulate_media(media="print")
    assert page.colour("body", "backgroundColor") == (255, 255, 255)
    assert not page.tab.locator("nav").is_visible()
    assert page.tab.pdf(format="A4").startswith(b"%PDF")
