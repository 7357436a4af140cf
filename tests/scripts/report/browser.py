"""Headless Chromium as the system has it, for looking at pages as a person would."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDE, PHONE = 1200, 390


def program() -> str | None:
    """The browser's path; None where none is installed."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser. Raises `RuntimeError` where none is installed."""
    from playwright.sync_api import sync_playwright

    path = program()
    if path is None:
        raise RuntimeError(f"none of {', '.join(BROWSERS)} is installed")
    with sync_playwright() as playwright:
        # root has no sandbox of its own to offer, as in a container
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
