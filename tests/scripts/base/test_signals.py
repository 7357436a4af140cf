"""What a person may ask for by signal, and what it becomes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldkit.errors import Interrupted
from scripts.base.signals import Wish, listening
from scripts.phases.context import Context
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from scripts.run.timings import Stopwatch


@pytest.fixture(autouse=True)
def as_from_a_terminal() -> Iterator[None]:
    """Tests may be started in the background, where the shell has SIGINT and SIGHUP ignored."""
    heard = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in heard}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGHUP])
def test_once_finishes_the_step_and_ctrl_c_after_that_stops_now(first: signal.Signals) -> None:
    said: list[str] = []
    with listening(Wish(said.append)) as wish:
        send(first)
        assert (wish.finish, wish.now) == (True, False)
        send(signal.SIGINT)
        assert (wish.finish, wish.now) == (True, True)
    assert len(said) == 2
    assert "Ctrl-C again" in said[0]


def test_a_terminal_that_closes_is_heard_twice_and_still_lets_the_step_finish() -> None:
    with listening(Wish()) as wish:
        send(signal.SIGHUP)
        send(signal.SIGHUP)
        assert (wish.finish, wish.now) == (True, False)


def test_sigterm_stops_now_and_wakes_who_waits() -> None:
    woken: list[bool] = []
    with listening(Wish()) as wish:
        wish.on_now = lambda: woken.append(True)
        send(signal.SIGTERM)
        assert wish.now
    assert woken == [True]


def test_a_signal_that_was_ignored_at_the_start_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with listening(Wish()) as wish:
            send(signal.SIGHUP)
            assert not wish.finish
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_that_were_there_come_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with listening(Wish()):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_that_was_asked_for_before_anything_was_played_is_not_forgotten() -> None:
    """While a phase imports what it needs there is no event loop to wake."""
    wish = Wish()
    wish.ask_now()
    ctx = Context(RunFolder(Path("r")), RunConfig(), lambda event: None, wish, Stopwatch(0.0))
    with pytest.raises(Interrupted):
        ctx.run_async(asyncio.sleep(60))
