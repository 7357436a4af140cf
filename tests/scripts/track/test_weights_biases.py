"""Weights & Biases in its offline mode, with its real library in an environment of its own.

The library is an extra, so it is laid over this environment by uv for as long as a test runs; where
uv cannot get it, those tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from fieldkit.codec import encode
from fieldkit.errors import BadInput
from scripts.base.checkout import ROOT
from scripts.base.events import Event
from scripts.run.config import NightSettings, RunConfig
from scripts.track import weights_biases
from scripts.track.trackers import require_trackers, track
from scripts.track.weights_biases import PATIENCE_SECONDS
from tests.scripts.evals import step
from tests.scripts.made_night import Night, make_night

UV = Path(sys.executable).with_name("uv")
OVERLAY = [
    str(UV),
    "run",
    "--no-project",
    "-q",
    "--python",
    sys.executable,
    "--with",
    "wandb>=0.30",
]
WITHOUT_KEY = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}

READ_ROWS = """
import json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record

# LevelDB's log format: blocks of 32 KiB, records in pieces (1: whole, 4: the last piece).
data, at, record = open(sys.argv[1], "rb").read(), 7, b""
while at + 7 <= len(data):
    if (left := 32768 - at % 32768) < 7:
        at += left
        continue
    _, length, piece = struct.unpack_from("<IHB", data, at)
    record += data[at + 7 : at + 7 + length]
    at += 7 + length
    if piece in (1, 4):
        items = Record.FromString(record).history.item
        row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in items}
        record = b""
        if row:
            print(json.dumps(row))
"""


@cache
def overlay_error() -> str:
    """Why the library cannot be had here; empty where it can."""
    if not UV.is_file():
        return f"no {UV}"
    tried = subprocess.run([*OVERLAY, "--", "python", "-c", ""], capture_output=True, text=True)
    return tried.stderr if tried.returncode else ""


@pytest.fixture
def library() -> None:
    """Skip where the library cannot be installed."""
    if error := overlay_error():
        pytest.skip(f"uv cannot get wandb here: {error.strip().splitlines()[-1]}")


def with_library(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the library there, and nobody logged in."""
    return subprocess.run(
        [*OVERLAY, "--", "env", "HOME=/nonexistent", "python", "-P", *words],
        env={**WITHOUT_KEY, **env},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


def night_with_wandb(root: Path, n_steps: int) -> Night:
    night = make_night(root, n_steps=n_steps, evaluated=False)
    night.folder.config.write_text("[run]\nwandb = true\n")
    manifest = json.loads(night.folder.manifest.read_text())
    night.folder.manifest.write_text(json.dumps({**manifest, "created": 1.5}))
    return night


def rows(night: Night) -> list[dict[str, float]]:
    """Every row of the one offline run, as the library itself reads them."""
    (file,) = night.folder.path.glob("wandb/offline-run-*/*.wandb")
    read = with_library("-c", READ_ROWS, str(file))
    assert read.returncode == 0, read.stderr
    return [json.loads(line) for line in read.stdout.splitlines()]


def grpo_track(night: Night, **env: str) -> subprocess.CompletedProcess[str]:
    return with_library("-m", "scripts.cli", "track", str(night.folder.path), **env)


@pytest.mark.usefixtures("library")
def test_offline_every_point_is_kept_once_and_a_further_step_is_added(tmp_path: Path) -> None:
    night = night_with_wandb(tmp_path, 3)
    offline = {"WANDB_MODE": "offline", "WANDB_CACHE_DIR": str(tmp_path / "cache")}
    first = grpo_track(night, **offline)
    assert first.returncode == 0, first.stderr
    assert [(r["step"], r.get("rollout/stop_rate")) for r in rows(night)] == [
        (0, None),
        (1, pytest.approx(1 / 3)),
        (2, pytest.approx(2 / 3)),
        (3, 1.0),
    ]
    assert rows(night)[0]["heldout/turns"] == 12.0

    night.folder.step(4).mkdir()
    night.folder.summary(4).write_text(encode(step(4, "sha-4", stop_rate=0.75, turns=3.0)))
    again = grpo_track(night, **offline)
    assert again.returncode == 0, again.stderr
    assert [r["step"] for r in rows(night)] == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("library")
def test_without_a_key_it_says_so_and_the_next_phases_do_not_ask_again(tmp_path: Path) -> None:
    night = night_with_wandb(tmp_path, 1)
    ended = grpo_track(night)
    assert ended.returncode == 4
    assert "No API key configured" in ended.stderr
    kept = json.loads((night.folder.path / "wandb.json").read_text())
    assert kept["digests"] == []
    assert time.time() - kept["failed"] < PATIENCE_SECONDS


def test_without_the_library_the_evening_ends_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install .*\[wandb\]"):
        require_trackers(RunConfig(run=NightSettings(wandb=True)))
    require_trackers(RunConfig())  # who does not want it is not asked for it


def test_without_the_library_a_night_under_way_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    night = make_night(tmp_path, n_steps=1)
    told: list[Event] = []
    track(night.folder, replace(RunConfig(), run=NightSettings(wandb=True)), told.append)
    (line,) = told
    assert line.text.startswith("Weights & Biases: ")


def test_soon_after_a_failure_a_phase_does_not_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []
    monkeypatch.setattr(weights_biases, "_send", lambda *words: tried.append(words))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    folder = make_night(tmp_path, n_steps=1).folder
    config = RunConfig(run=NightSettings(wandb=True))
    state = folder.path / "wandb.json"
    for minutes_ago, expected in ((5, 0), (20, 1)):
        failed = time.time() - 60 * minutes_ago
        state.write_text(json.dumps({"schema": 1, "digests": [], "failed": failed}))
        told: list[Event] = []
        track(folder, config, told.append)
        assert (told, len(tried)) == ([], expected)
