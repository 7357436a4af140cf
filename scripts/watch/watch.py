"""`grpo watch`: a live page of a run in any terminal, also over ssh.

The page is drawn once a second. Ctrl-C ends the watch, not the run.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live

from fieldkit.errors import Interrupted
from scripts.run.folder import RunFolder
from scripts.watch.frame import frame
from scripts.watch.sight import Watcher

REFRESH_SECONDS = 1.0


def watch(folder: RunFolder, once: bool, console: Console | None = None) -> None:
    """Show the run until Ctrl-C; with `once` or without a terminal, show one frame."""
    console = console or Console()
    watcher = Watcher(folder)
    if once or not console.is_terminal:
        console.print(frame(watcher.look(), console))
        return
    try:
        # No automatic refresh: Rich's thread would redraw an unchanged page between two looks.
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(frame(watcher.look(), console, console.height), refresh=True)
                time.sleep(REFRESH_SECONDS)
    except Interrupted:
        return
