"""A program that says nothing: when that is too long."""

from __future__ import annotations

from scripts.base.quiet import Quiet


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def looks(self, quiet: Quiet, seconds: int) -> bool:
        """Look every second for so long; the last answer."""
        for _ in range(seconds):
            self.now += 1.0
            quiet.too_long()
        return quiet.was_too_long


def test_silence_is_too_long_after_its_seconds_and_stays_so() -> None:
    clock = Clock()
    quiet = Quiet(60.0, clock)
    assert not clock.looks(quiet, 59)
    assert clock.looks(quiet, 1)
    quiet.heard()
    assert quiet.too_long(), "what it says while it is ended makes it no better"


def test_every_line_begins_the_time_anew() -> None:
    clock = Clock()
    quiet = Quiet(60.0, clock)
    for _ in range(5):
        assert not clock.looks(quiet, 59)
        quiet.heard()


def test_a_night_in_which_the_machine_was_suspended_is_no_silence() -> None:
    clock = Clock()
    quiet = Quiet(60.0, clock)
    clock.now += 8 * 3600.0
    assert not quiet.too_long()
