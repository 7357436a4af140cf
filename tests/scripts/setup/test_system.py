"""scripts/setup/system.sh on machines that lack a program: what it installs, or says at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.base.checkout import ROOT

NEEDED = ("nsenter", "prlimit", "choom", "taskset", "setpriv", "mount", "tar", "git")
SHELL = ("bash", "env", "sh", "cat", "id", "sed", "sort", "paste", "dirname", "true")
NOBODY = 65534


class Machine:
    """A checkout whose PATH is a folder of chosen programs, for root and an ordinary user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        shutil.copytree(ROOT / "scripts/setup", folder / "scripts/setup")
        (folder / ".venv/bin").mkdir(parents=True)
        (folder / ".venv/bin/python").symlink_to("/bin/sh")  # it is there: none has to be found
        self.programs.mkdir()
        for name in (*NEEDED, *SHELL):
            self.has(name)
        self.has_libraries("libtcmalloc_minimal.so.4", "libnuma.so.1")
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)

    def has(self, name: str) -> None:
        """Put this machine's program of that name on the PATH."""
        found = shutil.which(name)
        assert found, name
        (self.programs / name).symlink_to(found)

    def has_script(self, name: str, text: str) -> None:
        """Put a program of our own on the PATH."""
        file = self.programs / name
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)

    def has_libraries(self, *names: str) -> None:
        """Have the dynamic loader find these."""
        self.has_script("ldconfig", f"echo {' '.join(names)}")

    def type(
        self, mode: str, *, root: bool = False, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run system.sh as root, or as somebody who is not."""
        words = [str(self.folder / "scripts/setup/system.sh"), mode]
        if not root and os.getuid() == 0:
            user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            words = ["/usr/bin/setpriv", *user, *words]
        env["PATH"] = str(self.programs)
        return subprocess.run(
            words, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL, check=False
        )


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory(prefix="machine-") as folder:
        yield Machine(Path(folder))


def test_a_machine_that_has_everything_is_left_alone(machine: Machine) -> None:
    machine.has("bwrap")
    done = machine.type("ensure")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_root_and_sudo_it_says_what_to_ask_for_and_what_runs_without(
    machine: Machine,
) -> None:
    machine.has_script("apt-get", "exit 100")
    done = machine.type("ensure")
    assert done.returncode == 4
    missing, ask, *without = done.stderr.splitlines()
    assert missing == "missing: bwrap"
    assert ask == "Ask an administrator of this machine to type: apt-get install bubblewrap"
    assert "make run ARGS='--sandbox none'" in " ".join(without)


def test_without_a_terminal_a_sudo_that_wants_a_password_is_not_waited_for(
    machine: Machine,
) -> None:
    machine.has_script("apt-get", "exit 100")
    machine.has_script("sudo", 'echo "sudo: a password is required" >&2; exit 1')
    done = machine.type("ensure")
    assert done.returncode == 4
    assert "Type `make system` in a terminal" in done.stderr


def test_sudo_that_asks_nothing_installs_what_is_missing(machine: Machine) -> None:
    machine.programs.chmod(0o777)
    machine.has_script(
        "apt-get", f'echo "apt-get $*" >&2; cd {machine.programs}; ln -sf $REAL bwrap'
    )
    machine.has_script("ln", '/bin/ln "$@"')
    machine.has_script(
        "sudo", f'REAL={shutil.which("bwrap")}; export REAL; [ "$1" = -n ] && exit; "$@"'
    )
    done = machine.type("ensure")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "installing system packages: bubblewrap\n"
    assert "apt-get install -y -qq --no-install-recommends bubblewrap" in done.stderr
    # What is optional comes along, after a set-up too.
    (machine.programs / "bwrap").unlink()
    (machine.folder / ".venv/.ready").write_text("cpu\n")
    machine.has_libraries("libnuma.so.1")
    assert TCMALLOC in machine.type("ensure").stderr


def test_a_system_without_apt_is_told_the_names_of_the_packages(machine: Machine) -> None:
    done = machine.type("ensure")
    assert done.returncode == 4
    assert "neither Debian nor Ubuntu. Install what your system calls: bubblewrap" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="root installs without asking")
def test_an_installation_that_fails_ends_with_what_to_type_later(machine: Machine) -> None:
    machine.has_script("apt-get", 'echo "no network" >&2; exit 100')
    done = machine.type("ensure", root=True)
    assert done.returncode == 4
    assert "no network" in done.stderr
    assert "Once it can: apt-get install bubblewrap" in done.stderr


TCMALLOC = "install -y -qq --no-install-recommends libtcmalloc-minimal4"


def without_tcmalloc(machine: Machine, apt: str) -> None:
    """The machine lacks tcmalloc only; `apt` is what apt-get does."""
    machine.has("bwrap")
    machine.has_libraries("libnuma.so.1")
    machine.has_script("apt-get", apt)


def test_where_somebody_has_to_be_asked_tcmalloc_is_asked_for_by_name_only(
    machine: Machine,
) -> None:
    without_tcmalloc(machine, "exit 100")
    assert machine.type("ensure").stderr == ""
    done = machine.type("install")
    assert done.returncode == 0
    assert "libtcmalloc-minimal4" in done.stderr
    assert done.stderr.endswith("engine and trainer run without it, somewhat slower.\n")
    machine.has_script("sudo", 'echo "sudo: a password is required" >&2; exit 1')
    assert machine.type("ensure").stderr == ""


def test_a_first_set_up_brings_tcmalloc_where_sudo_asks_nothing(machine: Machine) -> None:
    without_tcmalloc(machine, 'echo "apt-get $*" >&2')
    machine.has_script("sudo", '[ "$1" = -n ] && exit; "$@"')
    done = machine.type("ensure")
    assert done.returncode == 0
    assert TCMALLOC in done.stderr
    assert done.stdout == "installing system packages: libtcmalloc-minimal4\n"
    # On a GPU nothing preloads it.
    has_headers(machine)
    machine.has_script("gcc", "")
    assert machine.type("ensure", GRPO_BUILD="cuda").stderr == ""
    # A machine that could not get it does not try at every start.
    (machine.folder / ".venv/.ready").write_text("cpu\n")
    assert machine.type("ensure").stderr == ""


def test_a_first_set_up_without_a_network_goes_on_without_tcmalloc(machine: Machine) -> None:
    without_tcmalloc(machine, 'echo "no network" >&2; exit 100')
    machine.has_script("sudo", '[ "$1" = -n ] && exit; "$@"')
    done = machine.type("ensure")
    assert done.returncode == 0
    assert "no network" in done.stderr
    assert "tcmalloc is optional" in done.stderr


def test_vllm_on_a_cpu_needs_libnuma_and_on_a_gpu_does_not(machine: Machine) -> None:
    machine.has("bwrap")
    machine.has_libraries("libtcmalloc_minimal.so.4")
    done = machine.type("check")
    assert (done.returncode, done.stderr.splitlines()) == (
        4,
        ["missing: libnuma.so.1", "`make system` installs libnuma1"],
    )
    has_headers(machine)
    machine.has_script("gcc", "")
    assert machine.type("check", GRPO_BUILD="cuda").returncode == 0
    # Where the loader cannot be asked, nothing is said to be missing.
    machine.has_script("ldconfig", "exit 1")
    assert machine.type("check").returncode == 0


def has_headers(machine: Machine) -> Path:
    """Have its Python say where its headers are, and put them there."""
    folder = machine.folder / "include"
    folder.mkdir()
    (folder / "Python.h").touch()
    folder.chmod(0o755)
    python = machine.folder / ".venv/bin/python"
    python.unlink()
    python.write_text(f"#!/bin/sh\necho {folder} python3.12-dev\n")
    python.chmod(0o755)
    return folder / "Python.h"


def test_the_cuda_build_needs_what_triton_compiles_with(machine: Machine) -> None:
    machine.has("bwrap")
    header = has_headers(machine)
    header.unlink()
    assert machine.type("check").returncode == 0
    done = machine.type("check", GRPO_BUILD="cuda")
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        "missing: Python.h gcc",
        "`make system` installs gcc python3.12-dev",
    ]
    header.touch()
    machine.has_script("gcc", "")
    (machine.folder / ".venv/.ready").write_text("cuda\n")
    assert machine.type("check").returncode == 0
    header.unlink()
    assert machine.type("check").returncode == 4


def test_a_missing_python_is_found_before_anything_is_downloaded(machine: Machine) -> None:
    machine.has("bwrap")
    shutil.rmtree(machine.folder / ".venv")
    done = machine.type("check")
    assert done.returncode == 4
    assert done.stderr.splitlines()[0] == "missing: python3 venv"
    assert "`make system` installs python3 python3-venv" in done.stderr


def test_what_triton_needs_is_named_with_a_missing_python(machine: Machine) -> None:
    machine.has("bwrap")
    shutil.rmtree(machine.folder / ".venv")
    done = machine.type("check", GRPO_BUILD="cuda")
    assert done.stderr.splitlines() == [
        "missing: Python.h gcc python3 venv",
        "`make system` installs gcc python3 python3-dev python3-venv",
    ]


def test_a_python_that_is_too_old_is_named_and_not_installed_once_more(machine: Machine) -> None:
    machine.has("bwrap")
    shutil.rmtree(machine.folder / ".venv")
    machine.has_script("python3", '[ "$1" = --version ] && echo Python 3.10.12')
    machine.has_script("apt-get", 'echo "apt-get $*" >&2')
    machine.has_script("sudo", '[ "$1" = -n ] && exit; "$@"')
    for mode in ("check", "ensure", "install"):
        done = machine.type(mode)
        assert done.returncode == 4
        missing, old, *_ = done.stderr.splitlines()
        assert missing == "missing: python3 venv"
        assert old.startswith(
            "Python 3.10.12 is here, and 3.11, 3.12 or 3.13 is needed, with venv."
        )


def test_a_kernel_that_forbids_the_sandbox_is_told_before_any_download(machine: Machine) -> None:
    machine.has_script("bwrap", 'echo "bwrap: No permissions to create new namespace" >&2; exit 1')
    done = machine.type("ensure")
    assert done.returncode == 4
    assert "No permissions to create new namespace" in done.stderr
    assert "--sandbox none" in done.stderr
