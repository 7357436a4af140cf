"""`grpo use`: its lines are run as they are printed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from fieldkit.files.atomic import write_json
from fieldkit.training.adapter import CONFIG_FILE, WEIGHTS_FILE
from scripts.prepare.use import CONVERTER
from scripts.run.folder import RunFolder
from tests.scripts.cli.in_process import grpo as typed_here
from tests.scripts.typed import BAD_INPUT, grpo


@pytest.fixture
def night(policy: tuple[Path, Path], tmp_path: Path) -> RunFolder:
    """A run whose newest adapter is that of step 1."""
    model_dir, adapter = policy
    folder = RunFolder(tmp_path / "night")
    folder.path.mkdir()
    folder.config.write_text(
        f"[model]\npath = {json.dumps(str(model_dir))}\n[engine]\nmax_model_len = 1024\n"
    )
    for n in (0, 1):
        shutil.copytree(adapter, folder.adapter(n))
        write_json(folder.summary(n), {})
    return folder


def commands(night: RunFolder, *words: str) -> dict[str, list[str]]:
    """The printed lines by the way to use the adapter."""
    done = grpo("use", night.path, *words, "--json")
    assert done.returncode == 0, done.stderr
    return {way["name"]: way["commands"] for way in json.loads(done.stdout)}


def typed(line: str, cwd: Path) -> str:
    """What a line prints when it is typed in a folder."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        line, shell=True, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_of_a_hubs_model_the_copy_that_the_run_began_with_is_named(
    night: RunFolder, policy: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's `main` may have moved since, and another revision is another model."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    night.config.write_text('[model]\npath = "some/model"\n')
    began = {"config": {"model": {"path": "some/model"}}, "model": {"dir": str(policy[0])}}
    write_json(night.manifest, {"schema": 1, **began})
    assert str(policy[0]) in commands(night)["load"][0]


def test_nothing_is_downloaded_to_say_how_an_adapter_is_used(
    night: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    night.config.write_text('[model]\npath = "some/model"\n')
    done = grpo("use", night.path)
    assert done.returncode == BAD_INPUT
    assert "some/model: no copy of the run's model is here; `" in done.stderr
    assert f"grpo doctor {night.path}` downloads it" in done.stderr


def test_the_adapter_is_loaded_and_answers(night: RunFolder, tmp_path: Path) -> None:
    [line] = commands(night)["load"]
    assert str(night.adapter(1)) in line
    assert "Hello" in typed(line, tmp_path)


def test_the_merged_model_answers_as_model_and_adapter_do(
    night: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)  # the line names a folder below this one
    ways = commands(night, "--step", "0")
    typed(ways["merge"][0], tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(str(tmp_path / "merged" / "night-0"))
    [path] = [w for w in shlex.split(ways["merge"][0]) if w.startswith("from peft")]
    assert str(night.adapter(0)) in path
    model_dir = night.config.read_text().split('"')[1]
    base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=merged.dtype)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    alone = base(ids).logits
    adapted = PeftModel.from_pretrained(base, str(night.adapter(0)))
    wanted, found = adapted(ids).logits, merged(ids).logits
    # Rounding of merged weights must stay well below what the adapter changes.
    assert (found - wanted).abs().max() < 0.2 * (alone - wanted).abs().max()


def test_the_conversion_is_printed_where_its_tool_is(
    night: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLAMA_CPP", raising=False)
    if shutil.which(CONVERTER) is None:
        assert commands(night)["convert"] == []
        assert "set LLAMA_CPP to the clone" in grpo("use", night.path).stdout
    # Prints what it is given, as the real one converts it.
    (tmp_path / CONVERTER).write_text("import sys; print(sys.argv[1:])")
    monkeypatch.setenv("LLAMA_CPP", str(tmp_path))
    [line] = commands(night)["convert"]
    assert str(night.adapter(1)) in typed(line, tmp_path)


def test_the_runs_chat_template_is_served_loaded_and_merged(
    night: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.jinja"
    file.write_text("{% if loud %}LOUD{% endif %}{{ messages[0].content }}")
    toml = night.config.read_text()
    mine = f'chat_template = "{file}"\nchat_template_kwargs = {{ loud = true }}\n'
    night.config.write_text(toml.replace("[engine]", f"{mine}[engine]"))
    ways = commands(night)
    serve = shlex.split(ways["serve"][0])
    assert serve[serve.index("--chat-template") + 1] == str(file)
    switches = serve[serve.index("--default-chat-template-kwargs") + 1]
    assert json.loads(switches) == {"loud": True}
    assert typed(ways["load"][0], tmp_path).startswith("LOUDHello")
    typed(ways["merge"][0], tmp_path)
    merged = tmp_path / "merged" / "night-1" / "chat_template.jinja"
    assert merged.read_text() == file.read_text()
    # The template of an adapter's tokenizer may be in its settings alone.
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ 1 }}"}')
    night.config.write_text(toml.replace("[engine]", f'chat_template = "{tmp_path}"\n[engine]'))
    assert "'{{ 1 }}'" in commands(night)["serve"][0]


def test_a_step_that_is_not_there_is_bad_input(night: RunFolder) -> None:
    done = grpo("use", night.path, "--step", "7")
    assert done.returncode == BAD_INPUT
    assert "no adapter of step 7; there are 0 to 1: `" in done.stderr
    assert f"use {night.path} --step 1`" in done.stderr


def test_a_committed_run_says_that_its_weights_are_not_here() -> None:
    done = grpo("use", "first-night")
    assert done.returncode == BAD_INPUT
    assert "weights are not here" in done.stderr
    assert "run first-night-again` play it again" in done.stderr


@pytest.mark.parametrize("name", [WEIGHTS_FILE, CONFIG_FILE])
@pytest.mark.parametrize("left", [None, b"", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_copy_without_a_whole_adapter_names_the_file_and_what_to_type(
    night: RunFolder, name: str, left: bytes | None
) -> None:
    def damaged(n: int) -> str:
        file = night.adapter(n) / name
        file.unlink() if left is None else file.write_bytes(left)
        ended = typed_here("use", night.path)
        assert ended.code == BAD_INPUT
        [line] = ended.error.splitlines()
        assert str(night.adapter(1) / name) in line
        return line

    assert f"use {night.path} --step 0` uses another step's" in damaged(1)
    if left is None:
        assert "-again` play it again" in damaged(0)


def test_a_run_without_a_finished_step_has_no_adapter_yet(night: RunFolder) -> None:
    for n in (0, 1):
        night.summary(n).unlink()
    ended = typed_here("use", night.path)
    assert ended.code == BAD_INPUT
    assert f"run {night.path}` begins" in ended.error


@pytest.mark.engine
def test_the_served_adapter_answers(night: RunFolder, tmp_path: Path) -> None:
    serve, ask = commands(night)["serve"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    log = tmp_path / "log"
    with log.open("wb") as out:
        words = shlex.split(serve)
        server = subprocess.Popen(words, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        deadline = time.monotonic() + 600
        while not _answers():
            late = time.monotonic() > deadline
            assert server.poll() is None, log.read_text()[-3000:]
            assert not late, log.read_text()[-3000:]
            time.sleep(1)  # vLLM tells nobody when it is ready
        reply = json.loads(typed(ask, tmp_path))
        assert reply["model"] == night.version(1)
        assert reply["choices"][0]["message"]["content"]
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(60)


def _answers() -> bool:
    try:
        return httpx.get("http://localhost:8000/health").status_code == 200
    except httpx.TransportError:
        return False
