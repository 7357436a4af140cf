"""What the tests of the sandbox share: patience, and a look at what lives on the machine."""

from __future__ import annotations

from pathlib import Path

GENEROUS = 60.0  # seconds for what takes milliseconds: the machine may be busy


def processes_with(marker: str) -> list[int]:
    """Pids of living processes whose command line holds `marker`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (folder / "cmdline").read_text(errors="replace"):
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
    return found
