"""What a person can get wrong, typed as a person types it: exit code, what, where, what next.

No case gets as far as a server. Whatever is refused has written nothing but its own log. One case
of each exit code is a process of its own (`typed`).
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import TinyModel
from tests.scripts import typed
from tests.scripts.cli.in_process import Ended, grpo
from tests.scripts.typed import BAD_INPUT, SHORTAGE, UNAVAILABLE, python
from tests.tiny_model import make_adapter
from tests.tiny_policy import write_run, write_tasks


@pytest.fixture(scope="module")
def parts(tiny: TinyModel) -> tuple[Path, Path]:
    return tiny.folder, tiny.adapter(1)


@pytest.fixture
def run(parts: tuple[Path, Path], tmp_path: Path) -> Path:
    """A sound run that was not started."""
    return write_run(tmp_path / "nights" / "r", *parts)


def change(run: Path, old: str, new: str) -> None:
    text = (run / "run.toml").read_text()
    assert old in text
    (run / "run.toml").write_text(text.replace(old, new))


def apart(*words: str | Path) -> Ended:
    """The command in a process of its own."""
    done = typed.grpo(*words)
    return Ended(done.returncode, done.stdout, done.stderr)


def refused(run: Path, code: int, *says: str, command: Callable[..., Ended] = grpo) -> None:
    """`grpo start` ends with this code and these words, and wrote nothing that a start writes."""
    ended = command("start", run)
    assert ended.code == code, ended
    for words in says:
        assert words in ended.error
    assert not (run / "manifest.json").exists()
    assert not (run / "step-000").exists()


def test_a_run_that_does_not_exist_names_the_command_that_makes_it() -> None:
    ended = grpo("run", "no-such-run")
    assert ended.code == BAD_INPUT
    assert "`grpo new no-such-run` makes it" in ended.error


def test_an_unknown_key_names_the_nearest_known_one(run: Path) -> None:
    change(run, "group_size", "groupsize")
    refused(run, BAD_INPUT, "run.toml", "[rollout]", "did you mean 'group_size'?", command=apart)


def test_a_value_of_the_wrong_type_is_named(run: Path) -> None:
    change(run, "group_size = 4", 'group_size = "four"')
    refused(run, BAD_INPUT, "rollout.group_size")


def test_a_file_cannot_leave_out_the_sandbox(run: Path) -> None:
    change(run, "[model]", '[sandbox]\nkind = "none"\n\n[model]')
    refused(run, BAD_INPUT, "run.toml: sandbox.kind", f"`grpo run {run} --sandbox none`")
    ended = grpo("run", run, "--sandbox", "none")
    assert ended.code == BAD_INPUT, "nor where it is typed as well: it is said in one place"
    assert not (run / "manifest.json").exists()


def test_synth_refuses_a_file_for_a_folder_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    ended = grpo("synth", "--out", tmp_path / "file")
    assert ended.code == BAD_INPUT
    file = tmp_path / "file"
    assert f"{file}: is a file; name a folder: `grpo synth --out {file}-tasks`" in ended.error
    said = (ended.out + ended.error).replace(str(tmp_path), "")
    assert "0/" not in said, "no task was played"
    assert file.read_text() == "mine"


def test_prove_names_the_dtypes_that_a_server_has(tmp_path: Path) -> None:
    ended = grpo("prove", tmp_path, "--serving", "nonsense")
    assert ended.code == BAD_INPUT
    assert "--serving" in ended.error
    assert "'bfloat16'" in ended.error


def test_prove_says_how_the_model_of_another_adapter_is_named(tiny: TinyModel) -> None:
    adapter = tiny.adapter(1)
    ended = grpo("prove", adapter)
    assert ended.code == BAD_INPUT
    assert f"prove {adapter} --model MODEL` names its model" in ended.error
    gone = grpo("prove", adapter / "gone")
    assert "gone: no such adapter folder" in gone.error
    assert "--model" not in gone.error


def test_text_that_is_no_toml_is_named_with_its_line(run: Path) -> None:
    change(run, "[model]", "[model")
    refused(run, BAD_INPUT, "run.toml", "line")


def test_a_group_of_one_is_refused(run: Path) -> None:
    change(run, "group_size = 4", "group_size = 1")
    refused(run, BAD_INPUT, "group_size")


def test_an_empty_pool_is_refused(run: Path) -> None:
    (run.parent / "pool.jsonl").write_text("")
    refused(run, BAD_INPUT, "pool.jsonl")


def test_a_pool_that_shares_a_task_with_the_held_out_set_is_refused(run: Path) -> None:
    pool = run.parent / "pool.jsonl"
    pool.write_text(pool.read_text() + (run.parent / "heldout.jsonl").read_text())
    refused(run, BAD_INPUT, "pool.jsonl:7", "heldout.jsonl:1")


def test_a_task_of_an_unknown_environment_is_named_with_its_line(run: Path) -> None:
    pool = run.parent / "pool.jsonl"
    pool.write_text(pool.read_text().replace('"env":"clawgym"', '"env":"clawgim"', 1))
    refused(run, BAD_INPUT, "pool.jsonl:1", "clawgim", "clawgym")


def test_a_model_folder_that_is_not_there_is_named(run: Path, parts: tuple[Path, Path]) -> None:
    change(run, str(parts[0]), "/nowhere/model")
    refused(run, BAD_INPUT, "/nowhere/model")


def test_an_adapter_of_another_shape_names_the_tensor(
    run: Path, parts: tuple[Path, Path], tmp_path: Path
) -> None:
    wrong = make_adapter(tmp_path / "wrong", parts[0], rank=4)
    config = json.loads((wrong / "adapter_config.json").read_text())
    (wrong / "adapter_config.json").write_text(json.dumps({**config, "r": 8}))
    change(run, str(parts[1]), str(wrong))
    refused(run, BAD_INPUT, "lora_A")


def test_an_adapter_that_is_not_there_names_what_makes_one(
    run: Path, parts: tuple[Path, Path]
) -> None:
    change(run, str(parts[1]), "/nowhere/adapter")
    refused(run, BAD_INPUT, "/nowhere/adapter", f"name a LoRA adapter for {parts[0]}")
    change(run, str(parts[0]), "smol")  # the one base that `grpo sft` makes adapters for
    refused(run, BAD_INPUT, "/nowhere/adapter", "grpo sft")


def test_more_disk_than_there_is_is_said_before_anything_is_written(run: Path) -> None:
    change(run, "steps = 2", "steps = 100000000")
    refused(run, SHORTAGE, "GiB free on this disk", command=apart)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_busy_port_is_named_before_a_server_is_started(run: Path, taken_port: int) -> None:
    change(run, "[engine]", f"[engine]\nport = {taken_port}")
    change(run, "preflight = false", "preflight = true")
    refused(run, UNAVAILABLE, str(taken_port), command=apart)


def test_more_memory_than_there_is_is_said_before_a_server_is_started(run: Path) -> None:
    change(run, "kv_cache_gib = 0.25", "kv_cache_gib = 100000\nmemory_seconds = 1")
    change(run, "preflight = false", "preflight = true")
    refused(run, SHORTAGE)


@pytest.mark.parametrize("phase", ["rollout", "train", "eval"])
def test_a_phase_that_is_typed_by_hand_refuses_a_run_that_was_started_otherwise(
    run: Path, phase: str
) -> None:
    assert grpo("start", run).code == 0
    change(run, "lr = 0.001", "lr = 0.002")
    ended = grpo(phase, run)
    assert ended.code == BAD_INPUT, ended.error
    assert f"not started yet with trainer.lr as it is now; `grpo start {run}`" in ended.error
    change(run, "lr = 0.002", "lr = 0.001")
    shutil.copytree(run / "step-000", run / "step-001")
    summary = json.loads((run / "step-000" / "step.json").read_text())
    (run / "step-001" / "step.json").write_text(json.dumps(summary | {"step": 1}))
    change(run, "lr = 0.001", "lr = 0.003")
    ended = grpo(phase, run)
    assert ended.code == BAD_INPUT, ended.error
    assert "trainer.lr was 0.001 when the run started and is now 0.003" in ended.error


def test_a_malformed_bundle_line_is_named(run: Path) -> None:
    bundle = run / "trajectory_bundle.jsonl"
    bundle.write_text('{"schema":1,"step":1}\n')
    config = run / "run.toml"
    adapter = _of(config, "adapter")
    words = ["--bundle", str(bundle), "--out-dir", str(run / "out"), "--adapter-init", adapter]
    words += ["--model", _of(config, "path"), "--reference-adapter", adapter]
    ended = python("trainer", *words)
    assert ended.returncode == BAD_INPUT, ended.stderr
    assert "trajectory_bundle.jsonl:1" in ended.stderr
    assert not (run / "out").exists()


def _of(config: Path, key: str) -> str:
    line = next(
        li for li in config.read_text(encoding="utf-8").splitlines() if li.startswith(f"{key} = ")
    )
    return str(json.loads(line.partition(" = ")[2]))


def test_tasks_check_reports_every_bad_line(tmp_path: Path) -> None:
    file = write_tasks(tmp_path / "tasks.jsonl", 2, "t")
    assert grpo("tasks", "check", file).code == 0
    text = file.read_text().replace('"file_exists"', '"file_is"', 1)
    file.write_text(text.replace('"done.txt"', '"../done.txt"'))
    ended = grpo("tasks", "check", file)
    assert ended.code == BAD_INPUT
    assert "tasks.jsonl:1" in ended.out
    assert "tasks.jsonl:2" in ended.out
