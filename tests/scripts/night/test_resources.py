"""Disk, descriptors and machines that run out or change under a night: what the person is told.

Real phases on the two-layer model against the scripted engine, in a file system of a few megabytes
that is filled, made read-only, or left; then the same command once there is room again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldkit.files.atomic import read_lines
from fieldkit.gate.memory import GIB, available
from fieldkit.limits import allow_open_files
from fieldkit.process.ledger import LEDGER_FILE, Ledger
from rollout.engine.engine_settings import EngineSettings
from rollout.engine.forecast import memory_needed
from rollout.engine.serve import find_engine, stop_engine
from rollout.engine.vllm_server import is_cpu_build
from scripts.phases.training.kept_trainer import TRAINER
from tests.chaos.night import SITE, require_readable
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(600)

DISK_BYTES = 16 * 2**20
BAD_INPUT, SHORTAGE, NOT_OWNER = 2, 5, 6


def grpo(*words: str | Path, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run `grpo` with these words, on the scripted engine."""
    command = [*before, sys.executable, "-P", "-m", "scripts.cli", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(SITE)}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def mount(*words: str | Path) -> bool:
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, check=False)
    return done.returncode == 0


@pytest.fixture(scope="module")
def started(policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was started and has played nothing yet."""
    folder = tmp_path_factory.mktemp("nights") / "night"
    write_run(folder, *policy, engine={"lifecycle": "hotswap"})
    ended = grpo("start", folder)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "grpo-test", place):
        pytest.skip("mounting a file system needs root")
    try:
        yield place
        (place / "filler").unlink(missing_ok=True)  # or the ledger cannot be written
        for run in place.glob("*/ledger.json"):
            stop_engine(run.parent)
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def night(started: Path, disk: Path) -> Path:
    """The started run on that small disk."""
    return Path(shutil.copytree(started, disk / "night"))


def fill(disk: Path, leave: int = 0) -> Path:
    """Fill a disk but for its last `leave` bytes (of whole pages); the file that does it."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as f, contextlib.suppress(OSError):
        while True:
            f.write(b"\0" * 65536)
    os.truncate(filler, filler.stat().st_size - leave)
    return filler


@pytest.mark.parametrize(
    "phase", ["train", *(pytest.param(p, marks=pytest.mark.slow) for p in ("rollout", "eval"))]
)
def test_a_disk_that_is_full_in_a_phase_is_a_shortage_and_the_same_command_goes_on(
    night: Path, phase: str
) -> None:
    for earlier in {"rollout": (), "train": ("rollout",), "eval": ("rollout", "train")}[phase]:
        before = grpo(earlier, night)
        assert before.returncode == 0, before.stdout + before.stderr
    filler = fill(night.parent)
    full = grpo(phase, night)
    assert full.returncode == SHORTAGE, full.stdout + full.stderr
    assert "no space left on this disk" in full.stderr
    assert "run the same command again" in full.stderr
    require_readable(night)
    filler.unlink()
    again = grpo(phase, night)
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.fixture(scope="module")
def played(started: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first rollout is done, with no engine left."""
    folder = Path(shutil.copytree(started, tmp_path_factory.mktemp("played") / "night"))
    ended = grpo("rollout", folder)
    stop_engine(folder)
    assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def trained(played: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose first step is done."""
    folder = Path(shutil.copytree(played, tmp_path_factory.mktemp("trained") / "night"))
    ended = grpo("train", folder)
    stop_engine(folder)
    assert ended.returncode == 0, ended.stderr
    return folder


def turns(run: Path) -> set[str]:
    """Every turn of a finished episode, by the seconds that it took, which no other has."""
    lines = (line for file in run.rglob("*.jsonl") for _, line in read_lines(file))
    return {found for line in lines for found in re.findall(r'"seconds":([-.e\d]+)', line)}


PAGE = os.sysconf("SC_PAGE_SIZE")


# Of the two-layer model an adapter has 8 pages, its config 1, an optimizer state 16, what the
# canary knows 3; eight episodes have 4, and what a phase writes before all that 3 or 4 (an eval 7:
# do-nothing and oracle, which cost nothing to play again).
@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "phase", "pages", "names"),
    [
        ("started", "rollout", 5, "step-001/trajectories.partial.jsonl"),
        ("started", "rollout", 8, "step-001/trajectory_bundle.jsonl"),
        ("played", "train", 4, "adapter/adapter_model.safetensors"),
        ("played", "train", 16, "trainer_state/optimizer.safetensors"),
        ("played", "train", 29, "adapter/canary.json"),
        ("trained", "eval", 7, "trajectories.partial.jsonl"),
        ("trained", "eval", 8, "trajectories.jsonl"),
    ],
)
def test_a_disk_that_fills_up_in_the_middle_of_a_phase_is_told_with_the_file_and_costs_no_episode(
    request: pytest.FixtureRequest, disk: Path, before: str, phase: str, pages: int, names: str
) -> None:
    earlier = request.getfixturevalue(before)
    night = Path(shutil.copytree(earlier, disk / "night"))
    filler = fill(disk, leave=pages * PAGE)
    full = grpo(phase, night)
    assert full.returncode == SHORTAGE, full.stdout + full.stderr
    assert f"{names}: no space left on this disk" in full.stderr
    filler.unlink()
    kept = turns(night)
    assert (kept > turns(earlier)) == (phase != "train")
    again = grpo(phase, night)
    assert again.returncode == 0, again.stdout + again.stderr
    require_readable(night)
    assert kept <= turns(night)


@pytest.mark.slow
@pytest.mark.parametrize("files", [4, 7, 10])
def test_a_disk_without_room_for_another_file_in_the_start_is_a_shortage_and_it_starts_again(
    started: Path, tmp_path: Path, files: int
) -> None:
    """Full of files and not of bytes: a start asks for a gigabyte before it writes anything."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mount("-t", "tmpfs", "-o", f"size=2G,nr_inodes={files}", "grpo-test", place):
        pytest.skip("mounting a file system needs root")
    try:
        night = place / "night"
        night.mkdir()
        shutil.copyfile(started / "run.toml", night / "run.toml")
        full = grpo("start", night)
        assert full.returncode == SHORTAGE, full.stdout + full.stderr
        assert f"{night}" in full.stderr
        assert "no space left on this disk" in full.stderr
        assert mount("-o", "remount,nr_inodes=1000", place)
        again = grpo("start", night)
        assert again.returncode == 0, again.stdout + again.stderr
        assert (night / "step-000" / "step.json").is_file()
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_run_folder_that_cannot_be_written_is_named(night: Path) -> None:
    assert mount("-o", "remount,ro", night.parent)
    ended = grpo("rollout", night)
    assert mount("-o", "remount,rw", night.parent)
    assert ended.returncode == BAD_INPUT, ended.stdout + ended.stderr
    assert str(night) in ended.stderr
    assert "Read-only file system" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_too_few_open_files_are_said_before_an_episode_begins(night: Path) -> None:
    ended = grpo("rollout", night, before=("prlimit", "--nofile=64:64"))
    assert ended.returncode == SHORTAGE, ended.stdout + ended.stderr
    assert "`ulimit -n " in ended.stderr
    assert not list((night / "step-001").glob("*.jsonl"))


def test_a_low_soft_limit_on_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        allow_open_files(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_run_that_was_copied_from_another_machine_is_not_continued_by_accident(
    started: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(started, tmp_path / "night"))
    manifest = json.loads((copied / "manifest.json").read_text())
    manifest["host"]["name"] = "another-machine"
    (copied / "manifest.json").write_text(json.dumps(manifest))
    ended = grpo("rollout", copied)
    assert ended.returncode == NOT_OWNER, ended.stderr
    assert "grpo takeover" in ended.stderr


@pytest.mark.slow
def test_a_stranger_who_holds_the_engines_memory_is_named_and_left_alone(
    started: Path, policy: tuple[Path, Path], tmp_path: Path
) -> None:
    """The engine asks for half of the stranger's memory more than is there beside the stranger."""
    if not is_cpu_build():
        pytest.skip("an engine on a GPU asks the host for little")
    folder = Path(shutil.copytree(started, tmp_path / "night"))
    held = min(2 * GIB, available().host // 4)
    code = f"import sys; block = b'x' * {held}; print('ready', flush=True); sys.stdin.read()"
    text = (folder / "run.toml").read_text()
    beside_the_cache = memory_needed(policy[0], EngineSettings(kv_cache_gib=1.0)) - GIB
    spare = available().host - held // 2 - beside_the_cache
    assert "kv_cache_gib = 0.25" in text
    enough = f"kv_cache_gib = {spare / GIB:.2f}\nmemory_seconds = 1.0"
    (folder / "run.toml").write_text(text.replace("kv_cache_gib = 0.25", enough))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"ready\n"
        refused = grpo("rollout", folder)
        assert stranger.poll() is None
    assert refused.returncode == SHORTAGE, refused.stdout + refused.stderr
    assert f"pid {stranger.pid} (" in refused.stderr
    assert "Nothing was ended" in refused.stderr
    assert find_engine(folder) is None
    assert Ledger(folder / LEDGER_FILE).get(TRAINER) is None
    again = grpo("rollout", folder)
    stop_engine(folder)
    assert again.returncode == 0, again.stdout + again.stderr
