"""`--sandbox none`: said by a person each time, in red, and told wherever the figures are.

The nights are real ones on the two-layer model and the scripted engine, played without a sandbox.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rollout.engine.serve import stop_engine
from scripts.base.checkout import ROOT
from scripts.night.loop_options import LoopOptions
from scripts.run.config import UNPROTECTED
from scripts.run.folder import RunFolder
from tests.chaos.night import SITE
from tests.conftest import TinyModel
from tests.scripts.typed import BAD_INPUT, grpo
from tests.tiny_policy import write_run

pytestmark = pytest.mark.timeout(1200)

NONE = ("--sandbox", "none")
BARE_ARMS = "Played without a sandbox (--sandbox none): do-nothing, oracle, base, warm start"
RED = "\x1b[1;31m"

SCRIPTED = {**os.environ, "PYTHONPATH": str(SITE)}
"""The environment in which the scripted engine stands where vLLM does."""


def on_a_terminal(*words: str | Path, env: Mapping[str, str] = os.environ) -> tuple[int, str]:
    """Run `grpo` as a person sees it; its exit code, and all that it wrote, colours included."""
    ours, its = pty.openpty()
    seen = {**env, "TERM": "xterm-256color", "COLUMNS": "200"}
    seen.pop("NO_COLOR", None)
    command = [sys.executable, "-P", "-m", "scripts.cli", *map(str, words)]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=seen) as program:
        os.close(its)
        said = b""
        while chunk := _read(ours):
            said += chunk
    os.close(ours)
    return program.returncode, said.decode(errors="replace")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that nobody has the other end any more
        return b""


def red_lines(said: str) -> list[str]:
    """What was printed in red, without clocks."""
    return [
        re.sub(r"^\d\d:\d\d:\d\d +", "", line)
        for line in re.findall(re.escape(RED) + r"([^\x1b]*)\x1b\[0m", said)
    ]


# --- a run that was started -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def started(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("nights") / "r", tiny.folder, tiny.adapter(1))
    ended = grpo("start", run, *NONE)
    assert ended.returncode == 0, ended.stderr
    return run


@pytest.fixture
def bare(started: Path, tmp_path: Path) -> Iterator[RunFolder]:
    """A run that was started with `--sandbox none` and has played nothing yet."""
    folder = RunFolder(shutil.copytree(started, tmp_path / "r"))
    yield folder
    stop_engine(folder.path)  # of what should have been refused


def test_the_manifest_says_that_there_is_no_sandbox(bare: RunFolder) -> None:
    manifest = json.loads(bare.manifest.read_text())
    assert manifest["sandbox"] == "none"
    assert manifest["config"]["sandbox"]["kind"] == "none"


@pytest.mark.parametrize("command", ["run", "rollout", "eval", "preflight"])
def test_what_plays_has_to_be_told_each_time(bare: RunFolder, command: str) -> None:
    ended = grpo(command, bare.path)
    assert ended.returncode == BAD_INPUT, ended.stdout + ended.stderr
    assert f"`grpo run {bare.typed} --sandbox none`" in ended.stderr
    assert not (bare.ledger.exists() and '"engine"' in bare.ledger.read_text())


def test_what_only_looks_has_not(bare: RunFolder) -> None:
    assert grpo("next", bare.path).stdout == "eval\n"
    assert "no bundle yet" in grpo("train", bare.path).stdout


def test_arms_that_were_played_without_a_sandbox_are_not_kept_for_a_start_within_one(
    bare: RunFolder,
) -> None:
    """Their hashes are of tasks and limits, so nothing else would tell them from ours."""
    arm = bare.evals / "of-today"
    arm.mkdir(parents=True)
    (arm / "eval.json").write_text(json.dumps(json.loads(bare.manifest.read_text())["evaluation"]))
    bare.summary(0).unlink()
    assert grpo("start", bare.path, *NONE).returncode == 0
    assert arm.exists(), "the same kind of sandbox"
    bare.summary(0).unlink()
    assert grpo("start", bare.path).returncode == 0
    assert not arm.exists()
    assert json.loads(bare.manifest.read_text())["sandbox"] == "bwrap"


def test_a_loop_in_the_background_and_the_way_on_after_a_stop_are_told_it_too() -> None:
    options = LoopOptions(steps=3, sandbox="none")
    assert options.words() == ["--steps", "3", *NONE]
    assert LoopOptions(steps=3).words() == ["--steps", "3"]
    assert LoopOptions(minutes=15.0).words() == ["--minutes", "15"]
    assert LoopOptions(minutes=0.5).words() == ["--minutes", "0.5"]


# --- a night --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evening(
    policy: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[RunFolder, str]:
    """A night up to its first evaluation, and what a person saw of it on a terminal."""
    path = write_run(tmp_path_factory.mktemp("nights") / "bare", *policy, run={"steps": 1})
    code, said = on_a_terminal("run", path, "--steps", "0", *NONE, env=SCRIPTED)
    assert code == 0, said
    return RunFolder(path), said


@pytest.mark.slow
def test_the_loop_and_every_phase_that_plays_say_it_in_red(evening: tuple[RunFolder, str]) -> None:
    assert red_lines(evening[1]).count(UNPROTECTED) == 2, "the loop, and its evaluation"


@pytest.mark.slow
def test_tables_and_files_name_the_arms(evening: tuple[RunFolder, str]) -> None:
    folder, said = evening
    assert BARE_ARMS in " ".join(said.split())
    code, table = on_a_terminal("table", folder.path)
    assert code == 0, table
    assert BARE_ARMS in " ".join(" ".join(red_lines(table)).split()), table
    assert f"**{BARE_ARMS}" in (folder.path / "evidence.md").read_text()
    evidence = json.loads((folder.path / "evidence.json").read_text())
    assert evidence["unprotected"] == ["do-nothing", "oracle", "base", "warm start"]


@pytest.mark.slow
def test_the_loop_in_bash_says_to_every_phase_what_it_is_told(
    evening: tuple[RunFolder, str],
) -> None:
    folder, _ = evening
    loop = [str(ROOT / "scripts" / "grpo_loop.sh"), str(folder.path)]
    try:
        refused = subprocess.run(loop, env=SCRIPTED, capture_output=True, text=True, check=False)
        assert refused.returncode == BAD_INPUT
        assert "--sandbox none" in refused.stderr
        assert not folder.bundle(1).exists()
        ended = subprocess.run(
            [*loop, *NONE], env=SCRIPTED, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert folder.summary(1).is_file()
        assert ended.stdout.count(UNPROTECTED) == 2, (
            "rollout and evaluation; training plays nothing"
        )
        assert "\x1b" not in ended.stdout
        assert f"{BARE_ARMS}, step 1" in " ".join(ended.stdout.split())
    finally:
        stop_engine(folder.path)
