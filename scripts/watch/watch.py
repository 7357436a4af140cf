"""`grpo watch`: a live page of a run in this or another terminal, over ssh as well.

Once a second the run is looked at and the page drawn; in between nothing happens. It belongs to
whoever looks: Ctrl-C ends the watch and nothing else.
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
    """Show the run until Ctrl-C; one frame, `once` or where the output is no terminal."""
    console = console or Console()
    watcher = Watcher(folder)
    if once or not console.is_terminal:
        console.print(frame(watcher.look(), console))
        return
    try:
        # Drawn by us: a thread of Rich's would draw between two looks, for nothing.
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(frame(watcher.look(), console, console.height), refresh=True)
                time.sleep(REFRESH_SECONDS)
    except Interrupted:
        return
