"""Weights & Biases, turned on by `[run] wandb = true`: sends the points not sent before.

The library starts a service and threads and waits for the network, so it runs in a child process
with a time limit. wandb.json keeps digests of the points that were sent. An offline run is written
anew each time, so one folder always holds all points. Project, key and mode come from the library's
own environment variables.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldkit.codec import decode, encode
from fieldkit.errors import Unavailable
from fieldkit.files.atomic import sha256_text, write_text
from fieldkit.process.ledger import Ledger
from scripts.base.children import run_child
from scripts.run.folder import RunFolder, open_run
from scripts.run.manifest import read_manifest
from scripts.track.points import Point, Tracker, read_points

PROJECT = "grpo-loop"
"""The project, unless $WANDB_PROJECT names another."""

LONGEST_SECONDS = 60.0
"""Most seconds that a step waits for the service, which typically takes 3 to 5."""

PATIENCE_SECONDS = 900.0
"""Seconds after a failure before the phases try again, so a night without a network goes on."""

SENT = "wandb.json"

_INIT_SECONDS = 30.0


@dataclass(frozen=True)
class Sent:
    """wandb.json: digests of the sent points, and the time of the last failure (0: none)."""

    digests: tuple[str, ...] = ()
    failed: float = 0.0


class WeightsAndBiases(Tracker):
    """On if `[run] wandb = true`."""

    name, module = "Weights & Biases", "wandb"

    def is_due(self, folder: RunFolder) -> bool:
        return time.time() - _read(folder).failed >= PATIENCE_SECONDS

    def bring(
        self, folder: RunFolder, points: Sequence[Point], stop_asked: Callable[[], bool]
    ) -> str:
        """Send the points not sent yet, in a child process. Raises `BadInput` if the library is
        missing, and `Unavailable` with its message if it fails or exceeds `LONGEST_SECONDS`."""
        self.require()
        sent = _read(folder)
        if _unsent(points, sent):
            _send(folder, sent, stop_asked)
        return f"{self.name}: nothing is missing there"


def _send(folder: RunFolder, sent: Sent, stop_asked: Callable[[], bool]) -> None:
    said: list[str] = []
    log = folder.log / "wandb.log"
    deadline = time.monotonic() + LONGEST_SECONDS
    code = run_child(
        [sys.executable, "-P", "-m", "scripts.track.weights_biases", str(folder.path)],
        ledger=Ledger(folder.ledger),
        name="wandb",
        log=log,
        on_line=said.append,
        stop_asked=lambda: stop_asked() or time.monotonic() > deadline,
    )
    if code:
        _write(folder, Sent(sent.digests, time.time()))
        why = said[-1] if said else f"no answer within {LONGEST_SECONDS:.0f} s"
        raise Unavailable(f"{why} (its log: {log})")


def _push(folder: RunFolder) -> None:
    """Send the points in this process."""
    import wandb

    manifest = read_manifest(folder)
    assert manifest is not None, "a run with points was started"
    points = read_points(folder)
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=_run_id(folder, manifest["created"]),
        name=folder.name,
        dir=folder.path,
        resume="allow",
        config=manifest["config"],
        # Record nothing about this short process: neither its output nor its load.
        settings=wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            init_timeout=_INIT_SECONDS,
        ),
    )
    run.define_metric("step")
    run.define_metric("*", step_metric="step")  # the library's own counter cannot go back
    for p in points if run.offline else _unsent(points, _read(folder)):
        run.log({"step": p.step, **p.scalars})
    run.finish()
    if run.offline:
        _drop_older(folder.path / "wandb", Path(run.dir).parent)
    _write(folder, Sent(tuple(map(_digest, points))))


def _run_id(folder: RunFolder, created: float) -> str:
    """An id that all processes of this run share, and no other run of the same name."""
    return f"{folder.name}-{sha256_text(repr(created))[:8]}"


def _drop_older(runs: Path, newest: Path) -> None:
    for old in runs.glob("offline-run-*"):
        if old.name != newest.name:
            shutil.rmtree(old)


def _unsent(points: Sequence[Point], sent: Sent) -> list[Point]:
    known = set(sent.digests)
    return [p for p in points if _digest(p) not in known]


def _digest(point: Point) -> str:
    """A digest of the content: a step that is played again is a new point."""
    content = json.dumps([point.step, dict(point.scalars)], sort_keys=True)
    return sha256_text(content)[:16]


def _read(folder: RunFolder) -> Sent:
    path = folder.path / SENT
    return decode(Sent, path.read_text(), f"{path}:1") if path.is_file() else Sent()


def _write(folder: RunFolder, sent: Sent) -> None:
    write_text(folder.path / SENT, encode(sent) + "\n")


def main() -> int:
    """Send the run named on the command line; on failure, print one line and return 1."""
    try:
        _push(open_run(sys.argv[1]))
    except Exception as e:  # the library raises a dozen classes; a person needs one line
        *_, last = ["no reason given", *str(e).split("\n")]
        print(f"{type(e).__name__}: {last}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
