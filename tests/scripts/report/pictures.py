"""`make pictures`: the committed default night's page as pictures, for README and docs.

Opens runs/night-0/report.html in headless Chromium and photographs it: its top in both colour
schemes and on a phone, and the parts below. A picture that shows a mistake is the reason to have
them in the repository: who changes the page sees in the diff what it looks like.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scripts.base.checkout import ROOT
from tests.scripts.report.browser import PHONE, WIDE, chromium

HEIGHT = 900
COLOURS = 128
SECTIONS = ("table", "curves", "time", "splits", "pool")


def main(
    page: Annotated[Path, typer.Argument(help="A report.html.")] = ROOT
    / "runs"
    / "night-0"
    / "report.html",
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = ROOT / "docs" / "pictures",
) -> None:
    """Photograph a page, whole and in parts."""
    out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name, width, scheme in (
            ("top-light", WIDE, "light"),
            ("top-dark", WIDE, "dark"),
            ("phone", PHONE, "light"),
        ):
            tab = _open(browser, page, width, scheme)
            tab.screenshot(path=out / f"{name}.png")
        tab = _open(browser, page, WIDE, "light")
        for section in SECTIONS:
            tab.locator(f"#{section}").screenshot(path=out / f"{section}.png")
        flip = tab.locator("details.flip").first
        flip.locator("summary").first.click()
        flip.screenshot(path=out / "flip.png")
    for picture in sorted(out.glob("*.png")):
        _shrink(picture)
        print(f"{picture} ({picture.stat().st_size / 1000:.0f} kB)")


def _shrink(picture: Path) -> None:
    """A page has few colours: 128 of them look the same and weigh a third."""
    from PIL import Image

    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(COLOURS)
    small.save(picture, optimize=True)


def _open(browser: Any, page: Path, width: int, scheme: str) -> Any:
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHT}, color_scheme=scheme, offline=True
    )
    tab = context.new_page()
    tab.goto(page.resolve().as_uri())
    return tab


if __name__ == "__main__":
    typer.run(main)
