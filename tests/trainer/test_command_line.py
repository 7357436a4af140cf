"""`python -m trainer` as a process: exit codes, a kill in the middle, a step without a model."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fieldkit.files.atomic import sha256_file
from fieldkit.gate.memory import Available
from fieldkit.training.adapter import adapter_sha
from trainer.__main__ import app
from trainer.checkpoint import read_result

ROOT = Path(__file__).resolve().parents[2]

# Runs the trainer and ends itself by SIGKILL at the n-th rename into the step folder.
_KILLED_AT_RENAME = """
import os, runpy, signal, sys
rename, left = os.rename, int(sys.argv.pop(1))
def rename_or_die(source, target):
    global left
    if "train.tmp-" in str(source):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)
os.rename = rename_or_die
runpy.run_module("trainer", run_name="__main__")
"""

# Fails if the trainer imports what only a step with signal needs.
_WITHOUT_TORCH = """
import runpy, sys
for heavy in ("torch", "transformers", "peft"):
    sys.modules[heavy] = None
runpy.run_module("trainer", run_name="__main__")
"""


def arguments(bundle: Path, adapter: Path, model: Path, out: Path) -> list[str]:
    return [
        f"--bundle={bundle}",
        f"--adapter-init={adapter}",
        f"--reference-adapter={adapter}",
        f"--model={model}",
        f"--out-dir={out}",
        "--dtype=fp32",
    ]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=240
    )


def run_here(*words: str) -> Result:
    """The same without a process of its own, where nothing is killed: torch is loaded already."""
    return CliRunner().invoke(app, words, prog_name="python -m trainer")


@pytest.mark.parametrize("rename", [1, 2, 3])
def test_a_kill_between_two_files_leaves_no_result_and_the_next_call_completes_it(
    rename: int, bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "step-001"
    wanted = arguments(bundle, adapter, tiny_model, out)
    killed = run("-c", _KILLED_AT_RENAME, str(rename), *wanted)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (out / "train.json").exists()
    assert read_result(out) is None

    again = run_here(*wanted)
    assert again.exit_code == 0, again.output
    assert read_result(out) is not None
    assert sorted(p.name for p in out.iterdir()) == ["adapter", "train.json", "trainer_state"]


def test_no_signal_needs_no_model_and_carries_everything_over(
    bundle: Path, silent_bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "step-001"
    finished = run("-c", _WITHOUT_TORCH, *arguments(silent_bundle, adapter, tiny_model, out))
    assert finished.returncode == 0, finished.stderr
    assert "NO_SIGNAL" in finished.stdout
    result = read_result(out)
    assert result is not None
    assert result["outcome"] == "NO_SIGNAL"
    assert result["adapter_sha"] == result["parent_sha"] == adapter_sha(adapter)
    assert result["optimizer_sha"] is None
    assert not (out / "trainer_state").exists()

    # The guard above has teeth: with signal the same process cannot go on.
    with_signal = run("-c", _WITHOUT_TORCH, *arguments(bundle, adapter, tiny_model, tmp_path / "x"))
    assert with_signal.returncode == 1


def test_bad_input_is_exit_2_with_the_place_and_no_file(
    bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    lines = bundle.read_text(encoding="utf-8").splitlines()
    bundle.write_text(
        "\n".join([lines[0], lines[1].replace('"signal"', '"sginal"')]) + "\n", encoding="utf-8"
    )
    out = tmp_path / "step-001"
    failed = run("-m", "trainer", *arguments(bundle, adapter, tiny_model, out))
    assert failed.returncode == 2
    assert f"{bundle}:2" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not out.exists()


def test_another_temperature_than_the_bundle_s_is_exit_2(
    bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "step-001"
    wanted = [*arguments(bundle, adapter, tiny_model, out), "--temperature=0.7"]
    failed = run("-m", "trainer", *wanted)
    assert failed.returncode == 2
    assert "pass --temperature 1.0" in failed.stderr


def test_a_step_that_the_memory_does_not_hold_is_exit_5(
    bundle: Path,
    adapter: Path,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainer.footprint.budget.available", lambda: Available(host=0, gpu=None))
    out = tmp_path / "step-001"
    failed = run_here(*arguments(bundle, adapter, tiny_model, out))
    assert failed.exit_code == 5
    assert "are available; free memory" in failed.output
    assert not (out / "train.json").exists()


def test_a_model_folder_that_is_not_there_is_exit_2(
    bundle: Path, adapter: Path, tmp_path: Path
) -> None:
    failed = run("-m", "trainer", *arguments(bundle, adapter, tmp_path / "none", tmp_path / "out"))
    assert failed.returncode == 2
    assert "no model folder" in failed.stderr


def test_what_the_document_s_trainer_prints_is_printed(
    bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    done = run("-m", "trainer", *arguments(bundle, adapter, tiny_model, tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    for figure in (
        "loaded in",
        "trainable params:",
        "reference snapshot: 8 tensors",
        "used 4/7 rollouts",
        "policy_loss=",
        "kl_loss=",
        "grad_norm=",
        "weight_delta_l2=",
        "max|Δ|=",
        "wall",
    ):
        assert figure in done.stdout, figure
    x = r"-?\d+\.\d+"
    for line in (
        r"used 4/7 rollouts; groups: \d+ learnable, .*; \d+ sampled tokens, \d+ scored",
        rf" kl={x} grad_norm={x}",
        rf"sampler-trainer mean\|Δlogprob\|={x}e[+-]\d+ max={x}e[+-]\d+ clipped={x}%",
        rf"as served l2={x}, {x}% of the moved weights change",
        rf"reference {x} s, gradient {x} s \(\d+ tokens/s\), canary {x} s, wall {x} s",
    ):
        assert re.search(line, done.stdout), f"{line} in\n{done.stdout}"


def test_the_bundle_is_left_as_it_was(
    bundle: Path, adapter: Path, tiny_model: Path, tmp_path: Path
) -> None:
    before = sha256_file(bundle)
    done = run_here(*arguments(bundle, adapter, tiny_model, bundle.parent))
    assert done.exit_code == 0, done.output
    assert sha256_file(bundle) == before
    assert (bundle.parent / "train.json").exists()
