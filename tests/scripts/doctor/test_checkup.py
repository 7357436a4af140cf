"""`grpo doctor RUN`: all at once that would stop a run, and how the memory would be shared."""

from __future__ import annotations

import json
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fieldkit.errors import Interrupted
from fieldkit.gate import nvidia
from rollout.cluster.cluster_settings import ClusterSettings
from rollout.engine.port import HOST, free_port
from rollout.envs.configured import register_environments
from scripts.base.checkout import ROOT
from scripts.doctor import checkup
from scripts.doctor.run_checks import examine_run
from scripts.run.config import RunConfig
from scripts.run.folder import RunFolder
from tests.conftest import TinyModel
from tests.tiny_policy import write_run


@pytest.fixture(scope="module")
def parts(tiny: TinyModel) -> tuple[Path, Path]:
    return tiny.folder, tiny.adapter(1)


def test_a_sound_run_has_no_complaint_and_nothing_is_written(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "nights" / "r", *parts)
    before = sorted(run.rglob("*"))
    findings = examine_run(RunFolder(run))
    assert [f.name for f in findings if not f.ok] == []
    assert {"settings", "tasks", "adapter", "forecast"} <= {f.name for f in findings}
    assert sorted(run.rglob("*")) == before


def test_everything_that_is_wrong_is_told_and_not_only_the_first(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "nights" / "r", *parts, rollout={"tasks_per_step": 100})
    text = (run / "run.toml").read_text()
    (run / "run.toml").write_text(text.replace(str(parts[1]), str(tmp_path / "nowhere")))
    bad = {f.name: f.text for f in examine_run(RunFolder(run)) if not f.ok}
    assert "tasks_per_step is 100" in bad["tasks"]
    assert "nowhere: no such folder" in bad["adapter"]
    assert "forecast" not in bad


def test_a_stop_in_a_check_is_no_complaint_of_it() -> None:
    def stopped() -> str:
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        checkup.finding("model", stopped)


def test_a_full_disk_is_told_with_a_command_that_can_be_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkup, "ROOT", Path("/my work"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    assert "`du -sh '/my work'/runs/*`" in checkup.finding("disk", checkup._disk).text


def gpu_check(monkeypatch: pytest.MonkeyPatch, *, cpu: bool) -> checkup.Finding:
    monkeypatch.setattr(checkup, "is_cpu_build", lambda: cpu)
    return checkup.finding("gpu", checkup._gpu)


@pytest.mark.parametrize(
    ("driver", "says"),
    [
        (None, r"none: everything runs on the CPU$"),
        ("/usr/bin/nvidia-smi", r"everything runs on the CPU, .*`GRPO_BUILD=cuda make setup`"),
    ],
)
def test_a_gpu_that_the_cpu_build_leaves_unused_is_told_with_the_command_that_uses_it(
    monkeypatch: pytest.MonkeyPatch, driver: str | None, says: str
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: driver)
    found = gpu_check(monkeypatch, cpu=True)
    assert found.ok
    assert re.search(says, found.text)


def test_a_library_that_vllm_loads_is_told_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (packages,) = (f for f in checkup.examine() if f.name == "packages")
    assert packages.ok, packages.text
    monkeypatch.setattr(checkup, "LIBRARY", "libnowhere.so.1")
    (packages,) = (f for f in checkup.examine() if f.name == "packages")
    assert not packages.ok
    assert packages.text.startswith("missing: libnowhere.so.1, without which vLLM does not start")
    assert packages.text.endswith("`make system` installs it")


def test_of_a_cluster_this_machines_gpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "is_cpu_build", lambda: False)
    monkeypatch.setattr(checkup, "_COMPUTE", "import sys; sys.exit('no GPU on the head')")
    on_nodes = RunConfig(cluster=ClusterSettings(kind="ray"))
    (gpu,) = (f for f in checkup.examine(on_nodes) if f.name == "gpu")
    assert (gpu.ok, "on the cluster's nodes" in gpu.text) == (True, True)


def test_a_gpu_on_which_torch_cannot_compute_is_told_in_torchs_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkup, "_missing_for_kernels", list)
    monkeypatch.setattr(checkup, "_COMPUTE", "import sys; sys.exit('The driver is too old')")
    found = gpu_check(monkeypatch, cpu=False)
    assert not found.ok
    assert "torch computes nothing there: The driver is too old; `nvidia-smi`" in found.text
    monkeypatch.setattr(checkup, "_COMPUTE", "print('CUDA 13.0')")
    monkeypatch.setattr(nvidia, "gpu_names", lambda: ["GB10"])
    assert gpu_check(monkeypatch, cpu=False) == checkup.Finding("gpu", True, "GB10, with CUDA 13.0")


def test_what_kernels_for_a_gpu_are_compiled_with_is_told_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    found = gpu_check(monkeypatch, cpu=False)
    assert (found.ok, found.text) == (
        *(False, f"missing: gcc, {tmp_path}/Python.h; `make system` installs them"),
    )
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc")
    assert checkup._missing_for_kernels() == []


def test_a_model_that_cannot_be_trained_is_told_in_the_evening(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    model = shutil.copytree(parts[0], tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "logits_scaling": 8.0}))
    run = write_run(tmp_path / "nights" / "r", model, parts[1])
    bad = {f.name: f.text for f in examine_run(RunFolder(run)) if not f.ok}
    assert list(bad) == ["training"]
    assert "logits_scaling in its config.json" in bad["training"]


def test_a_prompt_beyond_the_context_and_a_seed_beyond_the_workspace_are_told_in_the_evening(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "nights" / "r", *parts)
    pool = tmp_path / "nights" / "pool.jsonl"
    first, *others = pool.read_text().splitlines()
    task = json.loads(first)
    task["prompt"] = "word " * 5000
    pool.write_text("\n".join([json.dumps(task), *others]) + "\n")
    bad = {f.name: f.text for f in examine_run(RunFolder(run)) if not f.ok}
    assert list(bad) == ["prompts"]
    assert f"{pool}: task {task['task_id']}: its opening prompt has" in bad["prompts"]
    task["prompt"] = "word"
    stub = {"path": "disk.img", "kind": "binary-stub", "content": 60_000_000}
    task["info"]["workspace_seed"]["files"].append(stub)
    pool.write_text("\n".join([json.dumps(task), *others]) + "\n")
    bad = {f.name: f.text for f in examine_run(RunFolder(run)) if not f.ok}
    assert list(bad) == ["tasks"]
    assert "more than sandbox.workspace_bytes" in bad["tasks"]


@pytest.fixture
def none_registered() -> Iterator[None]:
    yield
    register_environments({}, ROOT)


def with_environment(folder: Path, parts: tuple[Path, Path], **table: object) -> RunFolder:
    """A run whose tasks are rows of the environment `game`, which the table describes."""
    model, adapter = parts
    tables = {"envs.game": {"passes": "reward >= 1", **table}}
    run = write_run(folder / "r", model, adapter, **tables)
    for split, first in (("pool", 0), ("heldout", 10)):
        rows = [
            {"environment": "game", "prompt": "Play.", "database": "penguins", "answer": first + i}
            for i in range(4)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return RunFolder(run)


def test_an_environment_writes_its_prompts_so_they_are_not_measured(
    parts: tuple[Path, Path], tmp_path: Path, none_registered: None
) -> None:
    run = with_environment(tmp_path, parts, use="tests/rollout/envs/counter.py:Counter")
    findings = {f.name: f for f in examine_run(run)}
    assert [f.name for f in findings.values() if not f.ok] == []
    assert findings["envs"].text == "game (tests/rollout/envs/counter.py:Counter)"
    check = f"`grpo env check game --run {run.typed}` measures them"
    assert findings["prompts"].text == f"not measured: an environment writes them; {check}"


SQL = {
    "use": "rollout.envs.sql.sql_env:SqlEnv",
    "rewards": {"rollout.envs.sql.sql_rewards:correctness": 1.0},
}
NO_DATABASE = r"penguins\.sqlite: no such database; `\S+ -m rollout\.envs\.sql` makes"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (SQL, NO_DATABASE),
        (
            {"serve": "docs/openenv/guess_server.py:app", "python": "gone/bin/python"},
            r"gone/bin/python: no such program; `python3 -m venv \S+/gone ",
        ),
        ({"serve": "gone.py:app", "python": "gone/bin/python"}, r"gone\.py: no such file"),
        (
            {"use": "gone.py", "style": "verifiers", "python": sys.executable},
            r"envs\.game\.use: \S+gone\.py: no such file",
        ),
    ],
    ids=["database", "python", "app", "file"],
)
def test_what_an_environment_lacks_is_told_in_the_evening_with_what_makes_it(
    parts: tuple[Path, Path],
    tmp_path: Path,
    none_registered: None,
    monkeypatch: pytest.MonkeyPatch,
    table: dict[str, object],
    said: str,
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    bad = {f.name: f.text for f in examine_run(with_environment(tmp_path, parts, **table))}
    assert re.search(said, bad["envs"]), bad["envs"]


def test_it_is_told_of_a_run_on_a_cluster_too_whose_yardsticks_are_played_here(
    parts: tuple[Path, Path],
    tmp_path: Path,
    none_registered: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("scripts.doctor.run_checks.check_cluster", lambda ctx: "one node")
    run = with_environment(tmp_path, parts, **SQL)
    run.config.write_text(f'{run.config.read_text()}\n[cluster]\nkind = "ray"\n')
    bad = {f.name: f.text for f in examine_run(run)}
    assert re.search(NO_DATABASE, bad["envs"]), bad["envs"]


def test_a_copy_without_weights_cannot_go_on_and_this_is_told() -> None:
    (weights,) = [f for f in examine_run(RunFolder(ROOT / "runs/sql-0")) if f.name == "weights"]
    assert not weights.ok
    assert "not in this copy" in weights.text
    assert "`grpo run sql-0-again` play it again" in weights.text


def test_an_address_in_engine_urls_that_does_not_answer_is_told_in_the_evening(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    url = f"http://{HOST}:{free_port(0)}"
    run = write_run(tmp_path / "nights" / "r", *parts, engine={"urls": [url]})
    bad = {f.name: f.text for f in examine_run(RunFolder(run)) if not f.ok}
    assert list(bad) == ["outside servers"]
    assert f"`curl {url}/v1/models` asks it" in bad["outside servers"]


def test_an_engine_that_would_end_under_an_overlap_is_told_in_the_evening_as_it_is_typed_here(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "nights" / "r", *parts, run={"overlap": 1})
    bad = {f.name: f.text for f in examine_run(RunFolder(run), "none") if not f.ok}
    assert list(bad) == ["overlap"]
    assert f"`grpo run {run} --sandbox none --set engine.lifecycle=hotswap`" in bad["overlap"]


def test_an_engine_that_this_machine_cannot_start_is_told_in_the_evening(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "nights" / "r", *parts, engine={"lifecycle": "sleep"})
    bad = {f.name: f.text for f in examine_run(RunFolder(run)) if not f.ok}
    assert list(bad) == ["engine"]
    assert 'engine.lifecycle: "sleep" is for a GPU' in bad["engine"]


def test_settings_that_cannot_be_read_are_all_there_is_to_say(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    run = write_run(tmp_path / "nights" / "r", *parts, rollout={"groupsize": 4})
    (finding,) = examine_run(RunFolder(run))
    assert not finding.ok
    assert "did you mean 'group_size'?" in finding.text
