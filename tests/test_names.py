"""A module's name stands for one module, and a test's for the module that it is about."""

from __future__ import annotations

import importlib.metadata
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("fieldkit", "reward", "rollout", "trainer", "scripts")

SHARED = {
    "__init__": "a package",
    "__main__": "what `python -m` runs",
    "settings": "a package's own settings",
    "base": "the protocol of a folder's classes, and how one of them is chosen",
    "registry": "what there is of one sort, beside the files of that sort",
}
"""Names that several modules have, and what they stand for in each."""

LIKE_A_PACKAGE = {
    "reward": "reward/reward.py is the one object that the package makes",
    "rollout": "scripts/phases/rollout.py is the phase that package plays",
    "tensorboard": "scripts/track/tensorboard.py writes what that package shows",
}
"""Modules named like a package of ours, of the standard library or of those installed."""

WHOLE = {
    "bench": "the programs that measure are in tests/ only",
    "chaos": "the programs that kill nights are in tests/ only",
    "fieldkit/compat": "the names that the index's fieldkit has too",
    "fieldkit/test_performance.py": "docs/fieldkit/performance.md",
    "fieldkit/test_programs.py": "docs/fieldkit/programs",
    "fieldkit/test_reference.py": "docs/fieldkit/reference",
    "fieldkit/test_distribution.py": "fieldkit as a distribution of its own",
    "reward/test_pool_alarm.py": "docs/pool-alarm.md, and the simulated nights behind it",
    "rollout/engine/test_several_servers.py": "a step on several servers, and what breaks them",
    "rollout/test_door.py": "what the top of rollout may know of a world",
    "rollout/envs/openenv/test_openenv_real.py": "servers that openenv's own create_app makes",
    "rollout/envs/openenv/test_openenv_trained.py": "a night in the games of docs/openenv",
    "rollout/envs/foreign/test_verifiers_trained.py": "a night in each verifiers kind",
    "rollout/envs/test_mixed_trained.py": "one run over environments of every style",
    "rollout/sandbox/test_escape.py": "every way out of any sandbox",
    "rollout/sandbox/test_probe.py": "what a host forbids",
    "rollout/sandbox/test_sandbox.py": "what each kind of sandbox has to keep",
    "scripts/cli/test_any_input.py": "every command",
    "scripts/cli/test_any_run.py": "every command that reads a run",
    "scripts/cli/test_bad_input.py": "every command",
    "scripts/doctor/test_doctor_cli.py": "`grpo doctor` as a person types it",
    "scripts/night": "whole nights, and what breaks them",
    "scripts/phases/test_unprotected.py": "every command that plays",
    "scripts/setup": "the set-up scripts",
    "scripts/prepare/capacity/test_page.py": "docs/SCALE.md and docs/capacity.json",
    "scripts/report/test_browser.py": "the page in a browser",
    "scripts/report/test_scale.py": "the page of a long night",
    "fieldkit/training/test_trl_advantages.py": "TRL's own advantages",
    "trainer/test_trl_losses.py": "TRL's own losses",
    "trainer/test_command_line.py": "`python -m trainer`",
    "trainer/gains": "what a step gains, by rule",
    "test_committed_runs.py": "the records of every committed run",
    "test_docs.py": "the documents",
    "test_house.py": "docs/HOUSE.md",
    "test_imports.py": "all modules",
    "test_makefile.py": "the Makefile",
    "test_names.py": "all modules",
    "test_notebook.py": "the commands one after the other",
    "test_reference_night.py": "the committed run",
    "scale": "the cost of everything beside the model",
    "test_sql_notebook.py": "docs/notebooks/sql.ipynb",
    "test_reference_sql.py": "the committed nights of the SQL agent",
}
"""Tests that are not about one module, by file or folder, and what they are about."""


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def is_whole(test: Path) -> bool:
    return any(str(path) in WHOLE for path in (test, *test.parents))


def test_a_modules_name_stands_for_one_module() -> None:
    by_name: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        by_name[path.stem].append(str(path.relative_to(ROOT)))
    assert {n: p for n, p in by_name.items() if len(p) > 1 and n not in SHARED} == {}


def test_no_module_is_called_like_one_of_the_standard_library_or_an_installed_package() -> None:
    taken = {*sys.stdlib_module_names, *importlib.metadata.packages_distributions(), *PACKAGES}
    clashes = {path.stem for path in modules()} & taken - SHARED.keys()
    assert clashes <= LIKE_A_PACKAGE.keys()


@pytest.mark.parametrize(
    "test",
    [path.relative_to(ROOT / "tests") for path in sorted((ROOT / "tests").rglob("test_*.py"))],
    ids=str,
)
def test_a_test_lies_where_its_subject_lies_and_is_called_like_it(test: Path) -> None:
    subject = ROOT / test.parent / test.name.removeprefix("test_")
    assert subject.is_file() or is_whole(test)
